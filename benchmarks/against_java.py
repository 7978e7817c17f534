"""Claim: several times the Java broker's rate at a fraction of its CPU, on the same machine.

Runs the load generator's standard cases against the Java broker, ours with the native kernel and
ours in pure Python, in turn, and prints a table of medians with their ranges and ratios, then JSON.

    python benchmarks/against_java.py [--passes 3] [--cases REGEX] [--seconds 5] [--cold]
    python benchmarks/against_java.py --before CHECKOUT     # beside an older state, in turn

With ``--before`` another checkout (with a ``.venv`` of its own from ``make setup``) takes the
Java broker's place, and the ratios are those of this state to that one.

A machine that has run for a while has its memory full of cached files, and takes a page for new
data from those. A virtual machine just started, or one that gives free memory back to its host,
gets each page from the host instead, and the first touch of it may cost many times what a broker
does with it. So the page cache is filled first, for all brokers alike; ``--cold`` leaves it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import build_loadgen, java_broker, our_broker

CASES = "p128-1x1|p128-64x4|p1024-64x4|fill128|c128|fill1024|c1024|m5k|m20k|longpoll"
SHOWN = ["p128-64x4", "p1024-64x4", "p128-1x1", "c128", "c1024", "m5k", "m20k", "longpoll"]
Runs = dict[str, dict[str, list[dict[str, Any]]]]


FREE_BYTES = 128 << 20
"""What filling the page cache leaves free."""

BLOCK_BYTES = 1 << 20


def fill_page_cache(folder: Path) -> None:
    """Read a file without blocks, as long as the free memory: its pages stay cached and clean."""
    meminfo = Path("/proc/meminfo").read_text()
    free = 1024 * int(meminfo.split("MemFree:")[1].split()[0])
    with (folder / "cached").open("w+b", buffering=0) as file:
        file.truncate(max(0, free - FREE_BYTES))
        block = bytearray(BLOCK_BYTES)
        while file.readinto(block):
            pass


PEERS = {"native": "java", "python": "java"}
"""Label to the label that it is compared with."""

PEERS_BEFORE = {"native": "native-before", "python": "python-before"}


def measure(
    passes: int, cases: str, seconds: int, *, cold: bool, folder: Path, before: Path | None
) -> Runs:
    """Case to label to runs."""
    loadgen, out = build_loadgen(), folder / "runs.jsonl"
    with ExitStack() as stack:
        targets = []
        if before is None:
            targets.append(stack.enter_context(java_broker(folder / "java")))
        for kernel in ("native", "python"):
            if before is not None:
                label = f"{kernel}-before"
                old = our_broker(folder / label, kernel, checkout=before, label=label)
                targets.append(stack.enter_context(old))
            targets.append(stack.enter_context(our_broker(folder / kernel, kernel)))
        named = [f"{target.label}={target.address}:{target.pid}" for target in targets]
        environment = {**os.environ, "SECS": str(seconds), "MIXED_SECS": str(seconds)}
        if not cold:
            fill_page_cache(folder)
        for number in range(passes):
            environment["TOPIC_SUFFIX"] = f"{os.getpid()}-{number}"
            # Who comes last finds less free memory, so the order turns round with each pass.
            ordered = named[::-1] if number % 2 else named
            command = ["./suite.sh", str(out), "1", cases, *ordered]
            subprocess.run(command, cwd=loadgen, check=True, env=environment)
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for line in out.read_text().splitlines():
        run = json.loads(line)
        label, case = run["label"].split("/", 1)
        runs[case][label].append(run)
    return runs


def figures(runs: list[dict[str, Any]], case: str) -> dict[str, list[float]]:
    """The figures of a case: every run's value."""
    found = {
        "rate": [run["msgs_per_s"] for run in runs],
        "cpu_us": [run["broker_cpu_us_per_msg"] for run in runs],
    }
    if case in ("m5k", "m20k", "longpoll"):
        for place in ("p50_us", "p99_us"):
            found[place] = [run["end_to_end"][place] for run in runs]
    return found


def text(values: list[float]) -> str:
    """Median and range."""
    middle, low, high = statistics.median(values), min(values), max(values)
    places = 0 if middle >= 100 else 2
    return f"{middle:,.{places}f} [{low:,.{places}f}..{high:,.{places}f}]"


def table(runs: Runs, peers: dict[str, str]) -> list[str]:
    """One row per case and figure: the values, then our medians divided by those of the peers."""
    labels = [*dict.fromkeys(peers.values()), *peers]
    columns = ["case", "figure", *labels, *(f"{ours}/{peer}" for ours, peer in peers.items())]
    rows = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for case in SHOWN:
        if case not in runs:
            continue
        per_label = {label: figures(found, case) for label, found in runs[case].items()}
        for figure in next(iter(per_label.values())):
            values = {label: found[figure] for label, found in per_label.items()}
            cells = [text(values[label]) if label in values else "-" for label in labels]
            cells += [ratio(values.get(ours), values.get(peer)) for ours, peer in peers.items()]
            rows.append(f"| {case} | {figure} | " + " | ".join(cells) + " |")
    return rows


def ratio(ours: list[float] | None, peer: list[float] | None) -> str:
    """The ratio of the medians; a dash where one is missing."""
    if not ours or not peer or not statistics.median(peer):
        return "-"
    return f"{statistics.median(ours) / statistics.median(peer):.3f}"


def saved(runs: Runs) -> dict[str, Any]:
    """Our medians as multiples of Java's, as ``draw.py`` reads them."""
    cases = {}
    for case in SHOWN:
        if case not in runs:
            continue
        found = {label: figures(each, case) for label, each in runs[case].items()}
        names = {"cpu": "cpu_us", "rate": "rate"}
        if case in ("m5k", "m20k", "longpoll"):
            names = {"cpu": "cpu_us", "time": "p50_us" if case == "longpoll" else "p99_us"}
        cases[case] = {
            name: {label: float(ratio(found[label][key], found["java"][key])) for label in PEERS}
            for name, key in names.items()
        }
    command = " ".join(["python", "benchmarks/against_java.py", *sys.argv[1:]])
    return {"date": datetime.date.today().isoformat(), "command": command, "cases": cases}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--save", type=Path, metavar="FILE", help="for draw.py; not with --before")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
        runs = measure(
            chosen.passes,
            chosen.cases,
            chosen.seconds,
            cold=chosen.cold,
            folder=Path(folder),
            before=chosen.before and chosen.before.resolve(),
        )
    print("\n".join(table(runs, PEERS if chosen.before is None else PEERS_BEFORE)))
    if chosen.save and chosen.before is None:
        chosen.save.write_text(json.dumps(saved(runs), indent=2) + "\n")
    errors = {
        f"{label}/{case}": run["errors"]
        for case, labels in runs.items()
        for label, found in labels.items()
        for run in found
        if run["errors"] or run["incomplete"]
    }
    print(json.dumps({"errors": errors, "runs": runs}))
    # The peer may refuse sends under load (its flow control); ours may not.
    return 1 if any(not label.startswith("java/") for label in errors) else 0


if __name__ == "__main__":
    sys.exit(main())
