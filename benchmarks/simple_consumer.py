"""Claim: ``SimpleConsumer`` takes and acknowledges 100,000 messages a second by batches of 32.

A backlog of messages of 128 B in four queues is received by one process: one by one (``async for``)
and by batches of 32, each message acknowledged; the clock goes from the first message until the
last acknowledgement is answered. With ``--kafka`` the same number of messages is consumed from a
Kafka broker by the asyncio consumers of confluent-kafka and aiokafka, which commit offsets now and
then instead, as by their defaults. All in turn over the rounds; medians and ranges.

    python benchmarks/simple_consumer.py [--count 300000] [--rounds 3] [--kafka FOLDER PYTHON]

FOLDER has Kafka's jars (see ``benchmarks/kafka.py``), PYTHON is an interpreter with both clients.
Prints a table; exits with 1 below a floor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kafka import kafka_broker
from benchmarks.peers import Target, our_broker
from benchmarks.pops import QUEUES, fill, make_topic

BATCH_FLOOR = 100_000
TOPIC = "Taken"
SIZES = (32, 1)

OURS = """
import asyncio, json, sys, time
import uvloop
from kerolox import SimpleConsumer, SimpleConsumerSettings

address, group, topic, size, count = *sys.argv[1:4], *map(int, sys.argv[4:6])

async def main():
    consumer = SimpleConsumer(group, address, settings=SimpleConsumerSettings(wait_ms=1000))
    consumer.subscribe(topic)
    async with consumer:
        await consumer.receive(1)
        begin, used, done, acks = time.perf_counter(), time.process_time(), 0, set()
        if size == 1:
            async for message in consumer:
                acks.add(ack := consumer.submit_ack(message))
                ack.add_done_callback(acks.discard)
                done += 1
                if done >= count:
                    break
        else:
            while done < count:
                messages = await consumer.receive(size)
                acks.add(ack := consumer.submit_ack(messages))
                ack.add_done_callback(acks.discard)
                done += len(messages)
        await asyncio.gather(*acks)
        seconds = time.perf_counter() - begin
        print(json.dumps([done / seconds, (time.process_time() - used) / done * 1e6]), flush=True)

uvloop.run(main())
"""

CONFLUENT = """
import asyncio, json, sys, time
import uvloop
from confluent_kafka.aio import AIOConsumer

address, group, topic, size, count = *sys.argv[1:4], *map(int, sys.argv[4:6])

async def main():
    consumer = AIOConsumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    await consumer.subscribe([topic])
    while (first := await consumer.poll(5.0)) is None or first.error():
        pass
    begin, used, done = time.perf_counter(), time.process_time(), 0
    while done < count:
        if size == 1:
            done += await consumer.poll(5.0) is not None
        else:
            done += len(await consumer.consume(size, 5.0))
    seconds = time.perf_counter() - begin
    print(json.dumps([done / seconds, (time.process_time() - used) / done * 1e6]), flush=True)
    await consumer.close()

uvloop.run(main())
"""

AIOKAFKA = """
import asyncio, json, sys, time
import uvloop
from aiokafka import AIOKafkaConsumer

address, group, topic, size, count = *sys.argv[1:4], *map(int, sys.argv[4:6])

async def main():
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        await consumer.getone()
        begin, used, done = time.perf_counter(), time.process_time(), 0
        if size == 1:
            async for message in consumer:
                done += 1
                if done >= count:
                    break
        else:
            while done < count:
                found = await consumer.getmany(timeout_ms=1000, max_records=size)
                done += sum(map(len, found.values()))
        seconds = time.perf_counter() - begin
        print(json.dumps([done / seconds, (time.process_time() - used) / done * 1e6]), flush=True)

uvloop.run(main())
"""

FILL = """
import sys
from confluent_kafka import Producer

address, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
for number in range(count):
    producer.produce(topic, bytes(128), key=b"order-000042", partition=number % 4)
    if not number % 10_000:
        producer.flush()
producer.flush()
"""


class Side(NamedTuple):
    """A client, and where it consumes."""

    label: str
    python: str
    program: str
    address: str


def run(python: str, program: str, *arguments: object) -> str:
    """What a program prints."""
    command = [python, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def sides(folder: Path, count: int, kafka: list[str] | None) -> Iterator[list[Side]]:
    """The brokers with what is to be consumed, and all clients."""
    with ExitStack() as stack:
        ours = stack.enter_context(our_broker(folder / "ours", "native"))
        make_topic(ours, TOPIC, QUEUES)
        fill(ours, count, TOPIC)
        found = [Side("kerolox", sys.executable, OURS, _names_of(ours))]
        if kafka:
            jars, python = kafka
            broker = stack.enter_context(kafka_broker(Path(jars), folder / "kafka"))
            run(python, FILL, broker.address, TOPIC, count)
            found += [
                Side("confluent-kafka", python, CONFLUENT, broker.address),
                Side("aiokafka", python, AIOKAFKA, broker.address),
            ]
        yield found


def _names_of(target: Target) -> str:
    ready = Path(f"/proc/{target.pid}/cmdline").read_bytes().split(b"\0")
    return "127.0.0.1:" + ready[ready.index(b"--namesrv-port") + 1].decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", nargs=2, metavar=("FOLDER", "PYTHON"))
    chosen = parser.parse_args()
    found: dict[tuple[str, int], list[list[float]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-bench-") as name,
        sides(Path(name), chosen.count + 64, chosen.kafka) as all_sides,
    ):
        for number in range(chosen.rounds):
            for size in SIZES:
                for side in all_sides:
                    group = f"{side.label}-{size}-{number}"
                    text = run(
                        side.python,
                        side.program,
                        *(side.address, group, TOPIC, size, chosen.count - 1000),
                    )
                    found.setdefault((side.label, size), []).append(json.loads(text))
    for (label, size), rows in found.items():
        rates, used = zip(*rows, strict=True)
        print(
            f"{label:16} by {size:2}: {statistics.median(rates):9,.0f}/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}), "
            f"{statistics.median(used):6.2f} µs of CPU ({min(used):.2f} to {max(used):.2f})"
        )
    best = statistics.median(rate for rate, _ in found["kerolox", 32])
    one = statistics.median(rate for rate, _ in found["kerolox", 1])
    peer = found.get(("confluent-kafka", 1))
    is_fast = best >= BATCH_FLOOR and (
        peer is None or one >= statistics.median(rate for rate, _ in peer)
    )
    return 0 if is_fast else 1


if __name__ == "__main__":
    sys.exit(main())
