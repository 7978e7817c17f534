"""Claim: a window of keys (``dedup.window.ms``) costs under 3 % of the rate of sends, none without.

python benchmarks/dedup.py [--kernel native|python] [--keys 1000000] [--rounds 9] [--feed|--restart]

Two topics of one broker, one with a window that has so many keys and forgets the oldest, take the
same sends in turn: 128 B with properties, 64 in flight on each of four connections of the load
generator. Printed are the medians of the rates and of the broker's CPU of a message. ``--feed``:
what the kernel alone takes for a message, without sockets. ``--restart``: CPU and time of a start
until it serves, with so many keys to read from the log and with one, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kernel_feed import HOST, PROPERTIES, sends
from benchmarks.peers import Target, build_loadgen, our_broker
from kerolox.admin.sync import Admin
from kerolox.kernel.choice import load_kernel
from kerolox.kernel.settings import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES_PER_CHUNK = 64
CHUNKS_PER_ROUND = 400
WINDOW_MS = 3_600_000


def measure_feed(name: str, keys: int, rounds: int) -> None:
    """Print what a message costs in ``feed``, with a window and without."""
    kernel: Any = load_kernel(name)
    with tempfile.TemporaryDirectory() as folder:
        settings = StoreSettings(store_path_root_dir=folder, message_index_enable=False)
        store = kernel.Store(settings)
        store.open()
        store.set_identity(
            cluster="DefaultCluster", region="r", trace_on=True, store_host=HOST, broker_id=0
        )
        store.set_topic("T", 4, 4, 6, True)
        store.set_dedup_limit(keys)
        connection = kernel.Connection(store, 1, HOST)
        chunks = sends(128, FRAMES_PER_CHUNK, PROPERTIES)
        times: dict[str, list[float]] = {"without": [], "with": []}

        def run(chunks: Iterator[bytes], count: int) -> float:
            ready = list(islice(chunks, count))
            start = time.process_time_ns()
            for chunk in ready:
                _answers, slow, _flags, _error = connection.feed(chunk, len(chunk))
                assert slow is None
            return (time.process_time_ns() - start) / count / FRAMES_PER_CHUNK / 1_000

        store.set_dedup("T", WINDOW_MS, False)
        for _ in range(keys // FRAMES_PER_CHUNK // 100 + 1):
            run(chunks, 100)
        # The window can't be set aside: another topic has none.
        store.set_topic("U", 4, 4, 6, True)
        without = (chunk.replace(b'"b":"T"', b'"b":"U"') for chunk in chunks)
        for _ in range(rounds):
            for what, some in (("without", without), ("with", chunks)):
                times[what].append(run(some, CHUNKS_PER_ROUND))
        [window] = store.dedup_windows()
        store.close()
    medians = {what: statistics.median(found) for what, found in times.items()}
    print(
        f"feed, {name}, {window.keys} keys of {window.bytes_taken / window.keys:.0f} bytes, "
        f"{window.cut} cut: "
        + ", ".join(f"{what} {min(times[what]):.3f} {medians[what]:.3f} us" for what in times)
        + f" (least, median): {100 * (medians['with'] / medians['without'] - 1):+.1f} %",
        flush=True,
    )


def load(topic: str, target: Target, seconds: float) -> tuple[float, float]:
    """Messages a second, and microseconds of the broker's CPU of one."""
    command = [str(build_loadgen() / "target" / "release" / "loadgen"), "produce"]
    command += ["--broker", target.address, "--topic", topic, "--queues", "4", "--props"]
    command += ["--connections", "4", "--inflight", "64", "--size", "128", "--json"]
    command += ["--seconds", str(seconds), "--pid", str(target.pid)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["msgs_per_s"], found["broker_cpu_us_per_msg"]


def measure_rates(kernel: str, keys: int, rounds: int) -> None:
    """Print rates and CPU of both topics."""
    found: dict[str, list[tuple[float, float]]] = {"Without": [], "With": []}
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-dedup-") as folder,
        our_broker(Path(folder), kernel, f"dedupMaxKeys={keys}") as target,
    ):
        create_topics(Path(folder), {"Without": 0, "With": WINDOW_MS})
        sent = 0.0
        while sent < 1.2 * keys:
            sent += 3 * load("With", target, 3)[0]
        for number in range(rounds):
            for topic in sorted(found, reverse=bool(number % 2)):
                found[topic].append(load(topic, target, 2))
    rates, cpus = (
        {topic: statistics.median(each[part] for each in found[topic]) for topic in found}
        for part in (0, 1)
    )
    print(
        f"{kernel}, {keys} keys: {rates['Without']:,.0f} and {rates['With']:,.0f} messages/s "
        f"({100 * (rates['With'] / rates['Without'] - 1):+.1f} %), CPU {cpus['Without']:.2f} and "
        f"{cpus['With']:.2f} us ({100 * (cpus['With'] / cpus['Without'] - 1):+.1f} %)",
        flush=True,
    )


def started(folder: Path, kernel: str, keys: int) -> tuple[float, float]:
    """Seconds of CPU, and of time, until a broker on a folder serves."""
    begin = time.monotonic()
    with our_broker(folder, kernel, f"dedupMaxKeys={keys}", "vipPortEnable=false") as target:
        seconds = time.monotonic() - begin
        fields = Path(f"/proc/{target.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), seconds


def measure_restart(kernel: str, keys: int, rounds: int) -> None:
    """Print what a start costs with so many keys, and with one."""
    found: dict[int, list[tuple[float, float]]] = {1: [], keys: []}
    with tempfile.TemporaryDirectory(prefix="kerolox-dedup-") as name:
        folder = Path(name)
        with our_broker(folder, kernel, f"dedupMaxKeys={keys}", "vipPortEnable=false") as target:
            create_topics(folder, {"With": WINDOW_MS})
            sent = 0.0
            while sent < 1.1 * keys:
                sent += 2 * load("With", target, 2)[0]
        for _ in range(rounds):
            for count in found:
                found[count].append(started(folder, kernel, count))
    cpu, seconds = (
        {count: statistics.median(each[part] for each in found[count]) for count in found}
        for part in (0, 1)
    )
    print(
        f"{kernel}: a start with {keys} keys took {cpu[keys]:.2f} s of CPU and "
        f"{seconds[keys]:.2f} s, with one {cpu[1]:.2f} and {seconds[1]:.2f}",
        flush=True,
    )


def create_topics(folder: Path, windows: dict[str, int]) -> None:
    """Make topics with windows of so many milliseconds; 0: without."""
    lines = (folder / "ready").read_text().splitlines()
    with Admin(dict(line.split("=") for line in lines)["namesrv"]) as admin:
        for topic, window_ms in windows.items():
            attributes = {"dedup.window.ms": str(window_ms)} if window_ms else {}
            admin.create_topic(topic, queues=4, attributes=attributes)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="native")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--feed", action="store_true")
    parser.add_argument("--restart", action="store_true")
    chosen = parser.parse_args()
    measure = measure_feed if chosen.feed else measure_rates
    if chosen.restart:
        measure = measure_restart
    measure(chosen.kernel, chosen.keys, chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
