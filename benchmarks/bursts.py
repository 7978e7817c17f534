"""Claim: a burst of any size is acknowledged, or ends send by send in time, within bounded memory.

``gather`` of 100,000 sends of 128 B, of 60,000 of 1 KiB and of 800 of 100 KiB: to a broker that
runs; to one that stands still for ten seconds (SIGSTOP) with a time limit beyond that; and to one
that stands still for longer than the time limit. Each in a process of its own, whose memory is
told beside the bound: the bodies, what ``gather`` and the client need for a send, and what may be
unsent.

    python benchmarks/bursts.py [--batching] [--scale 1.0]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import our_broker
from kerolox.client import Producer, ProducerSettings
from kerolox.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from kerolox.message import Message

CASES = ((100_000, 128), (60_000, 1024), (800, 100 * 1024))
WAYS = {"runs": (0.0, 60_000), "stands still for 10 s": (10.0, 60_000), "is late": (10.0, 3_000)}
"""By what the broker does: how long it stands still, and the time limit of a send in ms."""
PER_SEND_BYTES = 5_000
"""A task of ``gather``, its coroutines, the message, its future and its place in line."""
UNSENT_BYTES = 32 << 20
"""What may be unsent or under way to the socket, and compressed copies in threads."""
LATE_SECONDS_MAX = 5.0
"""How long after its time limit a send may end while 100,000 end at the same time."""


async def burst(server: str, pid: int, count: int, size: int, way: str, batching: bool) -> None:
    """Send all at once; prints what became of them."""
    pause, timeout_ms = WAYS[way]
    settings = ProducerSettings(send_timeout_ms=timeout_ms, batching=batching)
    took: list[float] = []
    async with Producer("bursts", server, settings=settings) as producer:
        await producer.send(Message("Burst", b"x"))
        filler = os.urandom(size)
        messages = [Message("Burst", b"%08d" % i + filler[8:]) for i in range(count)]
        before = peak()

        async def send(message: Message) -> None:
            began = time.monotonic()
            try:
                await producer.send(message)
            finally:
                took.append(time.monotonic() - began)

        if pause:
            os.kill(pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(pause, os.kill, pid, signal.SIGCONT)
        start = time.monotonic()
        outcomes = await asyncio.gather(*map(send, messages), return_exceptions=True)
        seconds = time.monotonic() - start
        if pause > seconds:
            await asyncio.sleep(pause - seconds + 0.5)
    kinds = Counter(type(each).__name__ for each in outcomes if each is not None)
    in_vain = {error.__name__ for error in (RequestTimeoutError, ConnectionLostError, ConnectError)}
    row = {
        "stored": outcomes.count(None),
        "errors": dict(kinds),
        "seconds": seconds,
        "longest": max(took),
        "most": peak() - before,
        "kept": not set(kinds) - in_vain
        and (way == "is late" or not kinds)
        and max(took) < timeout_ms / 1000 + LATE_SECONDS_MAX,
    }
    print(json.dumps(row), flush=True)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--burst", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.burst:
        server, pid, count, size, way = chosen.burst
        asyncio.run(burst(server, int(pid), int(count), int(size), way, chosen.batching))
        return 0
    kept = True
    print("| sends | the broker | stored | errors | s | longest s | most MB | bound MB |")
    print("|" + "---|" * 8)
    for count, size in CASES:
        count = int(count * chosen.scale)
        for way in WAYS:
            with (
                tempfile.TemporaryDirectory(prefix="kerolox-bursts-") as folder,
                our_broker(Path(folder), "native") as target,
            ):
                lines = (Path(folder) / "ready").read_text().splitlines()
                server = dict(line.split("=") for line in lines)["namesrv"]
                command = [sys.executable, __file__, "--burst", server, str(target.pid)]
                command += [str(count), str(size), way]
                command += ["--batching"] if chosen.batching else []
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            row = json.loads(done.stdout)
            # The bodies are there before; compressed ones have a copy while they wait.
            bound = count * (PER_SEND_BYTES + size) + UNSENT_BYTES
            kept = kept and row["kept"] and row["most"] <= bound
            print(
                f"| {count:,} of {size:,} B | {way} | {row['stored']:,} | {row['errors'] or ''} "
                f"| {row['seconds']:.1f} | {row['longest']:.1f} | {row['most'] / 1e6:.0f} "
                f"| {bound / 1e6:.0f} |",
                flush=True,
            )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
