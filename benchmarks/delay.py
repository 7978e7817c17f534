"""Claim: delayed messages come on time under load, and a killed broker loses none.

Sends messages of the delay levels 1 to 4 (1 s, 5 s, 10 s, 30 s) at a steady rate, kills the broker
with SIGKILL midway, starts it again, and compares when each message came with when it was due.

    python benchmarks/delay.py [--count 10000] [--rate 2000] [--kernel native]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.clients import delays
from tests.support.servers.up import Up

DELAYS_MS = (1_000, 5_000, 10_000, 30_000)


def report(found: delays.Delays) -> int:
    """Print the counts and how late the messages came; 1 when one was lost or early."""
    late = found.late_ms()
    outage = found.outage
    print(f"acknowledged {len(found.acknowledged_ms)}, lost {len(found.lost)}, ", end="")
    print(f"early {len(found.early)}, delivered again {found.again}")
    if outage is not None:
        print(f"outage {outage.ready_ms - outage.killed_ms} ms, from the kill to the first answer")
    places = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    texts = [f"{name} {late[int(len(late) * part)]} ms" for name, part in places.items()]
    print(f"late, of {len(late)} that were not due in the outage: {', '.join(texts)}, ", end="")
    print(f"most {late[-1]} ms")
    return 1 if found.lost or found.early else 0


async def measure(count: int, rate: int, kernel: str) -> delays.Delays:
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-delay-") as folder,
        Up(Path(folder), kernel=kernel) as up,
    ):
        return await delays.run(
            up, count=count, rate=rate, delays_ms=DELAYS_MS, kill_after=count // 2
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--kernel", default="native")
    chosen = parser.parse_args()
    return report(asyncio.run(measure(chosen.count, chosen.rate, chosen.kernel)))


if __name__ == "__main__":
    sys.exit(main())
