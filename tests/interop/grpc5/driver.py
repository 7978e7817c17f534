"""Drives the program of a client: a line of JSON for each thing that it is to do, a line for each
answer and for what its listeners see.

=============  ====================================================================================
``producer``   ``topics``; bodies of open transactions say how a check ends: commit, rollback
``send``       ``topic``, ``body``, ``tag``, ``keys``, ``properties``, ``group``, ``at`` (ms, 0: at
               once), ``level`` (of delay, clients of 4.x), ``transaction``; its answer: ``id``,
               ``recall`` (a handle)
``sends``      ``topic``, ``bodies``: all in one call, in Rust alone; its answer: the ids
``end``        ``body`` of a transaction, ``how``: commit, rollback
``recall``     ``topic``, ``handle``; its answer: the id
``simple``     ``group``, ``topic``, ``expression``, ``sql``; it waits 5 s for messages
``receive``    ``count``, ``invisible`` (seconds); its answer: messages, each with a number ``n``
``ack``        ``n``
``change``     ``n``, ``seconds``
``push``       as ``simple``, and ``failures``: a body that begins with "fail" fails so often
``close``
=============  ====================================================================================

All name a client (``name``). Those that make one have ``endpoint``, ``tls``, ``key``, ``secret``.
Listeners say ``event``: ``consumed`` with a ``message``, ``checked`` with a ``body``.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.eventually import wait_until
from tests.support.programs import (
    RUNS_ALL,
    build_cpp_client,
    build_go_clients,
    build_go_grpc_client,
    build_node_clients,
    build_node_grpc_client,
    build_python_grpc_client,
    build_rust_grpc_client,
    java_by_grpc,
    java_command,
)
from tests.support.servers.tls import Authority

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

__all__ = [
    "CLIENTS",
    "LACKS",
    "OLD_CLIENTS",
    "WITHOUT_PUSH",
    "WITH_BATCH",
    "Client",
    "ClientError",
    "Driver",
    "Drivers",
    "Server",
]

CLIENTS = ("java", "node", "python", "go", *(["rust"] if RUNS_ALL else []))
"""That in Rust runs with ``KEROLOX_SOFTWARE=all``: its build is dear."""

WITHOUT_PUSH = ("rust",)
"""Clients that have no push consumer."""

WITH_BATCH = ("rust",)
"""Clients that send several messages in one call."""

OLD_CLIENTS = ("kerolox", "java4", "node4", "go4", "cpp4")
"""Clients of remoting: ``producer``, ``send`` and ``push`` alone; their endpoint is that of a name
server."""

ANSWER_SECONDS_MAX = 90
RECEIVED_TOO_EARLY = '"settings" is null'
"""A client may receive before RocketMQ's proxy has its settings, and is answered so."""


LACKS = "the client has no "
"""A program says so where its library has no means for something."""


class ClientError(Exception):
    """What a client's library raised."""


class Server(NamedTuple):
    """Where a client connects, and as whom."""

    endpoint: str
    tls: bool = False
    key: str = ""
    secret: str = ""


class Driver:
    """The process of one kind of client.

    Args:
        kind: one of :data:`CLIENTS` or :data:`OLD_CLIENTS`.
        home: below which it may write.
        authority: a file of certificates that it trusts.
    """

    def __init__(self, kind: str, home: Path, authority: Path) -> None:
        self.kind, self.home, self._authority = kind, home, authority
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        command = {
            "java": lambda: java_by_grpc(home=self.home),
            "node": lambda: ["node", str(build_node_grpc_client())],
            "go": lambda: [str(build_go_grpc_client())],
            "rust": lambda: [str(build_rust_grpc_client())],
            "python": lambda: [sys.executable, str(build_python_grpc_client())],
            "kerolox": lambda: [sys.executable, "-m", "tests.interop.grpc5.kerolox_driver"],
            "java4": lambda: java_command("interop.Driver", options=(f"-Duser.home={self.home}",)),
            "go4": lambda: [str(build_go_clients()), "drive"],
            "cpp4": lambda: [sys.executable, str(build_cpp_client().with_name("driver.py"))],
            "node4": lambda: ["node", str(build_node_clients().with_name("driver.js"))],
        }[self.kind]()
        environment = {
            **os.environ,
            "HOME": str(self.home),
            "rocketmq.client.logRoot": str(self.home),  # of that in Go
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self._authority),
        }
        self._log = self.home / f"{self.kind}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue  # A library's own word.
            said = json.loads(line)
            if "event" in said:
                self.events.append(said)
            elif "error" in said:
                self._answers.pop(said["id"]).set_exception(ClientError(said["error"]))
            else:
                self._answers.pop(said["id"]).set_result(said.get("value"))
        for waiting in list(self._answers.values()):
            waiting.set_exception(AssertionError(f"the program ended:\n{self._log.read_text()}"))

    def ask(self, do: str, **members: object) -> Any:
        """Have it do something; ClientError: the library refuses it."""
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        line = json.dumps({"id": number, "do": do, **members})
        with self._writing:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        return answer.result(ANSWER_SECONDS_MAX)


class Drivers:
    """A process of each kind of client, begun when it is needed, and the authority that all trust.

    Args:
        folder: below which they may write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = Authority(folder)
        self._begun: dict[str, Driver] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, kind: str) -> Driver:
        """The one of a kind."""
        if kind not in self._begun:
            driver = Driver(kind, self._folder, self.authority.ca)
            self._begun[kind] = self._stack.enter_context(driver)
        return self._begun[kind]


class Client:
    """Clients of one kind at one server, with a topic and a group."""

    def __init__(self, driver: Driver, server: Server, topic: str, group: str = "") -> None:
        self.driver, self.server = driver, server
        self.kind = driver.kind
        self.topic, self.group = topic, group or topic

    def _made(self, do: str, role: str, server: Server | None, **members: object) -> str:
        name = f"{role}-{next(self.driver._numbers)}"
        place = (server or self.server)._asdict()
        self.driver.ask(do, name=name, **place, **members)
        return name

    def producer(self, server: Server | None = None) -> str:
        """Start a producer; its name."""
        return self._made("producer", "producer", server, topics=[self.topic])

    def send(
        self,
        producer: str,
        body: str,
        *,
        topic: str = "",
        tag: str = "",
        keys: Sequence[str] = (),
        properties: dict[str, str] | None = None,
        group: str = "",
        at: int = 0,
        level: int = 0,
        transaction: bool = False,
    ) -> dict[str, Any]:
        """Send a message: ``id`` and ``recall``."""
        sent: dict[str, Any] = self.driver.ask(
            "send",
            name=producer,
            topic=topic or self.topic,
            body=body,
            tag=tag,
            keys=keys,
            properties=properties or {},
            group=group,
            at=at,
            level=level,
            transaction=transaction,
        )
        return sent

    def sends(self, producer: str, bodies: list[str]) -> list[str]:
        """Send several messages in one call: their ids."""
        if self.kind not in WITH_BATCH:
            raise ClientError(f"{LACKS}batch")
        ids: list[str] = self.driver.ask("sends", name=producer, topic=self.topic, bodies=bodies)
        return ids

    def simple(
        self, expression: str = "*", *, sql: bool = False, server: Server | None = None
    ) -> str:
        """Start a simple consumer; its name."""
        members = {"group": self.group, "topic": self.topic, "expression": expression, "sql": sql}
        return self._made("simple", "simple", server, **members)

    def push(
        self,
        expression: str = "*",
        *,
        sql: bool = False,
        failures: int = 0,
        server: Server | None = None,
    ) -> str:
        """Start a push consumer; its name."""
        members = {"group": self.group, "topic": self.topic, "expression": expression, "sql": sql}
        return self._made("push", "push", server, failures=failures, **members)

    def receive(self, consumer: str, count: int, *, ack: bool = True) -> list[dict[str, Any]]:
        """Receive so many messages, and acknowledge them."""
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            try:
                some = self.driver.ask("receive", name=consumer, count=16, invisible=30)
            except ClientError as error:
                if RECEIVED_TOO_EARLY not in str(error):
                    raise
                some = []
            for each in some:
                found.append(each)
                if ack:
                    self.driver.ask("ack", name=consumer, n=each["n"])
            return len(found) >= count

        wait_until(has_all, what=f"{count} messages of {self.topic}")
        return found

    def change(self, consumer: str, message: dict[str, Any], seconds: int) -> None:
        """Change the invisible time of a message."""
        self.driver.ask("change", name=consumer, n=message["n"], seconds=seconds)

    def listener(self) -> str:
        """Start a push consumer; a simple one of a library that has no other."""
        return self.simple() if self.kind in WITHOUT_PUSH else self.push()

    def taken_until(self, consumer: str, bodies: set[str]) -> None:
        """Wait until a :meth:`listener` had messages with these bodies, among others."""
        if self.kind not in WITHOUT_PUSH:
            self.consumed_until(consumer, bodies)
            return
        missing = set(bodies)
        while missing:
            missing -= {each["body"] for each in self.receive(consumer, 1)}

    def seen(self, consumer: str) -> list[dict[str, Any]]:
        """What the listener of a push consumer got so far."""
        events = [each for each in self.driver.events if each["name"] == consumer]
        return [each["message"] for each in events if each["event"] == "consumed"]

    def consumed(self, consumer: str, count: int) -> list[dict[str, Any]]:
        """What the listener of a push consumer got, when it is as much as that."""
        wait_until(
            lambda: len(self.seen(consumer)) >= count,
            what=f"{count} messages at the listener of {self.topic}",
        )
        return self.seen(consumer)

    def consumed_until(self, consumer: str, bodies: set[str]) -> list[dict[str, Any]]:
        """What the listener of a push consumer got, when these are among it."""
        wait_until(
            lambda: bodies <= {each["body"] for each in self.seen(consumer)},
            what=f"{bodies} at the listener of {self.topic}",
        )
        return self.seen(consumer)

    def checked(self, producer: str) -> set[str]:
        """Bodies of the transactions that a producer was asked about so far."""
        events = [each for each in self.driver.events if each["name"] == producer]
        return {each["body"] for each in events if each["event"] == "checked"}

    def close(self, *names: str) -> None:
        """Close clients."""
        for name in names:
            self.driver.ask("close", name=name)
