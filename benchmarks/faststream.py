"""Claim: FastStream on Kerolox publishes and handles as many messages as on Kafka, at its CPU.

Both brokers are FastStream's usual ones, each with its defaults and without its log lines, of
which there are two for each message. Each load is a process of its own, in turn, beside both
servers. Told are the medians of rate and of the client process's CPU of a message. Publishes are
256 at a time; handlers do nothing but count what was stored before. The load ``pipeline alone``
brings messages from memory to handlers: no client can go below that.

    python benchmarks/faststream.py [--count 20000] [--turns 3] [--only handle] [--peers FOLDER]

The folder has Kafka's jars, as the script of ``bench/kafka-spark`` installs them. aiokafka comes
from PyPI, into ``.cache``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
AIOKAFKA = ROOT / ".cache" / "aiokafka"
sys.path = [each for each in sys.path if Path(each).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(AIOKAFKA)]

if TYPE_CHECKING:
    from kerolox.integrations.faststream import KeroloxBroker

IN_FLIGHT = 256
BATCH = 50
SIDES = ("kerolox", "kafka")
BODY: Any = {
    "id": 1,
    "customer": "someone",
    "positions": [{"article": 4711, "amount": 3}],
    "note": "x",
}
MODES: dict[str, dict[str, dict[str, Any]]] = {
    "handle": {"kerolox": {}, "kafka": {}},
    "handle, 8 workers": {"kerolox": {"max_workers": 8}, "kafka": {"max_workers": 8}},
    "handle batches": {"kerolox": {"batch": True}, "kafka": {"batch": True, "max_records": 32}},
    "handle in queue mode": {"kerolox": {"mode": "queue"}, "kafka": {}},
    "handle, done each": {"kerolox": {"ack_policy": "ACK"}, "kafka": {"ack_policy": "ACK"}},
}
"""What subscribers are made with, by load and side. Kafka has no queue mode here: its plain one
stands beside ours."""
ALONE = "pipeline alone"
LOADS = ("publish", "publish batches", *MODES, ALONE)


def made(side: str, address: str) -> AbstractAsyncContextManager[Any]:
    """The broker of a side; Kafka's takes what the loads here call as well."""
    if side == "kerolox":
        from kerolox.integrations.faststream import KeroloxBroker

        return KeroloxBroker(address, logger=None, create_topics=True)
    from faststream.kafka import KafkaBroker

    return KafkaBroker(address, logger=None)


async def publish(broker: KeroloxBroker, load: str, topic: str, count: int) -> int:
    if load == "publish batches":
        bodies = [BODY] * BATCH
        for _ in range(count // BATCH):
            await broker.publish_batch(*bodies, topic=topic)
        return count // BATCH * BATCH

    async def worker(number: int) -> None:
        for _ in range(number):
            await broker.publish(BODY, topic)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(worker(count // IN_FLIGHT))
    return count // IN_FLIGHT * IN_FLIGHT


async def handle(
    broker: KeroloxBroker, side: str, load: str, topic: str, count: int
) -> tuple[float, float]:
    """CPU and wall seconds of a message, from the first to the last one."""
    from faststream import AckPolicy

    options = dict(MODES[load][side])
    if "ack_policy" in options:
        options["ack_policy"] = AckPolicy[options["ack_policy"]]
    group = f"g{time.time_ns()}"
    options |= {"group": group} if side == "kerolox" else {"group_id": group}
    if side == "kafka":
        options["auto_offset_reset"] = "earliest"
    done, seen, begun = asyncio.Event(), 0, (0.0, 0.0)
    is_batch = bool(options.get("batch"))

    async def count_it(body: Any) -> None:  # noqa: ANN401  # a message, or a list of them
        nonlocal seen, begun
        if not seen:
            begun = time.process_time(), time.perf_counter()
        seen += len(body) if is_batch else 1
        if seen >= count:
            done.set()

    broker.subscriber(topic, **options)(count_it)
    await broker.start()
    await done.wait()
    cpu, wall = time.process_time() - begun[0], time.perf_counter() - begun[1]
    return cpu / seen, wall / seen


def in_memory(side: str, count: int) -> list[Any]:
    """Messages as the client of a side gives them."""
    body, key = json.dumps(BODY).encode(), "b0e5a2fe-9b0c-4f19-a0ba-16e6a6f3c6f1"
    headers = {"content-type": "application/json", "correlation_id": key}
    if side == "kafka":
        record = importlib.import_module("aiokafka").ConsumerRecord
        sent = [(name, text.encode()) for name, text in headers.items()]
        size = len(body)
        return [record("T", 0, at, 1, 0, None, body, 0, 0, size, sent) for at in range(count)]
    from kerolox import MessageExt

    place: dict[str, Any] = {"topic": "T", "queue_id": 0, "commit_log_offset": 0}
    return [
        MessageExt(
            **place, body=body, queue_offset=at, properties={**headers, "UNIQ_KEY": f"{at:032X}"}
        )
        for at in range(count)
    ]


async def alone(broker: Any, side: str, count: int) -> tuple[float, float]:  # noqa: ANN401
    """CPU and wall seconds of a message, without servers."""
    from faststream._internal.endpoint.subscriber.utils import MultiLock

    seen = 0

    async def count_it(body: Any) -> None:  # noqa: ANN401
        nonlocal seen
        seen += 1

    subscriber = broker.subscriber("T")
    subscriber(count_it)
    broker._setup_logger()
    subscriber._build_fastdepends_model()
    lock = MultiLock
    if side == "kerolox":
        from kerolox.integrations.faststream.subscriber import HandlersLock

        lock = HandlersLock
    subscriber.lock, subscriber.running = lock(), True
    messages = in_memory(side, count)
    begun = time.process_time(), time.perf_counter()
    for message in messages:
        await subscriber.consume(message)
    assert seen == count
    return (time.process_time() - begun[0]) / count, (time.perf_counter() - begun[1]) / count


async def client(side: str, address: str, load: str, topic: str, count: int) -> None:
    async with made(side, address) as broker:
        if load == ALONE:
            cpu, wall = await alone(broker, side, count)
        elif load in MODES:
            cpu, wall = await handle(broker, side, load, topic, count)
        else:
            await broker.start()
            await publish(broker, load, topic, count // 10)
            begun = time.process_time(), time.perf_counter()
            sent = await publish(broker, load, topic, count)
            cpu = (time.process_time() - begun[0]) / sent
            wall = (time.perf_counter() - begun[1]) / sent
    print(json.dumps({"cpu": cpu, "wall": wall}))


def turn(side: str, address: str, load: str, topic: str, count: int) -> tuple[float, float]:
    """A client of its own process: CPU and wall seconds of a message."""
    chosen = ["--client", side, address, load, topic, "--count", str(count)]
    command = [sys.executable, str(Path(__file__)), *chosen]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    told = json.loads(done.stdout.splitlines()[-1])
    return told["cpu"], told["wall"]


def measured(addresses: dict[str, str], loads: list[str], count: int, turns: int) -> None:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for side, address in addresses.items():
        turn(side, address, "publish batches", "Stored", count)
    for number in range(turns):
        for load in loads:
            for side, address in addresses.items():
                topic = "Stored" if load in MODES else f"Sent-{number}-{load.replace(' ', '-')}"
                told = turn(side, address, load, topic, count)
                found.setdefault((load, side), []).append(told)
                print(f"{load}, {side}: {told[0] * 1e6:.1f} us, {1 / told[1]:,.0f}/s", flush=True)
    print("\n| load | Kerolox /s | Kafka /s | times | Kerolox CPU us | Kafka CPU us | times |")
    print("|---|---|---|---|---|---|---|")
    for load in loads:
        (our_cpu, our_wall), (their_cpu, their_wall) = (
            [statistics.median(values) for values in zip(*found[load, side], strict=True)]
            for side in SIDES
        )
        print(
            f"| {load} | {1 / our_wall:,.0f} | {1 / their_wall:,.0f} | {their_wall / our_wall:.2f} "
            f"| {our_cpu * 1e6:.1f} | {their_cpu * 1e6:.1f} | {our_cpu / their_cpu:.2f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="")
    peers = os.environ.get("PEERS_HOME", str(Path.home() / "client-peers"))
    parser.add_argument("--peers", type=Path, default=Path(peers))
    parser.add_argument("--client", nargs=4, metavar=("SIDE", "ADDRESS", "LOAD", "TOPIC"))
    chosen = parser.parse_args()
    if chosen.client:
        side, address, load, topic = chosen.client
        asyncio.run(client(side, address, load, topic, chosen.count))
        return 0
    from benchmarks.kafka import kafka_broker
    from benchmarks.peers import our_broker

    if not AIOKAFKA.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(AIOKAFKA)]
        subprocess.run([*pip, "aiokafka>=0.12,<0.15"], check=True)
    loads = [each for each in LOADS if chosen.only in each]
    with tempfile.TemporaryDirectory(prefix="kerolox-faststream-") as name:
        folder = Path(name)
        (folder / "ours").mkdir()
        with (
            our_broker(folder / "ours", "native"),
            kafka_broker(chosen.peers, folder / "k") as kafka,
        ):
            lines = (folder / "ours" / "ready").read_text().splitlines()
            server = dict(line.split("=") for line in lines)["namesrv"]
            addresses = {"kerolox": server, "kafka": kafka.address}
            measured(addresses, loads, chosen.count, chosen.turns)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
