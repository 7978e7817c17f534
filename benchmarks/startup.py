"""Claim: ``kerolox up`` answers within 0.7 s of its launch and idles below 80 MB.

python benchmarks/startup.py [--runs 7] [--idle-seconds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import our_broker


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match.group(1)) / 1000


@contextlib.contextmanager
def compiled_modules() -> Iterator[None]:
    """Let servers find compiled modules, as after an installation; the first start makes them."""
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as kept:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = kept
        with (
            tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder,
            our_broker(Path(folder), "python"),
        ):
            pass
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--idle-seconds", type=float, default=3.0)
    chosen = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    with compiled_modules():
        for kernel in ("native", "python"):
            seconds, memory = [], []
            for _ in range(chosen.runs):
                with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
                    started = time.monotonic()
                    with our_broker(Path(folder), kernel) as target:
                        seconds.append(time.monotonic() - started)
                        time.sleep(chosen.idle_seconds)
                        memory.append(resident_mb(target.pid))
            result[kernel] = {
                "ready_s_median": round(statistics.median(seconds), 3),
                "ready_s_max": round(max(seconds), 3),
                "idle_mb_median": round(statistics.median(memory), 1),
                "idle_mb_max": round(max(memory), 1),
            }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
