"""Claim: what waits for a moment comes once, and not early, when ours and RocketMQ 5.3.3 have one
store in turns.

Both ways: the Java broker takes messages and ours delivers them, and ours takes them, Java delivers
a part and ours the others. See ``tests/store_compat/moments.py``.

    python benchmarks/timer_java.py [--count 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.store_compat import moments


def report(way: str, came: moments.Came) -> int:
    """Print the counts; 1 when one was lost, early or came twice."""
    late = came.late_ms()
    wrong = {
        "missing": came.missing,
        "early": came.early,
        "twice": came.doubled,
        "delivered though taken back": came.wrong,
    }
    counts = ", ".join(f"{len(bodies)} {name}" for name, bodies in wrong.items())
    parts = ", ".join(f"{number} at {broker}" for broker, number in came.by.items())
    print(
        f"{way}: {len(came.due_ms)} messages, {parts}, {len(came.taken_back)} taken back; {counts}"
    )
    print(f"late, of {len(late)} that were due while the second broker ran: ", end="")
    print(f"p50 {late[len(late) // 2]} ms, most {late[-1]} ms" if late else "-")
    return int(any(wrong.values()))


async def measure(count: int) -> int:
    status = 0
    for run in (moments.java_then_ours, moments.ours_then_java):
        with tempfile.TemporaryDirectory(prefix="kerolox-timer-") as folder:
            status |= report(run.__name__, await run(Path(folder), count))
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    return asyncio.run(measure(parser.parse_args().count))


if __name__ == "__main__":
    sys.exit(main())
