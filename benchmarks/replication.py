"""Claim: a master with a slave takes three times the Java pair's rate at a third of its CPU each.

Sends of 1 KiB to a master with one slave, to the Java pair and to ours in turn, for SYNC_MASTER and
ASYNC_MASTER: 64 connections with 4 open each and 4 with 64. The processor time of master and slave
is that until the slave has all. Then a slave that was away catches up with 2 GiB, and both pairs
do nothing for 20 s.

    python benchmarks/replication.py [--passes 3] [--seconds 4] [--cases sync,async,catch-up,idle]
        [--folder /tmp] [--cold]

The page cache is filled before the sends, as in ``against_java.py``: the first touch of a page of
a virtual machine costs three times what a slave of ours does with it. ``--cold`` leaves it.

Prints tables of medians with their ranges and our multiples of Java's, then JSON. Exits with 1
below a floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.servers.up import free_port

from benchmarks.against_java import fill_page_cache, text
from benchmarks.peers import Target, build_loadgen, cpu_seconds, java_broker, our_broker
from kerolox.admin import Admin
from kerolox.errors import BrokerSystemError

RATE_FLOOR = 3.0
CPU_FLOOR = 1 / 3
CATCH_UP_FLOOR = 1.0
IDLE_FLOOR = 0.01
SHAPES = ((64, 4), (4, 64))
BODY_BYTES = 1_024
CATCH_UP_BYTES = 2 << 30
WARM_UPS = 1
"""Passes before those that count: Java compiles meanwhile."""
FILL_BODY_BYTES = 8_192
IDLE_SECONDS = 20
SECONDS_MAX = 180
JAVA_HEAP = "1g"

Runs = dict[str, dict[str, list[float]]]
"""Label to figure to values."""


def end_of(target: Target) -> int:
    """Where the log of a broker ends."""

    async def ask() -> int:
        deadline = time.monotonic() + SECONDS_MAX
        async with Admin("127.0.0.1:1") as admin:
            while True:
                try:
                    return (await admin.broker_runtime(target.address)).log_max_offset
                except BrokerSystemError:
                    # Java's broker has no answer in its first second.
                    if time.monotonic() > deadline:
                        raise
                await asyncio.sleep(0.05)

    return asyncio.run(ask())


class Pair:
    """A master and its slave, of which either may come and go."""

    def __init__(self, label: str, role: str, folder: Path) -> None:
        """Nothing is started before it is entered. ``label``: java, native or python."""
        self.label = label
        self._role, self._folder = role, folder
        self._names = free_port()
        self._ha_port = 0
        self._stack, self._slave_stack = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        port = free_port()
        # haListenPort of a Java master is the next one, whatever its settings say.
        self._ha_port = port + 1
        role = f"brokerRole={self._role}"
        self.master = self._stack.enter_context(self._broker("master", role, port=port))
        self._stack.callback(self._slave_stack.close)
        self.start_slave()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_slave(self) -> None:
        """Start it where it was."""
        settings = ("brokerRole=SLAVE", "brokerId=1", f"haMasterAddress=127.0.0.1:{self._ha_port}")
        self.slave = self._slave_stack.enter_context(self._broker("slave", *settings))

    def stop_slave(self) -> None:
        """Let it keep its folder."""
        self._slave_stack.close()

    def _broker(self, name: str, *settings: str, port: int = 0) -> AbstractContextManager[Target]:
        folder = self._folder / name
        settings = ("brokerName=bench", *settings)
        names, beside = self._names, name == "slave"
        if self.label == "java":
            return java_broker(folder, *settings, port=port, namesrv_port=names, is_beside=beside)
        return our_broker(
            folder, self.label, *settings, port=port, namesrv_port=names, is_beside=beside
        )

    def wait_equal(self) -> int:
        """Wait until the slave has all; the end of the log."""
        end, deadline = end_of(self.master), time.monotonic() + SECONDS_MAX
        while end_of(self.slave) < end:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.label}: the slave has {end_of(self.slave)} of {end} bytes")
            time.sleep(0.05)
        return end

    def processors(self) -> tuple[float, float]:
        """Seconds of CPU of both."""
        return cpu_seconds(self.master.pid), cpu_seconds(self.slave.pid)


def produce(loadgen: Path, target: Target, topic: str, *options: str) -> dict[str, Any]:
    """One run of the load generator."""
    command = [str(loadgen / "target" / "release" / "loadgen"), "produce", "--create", "--json"]
    command += ["--broker", target.address, "--topic", topic, "--queues", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{target.label}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def send(
    loadgen: Path, pair: Pair, topic: str, shape: tuple[int, int], seconds: int
) -> list[float]:
    """(messages per second, microseconds of CPU per message of master and of slave)."""
    connections, in_flight = shape
    before, begin = pair.processors(), pair.wait_equal()
    options = ["--connections", str(connections), "--inflight", str(in_flight)]
    options += ["--size", str(BODY_BYTES), "--warmup", "1", "--seconds", str(seconds)]
    found = produce(loadgen, pair.master, topic, *options)
    # The Java broker may refuse sends of a busy moment (its flow control); ours may not.
    if found["errors"] and (pair.label != "java" or set(found["errors"]) != {"2"}):
        raise SystemExit(f"{pair.label}: {found}")
    # The warm-up counts in both: each record has as many bytes as the next.
    messages = (pair.wait_equal() - begin) / (BODY_BYTES + RECORD_BYTES)
    used = [
        1e6 * (now - then) / messages for now, then in zip(pair.processors(), before, strict=True)
    ]
    return [found["msgs_per_s"], *used]


RECORD_BYTES = 125
"""Of a record besides its body: near enough for both."""
FIGURES = ("rate", "master_cpu_us", "slave_cpu_us")


def measure_sends(
    loadgen: Path, role: str, passes: int, seconds: int, folder: Path, *, cold: bool
) -> dict[tuple[int, int], Runs]:
    """Both pairs in turn."""
    runs: dict[tuple[int, int], Runs] = {}
    with ExitStack() as stack:
        pairs = [stack.enter_context(Pair(label, role, folder / label)) for label in LABELS]
        if not cold:
            fill_page_cache(folder)
        for number in range(-WARM_UPS, passes):
            for shape in SHAPES:
                for pair in pairs[:: -1 if number % 2 else 1]:
                    topic = f"{role}-{shape[0]}-{os.getpid()}-{number}"
                    values = send(loadgen, pair, topic, shape, seconds)
                    found = runs.setdefault(shape, {}).setdefault(pair.label, defaultdict(list))
                    for figure, value in zip(FIGURES, values if number >= 0 else (), strict=False):
                        found[figure].append(value)
                    print(f"{number} {role} {shape} {pair.label} {values}", file=sys.stderr)
    return runs


LABELS = ("java", "native")


def catch_up(loadgen: Path, pair: Pair) -> list[float]:
    """(bytes per second of a slave that was away, CPU seconds per GiB of master and slave)."""
    produce(loadgen, pair.master, "begin", "--size", "100", "--messages", "100")
    pair.wait_equal()
    pair.stop_slave()
    count = CATCH_UP_BYTES // FILL_BODY_BYTES
    options = ["--size", str(FILL_BODY_BYTES), "--messages", str(count), "--inflight", "16"]
    produce(loadgen, pair.master, "fill", "--connections", "4", *options)
    end, master_before = end_of(pair.master), cpu_seconds(pair.master.pid)
    pair.start_slave()
    first, slave_before = end_of(pair.slave), cpu_seconds(pair.slave.pid)
    start, deadline = time.monotonic(), time.monotonic() + SECONDS_MAX
    while (now := end_of(pair.slave)) < end and time.monotonic() < deadline:
        if now == first:
            start = time.monotonic()
        time.sleep(0.02)
    seconds, gib = time.monotonic() - start, (end - first) / (1 << 30)
    used = cpu_seconds(pair.master.pid) - master_before, cpu_seconds(pair.slave.pid) - slave_before
    return [(end - first) / seconds, *(each / gib for each in used)]


def idle(pair: Pair) -> list[float]:
    """Parts of a core that master and slave take."""
    before, start = pair.processors(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - start
    return [(now - then) / seconds for now, then in zip(pair.processors(), before, strict=True)]


def row(name: str, java: list[float], ours: list[float]) -> str:
    ratio = statistics.median(ours) / statistics.median(java)
    return f"| {name} | {text(java)} | {text(ours)} | {ratio:.2f} |"


def check_floor(name: str, value: float, floor: float, *, at_least: bool) -> bool:
    """Tell how a floor is met; whether it is."""
    is_met = value >= floor if at_least else value <= floor
    kind = "at least" if at_least else "at most"
    print(f"{name}: {value:.3f} ({kind} {floor:.3f}) {'met' if is_met else 'MISSED'}")
    return is_met


def report_sends(role: str, all_runs: dict[tuple[int, int], Runs]) -> bool:
    is_met = True
    print("| case | Java | Kerolox | to Java |\n|---|---|---|---|")
    for (connections, in_flight), runs in all_runs.items():
        for figure in FIGURES:
            name = f"{role} {connections}x{in_flight} {figure}"
            print(row(name, runs["java"][figure], runs["native"][figure]))
    for shape, runs in all_runs.items():
        for figure in FIGURES:
            ours, java = (statistics.median(runs[each][figure]) for each in ("native", "java"))
            floor = RATE_FLOOR if figure == "rate" else CPU_FLOOR
            name = f"{role} {shape[0]}x{shape[1]} {figure}"
            is_met &= check_floor(name, ours / java, floor, at_least=figure == "rate")
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--cases", default="sync,async,catch-up,idle")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--cold", action="store_true")
    chosen = parser.parse_args()
    cases = chosen.cases.split(",")
    os.environ.setdefault("BROKER_HEAP", JAVA_HEAP)
    loadgen, is_met = build_loadgen(), True
    saved: dict[str, Any] = {}
    for role in ("SYNC_MASTER", "ASYNC_MASTER"):
        if role.partition("_")[0].lower() not in cases:
            continue
        with tempfile.TemporaryDirectory(prefix="kerolox-bench-", dir=chosen.folder) as name:
            runs = measure_sends(
                loadgen, role, chosen.passes, chosen.seconds, Path(name), cold=chosen.cold
            )
        is_met &= report_sends(role, runs)
        saved[role] = {f"{shape[0]}x{shape[1]}": found for shape, found in runs.items()}
    figures: dict[str, list[float]] = {}
    quiet: dict[str, list[float]] = {}
    for label in LABELS if {"catch-up", "idle"} & set(cases) else ():
        with (
            tempfile.TemporaryDirectory(prefix="kerolox-bench-", dir=chosen.folder) as name,
            Pair(label, "ASYNC_MASTER", Path(name)) as pair,
        ):
            if "idle" in cases:
                quiet[label] = idle(pair)
            if "catch-up" in cases:
                figures[label] = catch_up(loadgen, pair)
        print(f"{label}: catch-up {figures.get(label)}, idle {quiet.get(label)}", file=sys.stderr)
    if figures:
        rate = figures["native"][0] / figures["java"][0]
        mib = {label: round(found[0] / (1 << 20), 1) for label, found in figures.items()}
        print(f"catch-up, MiB/s: {mib}; CPU s/GiB: { {k: v[1:] for k, v in figures.items()} }")
        is_met &= check_floor("catch-up rate to Java's", rate, CATCH_UP_FLOOR, at_least=True)
    for place, name in enumerate(("master", "slave") if quiet else ()):
        print(f"idle {name}: Java {quiet['java'][place]:.4f} of a core")
        is_met &= check_floor(f"idle {name}", quiet["native"][place], IDLE_FLOOR, at_least=False)
    print(json.dumps({"sends": saved, "catch-up": figures, "idle": quiet}))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
