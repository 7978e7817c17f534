"""A well-behaved client that runs beside hostile ones, and says how long each answer took.

It is a process of its own, so that nothing that the story does holds it up: it sends a message,
pulls it, says a heartbeat, and now and then comes as a new connection, one after the other.

What the machine does to it is not the broker's fault. So each answer's time is that of the clock
less what the broker's loop and the witness itself waited for a processor meanwhile, which the
system counts for each thread (``/proc/<pid>/schedstat``), and less what other machines on the same
processors took (steal in ``/proc/stat``). What is left is the broker's doing: its loop was at work
for others, which is counted by itself, or asleep, waiting for a lock or for the disk.

The verdict (:meth:`Witness.verdict`): at least ``SHARE_WITHIN`` of all answers (all but
``LATE_MAX`` of a few) within ``SERVED_MS_MAX``, none after the loop was at work for
``WORKED_MS_WORST`` or after ``SERVED_MS_WORST``, all of them right; no more memory than the story
allows; nothing in the broker's log that nobody foresaw.
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
from typing import TYPE_CHECKING

from kerolox.errors import ConnectError
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_records
from kerolox.remoting.blocking import BlockingConnection

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tests.support.up import Up

__all__ = ["SERVED_MS_MAX", "Seen", "Witness", "lines_of", "memory_mib"]

SERVED_MS_MAX = 100.0
"""What others may wait for an answer while somebody is hostile."""

SHARE_WITHIN = 0.99
"""The part of all answers that must come within it: a disk may pause once, too."""

LATE_MAX = 2
"""So many late ones are no sign, however few answers there are."""

WORKED_MS_WORST = 1000.0
"""Before no answer may the loop be at work for longer."""

SERVED_MS_WORST = 5000.0
"""No answer may take longer. A disk pauses for a second, and on a bad day more than once."""

STEAL = 7
"""The column of ``/proc/stat``."""

LOG_LINES_PER_SECOND = 20
"""What a broker may write in each second: two kinds of lines, each LINES_PER_SECOND_MAX times."""

ANSWERS_MIN = 40
"""After a short story the witness goes on until it has so many answers."""

PAUSE_SECONDS = 0.004
"""Between two rounds."""

ROUNDS_PER_NEWCOMER = 8
TOPIC, GROUP = "Witness", "witnesses"

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
    """What a witness has to say."""

    answers: list[tuple[str, float, float, float]]
    """(kind, milliseconds of the clock, those less the ones without a processor, those of them at
    most that the broker's loop was at work)."""
    memory_before_mib: float
    memory_most_mib: float
    wrong: str
    """What was wrong with an answer; empty: nothing."""

    def slowest(self, count: int = 5) -> list[tuple[str, float, float, float]]:
        """The answers that took longest."""
        return sorted(self.answers, key=lambda answer: -answer[2])[:count]


class Witness:
    """Watches a broker from entry to exit; then :meth:`verdict` judges."""

    def __init__(self, up: Up) -> None:
        assert up.process is not None
        self.up = up
        self._pid = up.process.pid
        self._process: subprocess.Popen[str] | None = None
        self._log_begin = up.log.stat().st_size
        self._begin = self._end = 0.0
        self.seen: Seen | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.witness", self.up.broker, str(self._pid)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "watching\n"
        self._begin = time.monotonic()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        out, _ = self._process.communicate(timeout=60)
        self._end = time.monotonic()
        if error is None:
            assert self._process.returncode == 0, "the witness failed"
            data = json.loads(out)
            data["answers"] = [tuple(answer) for answer in data["answers"]]
            self.seen = Seen(**data)

    def verdict(
        self, *, memory_mib_max: float, log_lines_max: int = 200, late_max: int = LATE_MAX
    ) -> Seen:
        """Judge what was seen.

        Args:
            memory_mib_max: what the story may cost at its worst moment.
            log_lines_max: lines that the broker may have written in all, besides
                ``LOG_LINES_PER_SECOND`` of a story that takes its time.
            late_max: late answers that are no sign, however few answers there are, although the
                loop was at work for others all the time.
        """
        seen = self.seen
        assert seen is not None
        assert not seen.wrong, seen.wrong
        assert len(seen.answers) >= ANSWERS_MIN, f"only {len(seen.answers)} answers were watched"
        slowest = seen.slowest()
        told = f"of {len(seen.answers)} answers these came last: {slowest}"
        few = (1 - SHARE_WITHIN) * len(seen.answers)
        assert sum(answer[2] > SERVED_MS_MAX for answer in seen.answers) <= max(LATE_MAX, few), told
        assert sum(answer[3] > SERVED_MS_MAX for answer in seen.answers) <= max(late_max, few), told
        assert slowest[0][2] <= SERVED_MS_WORST, told
        assert max(answer[3] for answer in seen.answers) <= WORKED_MS_WORST, told
        grown = seen.memory_most_mib - seen.memory_before_mib
        assert grown <= memory_mib_max, f"the broker grew by {grown:.0f} MiB"
        lines = self.log_lines()
        found = [line for line in lines if UNFORESEEN.search(line)]
        assert not found, found[:10]
        most = log_lines_max + LOG_LINES_PER_SECOND * int(self._end - self._begin)
        assert len(lines) <= most, f"{len(lines)} lines in the log, as {lines[-3:]}"
        return seen

    def log_lines(self) -> list[str]:
        """What the broker has logged since the witness came."""
        return lines_of(self.up.log, self._log_begin)


# -- the process that watches -----------------------------------------------------------------
class _Watch:
    def __init__(self, address: str, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._connection = BlockingConnection(address)
        self._sent = 0
        self._answers: list[tuple[str, float, float, float]] = []
        self.stopping = threading.Event()
        fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "perm": 6}
        fields |= {"writeQueueNums": 1, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
        created = RemotingCommand.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "order": False}
        )
        self._ask(self._connection, created)
        for _ in range(ROUNDS_PER_NEWCOMER):
            self._round()
        self._answers.clear()

    def watch(self) -> Seen:
        before = most = memory_mib(self._pid)
        wrong = ""
        while not self.stopping.wait(PAUSE_SECONDS) or len(self._answers) < ANSWERS_MIN:
            try:
                self._round()
            except Exception as error:
                wrong = f"round {self._sent}: {type(error).__name__}: {error}"
                break
            most = max(most, memory_mib(self._pid))
        return Seen(self._answers, before, most, wrong)

    def _round(self) -> None:
        body = b"%d" % self._sent
        sent = self._timed("send", self._connection, _send(body))
        offset = int(sent.ext_fields["queueOffset"])
        pulled = self._timed("pull", self._connection, _pull(offset))
        got = [message.body for message in decode_records(pulled.body)]
        assert got == [body], f"message {self._sent} is {got}"
        self._sent += 1
        self._timed("heartbeat", self._connection, _heartbeat())
        if self._sent % ROUNDS_PER_NEWCOMER == 0:
            self._timed("newcomer", None, _heartbeat())

    def _timed(
        self, kind: str, connection: BlockingConnection | None, command: RemotingCommand
    ) -> RemotingCommand:
        counted, begin = self._counted_ms(), time.perf_counter()
        if connection is not None:
            answer = self._ask(connection, command)
        else:
            with BlockingConnection(self._address, connect_timeout_seconds=10) as newcomer:
                answer = self._ask(newcomer, command)
        elapsed = (time.perf_counter() - begin) * 1000
        after = self._counted_ms()
        worked, waited, *stolen = (b - a for a, b in zip(counted, after, strict=True))
        served = max(elapsed - waited - max(stolen), 0.0)
        # Some kernels count as work what was stolen meanwhile.
        figures = elapsed, served, max(min(worked - max(stolen), served), 0.0)
        self._answers.append((kind, *(round(figure, 2) for figure in figures)))
        return answer

    def _ask(self, connection: BlockingConnection, command: RemotingCommand) -> RemotingCommand:
        answer = connection.invoke(command, 60)
        assert answer.code == ResponseCode.SUCCESS, (command.code, answer.code, answer.remark)
        return answer

    def _counted_ms(self) -> list[float]:
        """So far: what the broker's loop has worked; what it and this thread have waited for a
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


def _send(body: bytes) -> RemotingCommand:
    fields = {**dict.fromkeys("afghj", "0"), "b": TOPIC, "c": "TBW102", "d": 1, "e": 0}
    fields |= {"i": "", "k": False, "m": False}
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=body)


def _pull(offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 1,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)


def _heartbeat() -> RemotingCommand:
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}],
        "unitMode": False,
    }
    body = {"clientID": "witness", "consumerDataSet": [consumer], "producerDataSet": []}
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_body(body))


def main() -> None:
    address, pid = sys.argv[1], int(sys.argv[2])
    deadline = time.monotonic() + 30
    while True:
        try:
            watch = _Watch(address, pid)
            break
        except ConnectError:
            if time.monotonic() > deadline:
                raise
    print("watching", flush=True)

    def stop_at_the_end_of_input() -> None:
        sys.stdin.read()
        watch.stopping.set()

    threading.Thread(target=stop_at_the_end_of_input, daemon=True).start()
    seen = watch.watch()
    json.dump(seen.__dict__, sys.stdout)


if __name__ == "__main__":
    main()
