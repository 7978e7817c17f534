"""Claim: a consumer's memory is bounded, however much waits for it, in however many queues.

A topic gets many queues and a large backlog. Then a consumer in a process of its own takes it
twice: with a listener that never ends, until pulling has paused in all queues; and with one that
does nothing, until all is consumed. Tells what its process has at most, beside the bound that its
settings state: messages in all and one pull more of each queue, with their records and
``BYTES_PER_MESSAGE`` each, on top of what it has before it starts.

    python benchmarks/consumer_memory.py [--queues 1000] [--messages 1000000] [--size 128]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.idle import memory
from benchmarks.peers import our_broker
from kerolox.admin import Admin
from kerolox.client import Producer, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message, MessageExt, MessageQueue

TOPIC = "Backlog"
BATCH = 100
IN_FLIGHT = 16
RECORD_BYTES = 200
"""Of a record with a unique key, beside its body and the topic."""
BYTES_PER_MESSAGE = 500
"""What Python needs for a message beside its bytes, and for its place in tables."""
BYTES_PER_QUEUE = 16 * 1024
"""Task, timers, statistics and the pull that waits."""
SETTLED_SECONDS = 3.0
"""Pulling has paused when nothing more came for so long."""


async def fill(name_server: str, queues: int, count: int, size: int) -> None:
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=queues)
    room, body = asyncio.Semaphore(IN_FLIGHT), bytes(size)
    async with Producer("fill", name_server) as producer:
        found = await producer.queues(TOPIC)

        async def send(queue: MessageQueue) -> None:
            async with room:
                await producer.send_batch([Message(TOPIC, body)] * BATCH, queue=queue)

        rounds = count // queues // BATCH
        for _ in range(rounds):
            await asyncio.gather(*(send(queue) for queue in found))


async def consume(name_server: str, count: int, *, stall: bool) -> dict[str, float]:
    """Take all of it, or as much as is cached while listeners never end."""
    seen, started = 0, time.monotonic()
    over, never = asyncio.Event(), asyncio.Event()

    async def listen(messages: list[MessageExt]) -> None:
        nonlocal seen
        seen += len(messages)
        if stall:
            await never.wait()
        if seen >= count:
            over.set()

    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    settings = PushConsumerSettings(consume_from_where=first, close_timeout_ms=100)
    consumer = PushConsumer(f"group-{stall}", name_server, settings=settings)
    consumer.subscribe(TOPIC, "*", listen)
    before = memory_peak()
    async with consumer:
        if stall:
            await settled(consumer)
        else:
            await over.wait()
        seconds = time.monotonic() - started
        row = {"before": before, "most": memory_peak(), "seconds": seconds, "seen": seen}
        row["cached"] = cached(consumer)
        row["in_all"] = settings.cached_messages_in_all_max
    return row


def cached(consumer: PushConsumer) -> int:
    return sum(len(each.process_queue) for each in consumer._assignments.values())


async def settled(consumer: PushConsumer) -> None:
    last, since = -1, time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        await asyncio.sleep(0.1)
        if (now := cached(consumer)) != last:
            last, since = now, time.monotonic()


def memory_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--consume", choices=("stall", "all"), help=argparse.SUPPRESS)
    parser.add_argument("--name-server", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.consume:
        stall = chosen.consume == "stall"
        print(json.dumps(asyncio.run(consume(chosen.name_server, chosen.messages, stall=stall))))
        return 0
    kept = True
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-consumer-") as folder,
        our_broker(Path(folder), "native") as target,
    ):
        lines = (Path(folder) / "ready").read_text().splitlines()
        name_server = dict(line.split("=") for line in lines)["namesrv"]
        asyncio.run(fill(name_server, chosen.queues, chosen.messages, chosen.size))
        print(f"broker {memory(target.pid) / 1e6:.0f} MB with the backlog")
        print("| listener | cached at the end | consumed/s | most MB | bound MB |\n|" + "---|" * 5)
        for how in ("stall", "all"):
            command = [sys.executable, __file__, "--consume", how, "--name-server", name_server]
            command += ["--messages", str(chosen.messages)]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            pulls = 32 * chosen.queues
            per_message = chosen.size + RECORD_BYTES + BYTES_PER_MESSAGE
            bound = row["before"] + (row["in_all"] + pulls) * per_message
            bound += BYTES_PER_QUEUE * chosen.queues
            kept = kept and row["most"] <= bound
            rate = row["seen"] / row["seconds"]
            print(
                f"| {how} | {row['cached']:,} | {rate:,.0f} | {row['most'] / 1e6:.0f} "
                f"| {bound / 1e6:.0f} |",
                flush=True,
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
