"""Claim: a half message and its end together cost a broker less than 5 microseconds of CPU.

Messages of 128 B with properties go to a broker over one connection, 64 requests on their way:
plain ones, then half messages, one by one and in batches. END_HALF_MESSAGES ends all halves.
The broker's CPU time (user and system, all threads) is divided by the number of messages, in turn
over the rounds; medians. ``--single`` ends halves by END_TRANSACTION, too.

    python benchmarks/halves.py [--count 200000] [--rounds 3] [--kernel native] [--single]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import cpu_seconds, our_broker
from kerolox.message import MessageId, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.extensions.half_messages import (
    EndedHalves,
    HalfSelection,
    end_half_messages_request,
)
from kerolox.protocol.records import encode_batch

GROUP, SINK = "benchmark-sink", "8f14e45f-ceea-467f-a5ad-4d1c2c3b7a10/7/3/0"
BODY = bytes(128)
BATCH = 128
IN_FLIGHT = 64
QUEUES = 4
HALF = {"TRAN_MSG": "true", "PGROUP": GROUP, "KEROLOX_SINK": SINK}
OWN = {"KEYS": "order-000042", "region": "eu-1", "TAGS": "tag1"}


class Wire:
    """One connection; requests in frames, answers as commands."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", buffering=1 << 20)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self._socket.sendall(command.encode())
        return self._answer(keep=True)

    def ask_all(self, frames: Iterator[bytes], *, keep: bool = False) -> list[RemotingCommand]:
        """Send all frames, so many at a time; the answers when they are wanted."""
        answers: list[RemotingCommand] = []
        chunk: list[bytes] = []
        for frame in frames:
            chunk.append(frame)
            if len(chunk) == IN_FLIGHT:
                answers += self._exchange(chunk, keep)
                chunk = []
        return answers + self._exchange(chunk, keep)

    def _exchange(self, chunk: list[bytes], keep: bool) -> list[RemotingCommand]:
        self._socket.sendall(b"".join(chunk))
        answers = [self._answer(keep=keep) for _ in chunk]
        return answers if keep else []

    def _answer(self, *, keep: bool) -> RemotingCommand:
        data = self._file.read(int.from_bytes(self._file.read(4), "big"))
        if not keep:
            assert b'"code":0' in data, data[:300]
            return RemotingCommand(0, {})
        answer = RemotingCommand.decode(data)
        assert answer.code == 0, answer.remark
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def sends(count: int, *, is_half: bool) -> Iterator[bytes]:
    for number in range(count):
        text = encode_properties(
            {**OWN, "UNIQ_KEY": f"7F000001ABCD0123{number:016X}", **(HALF if is_half else {})}
        )
        yield request(RequestCode.SEND_MESSAGE_V2, number, text, BODY, is_half=is_half)


def batches(count: int, *, is_half: bool) -> Iterator[bytes]:
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        items = [
            (
                0,
                BODY,
                encode_properties({**OWN, "UNIQ_KEY": f"7F000001ABCD0123{n:016X}"}).encode(),
            )
            for n in numbers
        ]
        text = encode_properties(HALF) if is_half else ""
        body = encode_batch(items)
        yield request(RequestCode.SEND_BATCH_MESSAGE, first, text, body, is_half=is_half)


def request(code: int, number: int, text: str, body: bytes, *, is_half: bool) -> bytes:
    fields = {
        "a": GROUP,
        "b": "Halves",
        "c": "TBW102",
        "d": QUEUES,
        "e": number // BATCH % QUEUES,
        "f": 4 if is_half else 0,
        "g": time.time_ns() // 1_000_000,
        "h": 0,
        "i": text,
        "j": 0,
        "k": "false",
        "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
    }
    return RemotingCommand.request(code, fields, body=body).encode()


def end_all(wire: Wire, first: int, count: int, *, commit: bool) -> None:
    position, ended = first, 0
    selection = HalfSelection(attempts=[SINK])
    while position < first + count:
        asked = end_half_messages_request(GROUP, position, first + count, selection, commit=commit)
        done = EndedHalves.of(wire.ask(asked))
        position, ended = done.next_offset, ended + done.ended
    assert ended == count, f"{ended} of {count} are ended"


def end_each(wire: Wire, halves: list[RemotingCommand]) -> None:
    def ends() -> Iterator[bytes]:
        for half in halves:
            fields = {
                "producerGroup": GROUP,
                "tranStateTableOffset": half.ext_fields["queueOffset"],
                "commitLogOffset": MessageId.parse(half.ext_fields["msgId"]).physical_offset,
                "commitOrRollback": 8,
            }
            yield RemotingCommand.request(RequestCode.END_TRANSACTION, fields).encode()

    wire.ask_all(ends())


class Costs:
    """CPU microseconds of a broker for each message, by what was done."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.rows: dict[str, list[float]] = {}

    def measure(self, name: str, count: int, work: Callable[[], object]) -> None:
        before = cpu_seconds(self._pid)
        work()
        spent = cpu_seconds(self._pid) - before
        self.rows.setdefault(name, []).append(spent / count * 1e6)


def play(wire: Wire, costs: Costs, count: int, position: int, single: bool) -> int:
    """One round; where the half queue ends afterwards."""
    for is_half, kind in ((False, "plain"), (True, "half")):
        for way, made in (("one by one", sends), ("in batches", batches)):
            frames = iter(list(made(count, is_half=is_half)))
            costs.measure(f"{kind}, {way}", count, partial(wire.ask_all, frames))
    for name, commit in (("commit", True), ("rollback", False)):
        costs.measure(name, count, partial(end_all, wire, position, count, commit=commit))
        position += count
    if single:
        few = min(count, 10_000)
        halves = wire.ask_all(sends(few, is_half=True), keep=True)
        costs.measure("END_TRANSACTION", few, partial(end_each, wire, halves))
        position += few
    return position


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--single", action="store_true")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-halves-") as folder,
        our_broker(Path(folder), chosen.kernel) as target,
    ):
        wire, costs = Wire(target.address), Costs(target.pid)
        # The first half makes the topics; it is ended, too.
        wire.ask_all(sends(1, is_half=False))
        wire.ask_all(sends(1, is_half=True))
        end_all(wire, 0, 1, commit=True)
        position = 1
        for _ in range(chosen.rounds):
            position = play(wire, costs, chosen.count, position, chosen.single)
        wire.close()
    print(f"{chosen.kernel}, {chosen.count:,} messages of {len(BODY)} B, {chosen.rounds} rounds")
    print("| what | broker CPU, µs each | least | most |")
    print("|---|---|---|---|")
    for name, values in costs.rows.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:.2f} | {min(values):.2f} | {max(values):.2f} |")
    middle_of = {name: statistics.median(values) for name, values in costs.rows.items()}
    for kind in ("one by one", "in batches"):
        whole = middle_of[f"half, {kind}"] + middle_of["commit"]
        plain = middle_of[f"plain, {kind}"]
        times = whole / max(plain, 0.01)
        print(f"half {kind} and commit: {whole:.2f} µs, {times:.1f} times a plain send")
    return 0


if __name__ == "__main__":
    sys.exit(main())
