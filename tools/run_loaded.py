"""The whole suite several times in a row beside a machine's other work, to find tests that races
or slow answers make fail: four processes that compute and one that writes to the disk.

    python tools/run_loaded.py [--times 5] [--busy 4] [-- PYTEST OPTIONS]

Ends with the first run that fails, with its status.
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
from collections.abc import Iterator
from pathlib import Path

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
        work = [multiprocessing.Process(target=compute, daemon=True) for _ in range(busy)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("options", nargs="*", metavar="PYTEST OPTION")
    chosen = parser.parse_args()
    command = [sys.executable, str(ROOT / "tools" / "run_tests.py"), "--anew", *chosen.options]
    with loaded(chosen.busy):
        for number in range(1, chosen.times + 1):
            started = time.monotonic()
            status = subprocess.run(command).returncode
            minutes = (time.monotonic() - started) / 60
            print(f"loaded: run {number} of {chosen.times}: status {status}, {minutes:.1f} min")
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
