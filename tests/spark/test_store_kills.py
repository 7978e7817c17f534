"""A driver that reads a store as a stream, killed in the middle: each message is in Parquet once.

``KEROLOX_SPARK_ROUNDS=20`` kills as often.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.drivers import Driver
from tests.support.clients.spark import needs_limits
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("KEROLOX_SPARK_ROUNDS", "0"))
KILLS = ROUNDS or 1
MESSAGES = 600 * KILLS

pytestmark = [pytest.mark.timeout(1200 + 90 * ROUNDS), needs_limits]


def kill_a_driver(store: Path, folder: Path, commits: int) -> None:
    """Start one, and kill it when so many batches more are done."""
    done = folder / "checkpoint" / "commits"
    target = len(list(done.glob("[0-9]*"))) + commits
    with Driver("tests.spark.kill_store_stream", store, folder, log=folder / "log") as driver:
        driver.wait_for(lambda: len(list(done.glob("[0-9]*"))) >= target, f"batch {target}")


def test_a_killed_driver_s_stream_has_each_message_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened(small_settings(tmp_path)) as store:
        for number in range(MESSAGES):
            put(store, body=b"x" * 400, properties=b"KEYS\x01k%d" % number)
    for _ in range(KILLS):
        kill_a_driver(tmp_path / "store", tmp_path, random.randint(1, 6))
    taken = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert 0 < taken * 8 * 1024 < MESSAGES * 400, "the driver was killed in the middle"
    reader = spark.readStream.format("rocketmq-store").option("columns", "keys,commitLogOffset")
    query = (
        reader.load(str(tmp_path / "store"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row["keys"] for row in rows) == sorted(f"k{n}" for n in range(MESSAGES))
