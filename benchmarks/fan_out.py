"""Claim: one topic fans out to 50 groups, every group sees all, within milliseconds.

One generator sends at a steady rate and consumes as one group; the other groups are one process
each, with a pull held on each of the topic's queues. Latency counts from the time a message was
due to be sent until the measuring group had it. Further rates show where the limit is.

    python benchmarks/fan_out.py [--groups 50] [--rates 4000,6000,8000] [--seconds 10]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import Target, build_loadgen, our_broker

QUEUES = 4
BODY_BYTES = 256
JOIN_SECONDS = 2
"""From the start of the groups' processes to the first message; they run on so long after it."""


def run(loadgen: Path, target: Target, groups: int, rate: int, seconds: int) -> list[Any]:
    """What the measuring generator found, then what each of the other groups did."""
    program = str(loadgen / "target" / "release" / "loadgen")
    topic = f"FanOut{rate}"
    common = ["--broker", target.address, "--topic", topic, "--queues", str(QUEUES), "--json"]
    create = [program, "create-topic", *common[:6]]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    listen = ["--from", "max", "--suspend-ms", "15000", "--connections", "1", "--idle-ms", "3000"]
    listen += ["--seconds", str(seconds + 2 * JOIN_SECONDS)]
    others = [
        subprocess.Popen(
            [program, "consume", *common, *listen, "--group", f"group-{number}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(groups - 1)
    ]
    send = ["--rate", str(rate), "--seconds", str(seconds), "--warmup", str(JOIN_SECONDS)]
    send += ["--connections", "1", "--consume-connections", "1", "--inflight", "512"]
    send += ["--size", str(BODY_BYTES), "--group", "measured", "--pid", str(target.pid)]
    measured = subprocess.run(
        [program, "mixed", *common, *send], check=False, stdout=subprocess.PIPE, text=True
    )
    texts = [measured.stdout, *(each.communicate()[0] for each in others)]
    return [json.loads(text) for text in texts]


def report(found: list[Any], groups: int, rate: int) -> bool:
    """Print one line of the table; whether every group saw every message."""
    measured, *others = found
    complete = [each for each in others if each["received"] == measured["sent"]]
    gaps = sum(each["gaps"] for each in found)
    late = measured["end_to_end"]
    busy = measured["broker_cpu_s"] / measured["seconds"]
    print(
        f"| {rate:,} | {rate * groups:,} | {late['p50_us'] / 1000:.1f} | "
        f"{late['p99_us'] / 1000:.1f} | {late['max_us'] / 1000:.1f} | {busy:.2f} | "
        f"{len(complete) + 1} of {groups} | {gaps} |",
        flush=True,
    )
    return len(complete) + 1 == groups and not gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--rates", default="4000,6000,8000")
    parser.add_argument("--seconds", type=int, default=10)
    chosen = parser.parse_args()
    loadgen, all_seen = build_loadgen(), True
    print(
        "| sent/s | delivered/s | p50 ms | p99 ms | max ms | broker, cores | groups that saw all "
        "| gaps |\n" + "|---" * 8 + "|"
    )
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-fan-out-") as folder,
        our_broker(Path(folder) / "native", "native") as target,
    ):
        for rate in (int(text) for text in chosen.rates.split(",")):
            found = run(loadgen, target, chosen.groups, rate, chosen.seconds)
            all_seen = report(found, chosen.groups, rate) and all_seen
    return 0 if all_seen else 1


if __name__ == "__main__":
    sys.exit(main())
