"""Claim: ``kerolox up`` answers within 0.25 s of its launch and idles at 38 MB.

python benchmarks/startup.py [--runs 7] [--idle-seconds 3] [--beside CHECKOUT]

The processor time until it answers depends less on what else the machine does than the time does.
Another checkout, whose own ``.venv`` runs its servers, takes turns with this one.
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

from benchmarks.peers import ROOT, cpu_seconds, our_broker


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match.group(1)) / 1000


@contextlib.contextmanager
def compiled_modules() -> Iterator[None]:
    """Let servers find compiled modules, as after an installation."""
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as kept:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = kept
        yield


def started(checkout: Path, kernel: str, idle_seconds: float) -> tuple[float, float, float]:
    """One start: seconds and processor seconds until it answers, MB when it idles."""
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
        begin = time.monotonic()
        with our_broker(Path(folder), kernel, checkout=checkout) as target:
            seconds, used = time.monotonic() - begin, cpu_seconds(target.pid)
            time.sleep(idle_seconds)
            return seconds, used, resident_mb(target.pid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--idle-seconds", type=float, default=3.0)
    parser.add_argument("--beside", type=Path)
    chosen = parser.parse_args()
    checkouts = {"": ROOT}
    if chosen.beside is not None:
        checkouts[f" {chosen.beside.name}"] = chosen.beside.resolve()
    found: dict[str, list[tuple[float, float, float]]] = {}
    with compiled_modules():
        for kernel in ("native", "python"):
            for run in range(chosen.runs + 1):
                for label, checkout in checkouts.items():
                    measured = started(checkout, kernel, chosen.idle_seconds if run else 0)
                    if run:  # the first one compiles modules
                        found.setdefault(f"{kernel}{label}", []).append(measured)
    result: dict[str, dict[str, float]] = {}
    for name, runs in found.items():
        seconds, used, memory = zip(*runs, strict=True)
        result[name] = {
            "ready_s_median": round(statistics.median(seconds), 3),
            "ready_s_max": round(max(seconds), 3),
            "ready_cpu_s_median": round(statistics.median(used), 3),
            "idle_mb_median": round(statistics.median(memory), 1),
            "idle_mb_max": round(max(memory), 1),
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
