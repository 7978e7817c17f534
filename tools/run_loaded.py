"""The whole suite several times in a row beside a machine's other work, to find tests that races
or slow answers make fail: eight processes, of which one writes to the disk and the others compute.

    python tools/run_loaded.py [--times 3] [--busy 8] [-- PYTEST OPTIONS]

All runs go on to their end, whatever fails. Then each test that failed beside the others is named,
with the runs in which it did, and whether it passed alone (`second_run.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from second_run import DATE_FORMAT, Runs

ROOT = Path(__file__).resolve().parent.parent
WRITTEN_BYTES_MAX = 256 << 20
"""The disk writer begins its file anew after so much."""


def compute() -> None:
    """Keep a processor busy."""
    while True:
        sum(range(1_000_000))


def write(path: str) -> None:
    """Keep the disk busy: a MiB at a time, brought to the disk after each 16."""
    block = os.urandom(1 << 20)
    with open(path, "wb", buffering=0) as file:
        while True:
            for _ in range(16):
                file.write(block)
            os.fsync(file.fileno())
            if file.tell() >= WRITTEN_BYTES_MAX:
                file.seek(0)


@contextlib.contextmanager
def loaded(busy: int) -> Iterator[None]:
    """The other work, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="kerolox-load-") as folder:
        path = str(Path(folder) / "written")
        work = [multiprocessing.Process(target=compute, daemon=True) for _ in range(busy - 1)]
        work.append(multiprocessing.Process(target=write, args=(path,), daemon=True))
        for process in work:
            process.start()
        try:
            yield
        finally:
            for process in work:
                process.terminate()
            for process in work:
                process.join()


def ended(run: Mapping[str, object]) -> float:
    """When a run ended, in seconds of the wall clock."""
    return time.mktime(time.strptime(str(run["date"]), DATE_FORMAT))


def summary(runs: Iterable[Mapping[str, object]]) -> list[str]:
    """A line for each test that failed in one of the runs, those that failed most often first.

    Args:
        runs: as `second_run.Runs` keeps them, in order.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        for kind, text in (("flaky", "passed alone"), ("failed", "failed")):
            names = run[kind]
            assert isinstance(names, list)
            for name in names:
                found[name].append(f"run {number} {text}")
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"{name}: {', '.join(texts)}" for name, texts in ordered]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("options", nargs="*", metavar="PYTEST OPTION")
    chosen = parser.parse_args()
    command = [sys.executable, str(ROOT / "tools" / "run_tests.py"), "--anew", *chosen.options]
    worst, kept = 0, []
    with loaded(chosen.busy):
        for number in range(1, chosen.times + 1):
            started = time.time()
            status = subprocess.run(command).returncode
            worst = worst or status
            minutes = (time.time() - started) / 60
            print(f"loaded: run {number} of {chosen.times}: status {status}, {minutes:.1f} min")
            noted = Runs(ROOT / ".cache" / "runs.json").kept[-1:]
            # One that ended before its tests has no list of them.
            kept += [run for run in noted if ended(run) >= int(started)]
    for line in summary(kept):
        print(f"loaded: {line}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
