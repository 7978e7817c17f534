"""Seconds and memory of ``kerolox spark rebuild``: queues and index of a store from its log.

Claim measured: a rebuild is bounded by reading the log and writing its index, and a task's memory
does not depend on the store's size. Fills a store with the kernel (four queues, tags, two keys a
message), then rebuilds it ``--runs`` times after a warm-up into a new folder, and compares the
queues with the broker's own. With ``--alone`` also ``kerolox store rebuild`` on one core, once.
Prints one JSON object: seconds (minimum, median, maximum), messages/s of the median, the largest
process of a task.

    python benchmarks/spark_rebuild.py --rows 2000000 --size 128
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.spark_read import start_spark  # noqa: E402
from benchmarks.spark_store_read import fill  # noqa: E402
from kerolox.inspect.places import StoreOptions, StorePlaces  # noqa: E402
from kerolox.inspect.rebuild import rebuild_store  # noqa: E402
from kerolox.kernel.choice import kernel_name  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402
from kerolox.spark.jobs.rebuild import RebuildOptions, rebuild  # noqa: E402

SMALL_EVERY = 1000
SETTINGS = "enableMultiDispatch=false\n"


def compared(made: Path, own: Path) -> None:
    """Fail unless both have the same files with the same bytes."""
    for folder, _, names in os.walk(own):
        other = made / Path(folder).relative_to(own)
        _, unequal, missing = filecmp.cmpfiles(folder, other, names, shallow=False)
        if unequal or missing:
            raise SystemExit(f"{folder} differs: {unequal + missing}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--store", help="a store made before; default: made and removed")
    parser.add_argument("--alone", action="store_true", help="also kerolox store rebuild")
    options = parser.parse_args()
    require_java()
    with tempfile.TemporaryDirectory() as folder:
        root = options.store or str(Path(folder, "store"))
        if not options.store:
            fill(root, options.rows, options.size, SMALL_EVERY)
        config = Path(folder, "broker.conf")
        config.write_text(SETTINGS)
        target = Path(folder, "new")
        spark = start_spark()
        seconds, peaks = [], []
        for number in range(options.runs + 1):
            shutil.rmtree(target, ignore_errors=True)
            given = RebuildOptions(store=root, to=str(target), config=str(config))
            summary = rebuild(spark, given)
            if number:
                seconds.append(summary.seconds)
                peaks.append(summary.task_peak_mib)
            compared(target / "consumequeue", Path(root, "consumequeue"))
        spark.stop()
        median = statistics.median(seconds)
        facts: dict[str, object] = {
            "benchmark": "spark_rebuild",
            "rows": summary.records,
            "kernel": kernel_name(),
            "log_bytes": summary.log_bytes,
            "index_entries": summary.index_entries,
            "seconds": [round(each, 2) for each in (min(seconds), median, max(seconds))],
            "messages_per_second": round(summary.records / median),
            "task_peak_mib": max(peaks),
        }
        if options.alone:
            started = time.monotonic()
            rebuild_store(StorePlaces.find(root, StoreOptions.of_settings(config)))
            facts["alone_seconds"] = round(time.monotonic() - started, 2)
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
