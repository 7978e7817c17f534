"""Claim: a store of 2 GiB is back after kill -9 in at most a tenth of the Java broker's time.

One store is written by the native kernel (1 KiB messages with a unique id and a key, in 8 queues,
at 100 MB/s by its own clock) and left as ``kill -9`` leaves it. Java's broker and ours, with either
kernel, then start from copies of it in turn, with everything in the page cache:

- ``process``: the broker was killed, the machine ran on. Ours trusts the page cache and reads the
  last 32 MiB; Java reads from the file that began before the checkpoint.
- ``machine``: nothing tells that the machine ran on. Ours reads from the record that the checkpoint
  vouches for (here: the last 4 seconds), Java as before.
- ``whole``: no checkpoint either. Everything is read, checked and compared.

``ready_s`` is the time from the launch to the broker's answer, ``recovery_s`` what of it the same
broker does not need with an empty store. Java logs errors only: a line for each record otherwise.

    python benchmarks/recovery.py [--passes 3] [--megabytes 2048] [--brokers java,native,python]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import java_broker, our_broker
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Batch

BYTES_PER_MS = 100_000
LAST_FLUSH_MS = 1_000
QUEUES = 8
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
MODULES = {"python": "kerolox._pykernel", "native": "kerolox_kernel"}
CASES = ("process", "machine", "whole")
SMALL_PARTS = ("checkpoint", "abort", "boot", "consumequeue", "index", "inventory", "deletions")


def write_store(folder: Path, size: int) -> None:
    """Fill a store in a process of its own, and kill that."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    module = importlib.import_module(MODULES["native"])
    store = module.Store(StoreSettings(store_path_root_dir=str(folder)))
    begin = int(time.time() * 1_000) - size // BYTES_PER_MS - 10_000
    store.set_clock(begin)
    store.open()
    body, number, flush_at = os.urandom(900), 0, size - LAST_FLUSH_MS * BYTES_PER_MS
    while (end := store.max_physical_offset) < size:
        now = begin + end // BYTES_PER_MS
        store.set_clock(now)
        items = [
            (0, body, b"UNIQ_KEY\x01%032d\x02KEYS\x01key%d\x02TAGS\x01t" % (each, each))
            for each in range(number, number + 32)
        ]
        queue_id = number // 32 % QUEUES
        assert store.append_batch(Batch(b"Bench", queue_id, 0, now, HOST, HOST, 0, items))[0] == 0
        number += 32
        if end >= flush_at:
            flush_at = size + 1
            store.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def copy(source: Path, target: Path) -> None:
    """Copy a file or folder; holes, which new files mostly are, stay holes."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def set_back(crashed: Path, store: Path, case: str) -> None:
    """Let a copy be as it was after the crash; nobody has changed its log."""
    for name in SMALL_PARTS:
        source, target = crashed / name, store / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if source.exists():
            copy(source, target)
    boot = store / "boot"
    # The Python kernel notes the boot of the machine in one file, the native one in the other.
    (store / "abort").write_bytes(boot.read_bytes() if case == "process" else b"")
    if case != "process":
        boot.unlink(missing_ok=True)
    if case == "whole":
        (store / "checkpoint").write_bytes(bytes(4_096))


def warm(store: Path) -> None:
    """Bring the files into the page cache."""
    for path in store.rglob("*"):
        if path.is_file():
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)


def start(broker: str, folder: Path) -> tuple[float, str]:
    """Start a broker, kill it; seconds to its answer, and what it says of the recovery."""
    (folder / "ready").unlink(missing_ok=True)
    began = time.monotonic()
    if broker == "java":
        os.environ["PEER_LOG_LEVEL"] = "ERROR"
        with java_broker(folder) as target:
            os.kill(target.pid, signal.SIGKILL)
        text = (Path(__file__).resolve().parent.parent / ".cache" / "peer-up.log").read_text()
        return int(text.split("broker_ms=")[1].split()[0]) / 1_000, ""
    with our_broker(folder, broker) as target:
        seconds = time.monotonic() - began
        os.kill(target.pid, signal.SIGKILL)
    lines = (folder / "log").read_text().splitlines()
    return seconds, next((line for line in lines if "opened after" in line), "")


def measure(brokers: list[str], passes: int, folder: Path, size: int) -> dict[str, Any]:
    """Case to broker to figures."""
    crashed = folder / "crashed"
    write_store(crashed, size)
    stores = {}
    for broker in brokers:
        stores[broker] = folder / broker
        (stores[broker] / "store").mkdir(parents=True)
        copy(crashed / "commitlog", stores[broker] / "store" / "commitlog")
        (stores[broker] / "store" / "lock").write_bytes(b"lock")
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    said: dict[tuple[str, str], str] = {}
    for number in range(passes):
        for broker in brokers:
            empty = folder / f"empty-{broker}-{number}"
            seconds[broker, "empty"].append(start(broker, empty)[0])
            shutil.rmtree(empty)
            for case in CASES:
                set_back(crashed, stores[broker] / "store", case)
                warm(stores[broker] / "store")
                taken, said[broker, case] = start(broker, stores[broker])
                seconds[broker, case].append(taken)
                print(f"{broker} {case} {taken:.2f} s {said[broker, case]}", file=sys.stderr)
    result: dict[str, Any] = {}
    for broker in brokers:
        empty_s = statistics.median(seconds[broker, "empty"])
        result[broker] = {"empty": {"ready_s": round(empty_s, 3)}}
        for case in CASES:
            ready_s = statistics.median(seconds[broker, case])
            result[broker][case] = {
                "ready_s": round(ready_s, 3),
                "recovery_s": round(ready_s - empty_s, 3),
                "range": [
                    round(min(seconds[broker, case]), 3),
                    round(max(seconds[broker, case]), 3),
                ],
                "report": said[broker, case],
            }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=2_048)
    parser.add_argument("--brokers", default="java,native,python")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerolox-bench-") as folder:
        result = measure(
            chosen.brokers.split(","), chosen.passes, Path(folder), chosen.megabytes << 20
        )
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
