"""Claim: with SYNC_FLUSH at least 1.5 times the Java broker's rate at half its CPU per message.

4 connections with 64 sends of 1 KiB in flight each, to the Java broker and to ours in turn. After
the measured runs, where ``strace`` is there, a short one counts the flushes of the log: each one
answers all that wait for it (group commit).

    python benchmarks/sync_flush.py [--passes 3] [--seconds 5] [--folder /tmp] [--python]

Prints a table of medians with their ranges, then JSON. Exits with 1 below the floor.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.against_java import fill_page_cache
from benchmarks.peers import Target, build_loadgen, java_broker, our_broker

RATE_FLOOR = 1.5
CPU_FLOOR = 0.5
CONNECTIONS = 4
IN_FLIGHT = 64
COUNTED_SECONDS = 2
FIGURES = ("msgs_per_s", "broker_cpu_us_per_msg", "p50_us", "p99_us")


def run(loadgen: Path, target: Target, topic: str, seconds: int) -> dict[str, Any]:
    """One run of the load generator."""
    command = [str(loadgen / "target" / "release" / "loadgen"), "produce", "--create"]
    command += ["--broker", target.address, "--pid", str(target.pid), "--json"]
    command += ["--topic", topic, "--queues", "4", "--connections", str(CONNECTIONS)]
    command += ["--inflight", str(IN_FLIGHT), "--size", "1024"]
    command += ["--warmup", "1", "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(f"{target.label}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def count_flushes(loadgen: Path, target: Target, topic: str) -> dict[str, float] | None:
    """Messages per flush of any file, counted under ``strace``, which slows both down."""
    if shutil.which("strace") is None:
        return None
    command = ["strace", "-f", "-c", "-e", "trace=msync,fdatasync,fsync", "-p", str(target.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        found = run(loadgen, target, topic, COUNTED_SECONDS)
        tracer.terminate()
        _, text = tracer.communicate()
    calls = {line.split()[-1]: int(line.split()[3]) for line in text.splitlines() if _is_row(line)}
    # The run measures all but its first second, the count has that, too.
    messages = found["msgs_per_s"] * (COUNTED_SECONDS + 1)
    flushes = sum(calls.values())
    return {"flushes": flushes, "messages": messages, "messages_per_flush": messages / flushes}


def _is_row(line: str) -> bool:
    return re.search(r"\d+ +(?:\d+ +)?(msync|fdatasync|fsync)$", line) is not None


def value(found: dict[str, Any], figure: str) -> float:
    """A figure of a run, also of its latencies."""
    return float(found[figure] if figure in found else found["send_latency"][figure])


def table(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A row per figure: median and range of each broker."""
    rows = ["| figure | " + " | ".join(runs) + " |", "|---" * (len(runs) + 1) + "|"]
    for figure in FIGURES:
        cells = []
        for found in runs.values():
            values = [value(each, figure) for each in found]
            middle = statistics.median(values)
            cells.append(f"{middle:,.1f} [{min(values):,.1f}..{max(values):,.1f}]")
        rows.append(f"| {figure} | " + " | ".join(cells) + " |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--python", action="store_true", help="ours in pure Python as well")
    chosen = parser.parse_args()
    loadgen = build_loadgen()
    runs: dict[str, list[dict[str, Any]]] = {}
    counted = {}
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-", dir=chosen.folder) as name:
        folder = Path(name)
        with ExitStack() as stack:
            sync = "flushDiskType=SYNC_FLUSH"
            targets = [stack.enter_context(java_broker(folder / "java", sync))]
            targets += [
                stack.enter_context(our_broker(folder / kernel, kernel, sync))
                for kernel in ("native", "python")[: 1 + chosen.python]
            ]
            fill_page_cache(folder)
            for number in range(chosen.passes):
                for target in targets:
                    topic = f"sync-{os.getpid()}-{number}"
                    found = run(loadgen, target, topic, chosen.seconds)
                    runs.setdefault(target.label, []).append(found)
            for target in targets:
                counted[target.label] = count_flushes(loadgen, target, f"count-{os.getpid()}")
    print("\n".join(table(runs)))
    for label, flushes in counted.items():
        shown = flushes and {name: round(each, 1) for name, each in flushes.items()}
        print(f"{label}: {shown}")
    medians = {
        label: [statistics.median(value(each, figure) for each in found) for figure in FIGURES[:2]]
        for label, found in runs.items()
    }
    rate, cpu = (ours / java for ours, java in zip(medians["native"], medians["java"], strict=True))
    print(f"native/Java: rate {rate:.2f} (at least {RATE_FLOOR}), CPU {cpu:.2f} ({CPU_FLOOR})")
    errors = {label: [each["errors"] for each in found] for label, found in runs.items()}
    print(f"errors: {errors}")
    print(json.dumps({"rate": rate, "cpu": cpu, "counted": counted, "runs": runs}))
    return 0 if rate >= RATE_FLOOR and cpu <= CPU_FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
