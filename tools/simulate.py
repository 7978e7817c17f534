"""Run simulated clusters, each from one seed, and tell which seeds fail.

    python tools/simulate.py --seconds 60                 fresh seeds for so long (make test)
    python tools/simulate.py --seeds 100000 [--jobs 2]    seeds 0 to 99,999; goes on where it ended
    python tools/simulate.py --seed 4711 [--trace]        one seed, with all that happens
    python tools/simulate.py --seeds 50 --twice           each twice: nothing but the seed decides
    python tools/simulate.py --bug all [--seeds 1000]     until each deliberate bug is found
    ... --kind popped                                     groups that pop alone; timed: the timer

A run of ``--seeds`` notes in ``.cache/simulation.json`` what is done; ``--anew`` forgets it. What
fails is printed with the last steps; the same seed fails in the same way with the same source.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

BLOCK_SEEDS = 100
"""Seeds that a worker takes at a time."""
BLOCKS_OF_WORKER = 20
"""After so many a worker ends and another begins, so that memory stays small."""
FRESH_SEEDS = 1 << 32
FRESH_BLOCK_SEEDS = 10
FRESH_MAX = 50_000
"""More than fit into the time; what is left over when it is up is not run."""
SHOWN_LINES = 60
FAILED_MAX = 20
"""After so many failing seeds a run ends."""
KINDS = ("mixed", "drawn", "popped", "timed", "by_grpc", "deduped")
"""Scenarios: all, or members that pull, groups that pop, messages for a moment."""
STATE = ROOT / ".cache" / "simulation.json"
HASH_SEED = "PYTHONHASHSEED"


def run_one(seed: int, *, kind: str, is_twice: bool = False, has_trace: bool = False) -> list[str]:
    """What was wrong with a seed, and its last steps; nothing: all was well."""
    from tests.simulation import scenario
    from tests.simulation.run import run_seed
    from tests.simulation.trace import LINES_MAX

    lines_max = 1_000_000 if has_trace else LINES_MAX
    level = logging.INFO if has_trace else logging.CRITICAL + 1
    made = getattr(scenario, kind)
    result = run_seed(seed, scenario=made, lines_max=lines_max, log_level=level)
    faults = list(result.faults)
    if is_twice:
        again = run_seed(seed, scenario=made)
        if again.digest != result.digest:
            pairs = zip(result.lines, again.lines, strict=False)
            first = next((f"{one} / {two}" for one, two in pairs if one != two), "the length")
            faults.append(f"two runs differ: {first}")
    if has_trace:
        print("\n".join(result.lines))
        print(
            f"seed {seed}: {result.digest}, {result.steps} steps, "
            f"{result.virtual_seconds:.1f} s, {result.counts}"
        )
    if not faults:
        return []
    return [f"seed {seed}: {fault}" for fault in faults] + result.lines[-SHOWN_LINES:]


def run_block(task: tuple[int, int, bool, float, str]) -> tuple[int, int, dict[int, list[str]]]:
    """Run the seeds of a block: its first seed, how many were run, and what failed."""
    first, count, is_twice, end, kind = task
    gc.freeze()
    failed = {}
    done = 0
    for seed in range(first, first + count):
        if end and time.time() > end:
            break
        done += 1
        if faults := run_one(seed, kind=kind, is_twice=is_twice):
            failed[seed] = faults
    return first, done, failed


def blocks(
    options: argparse.Namespace, done: set[int]
) -> Iterator[tuple[int, int, bool, float, str]]:
    """The blocks that are to be run."""
    if options.seconds:
        end = time.time() + options.seconds
        first = random.SystemRandom().randrange(FRESH_SEEDS)
        print(f"simulation: fresh seeds from {first}", flush=True)
        for start in range(first, first + FRESH_MAX, FRESH_BLOCK_SEEDS):
            yield start, FRESH_BLOCK_SEEDS, options.twice, end, options.kind
        return
    for first in range(options.first, options.first + options.seeds, BLOCK_SEEDS):
        if first not in done:
            count = min(BLOCK_SEEDS, options.first + options.seeds - first)
            yield first, count, options.twice, 0.0, options.kind


def run_many(options: argparse.Namespace) -> int:
    """Run blocks side by side; the exit status."""
    noted: dict[str, Any] = {}
    keeps = not options.seconds and not options.twice
    if keeps and STATE.exists():
        noted = json.loads(STATE.read_text())
    if options.anew:
        noted.pop(options.kind, None)
    # The same seed is another scenario in each kind.
    state = noted.get(options.kind, {"done": [], "failed": {}})
    done = set(state["done"])
    started, count = time.time(), 0
    failed: dict[str, list[str]] = dict(state["failed"])
    with multiprocessing.Pool(options.jobs, maxtasksperchild=BLOCKS_OF_WORKER) as pool:
        for first, ran, bad in pool.imap_unordered(run_block, blocks(options, done)):
            count += ran
            for seed, lines in bad.items():
                failed[str(seed)] = lines
                print("\n".join(lines), flush=True)
            if keeps:
                done.add(first)
                STATE.parent.mkdir(exist_ok=True)
                noted[options.kind] = {"done": sorted(done), "failed": failed}
                STATE.write_text(json.dumps(noted))
            if len(failed) >= options.failed_max:
                break
    seconds = time.time() - started
    print(f"simulation: {count} seeds in {seconds:.0f} s, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def find_bugs(names: list[str], options: argparse.Namespace) -> int:
    """Run seeds with a deliberate bug until one fails that is well without it; the exit status."""
    missed = []
    for name in names:
        found = find_bug(name, options.first, options.seeds)
        if found is None:
            missed.append(name)
        seed, fault = found or ("none", "")
        print(f"{name}: found by seed {seed}: {fault}", flush=True)
    print(f"simulation: {len(names)} bugs, not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def find_bug(name: str, first: int, count: int) -> tuple[int, str] | None:
    """The first seed that finds a bug, and what it says."""
    from tests.simulation.bugs import BUGS
    from tests.simulation.dedup_bugs import DEDUP_BUGS
    from tests.simulation.grpc_bugs import GRPC_BUGS
    from tests.simulation.pop_bugs import POP_BUGS
    from tests.simulation.run import run_seed
    from tests.simulation.scenario import by_grpc, deduped, drawn, popped, timed
    from tests.simulation.timer_bugs import TIMER_BUGS

    tables = (
        (BUGS, drawn),
        (POP_BUGS, popped),
        (TIMER_BUGS, timed),
        (GRPC_BUGS, by_grpc),
        (DEDUP_BUGS, deduped),
    )
    known = {each: (kind, bugs[each].install) for bugs, kind in tables for each in bugs}
    kind, install = known[name]
    for seed in range(first, first + count):
        faults = run_seed(seed, scenario=kind, on_patched=install).faults
        if faults and not run_seed(seed, scenario=kind).faults:
            return seed, faults[0]
    return None


def main() -> int:
    if os.environ.get(HASH_SEED) != "0":
        # The order of sets of strings is the seed's, too.
        environment = {**os.environ, HASH_SEED: "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--failed-max", type=int, default=FAILED_MAX)
    parser.add_argument("--bug", help="the name of a deliberate bug, or all")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    for flag in ("--trace", "--twice", "--anew"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.bug:
        from tests.simulation.bugs import BUGS
        from tests.simulation.grpc_bugs import GRPC_BUGS
        from tests.simulation.pop_bugs import POP_BUGS
        from tests.simulation.timer_bugs import TIMER_BUGS

        every = [*BUGS, *POP_BUGS, *TIMER_BUGS, *GRPC_BUGS]
        return find_bugs(every if options.bug == "all" else [options.bug], options)
    if options.seed is None:
        return run_many(options)
    lines = run_one(
        options.seed, kind=options.kind, is_twice=options.twice, has_trace=options.trace
    )
    print("\n".join(lines) or f"seed {options.seed}: all is well")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
