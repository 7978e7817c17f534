"""Claim: a producer of Java, Go or ours waits 3 s at most for its next acknowledged send when a
master fails, with the settings of the guide; nothing acknowledged is lost, and no two brokers
acknowledge in one epoch.

Two brokers with allAckInSyncStateSet under three controllers; masters fail in turn, each by kill
-9, by one with a start behind it, by SIGSTOP, cut from everybody, cut from controllers and slave
alone (``island``), and by a disk that is full to its last byte. Ours beside RocketMQ's brokers and
controllers of 5.3.3.

    python benchmarks/failover.py [--rounds 5] [--kinds ours,java] [--profiles default,guide]
        [--faults kill,restart,pause,cut,island,disk] [--patience 60] [--folder /tmp]

It needs root (network namespaces, mounts), Java and Go. A wait begins with the fault, or with a
later answer of the old master, and ends with the first send that the new one acknowledges. A broker
that is not in sync again a minute after its fault is started anew, and counts as helped. Prints a
table for each kind and profile, then JSON. Exits with 1 where ours is slower, or lost something.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.replication.failing import CLIENTS, FAULTS, KINDS, PROFILES, failing_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.replication.failing import FailingSet, Profile, Waits

SECONDS_FLOOR = 3.0


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def text(seconds: float) -> str:
    """Of a table."""
    return "none" if seconds == math.inf else f"{seconds:.2f}"


async def one_fault(it: FailingSet, fault: str, rounds: int, patience: float) -> list[Waits]:
    """All rounds of a fault."""
    waits = []
    for number in range(rounds):
        waits.append(await it.fail(fault, patience))
        told = " ".join(f"{client} {text(s)}" for client, s in waits[-1].seconds.items())
        print(f"{fault} {number}: {told}, elected {text(waits[-1].elected)}", flush=True)
    return waits


async def run(
    kind: str, profile: Profile, faults: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """All faults of a kind and profile, on one set of brokers."""
    waits: dict[str, list[Waits]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=f"failover-{kind}-") as name:
        async with failing_set(kind, Path(name), profile) as it:
            for fault in faults:
                waits[fault] = await one_fault(it, fault, options.rounds, options.patience)
            await it.stop_sending()
            master = await it.until_whole()
            await it.until_equal()
            lost = [await it.lost(number) for number in (master, 1 - master)]
            doubles = await it.two_masters(master)
            acks = len(it.journal.acks)
    print(
        f"\n{kind}, {profile.name}: {acks} acknowledged; lost {len(lost[0])} at the master, ",
        end="",
    )
    print(f"{len(lost[1])} at the slave; doubles {len(doubles)}; helped {it.helped}")
    for each in (*lost[0][:5], *lost[1][:5], *doubles[:5]):
        print(f"  {each}")
    print("| fault | client | median s | p99 s | greatest s |\n| --- | --- | --- | --- | --- |")
    figures: dict[str, dict[str, list[float]]] = {}
    for fault, of_fault in waits.items():
        figures[fault] = {client: [each.seconds[client] for each in of_fault] for client in CLIENTS}
        figures[fault]["all"] = [s for client in CLIENTS for s in figures[fault][client]]
        figures[fault]["elected"] = [each.elected for each in of_fault]
        for client, seconds in figures[fault].items():
            row = (percentile(seconds, share) for share in (0.5, 0.99, 1))
            print(f"| {fault} | {client} | {' | '.join(map(text, row))} |")
    return {
        "kind": kind,
        "profile": profile.name,
        "acknowledged": acks,
        "lost": [len(each) for each in lost],
        "doubles": len(doubles),
        "helped": it.helped,
        "seconds": figures,
    }


def is_well(result: dict[str, Any]) -> bool:
    """Whether the claim holds for ours; Java's has none."""
    if result["kind"] != "ours":
        return True
    slowest = max(percentile(each["all"], 0.99) for each in result["seconds"].values())
    is_quick = result["profile"] != "guide" or slowest <= SECONDS_FLOOR
    return is_quick and not any(result["lost"]) and not (result["doubles"] or result["helped"])


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    results = [
        asyncio.run(run(kind, profile, options.faults.split(","), options))
        for profile in map(PROFILES.__getitem__, options.profiles.split(","))
        for kind in options.kinds.split(",")
    ]
    print(json.dumps(results))
    return 0 if all(map(is_well, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
