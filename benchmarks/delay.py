"""Claim: delayed messages come on time under load, and a killed broker loses none.

Sends messages of the delay levels 1 to 4 (1 s, 5 s, 10 s, 30 s) at a steady rate, kills the broker
with SIGKILL midway, starts it again, and compares when each message came with when it was due.

    python benchmarks/delay.py [--count 10000] [--rate 2000] [--kernel native]

Claim: as many messages for a moment as one likes may wait, and those that are due come in time.

With ``--waiting`` so many messages wait for moments of the next day, and for each of ``--seconds``
so many more as ``--due`` says. Told is how late those came behind their moments, and behind the
ends of their steps (``timerPrecisionMs``), the broker's memory before and after, its processor time
for each of both, and what a send for a moment costs beside a plain one.

    python benchmarks/delay.py --waiting 1000000 [--due 20000] [--seconds 60] [--sends 20000]

Claim: none of very many messages for one moment is lost, and others are served meanwhile.

With ``--at-once`` so many are sent for one moment. Another process sends and pulls a message of
another topic again and again: told is how long that took before, while they were sent, and while
they were delivered.

    python benchmarks/delay.py --at-once 2000000
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.clients import delays
from tests.support.servers.up import Up

from benchmarks import pops
from benchmarks.peers import Target, cpu_seconds, our_broker
from kerolox.client import PullConsumer
from kerolox.message import PropertyKey, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import encode_batch

DELAYS_MS = (1_000, 5_000, 10_000, 30_000)

TOPIC, QUEUES = "Delayed", 4
BODY = b"x" * 100
IN_BATCH = 32
"""Messages of one moment that are sent at once."""
IN_FLIGHT = 64
DAY_MS = 86_400_000
STEP_MS = 1_000
LATE_MS = 1_000
"""Later than this behind the end of its step no more than one message in a hundred may come."""

OTHERS_MS_MAX = 100
"""So long others may wait for a send and a pull, 99 times of a hundred."""
BESIDE, PROBE_SECONDS = "Beside", 0.01
TRIED = 20_000
"""Messages that are sent for another day, so that it is known how long the others take."""


def report(found: delays.Delays) -> int:
    """Print the counts and how late the messages came; 1 when one was lost or early."""
    late = found.late_ms()
    outage = found.outage
    print(f"acknowledged {len(found.acknowledged_ms)}, lost {len(found.lost)}, ", end="")
    print(f"early {len(found.early)}, delivered again {found.again}")
    if outage is not None:
        print(f"outage {outage.ready_ms - outage.killed_ms} ms, from the kill to the first answer")
    print(f"late, of {len(late)} that were not due in the outage: {places(late)}")
    return 1 if found.lost or found.early else 0


def places(sorted_ms: list[int]) -> str:
    """Some of the values, as text."""
    parts = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    texts = [f"{name} {sorted_ms[int(len(sorted_ms) * part)]} ms" for name, part in parts.items()]
    return f"{', '.join(texts)}, most {sorted_ms[-1]} ms"


async def measure(count: int, rate: int, kernel: str) -> delays.Delays:
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-delay-") as folder,
        Up(Path(folder), kernel=kernel) as up,
    ):
        return await delays.run(
            up, count=count, rate=rate, delays_ms=DELAYS_MS, kill_after=count // 2
        )


# -- many that wait -------------------------------------------------------------------------------
class Wire(asyncio.Protocol):
    """A connection that gives its answers one by one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            if len(self._data) < end:
                break
            self.answers.put_nowait(RemotingCommand.decode(bytes(self._data[4:end])))
            del self._data[:end]


def frame(queue_id: int, properties: dict[str, str], count: int = 1) -> bytes:
    """A send of one message, or of a batch."""
    fields = {
        "a": "delays", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(now_ms()), "h": "0", "i": encode_properties(properties), "j": "0", "k": "false",
        "m": "true" if count > 1 else "false",
    }  # fmt: skip
    body, code = BODY, RequestCode.SEND_MESSAGE_V2
    if count > 1:
        body, code = encode_batch([(0, BODY, b"")] * count), RequestCode.SEND_BATCH_MESSAGE
    return RemotingCommand.request(code, ext_fields=fields, body=body).encode()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def give(wire: Wire, frames: Iterator[bytes]) -> None:
    """Send all, some of them in flight; each has to be stored."""
    waiting = 0

    async def answered() -> None:
        answer = await wire.answers.get()
        assert answer.code == 0, answer.remark

    for each in frames:
        wire.transport.write(each)
        waiting += 1
        if waiting == IN_FLIGHT:
            await answered()
            waiting -= 1
    for _ in range(waiting):
        await answered()


def timed(count: int, begin_ms: int, length_ms: int) -> Iterator[bytes]:
    """Batches for moments within some time."""
    for number in range(0, count, IN_BATCH):
        moment = begin_ms + random.randrange(length_ms)
        size = min(IN_BATCH, count - number)
        yield frame(number // IN_BATCH % QUEUES, {PropertyKey.TIMER_DELIVER: str(moment)}, size)


def memory_mb(target: Target) -> float:
    """Memory of the process's own; the files that it maps belong to the page cache."""
    lines = Path(f"/proc/{target.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1_000


class Cost(NamedTuple):
    """The broker's processor time for a message, in microseconds."""

    plain: float
    timed: float


async def cost_of_sends(wire: Wire, target: Target, count: int) -> Cost:
    """Of single sends, both kinds in turn."""
    used = {True: 0.0, False: 0.0}
    for is_timed in (False, True) * 3:
        far = str(now_ms() + DAY_MS)
        properties = {PropertyKey.TIMER_DELIVER: far} if is_timed else {"TAGS": "a"}
        frames = (frame(n % QUEUES, {"UNIQ_KEY": f"k{n}", **properties}) for n in range(count // 3))
        before = cpu_seconds(target.pid)
        await give(wire, frames)
        # What follows of a send counts: the way into the wheel.
        await asyncio.sleep(1)
        used[is_timed] += cpu_seconds(target.pid) - before
    return Cost(used[False] / count * 1e6, used[True] / count * 1e6)


async def arrivals(namesrv: str, count: int) -> list[tuple[int, int]]:
    """(moment, store time) of the messages that came."""
    found: list[tuple[int, int]] = []
    async with PullConsumer("delays", namesrv) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, is_over = 0, False
            while not is_over:
                result = await consumer.pull(queue, offset, max_messages=32)
                offset, is_over = result.next_offset, not result.messages
                found += [
                    (int(moment), message.store_timestamp)
                    for message in result.messages
                    if (moment := message.properties.get(PropertyKey.TIMER_DELIVER))
                ]
    return found


async def keep_waiting(target: Target, namesrv: str, chosen: argparse.Namespace) -> int:
    host, port = target.address.split(":")
    async with AsyncExitStack() as stack:
        _, wire = await asyncio.get_running_loop().create_connection(Wire, host, int(port))
        stack.callback(wire.transport.close)
        await give(wire, (frame(n % QUEUES, {"TAGS": "a"}) for n in range(1_000)))
        print(f"memory with none waiting: {memory_mb(target):.1f} MB")
        given, steps = 0, sorted({min(100_000, chosen.waiting), chosen.waiting})
        begin_ms = now_ms() + 1_800_000
        for step in steps:
            before = cpu_seconds(target.pid)
            await give(wire, timed(step - given, begin_ms, DAY_MS - 2_400_000))
            await asyncio.sleep(2)
            cpu_us = (cpu_seconds(target.pid) - before) / (step - given) * 1e6
            given = step
            print(f"memory with {step} waiting: {memory_mb(target):.1f} MB, {cpu_us:.1f} us each")
        cost = await cost_of_sends(wire, target, chosen.sends)
        print(f"a single send: {cost.plain:.1f} us, for a moment {cost.timed:.1f} us", end="")
        print(f", {cost.timed / cost.plain:.1f} times a plain one")
        due = chosen.due * chosen.seconds
        ahead_ms = 10_000 + due // 10
        begin_ms = (now_ms() + ahead_ms) // STEP_MS * STEP_MS
        await give(wire, timed(due, begin_ms, chosen.seconds * 1_000))
        assert now_ms() < begin_ms, "they could not be sent before they are due"
        await asyncio.sleep((begin_ms - now_ms()) / 1_000)
        before, end_ms = cpu_seconds(target.pid), begin_ms + (chosen.seconds + 1) * 1_000
        await asyncio.sleep((end_ms - now_ms()) / 1_000)
        cpu = cpu_seconds(target.pid) - before
        print(f"memory when {due} came: {memory_mb(target):.1f} MB, {cpu / due * 1e6:.1f} us each")
    return report_arrivals(await arrivals(namesrv, due), due)


def report_arrivals(came: list[tuple[int, int]], due: int) -> int:
    """Print how late they came; 1 when one is missing, early, or too many are late."""
    early = sum(stored < moment for moment, stored in came)
    late = sorted(stored - moment for moment, stored in came)
    behind = sorted(stored - (-moment // STEP_MS * -STEP_MS) for moment, stored in came)
    print(f"came {len(came)} of {due}, early {early}")
    print(f"late behind their moments: {places(late)}")
    print(f"late behind the ends of their steps: {places(behind)}")
    return 1 if len(came) != due or early or behind[int(len(behind) * 0.99)] > LATE_MS else 0


# -- many at once ---------------------------------------------------------------------------------
def probe(address: str, ending: Connection) -> None:
    """Send and pull a message until told to end; then give when each round was, and how long it
    took, in seconds."""
    wire, rounds, offset = pops.Wire(address), [], 0
    while not ending.poll(PROBE_SECONDS):
        begin = time.monotonic()
        fields = {
            "a": "beside", "b": BESIDE, "c": "TBW102", "d": "1", "e": "0", "f": "0",
            "g": str(now_ms()), "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        send = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=BODY)
        assert wire.ask(send).code == 0
        pulled = {
            "consumerGroup": "beside", "topic": BESIDE, "queueId": 0, "queueOffset": offset,
            "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        assert wire.ask(RemotingCommand.request(RequestCode.PULL_MESSAGE, pulled)).code == 0
        offset += 1
        rounds.append((begin, time.monotonic() - begin))
    ending.send(rounds)
    wire.close()


def stored(wire: pops.Wire) -> int:
    """How many messages the topic has."""
    fields = [{"topic": TOPIC, "queueId": queue_id} for queue_id in range(QUEUES)]
    asked = (RemotingCommand.request(RequestCode.GET_MAX_OFFSET, each) for each in fields)
    return sum(int(wire.ask(each).ext_fields["offset"]) for each in asked)


async def send_at_once(target: Target, count: int, moment_ms: int) -> None:
    host, port = target.address.split(":")
    _, wire = await asyncio.get_running_loop().create_connection(Wire, host, int(port))
    given = {PropertyKey.TIMER_DELIVER: str(moment_ms)}
    frames = [frame(queue_id, given, IN_BATCH) for queue_id in range(QUEUES)]
    await give(wire, (frames[number % QUEUES] for number in range(count // IN_BATCH)))
    wire.transport.close()


def deliver_at_once(target: Target, chosen: argparse.Namespace) -> int:
    count = chosen.at_once // IN_BATCH * IN_BATCH
    for topic, queues in ((TOPIC, QUEUES), (BESIDE, 1)):
        pops.make_topic(target, topic, queues)
    pops.make_group(target, "beside")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=probe, args=(target.address, theirs)
    )
    process.start()
    time.sleep(3)
    began = time.monotonic()
    asyncio.run(send_at_once(target, TRIED, now_ms() + DAY_MS))
    seconds = (time.monotonic() - began) / TRIED * count
    moment_ms = now_ms() + 10_000 + round(2_000 * seconds)
    began = time.monotonic()
    asyncio.run(send_at_once(target, count, moment_ms))
    sent = time.monotonic()
    assert now_ms() < moment_ms, "they could not be sent before they are due"
    time.sleep((moment_ms - now_ms()) / 1_000)
    due, wire, came = time.monotonic(), pops.Wire(target.address), 0
    while came < count and time.monotonic() < due + 2 * seconds + 30:
        time.sleep(0.2)
        came = stored(wire)
    done = time.monotonic()
    ours.send(None)
    rounds: list[tuple[float, float]] = ours.recv()
    process.join()
    print(f"{count} for one moment: sent in {sent - began:.1f} s, came {came}", end="")
    print(f" in {done - due:.1f} s, {memory_mb(target):.1f} MB of memory then")
    is_well = came == count
    for name, begin, end in (("before", 0.0, began), ("while sent", began, sent),
                             ("while delivered", due, done)):  # fmt: skip
        found = sorted(round(each * 1_000) for at, each in rounds if begin <= at < end)
        print(f"others' sends and pulls {name}: {len(found)}, {places(found)}")
        is_well &= found[int(len(found) * 0.99)] <= OTHERS_MS_MAX
    return 0 if is_well else 1


def wait_and_tell(chosen: argparse.Namespace) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-delay-") as folder,
        our_broker(Path(folder), chosen.kernel) as target,
    ):
        if chosen.at_once:
            return deliver_at_once(target, chosen)
        lines = (Path(folder) / "ready").read_text().splitlines()
        namesrv = dict(line.split("=") for line in lines)["namesrv"]
        return asyncio.run(keep_waiting(target, namesrv, chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--due", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--sends", type=int, default=30_000)
    chosen = parser.parse_args()
    if chosen.waiting or chosen.at_once:
        return wait_and_tell(chosen)
    return report(asyncio.run(measure(chosen.count, chosen.rate, chosen.kernel)))


if __name__ == "__main__":
    sys.exit(main())
