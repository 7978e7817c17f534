"""Claim: a second broker process adds what a machine's processors have left, and no more.

``kerolox up`` with one broker and with ``--brokers 2``, in turn. Two load generators of a thread
each send all the while: both to the one broker, or one to each. Brokers and generators share the
processors; ``--cpus`` says which. Rates are sums, medians of the rounds; what was acknowledged is
compared with what is stored.

    python benchmarks/several.py [--rounds 5] [--seconds 4] [--cpus 0,1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.settings import ANY_DISK
from tests.support.servers.up import free_port

from benchmarks.peers import build_loadgen, our_process

if TYPE_CHECKING:
    from collections.abc import Iterator

GENERATORS = 2
CASES = {
    "sends of 128 B, one at a time on each of 2 connections": ("128", "1", "1"),
    "sends of 128 B, 64 open on each of 2 x 2 connections": ("128", "2", "64"),
    "sends of 1 KiB, the same": ("1024", "2", "64"),
}
"""What is sent to size, connections of each generator, requests open on each. Those that leave much
to be flushed come last."""


@contextmanager
def brokers(folder: Path, count: int) -> Iterator[tuple[int, list[str]]]:
    """The process that was started, and the address of each broker."""
    command = [sys.executable, "-m", "kerolox.cli", "up", "--brokers", str(count)]
    command += ["--port", str(free_port()), "--namesrv-port", str(free_port()), "--grpc-port", "0"]
    settings = {"brokerIP1": "127.0.0.1", **ANY_DISK}
    lines = [f"{name}={value}" for name, value in settings.items()]
    with our_process(folder, command, lines, stop_seconds=60) as pid:
        ready = dict(line.split("=") for line in (folder / "ready").read_text().splitlines())
        yield pid, [ready[name] for name in ready if name != "namesrv"]


def run(addresses: list[str], pid: int, case: str, seconds: int, topic: str) -> dict[str, float]:
    """All generators at once; their rates together, and what a message cost whom."""
    size, connections, in_flight = CASES[case]
    program = build_loadgen() / "target" / "release" / "loadgen"
    started = []
    for number in range(GENERATORS):
        command = [str(program), "produce", "--create", "--topic", f"{topic}-{number}"]
        command += ["--broker", addresses[number % len(addresses)], "--queues", "4"]
        command += ["--connections", connections, "--inflight", in_flight, "--size", size]
        command += ["--warmup", "1", "--seconds", str(seconds), "--json", "--pid", str(pid)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    found: list[dict[str, Any]] = [json.loads(each.communicate()[0]) for each in started]
    assert all(each.returncode == 0 for each in started), (
        "an error, or a message that is not stored"
    )
    rate = sum(each["msgs_per_s"] for each in found)
    # Each generator saw the CPU of all brokers.
    broker = statistics.mean(each["broker_cpu_us_per_msg"] * each["msgs_per_s"] for each in found)
    return {
        "rate": rate,
        "broker_us": broker / rate,
        "p50_us": statistics.mean(each["send_latency"]["p50_us"] for each in found),
        "p99_us": max(each["send_latency"]["p99_us"] for each in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--cpus", default="", help="numbers, joined by commas; default: all")
    chosen = parser.parse_args()
    if chosen.cpus:
        os.sched_setaffinity(0, {int(each) for each in chosen.cpus.split(",")})
    build_loadgen()
    runs: dict[str, dict[int, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for number in range(chosen.rounds):
        for count in (1, 2) if number % 2 == 0 else (2, 1):
            with (
                tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder,
                brokers(Path(folder) / "up", count) as (pid, addresses),
            ):
                for index, case in enumerate(CASES):
                    found = run(addresses, pid, case, chosen.seconds, f"Sent{index}")
                    runs[case][count].append(found)
    print("| case | figure | 1 broker | 2 brokers | ratio |\n|---|---|---|---|---|")
    for case, counts in runs.items():
        for figure in ("rate", "broker_us", "p50_us", "p99_us"):
            one, two = (statistics.median(each[figure] for each in counts[n]) for n in (1, 2))
            print(f"| {case} | {figure} | {one:,.2f} | {two:,.2f} | {two / one:.2f} |")
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
