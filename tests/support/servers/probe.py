"""A well-behaved client and broker that run beside hostile ones, and examine every answer.

It is a process of its own, so that nothing that the scenario does holds it up: one after the other
it sends a message, pulls it, says a heartbeat, asks the name server for a route, and now and then
registers a broker of its own, reads a key-value and comes as a new connection. Where there is a
port for gRPC it sends, receives and acknowledges there, too.

The verdict (:meth:`Probe.verdict`) reads no clock. All answers are right; the server has no more
memory than the scenario allows; nothing is in its log that nobody foresaw, no line is long or raw,
and there are not too many. Where the server counts (``Up(counted=True)``), no callback and no turn
of its loop executed more lines than ``LINES_PER_CALLBACK_MAX`` and ``LINES_PER_TURN_MAX``, no turn
inflated more than ``INFLATED_PER_TURN_MAX`` or read more than ``READ_PER_TURN_MAX``, and no answer
to the probe took more than ``TURNS_WAITED_MAX`` turns.

How long each answer took is noted, too, for ``benchmarks/abuse.py``. What the machine does to it
is not the server's fault: so each time is that of the clock less what the server's loop and the
probe itself waited for a processor meanwhile (``/proc/<pid>/schedstat``), and less what other
machines on the same processors took (steal in ``/proc/stat``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kerolox.errors import ConnectError
from kerolox.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.protocol.registration import RegisterBody, encode_registration
from kerolox.remoting import AUDIT_LOGGER
from kerolox.remoting.audit import CHANGES_OF_ALL
from tests.support.clients.grpc_rounds import GrpcRounds
from tests.support.clients.patient import PatientConnection
from tests.support.clients.requests import heartbeat_body, pull_fields, send_fields, topic_fields
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers import forked
from tests.support.servers.counted import (
    LINES_PER_CALLBACK_MAX,
    LINES_PER_TURN_MAX,
    Figures,
    figures_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from tests.support.servers.up import Up

_Answer = TypeVar("_Answer")

__all__ = ["Probe", "Seen", "lines_of", "memory_mib"]

INFLATED_PER_TURN_MAX = 8 << 20
"""Some ten milliseconds."""

READ_PER_TURN_MAX = 16 << 20
"""Also what a thousand connections that bring a little may bring together."""

TURNS_WAITED_MAX = 100
"""From the turn in which a request of the probe is read to that in which it is answered."""

STEAL = 7
"""The column of ``/proc/stat``."""

LOG_LINES_PER_SECOND = 40
"""What a server may write in each second by the stamps of its lines: two kinds of lines, each
LINES_PER_SECOND_MAX times, of two seconds that overlap it."""

AUDIT = f" {AUDIT_LOGGER}: "
"""Lines about changes, which are not as rare as others: whoever changes much is told much."""

LOG_LINE_CHARACTERS_MAX = 2_000
"""Names and values are cut before they are logged."""

REGISTRATION_TURNS_WAITED_MAX = 1_000
"""The same for a registration, which takes turns with others of megabytes."""

ANSWERS_MIN = 40
"""After a short scenario the probe goes on until it has so many answers."""

ANSWER_SECONDS_MAX = SECONDS_MAX
"""Whoever has no answer by then has none; no judgement of how fast it came."""

PAUSE_SECONDS = 0.012
"""Between two rounds."""

END_SECONDS_MAX = SECONDS_MAX
"""Between the end of a scenario and that of the last answer."""

ROUNDS_PER_NEWCOMER = 8
TOPIC, TOPIC_BY_GRPC, GROUP = "Probe", "ProbeByGrpc", "probes"
BROKER_NAME, BROKER_ADDRESS, ROUTED = "probe-broker", "127.0.0.1:9", "ProbeRoute"
NAMESPACE, KEY, VALUE = "probe", "key", "value"

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")

UNFORESEEN = re.compile(
    r"Traceback|never retrieved|was never awaited|Exception in callback|Fatal error"
    r"|unhandled|panicked| (ERROR|CRITICAL) |Exception ignored"
)
"""What a broker's log has only when something happened that nobody foresaw."""


def memory_mib(pid: int) -> float:
    """A process's memory besides mapped files."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        kib = next(line.split()[1] for line in status if line.startswith("RssAnon"))
    return int(kib) / 1024


def lines_of(log: Path, begin: int = 0) -> list[str]:
    """The lines of a log from a byte on."""
    with log.open("rb") as file:
        file.seek(begin)
        return str(file.read(), "utf-8", "replace").splitlines()


@dataclass
class Seen:
    """What a probe has to say."""

    answers: list[tuple[str, float, float, float]]
    """(kind, milliseconds of the clock, those less the ones without a processor, those of them at
    most that the server's loop was at work)."""
    clients: list[str]
    """``ip:port`` of its connections."""
    registrar: str
    """The one of those on which it registers a broker, where registrations take turns."""
    memory_before_mib: float
    memory_most_mib: float
    wrong: str
    """What was wrong with an answer; empty: nothing."""

    @property
    def grown_mib(self) -> float:
        """By how much the server grew meanwhile."""
        return self.memory_most_mib - self.memory_before_mib


class Probe:
    """Watches both roles of an ``Up`` from entry to exit; then :meth:`verdict` judges."""

    def __init__(self, up: Up, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        """``pause_seconds``: between two rounds."""
        assert up.process is not None
        self.up = up
        self._pause_seconds = pause_seconds
        self._pid = up.process.pid
        self._process: subprocess.Popen[str] | None = None
        self._log_begin = up.log.stat().st_size
        self.seen: Seen | None = None
        self.figures: Figures | None = None
        """What the server counted meanwhile."""

    def __enter__(self) -> Self:
        self._process = forked.start(
            "tests.support.servers.probe",
            [self.up.broker, self.up.namesrv, self._pid, self.up.grpc_port, self._pause_seconds],
            os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "watching\n"
        if self.up.counted is not None:
            figures_of(self.up.counted)
        return self

    @property
    def pid(self) -> int:
        """Of the process that watches."""
        assert self._process is not None
        return self._process.pid

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        if error is not None:
            self._process.kill()
        out, _ = self._process.communicate(timeout=END_SECONDS_MAX)
        if error is None:
            assert self._process.returncode == 0, "the probe failed"
            data = json.loads(out)
            data["answers"] = [tuple(answer) for answer in data["answers"]]
            self.seen = Seen(**data)
            if self.up.counted is not None:
                self.figures = figures_of(self.up.counted)

    def verdict(self, *, memory_mib_max: float, log_lines_max: int = 200) -> Seen:
        """Judge what was seen.

        Args:
            memory_mib_max: what the scenario may cost at its worst moment.
            log_lines_max: lines that the server may have written in all, besides
                ``LOG_LINES_PER_SECOND`` of a scenario that takes its time.
        """
        seen = self.seen
        assert seen is not None
        assert not seen.wrong, seen.wrong
        assert len(seen.answers) >= ANSWERS_MIN, f"only {len(seen.answers)} answers were watched"
        if self.figures is not None:
            self._judge_work(self.figures, seen)
        assert seen.grown_mib <= memory_mib_max, f"the server grew by {seen.grown_mib:.0f} MiB"
        self._judge_log(log_lines_max)
        return seen

    def _judge_work(self, figures: Figures, seen: Seen) -> None:
        places = "\n".join(figures.places)
        most = figures.callback_lines_most
        assert most <= LINES_PER_CALLBACK_MAX, (
            f"a callback of the loop executed {most} lines, among others at\n{places}"
        )
        assert figures.lines_most <= LINES_PER_TURN_MAX, (
            f"an iteration of the event loop executed {figures.lines_most} lines, among others "
            f"at\n{places}"
        )
        inflated = figures.inflated_bytes_most
        assert inflated <= INFLATED_PER_TURN_MAX, f"a turn inflated {inflated} bytes"
        read = figures.read_bytes_most
        assert read <= READ_PER_TURN_MAX, f"a turn read {read} bytes"
        for client in seen.clients:
            waited = figures.waited.get(client, 0)
            is_registrar = client == seen.registrar
            most = REGISTRATION_TURNS_WAITED_MAX if is_registrar else TURNS_WAITED_MAX
            assert waited <= most, f"an answer came after {waited} iterations of the event loop"

    def _judge_log(self, log_lines_max: int) -> None:
        lines = self.log_lines()
        found = [line for line in lines if UNFORESEEN.search(line)]
        assert not found, found[:10]
        raw = [line for line in lines if not line.isprintable()]
        assert not raw, raw[:10]
        longest = max(lines, key=len, default="")
        assert len(longest) <= LOG_LINE_CHARACTERS_MAX, (len(longest), longest[:300])
        seconds = len({stamp[0] for line in lines if (stamp := _STAMP.match(line))})
        most = log_lines_max + LOG_LINES_PER_SECOND * seconds
        audited = [line for line in lines if AUDIT in line]
        others = len(lines) - len(audited)
        assert others <= most, f"{others} lines in the log, as {lines[-3:]}"
        assert len(audited) <= CHANGES_OF_ALL[1] + CHANGES_OF_ALL[0] * seconds

    def log_lines(self) -> list[str]:
        """What the server has logged since the probe came."""
        return lines_of(self.up.log, self._log_begin)


# -- the process that watches -----------------------------------------------------------------
class _Watch:
    def __init__(self, broker: str, namesrv: str, pid: int, grpc_port: int) -> None:
        self._broker_address = broker
        self._pid = pid
        self._clients: list[str] = []
        self._broker, self._namesrv = self._connect(broker), self._connect(namesrv)
        self._registrar = self._connect(namesrv)
        self._registrar_client = self._clients[-1]
        self._sent = 0
        self._answers: list[tuple[str, float, float, float]] = []
        self.stopping = threading.Event()
        for topic in (TOPIC, TOPIC_BY_GRPC):
            fields = topic_fields(topic, queues=1)
            self._ask(self._broker, _request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        key_value = {"namespace": NAMESPACE, "key": KEY, "value": VALUE}
        self._ask(self._namesrv, _request(RequestCode.PUT_KV_CONFIG, key_value))
        wait_until(self._is_routed, what="a route of the probe's topic")
        self._grpc = GrpcRounds(grpc_port, TOPIC_BY_GRPC) if grpc_port else None
        for _ in range(ROUNDS_PER_NEWCOMER):
            self._round()
        self._answers.clear()

    def watch(self, pause_seconds: float) -> Seen:
        before = most = memory_mib(self._pid)
        wrong = ""
        while not self.stopping.wait(pause_seconds) or len(self._answers) < ANSWERS_MIN:
            try:
                self._round()
            except Exception as error:
                wrong = f"round {self._sent}: {type(error).__name__}: {error}"
                break
            most = max(most, memory_mib(self._pid))
        return Seen(self._answers, self._clients, self._registrar_client, before, most, wrong)

    def _round(self) -> None:
        body = b"%d" % self._sent
        send = _request(RequestCode.SEND_MESSAGE_V2, send_fields(b=TOPIC), body)
        sent = self._timed("send", self._broker, send)
        offset = int(sent.ext_fields["queueOffset"])
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueOffset": offset, "sysFlag": 4}
        pull = _request(RequestCode.PULL_MESSAGE, pull_fields(**fields, maxMsgNums=1))
        pulled = self._timed("pull", self._broker, pull)
        got = [message.body for message in decode_records(pulled.body)]
        assert got == [body], f"message {self._sent} is {got}"
        if self._grpc is not None:
            self._grpc.round(body, self._measured)
        self._sent += 1
        self._timed("heartbeat", self._broker, _heartbeat())
        assert self._broker_address.encode() in self._route(TOPIC), "the route is another"
        if self._sent % ROUNDS_PER_NEWCOMER == 0:
            with self._connect(self._broker_address) as newcomer:
                self._timed("newcomer", newcomer, _heartbeat())
            self._timed("registration", self._registrar, _registration(self._sent))
            assert BROKER_ADDRESS.encode() in self._route(ROUTED), "the registration is gone"
            asked = _request(RequestCode.GET_KV_CONFIG, {"namespace": NAMESPACE, "key": KEY})
            value = self._timed("key-value", self._namesrv, asked).ext_fields.get("value")
            assert value == VALUE, f"the key-value is {value}"

    def _route(self, topic: str) -> bytes:
        asked = _request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return self._timed("route", self._namesrv, asked).body

    def _is_routed(self) -> bool:
        asked = _request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        return self._namesrv.invoke(asked, ANSWER_SECONDS_MAX).code == ResponseCode.SUCCESS

    def _connect(self, address: str) -> PatientConnection:
        connection = PatientConnection(address, connect_timeout_seconds=ANSWER_SECONDS_MAX)
        host, port = connection._socket.getsockname()
        self._clients.append(f"{host}:{port}")
        return connection

    def _timed(
        self, kind: str, connection: PatientConnection, command: RemotingCommand
    ) -> RemotingCommand:
        return self._measured(kind, lambda: self._ask(connection, command))

    def _measured(self, kind: str, ask: Callable[[], _Answer]) -> _Answer:
        counted, begin = self._counted_ms(), time.perf_counter()
        answer = ask()
        elapsed = (time.perf_counter() - begin) * 1000
        after = self._counted_ms()
        worked, waited, *stolen = (b - a for a, b in zip(counted, after, strict=True))
        served = max(elapsed - waited - max(stolen), 0.0)
        # Some kernels count as work what was stolen meanwhile.
        figures = elapsed, served, max(min(worked - max(stolen), served), 0.0)
        self._answers.append((kind, *(round(figure, 2) for figure in figures)))
        return answer

    def _ask(self, connection: PatientConnection, command: RemotingCommand) -> RemotingCommand:
        answer = connection.invoke(command, ANSWER_SECONDS_MAX)
        assert answer.code == ResponseCode.SUCCESS, (command.code, answer.code, answer.remark)
        return answer

    def _counted_ms(self) -> list[float]:
        """So far: what the server's loop has worked; what it and this thread have waited for a
        processor; what was stolen from each processor."""
        worked = waited = 0
        for name in ("/proc/self/schedstat", f"/proc/{self._pid}/schedstat"):
            with open(name, encoding="ascii") as file:
                worked, delay, _ = map(int, file.read().split())
                waited += delay
        with open("/proc/stat", encoding="ascii") as file:
            processors = [line.split() for line in file if re.match(r"cpu\d", line)]
        tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
        stolen = [int(columns[1 + STEAL]) * tick_ms for columns in processors]
        return [worked / 1e6, waited / 1e6, *stolen]


def _request(code: int, fields: Mapping[str, object], body: bytes = b"") -> RemotingCommand:
    return RemotingCommand.request(code, fields, body=body)


def _heartbeat() -> RemotingCommand:
    body = heartbeat_body("probe", group=GROUP, topics={TOPIC: "*"})
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=body)


def _registration(version: int) -> RemotingCommand:
    table = TopicConfigTable(
        data_version=DataVersion(counter=version, timestamp=version),
        topic_config_table={ROUTED: TopicConfig(topic_name=ROUTED)},
    )
    fields = {"brokerName": BROKER_NAME, "brokerAddr": BROKER_ADDRESS, "brokerId": 0}
    fields |= {"clusterName": "probes", "haServerAddr": BROKER_ADDRESS}
    body = encode_registration(RegisterBody(topic_config_serialize_wrapper=table))
    return _request(RequestCode.REGISTER_BROKER, fields, body)


def main() -> None:
    broker, namesrv, pid, grpc_port, pause_seconds = sys.argv[1:]
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            watch = _Watch(broker, namesrv, int(pid), int(grpc_port))
            break
        except ConnectError:
            if time.monotonic() > deadline:
                raise
    print("watching", flush=True)

    def stop_at_the_end_of_input() -> None:
        sys.stdin.read()
        watch.stopping.set()

    threading.Thread(target=stop_at_the_end_of_input, daemon=True).start()
    seen = watch.watch(float(pause_seconds))
    json.dump(seen.__dict__, sys.stdout)


if __name__ == "__main__":
    main()
