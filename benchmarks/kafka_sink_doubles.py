"""Claim: Kafka's sink stores rows twice when its driver is killed while a batch is written.

A stream copies numbers from a topic to another, as the kill tests of our sink do
(``tests/spark/test_sink_kills.py``, where each row is there once). The driver is killed by SIGKILL
when some rows of its second batch are stored; a second driver goes on from the checkpoint. Prints
the rows that are there twice, for each kill.

    python benchmarks/kafka_sink_doubles.py --kafka FOLDER [--kills 3]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.kafka import Kafka, kafka_broker  # noqa: E402
from benchmarks.spark_write import start_spark  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402

ROWS, PER_BATCH = 60_000, 20_000


def copy(spark: Any, address: str, origin: str, target: str, folder: Path) -> Any:  # noqa: ANN401
    """The query that is killed, and that goes on."""
    servers = "kafka.bootstrap.servers"
    stream = spark.readStream.format("kafka").option(servers, address).option("subscribe", origin)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PER_BATCH)
    writer = stream.load().select("value").writeStream.format("kafka").option(servers, address)
    writer = writer.option("topic", target).option("checkpointLocation", str(folder))
    return writer.trigger(availableNow=True).start()


def stored_bytes(data: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in data.glob(f"{topic}-*/*.log"))


def die_in_the_second_batch(data: Path, target: str, checkpoint: Path) -> None:
    """As on a machine that fails, when half of a batch more is stored than the first one's."""
    while not (checkpoint / "commits" / "0").exists():
        time.sleep(0.001)
    first = stored_bytes(data, target)
    while stored_bytes(data, target) < first * 1.3:
        time.sleep(0.001)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def driver(arguments: list[str]) -> None:
    address, jars, data, origin, target, folder = arguments
    spark = start_spark(jars)
    ending = threading.Thread(
        target=die_in_the_second_batch, args=(Path(data), target, Path(folder)), daemon=True
    )
    ending.start()
    copy(spark, address, origin, target, Path(folder)).awaitTermination()


def kill_one(spark: Any, kafka: Kafka, origin: str, target: str, folder: Path) -> dict[str, int]:  # noqa: ANN401
    given = [kafka.address, kafka.jars, str(kafka.data), origin, target, str(folder)]
    command = [sys.executable, str(Path(__file__)), "--driver", *given]
    with subprocess.Popen(command, start_new_session=True) as process:
        status = process.wait(600)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    copy(spark, kafka.address, origin, target, folder).awaitTermination()
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    rows = read.option("subscribe", target).load().select("value").collect()
    counts = Counter(bytes(row.value) for row in rows)
    return {
        "killed": int(status == -signal.SIGKILL),
        "rows": ROWS,
        "stored": len(rows),
        "missing": ROWS - len(counts),
        "twice": sum(count > 1 for count in counts.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", type=Path, help="folder of its jars")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--driver", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        driver(options.driver)
        return
    require_java()
    with (
        tempfile.TemporaryDirectory() as name,
        kafka_broker(options.kafka, Path(name, "kafka")) as kafka,
    ):
        spark = start_spark(kafka.jars)
        frame = spark.range(0, ROWS, 1, 4).selectExpr("CAST(CAST(id AS string) AS binary) AS value")
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
        writer.option("topic", "origin").save()
        for number in range(options.kills):
            folder = Path(name, f"checkpoint-{number}")
            found = kill_one(spark, kafka, "origin", f"target-{number}", folder)
            print(json.dumps({"benchmark": "kafka_sink_doubles", "kill": number} | found))
        spark.stop()


if __name__ == "__main__":
    main()
