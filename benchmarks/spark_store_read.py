"""Rows per second of a Spark batch read from a store's files to the noop sink.

Claim measured: reading a commit log costs the JVM's work on Arrow batches, and little beside it.
Fills a store with the kernel, one in ``--every`` messages of a small topic, then reads it
``--runs`` times after a warm-up. Case ``scan`` reads and decodes the nine columns in this process,
without Spark; ``entries`` and ``log`` read the small topic by its queue entries and by the log.
Prints one JSON object per case: minimum, median and maximum seconds, rows/s of the median, CPU
seconds per run.

    python benchmarks/spark_store_read.py --rows 2000000 --size 128
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.spark_read import NINE, cpu_seconds, start_spark  # noqa: E402
from kerolox.kernel.choice import kernel_name, load_kernel  # noqa: E402
from kerolox.kernel.settings import StoreSettings  # noqa: E402
from kerolox.kernel.values import Record  # noqa: E402
from kerolox.message import encode_properties  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402
from kerolox.spark.store.columns import store_schema  # noqa: E402
from kerolox.spark.store.options import StoreOptions  # noqa: E402
from kerolox.spark.store.partition import read_partition  # noqa: E402
from kerolox.spark.store.plan import StoreBatchReader  # noqa: E402

QUEUES = 4
HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
CASES = ("scan", "nine", "all", "body", "availnow", "log", "entries")


def fill(folder: str, rows: int, size: int, every: int) -> None:
    settings = StoreSettings(store_path_root_dir=folder)
    store: Any = load_kernel().Store(settings)
    store.open()
    now = time.time_ns() // 1_000_000
    for number in range(rows):
        properties = {"TAGS": f"tag{number % 8}", "KEYS": f"k{number}"}
        properties |= {"UNIQ_KEY": f"{number:032X}", "WAIT": "true"}
        body = os.urandom(16).hex().encode().ljust(size, b"x")[:size]
        topic = b"Small" if number % every == 0 else b"SparkRead"
        text = encode_properties(properties).encode()
        record = Record(topic, number % QUEUES, 0, 0, now, HOST, HOST, 0, 0, body, text)
        assert store.append(record)[0] == 0
    store.close()


def scanned(path: str) -> int:
    options = StoreOptions.parse({"path": path, "columns": NINE})
    schema = store_schema(NINE.split(","))
    return sum(
        batch.num_rows
        for partition in StoreBatchReader(options, schema).partitions()
        for batch in read_partition(partition, options, schema)
    )


def cases(spark: Any, path: str, folder: Path) -> dict[str, Callable[[], object]]:  # noqa: ANN401
    def batch(**given: str) -> None:
        frame = spark.read.format("rocketmq-store").options(**given).load(path)
        frame.write.format("noop").mode("overwrite").save()

    def stream() -> None:
        checkpoint = tempfile.mkdtemp(dir=folder)
        frame = spark.readStream.format("rocketmq-store").option("columns", NINE).load(path)
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    small = {"subscribe": "Small", "columns": NINE}
    return {
        "scan": lambda: scanned(path),
        "nine": lambda: batch(columns=NINE),
        "all": batch,
        "body": lambda: batch(columns="body"),
        "availnow": stream,
        "log": lambda: batch(consumeQueues="never", **small),
        "entries": lambda: batch(consumeQueues="always", **small),
    }


def measure(run: Callable[[], object], runs: int) -> dict[str, object]:
    seconds, cpu = [], []
    for number in range(runs + 1):
        before = cpu_seconds(os.getpid())
        started = time.monotonic()
        run()
        if number:
            seconds.append(time.monotonic() - started)
            cpu.append(cpu_seconds(os.getpid()) - before)
    median = statistics.median(seconds)
    return {
        "seconds": [round(each, 3) for each in (min(seconds), median, max(seconds))],
        "cpu_seconds": round(statistics.median(cpu), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--every", type=int, default=1000, help="one in so many is of Small")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", default="scan,nine,all,availnow", help=", ".join(CASES))
    parser.add_argument("--store", help="a store made before; default: made and removed")
    options = parser.parse_args()
    require_java()
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or str(Path(folder, "store"))
        if not Path(path).exists():
            fill(path, options.rows, options.size, options.every)
        spark = start_spark()
        runs = cases(spark, path, Path(folder))
        for case in options.cases.split(","):
            facts = {"benchmark": "spark_store_read", "case": case, "rows": options.rows}
            facts |= {"size": options.size, "kernel": kernel_name(), "every": options.every}
            print(json.dumps(facts | measure(runs[case], options.runs)), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
