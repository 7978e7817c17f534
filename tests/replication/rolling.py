"""Clients of Java, Go and ours that go on while brokers are replaced and change their roles: each
sends with the retries of its own alone and takes all messages of a topic, and notes what it did."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from kerolox.client.sync import Producer, ProducerSettings, PushConsumer, PushConsumerSettings
from kerolox.errors import KeroloxError
from kerolox.message import Message
from tests.support.eventually import SECONDS_MAX, until
from tests.support.growing import GrowingFile
from tests.support.programs import build_go_clients, java_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kerolox.message import MessageExt

__all__ = [
    "KINDS",
    "Diary",
    "OurClients",
    "Program",
    "clients_of",
    "java_client",
    "until_all_came",
    "until_busy",
]

PAUSE_SECONDS = 0.03
"""Between two messages of ours."""

KINDS = ("java", "go", "ours")


class Diary:
    """What clients did, in lines of one file: the kind, the client, and a body or a reason.

    Kinds are ``sent``, ``failed`` and ``took``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GrowingFile(path)
        self._words: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    def words(self, kind: str) -> dict[str, list[str]]:
        """By client: what follows in the lines of a kind. Each line is read once."""
        for line in self._file.new_lines():
            first, client, rest = line.split(" ", 2)
            self._words[first][client].append(rest)
        return self._words[kind]

    def counts(self, *kinds: str) -> dict[tuple[str, str], int]:
        """By kind and client: how many lines there are."""
        return {
            (kind, client): len(words)
            for kind in kinds
            for client, words in self.words(kind).items()
        }

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")


class Program:
    """A client of Java or Go."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def stop_sending(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) != "stopped\n":
            assert line, "the program has ended"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class OurClients:
    """A producer and a consumer of ours, as the programs."""

    def __init__(self, namesrv: str, topic: str, diary: Diary) -> None:
        self._topic, self._diary = topic, diary
        polls = {"route_poll_interval_ms": 500, "heartbeat_interval_ms": 500}
        polls["api_timeout_ms"] = 10_000
        settings = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET", **polls)
        self._consumer = PushConsumer("rolling-ours", namesrv, settings=settings)
        self._consumer.subscribe_each(topic, "*", self._take)
        # RocketMQ's own retries, and no more.
        settings = ProducerSettings(send_timeout_ms=10_000, **polls)
        self._producer = Producer("rolling-ours-sends", namesrv, settings=settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._consumer.start()
        self._producer.start()
        self._thread.start()

    def _take(self, message: MessageExt) -> None:
        self._diary.note(f"took ours {message.body.decode()}")

    def _send(self) -> None:
        number = 0
        while not self._stopping.wait(PAUSE_SECONDS):
            body = f"ours{number}"
            number += 1
            try:
                result = self._producer.send(Message(self._topic, body.encode()))
            except KeroloxError as error:
                self._diary.note(f"failed ours {error}")
            else:
                self._diary.note(f"sent ours {body} {result.status.name}")

    def stop_sending(self) -> None:
        self._stopping.set()
        self._thread.join()

    def end(self) -> None:
        self.stop_sending()
        self._producer.close()
        self._consumer.close()


def java_client(namesrv: str, topic: str, diary: Diary) -> Program:
    """Java's, which asks for routes twice a second and gives a send 10 s, its retries included."""
    return Program(java_command("interop.Rolling", namesrv, topic, str(diary.path)))


@contextlib.contextmanager
def clients_of(namesrv: str, topic: str, diary: Diary) -> Iterator[Sequence[Program | OurClients]]:
    """One client of each of ``KINDS`` that sends to a topic and takes all of it."""
    with contextlib.ExitStack() as stack:
        clients: list[Program | OurClients] = []
        clients.append(java_client(namesrv, topic, diary))
        stack.callback(clients[-1].end)
        go = [str(build_go_clients()), namesrv, "rolling", topic, str(diary.path)]
        clients.append(Program(go))
        stack.callback(clients[-1].end)
        clients.append(OurClients(namesrv, topic, diary))
        stack.callback(clients[-1].end)
        yield clients


async def until_busy(diary: Diary, share: int) -> None:
    """Wait until each client has sent and taken so many more messages."""
    before = diary.counts("sent", "took")

    def is_busy() -> bool:
        now = diary.counts("sent", "took")
        return all(
            now.get((kind, client), 0) >= before.get((kind, client), 0) + share
            for kind in ("sent", "took")
            for client in KINDS
        )

    await until(is_busy, what=f"{share} more messages of all clients")


async def until_all_came(diary: Diary) -> int:
    """Wait until each client has taken what all have sent; how many messages that are."""
    sent = {line.split()[0] for lines in diary.words("sent").values() for line in lines}

    def has_all() -> bool:
        took = diary.words("took")
        return all(sent <= set(took[client]) for client in KINDS)

    await until(has_all, seconds=2 * SECONDS_MAX, what=f"{len(sent)} messages at all clients")
    return len(sent)
