"""Claim: pops with acknowledgements have 0.6 of our pull's rate, 5 times that of Java 5.3.3.

A bare loop on four connections, each with a pop on its way and the acknowledgement of the pop
before it in the same write: a batch of acknowledgements for pops of 32 messages of 128 B, a single
one for pops of one. Pulls of as many messages are its peer, and with ``--java`` a broker of
RocketMQ 5.3.3, whose jars are in that folder. All in turn over the rounds; medians.

    python benchmarks/pops.py [--count 200000] [--rounds 3] [--kernel native] [--java FOLDER]

``--consumers 200`` runs the load of so many members of one queue instead, with 20 ms of work for
each message; one of them stops for ever. ``--out 1000000`` asks for so many messages without an
acknowledgement, and says what is out, what it costs, and how long others wait beside.

Prints tables; exits with 1 below a floor.
"""

from __future__ import annotations

import argparse
import base64
import functools
import heapq
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.clients.requests import topic_fields
from tests.support.servers.probe import memory_mib
from tests.support.servers.up import free_port

from benchmarks.peers import READY_SECONDS_MAX, Target, cpu_seconds, our_broker
from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.pop import BatchAck
from kerolox.protocol.records import encode_batch
from kerolox.security.credentials import Signer

PULL_FLOOR, JAVA_FLOOR, JAVA_CPU_FLOOR = 0.6, 5.0, 0.2
LOAD_FLOOR, OTHERS_MS_MAX = 0.95, 100
TOPIC, QUEUES, BODY = "Pops", 4, bytes(128)
FILL_BATCH = 64
BUSY_TRIES_MAX = 100
SIZES = (32, 1)
INVISIBLE_MS = 600_000
WORK_SECONDS = 0.02
POP_OPAQUE = 1
"""Of pops alone: an answer to an acknowledgement before one may come behind it."""


class Wire:
    """One connection; whole frames in and out."""

    def __init__(self, address: str, signer: Signer | None = None) -> None:
        """``signer``: signs what is asked."""
        self._signer = signer
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> bytes:
        """The next frame, with its length."""
        data = self._data
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = self.socket.recv(1 << 18)
            if not more:
                raise RuntimeError("the broker closed the connection")
            data += more
        size = 4 + int.from_bytes(data[:4], "big")
        self._data = data[size:]
        return data[:size]

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        if self._signer is not None:
            self._signer.sign(command)
        self.send(command.encode())
        return RemotingCommand.decode(self.frame()[4:])

    def close(self) -> None:
        self.socket.close()


def pop_frame(
    group: str,
    count: int,
    *,
    queue_id: int = -1,
    invisible_ms: int = INVISIBLE_MS,
    poll_ms: int = 3_600_000,
    topic: str = TOPIC,
) -> bytes:
    """A pop as a Java client writes it."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "maxMsgNums": count,
        "invisibleTime": invisible_ms,
        "pollTime": poll_ms,
        "bornTime": time.time_ns() // 1_000_000 if poll_ms else 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    command = RemotingCommand.request(RequestCode.POP_MESSAGE, fields)
    command.opaque = POP_OPAQUE
    return command.encode()


class Batch(NamedTuple):
    """What a pop got of one queue; all of a run, as without a filter."""

    kind: str
    queue_id: str
    start: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on it


def _member(frame: bytes, name: bytes) -> str:
    at = frame.find(b'"' + name + b'":"')
    if at < 0:
        return ""
    at += len(name) + 4
    return frame[at : frame.index(b'"', at)].decode()


def batches_of(frame: bytes) -> tuple[str, list[Batch]]:
    """Pop time and batches of an answer; none: nothing was found."""
    pop_time = _member(frame, b"popTime")
    starts, offsets = _member(frame, b"startOffsetInfo"), _member(frame, b"msgOffsetInfo")
    if not starts:
        return pop_time, []
    return pop_time, [
        Batch(kind, queue_id, first, text.count(",") + 1)
        for (kind, queue_id, first), text in zip(
            map(str.split, starts.split(";")), offsets.split(";"), strict=True
        )
    ]


@functools.cache
def _bits(count: int) -> str:
    return base64.b64encode(BatchAck.bits(0, range(count))).decode()


@functools.cache
def _batch_header() -> bytes:
    command = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE)
    return command.encode()[4:]


def ack_frames(group: str, pop_time: str, batches: list[Batch], *, is_single: bool) -> bytes:
    """The acknowledgements of a pop, as Java clients write them."""
    if is_single:
        return b"".join(
            ack_frame(group, pop_time, each, int(each.start) + place)
            for each in batches
            for place in range(each.count)
        )
    acks = ",".join(
        f'{{"b":"{_bits(each.count)}","c":"{group}","it":{INVISIBLE_MS},"pt":{pop_time},'
        f'"q":{each.queue_id},"r":"{each.kind}","rq":0,"so":{each.start},"t":"{TOPIC}"}}'
        for each in batches
    )
    whole = _batch_header() + f'{{"acks":[{acks}],"brokerName":"broker-a"}}'.encode()
    return len(whole).to_bytes(4, "big") + whole


def ack_frame(group: str, pop_time: str, batch: Batch, offset: int, topic: str = TOPIC) -> bytes:
    """The acknowledgement of one message."""
    receipt = (
        f"{batch.start} {pop_time} {INVISIBLE_MS} 0 {batch.kind} broker-a {batch.queue_id} {offset}"
    )
    name = topic if batch.kind == "0" else f"%RETRY%{group}_{topic}"
    header = (
        f'{{"code":200051,"extFields":{{"consumerGroup":"{group}","extraInfo":"{receipt}",'
        f'"offset":"{offset}","queueId":"{batch.queue_id}","topic":"{name}"}},"flag":0,'
        '"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":453}'
    ).encode()
    size = len(header)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header


def fill(
    target: Target,
    count: int,
    topic: str = TOPIC,
    queues: int = QUEUES,
    *,
    signer: Signer | None = None,
    tag: str = "",
) -> None:
    """Store so many messages of 128 B, in batches."""
    wire = Wire(target.address, signer)
    properties = {"KEYS": "order-000042", "region": "eu-1"} | ({"TAGS": tag} if tag else {})
    item = (0, BODY, encode_properties(properties).encode())
    body = encode_batch([item] * FILL_BATCH)
    for number in range(count // FILL_BATCH):
        fields = {
            "a": "fill",
            "b": topic,
            "c": "TBW102",
            "d": queues,
            "e": number % queues,
            "f": 0,
            "g": time.time_ns() // 1_000_000,
            "h": 0,
            "i": "",
            "j": 0,
            "k": "false",
            "m": "true",
        }
        # A Java broker on a busy machine refuses what waited for 200 ms.
        for _ in range(BUSY_TRIES_MAX):
            request = RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, fields, body=body)
            if (answer := wire.ask(request)).code != ResponseCode.SYSTEM_BUSY:
                break
        assert answer.code == 0, answer.remark
    wire.close()


def make_group(target: Target, group: str, signer: Signer | None = None) -> None:
    """A group as an operator makes it."""
    wire = Wire(target.address, signer)
    body = json.dumps({"groupName": group, "consumeEnable": True, "retryMaxTimes": 16}).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    answer = wire.ask(RemotingCommand.request(code, body=body))
    assert answer.code == 0, answer.remark
    wire.close()


def make_topic(target: Target, topic: str, queues: int, signer: Signer | None = None) -> None:
    wire = Wire(target.address, signer)
    fields = topic_fields(topic, queues=queues)
    answer = wire.ask(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    assert answer.code == 0, answer.remark
    wire.close()


def run_pops(target: Target, group: str, size: int, count: int) -> int:
    """Pop and acknowledge about so many messages; how many."""
    wires = [Wire(target.address) for _ in range(QUEUES)]
    frame = pop_frame(group, size)
    open_acks = [0] * len(wires)
    for wire in wires:
        wire.send(frame)
    done = 0
    while done < count:
        for index, wire in enumerate(wires):
            for _ in range(open_acks[index]):
                answer = wire.frame()
                assert b'"code":0' in answer[:400], answer[:400]
            pop_time, batches = batches_of(wire.frame())
            acks = b""
            if batches:
                acks = ack_frames(group, pop_time, batches, is_single=size == 1)
            got = sum(each.count for each in batches)
            open_acks[index] = got if size == 1 else bool(batches)
            done += got
            wire.send(acks + frame)
    for wire in wires:
        wire.close()
    return done


def run_pulls(target: Target, group: str, size: int, count: int) -> int:
    """Pull about so many messages, each connection from a queue of its own."""
    wires = [Wire(target.address) for _ in range(QUEUES)]
    offsets = [0] * len(wires)

    def ask(queue_id: int) -> None:
        fields = {
            "consumerGroup": group,
            "topic": TOPIC,
            "queueId": queue_id,
            "queueOffset": offsets[queue_id],
            "maxMsgNums": size,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        wires[queue_id].send(RemotingCommand.request(RequestCode.PULL_MESSAGE, fields).encode())

    for queue_id in range(QUEUES):
        ask(queue_id)
    done = 0
    while done < count:
        for queue_id, wire in enumerate(wires):
            next_offset = int(_member(wire.frame(), b"nextBeginOffset"))
            done += max(next_offset - offsets[queue_id], 0)
            offsets[queue_id] = next_offset
            ask(queue_id)
    for wire in wires:
        wire.close()
    return done


class Row(NamedTuple):
    """A run: messages a second, microseconds of the broker's CPU for each."""

    rate: float
    cpu: float


def measured(target: Target, work: Callable[[], int]) -> Row:
    before, begin = cpu_seconds(target.pid), time.monotonic()
    done = work()
    seconds = time.monotonic() - begin
    return Row(done / seconds, (cpu_seconds(target.pid) - before) / done * 1e6)


@contextmanager
def java5_broker(data: Path, lib: Path) -> Iterator[Target]:
    """Name server and broker of the jars in a folder."""
    home, port, names = data / "home", free_port(), free_port()
    (home / "conf").mkdir(parents=True)
    java = ["java", "-server", f"-Duser.home={home}", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]
    opens = ("java.nio", "sun.nio.ch", "jdk.internal.ref")
    java += [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in opens]
    java += ["-XX:MaxDirectMemorySize=1g", "-cp", f"{lib}/*"]
    (data / "names.conf").write_text(f"listenPort={names}\n")
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": f"127.0.0.1:{names}",
        "storePathRootDir": data / "store",
        "storePathCommitLog": data / "store" / "commitlog",
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
    }
    (data / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
    environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
    started = []
    with (data / "log").open("w") as log:
        for name, conf in (("namesrv.Namesrv", "names.conf"), ("broker.Broker", "broker.conf")):
            command = [*java, f"org.apache.rocketmq.{name}Startup", "-c", str(data / conf)]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
            deadline = time.monotonic() + READY_SECONDS_MAX
            while (data / "log").read_text().count("boot success") < len(started):
                if started[-1].poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"not ready: {(data / 'log').read_text()[-2000:]}")
                time.sleep(0.1)
    try:
        yield Target("java", f"127.0.0.1:{port}", started[-1].pid)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


# -- speed ----------------------------------------------------------------------------------------
def run_speed(chosen: argparse.Namespace, folder: Path) -> bool:
    rows: dict[tuple[str, str, int], list[Row]] = {}
    with ExitStack() as stack:
        targets = [stack.enter_context(our_broker(folder / "ours", chosen.kernel))]
        if chosen.java:
            (folder / "java").mkdir()
            targets.append(stack.enter_context(java5_broker(folder / "java", chosen.java)))
        for target in targets:
            make_topic(target, TOPIC, QUEUES)
            fill(target, chosen.count + QUEUES * 4096)
        for number in range(chosen.rounds):
            for target in targets:
                for size in SIZES:
                    count = chosen.count if size > 1 else chosen.count // 20
                    if target.label == "java":
                        count //= 4
                    group = f"pops-{number}-{size}"
                    make_group(target, group)
                    ways = [("pop + ack", partial(run_pops, target, group, size, count))]
                    if target.label != "java":
                        ways.append(("pull", partial(run_pulls, target, "pulls", size, count)))
                    for way, work in ways:
                        found = measured(target, work)
                        rows.setdefault((target.label, way, size), []).append(found)
    print(f"{chosen.count:,} messages of {len(BODY)} B, {chosen.rounds} rounds, medians")
    print("| broker | what | messages | msg/s | CPU, µs each |\n|---|---|---|---|---|")
    middle = {}
    for (label, way, size), runs in rows.items():
        rate = statistics.median(each.rate for each in runs)
        cpu = statistics.median(each.cpu for each in runs)
        middle[label, way, size] = Row(rate, cpu)
        print(f"| {label} | {way} | {size} | {rate:,.0f} | {cpu:.2f} |")
    return is_fast(middle, chosen.kernel)


def is_fast(middle: dict[tuple[str, str, int], Row], ours: str) -> bool:
    """Print the ratios; whether all floors hold."""
    is_good = True
    for size in SIZES:
        pops, pulls = middle[ours, "pop + ack", size], middle[ours, "pull", size]
        ratio = pops.rate / pulls.rate
        floor = f" (floor {PULL_FLOOR})" if size > 1 else ""
        print(
            f"of {size}: {ratio:.2f} of the pull's rate{floor}, {pops.cpu / pulls.cpu:.2f} times "
            "its CPU"
        )
        is_good &= size == 1 or ratio >= PULL_FLOOR
        java = middle.get(("java", "pop + ack", size))
        if java is not None:
            rate, cpu = pops.rate / java.rate, pops.cpu / java.cpu
            print(
                f"of {size}: {rate:.2f} times the rate of Java (floor {JAVA_FLOOR}), {cpu:.3f} of "
                f"its CPU ({JAVA_CPU_FLOOR})"
            )
            is_good &= rate >= JAVA_FLOOR and cpu <= JAVA_CPU_FLOOR
    return is_good


# -- load -----------------------------------------------------------------------------------------
class Consumer:
    """Pops, works for so long at each message, acknowledges the pop, and pops again."""

    def __init__(self, target: Target, group: str, size: int, invisible_ms: int) -> None:
        self.wire = Wire(target.address)
        self.pop = pop_frame(group, size, queue_id=0, invisible_ms=invisible_ms, poll_ms=60_000)
        self.group = group
        self.ready_at = 0.0
        self.acks = b""
        self.answers = 0
        """Answers to acknowledgements that are still to come."""
        self.offsets: list[tuple[str, int]] = []
        """(kind, offset) of what it has, or had last."""

    def ask(self) -> None:
        self.wire.send(self.acks + self.pop)
        self.answers = bool(self.acks)
        self.acks = b""

    def take(self) -> int:
        """What came: how many messages."""
        popped = b""
        for _ in range(1 + self.answers):
            frame = self.wire.frame()
            if b'"opaque":%d,' % POP_OPAQUE in frame[:1_000]:
                popped = frame
            else:
                assert b'"code":0' in frame[:400], frame[:400]
        pop_time, batches = batches_of(popped)
        self.acks = ack_frames(self.group, pop_time, batches, is_single=False) if batches else b""
        self.offsets = [
            (each.kind, int(each.start) + place) for each in batches for place in range(each.count)
        ]
        return len(self.offsets)


def run_consumers(chosen: argparse.Namespace, folder: Path) -> bool:
    """So many members of one queue; one stops with what it has, which comes again once."""
    size, invisible_ms = chosen.size, 3_000
    possible = chosen.consumers / WORK_SECONDS
    with our_broker(folder / "load", chosen.kernel) as target:
        make_topic(target, TOPIC, 1)
        fill(target, int(possible * (chosen.seconds + 2)) + 64 * 256, queues=1)
        make_group(target, "load")
        consumers = [Consumer(target, "load", size, invisible_ms) for _ in range(chosen.consumers)]
        done, again, seconds, cpu = _worked(target, consumers, chosen.seconds)
        lost = consumers[0].offsets
    rate = done / seconds
    times = Counter(again)
    print(
        f"{chosen.consumers} members of one queue, pops of {size}, {WORK_SECONDS * 1000:.0f} ms of "
        f"work each: {rate:,.0f} msg/s, {rate / possible:.1%} of the possible {possible:,.0f} "
        f"(floor {LOAD_FLOOR:.0%}), {cpu / seconds:.0%} of a processor"
    )
    print(
        f"one of them stopped with {len(lost)} messages; {len(again)} came again, "
        f"{max(times.values(), default=0)} times at most"
    )
    is_once = len(again) == len(lost) and max(times.values(), default=0) == 1
    return rate / possible >= LOAD_FLOOR and is_once


def _worked(
    target: Target, consumers: list[Consumer], seconds_max: int
) -> tuple[int, list[int], float, float]:
    """Messages that were done after the first second, retries, seconds, and seconds of the broker's
    processor."""
    waiting: list[tuple[float, int]] = []
    again: list[int] = []
    done, stopped, is_warm = 0, False, False
    with selectors.DefaultSelector() as selector:
        for number, each in enumerate(consumers):
            selector.register(each.wire.socket, selectors.EVENT_READ, number)
            each.ask()
        begin, cpu = time.monotonic(), cpu_seconds(target.pid)
        while (now := time.monotonic()) < begin + seconds_max:
            if not is_warm and now > begin + 1:
                is_warm, done, begin, cpu = True, 0, now, cpu_seconds(target.pid)
            while waiting and waiting[0][0] <= now:
                _, number = heapq.heappop(waiting)
                done += len(consumers[number].offsets)
                consumers[number].ask()
            pause = max(0.0, waiting[0][0] - now) if waiting else 0.01
            for key, _ in selector.select(pause):
                consumer = consumers[key.data]
                count = consumer.take()
                again += [offset for kind, offset in consumer.offsets if kind != "0"]
                if key.data == 0 and not stopped and is_warm:
                    stopped = True
                    selector.unregister(consumer.wire.socket)
                else:
                    heapq.heappush(waiting, (time.monotonic() + count * WORK_SECONDS, key.data))
        passed = time.monotonic() - begin
        return done, again, passed, cpu_seconds(target.pid) - cpu


def run_out(chosen: argparse.Namespace, folder: Path) -> bool:
    """One group asks for so many messages and acknowledges none, while another one is served."""
    queues, invisible_ms = 128, 15_000
    with our_broker(folder / "out", chosen.kernel) as target:
        make_topic(target, TOPIC, queues)
        make_topic(target, "Beside", 1)
        fill(target, chosen.out, queues=queues)
        fill(target, 40_960, "Beside", 1)
        for group in ("hoards", "beside"):
            make_group(target, group)
        before = memory_mib(target.pid)
        slowest: list[float] = []
        stop = threading.Event()
        probe = threading.Thread(target=_probe, args=(target, stop, slowest))
        probe.start()
        time.sleep(2)
        idle = max(slowest)
        slowest.clear()
        out, begin = _hoard(target, chosen.out, invisible_ms), time.monotonic()
        held = memory_mib(target.pid) - before
        probing_while_out = max(slowest)
        # What is out comes again meanwhile: each message is copied.
        while time.monotonic() < begin + invisible_ms / 1000 + chosen.seconds:
            time.sleep(0.1)
        stop.set()
        probe.join()
    print(
        f"{chosen.out:,} messages asked for by one group: {out:,} are out, {int(held)} MiB more "
        f"in the broker; others waited {idle * 1000:.0f} ms at most before, "
        f"{probing_while_out * 1000:.0f} ms meanwhile, "
        f"{max(slowest) * 1000:.0f} ms while all came again (floor {OTHERS_MS_MAX} ms)"
    )
    return out <= 200_000 + 32 and max(slowest) * 1000 <= OTHERS_MS_MAX


def _hoard(target: Target, count: int, invisible_ms: int) -> int:
    wires = [Wire(target.address) for _ in range(QUEUES)]
    frame = pop_frame("hoards", 32, invisible_ms=invisible_ms, poll_ms=0)
    out = asked = misses = 0
    while asked < count and misses < 64:
        for wire in wires:
            wire.send(frame)
        for wire in wires:
            got = sum(each.count for each in batches_of(wire.frame())[1])
            out += got
            misses = 0 if got else misses + 1
            asked += 32
    return out


def _probe(target: Target, stop: threading.Event, seconds: list[float]) -> None:
    """Another group, whose pops and acknowledgements are timed."""
    wire = Wire(target.address)
    frame = pop_frame("beside", 1, topic="Beside")
    while not stop.is_set():
        begin = time.monotonic()
        wire.send(frame)
        pop_time, batches = batches_of(wire.frame())
        if batches:
            offset = int(batches[0].start)
            wire.send(ack_frame("beside", pop_time, batches[0], offset, "Beside"))
            wire.frame()
        seconds.append(time.monotonic() - begin)
        stop.wait(0.005)
    wire.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--java", type=Path, help="a folder with the jars of RocketMQ 5.3.3")
    parser.add_argument("--consumers", type=int, default=0)
    parser.add_argument("--size", type=int, default=8, help="messages of a pop of these")
    parser.add_argument("--out", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=12)
    chosen = parser.parse_args()
    run = run_consumers if chosen.consumers else run_out if chosen.out else run_speed
    with tempfile.TemporaryDirectory(prefix="kerolox-pops-") as name:
        return 0 if run(chosen, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
