"""A driver that reads a topic into Parquet until it is killed; started again, it goes on.

Arguments: name server, topic, folder, Spark's master, offsets of a batch. The folder has the table
and its checkpoint; ``running`` appears in it when the query has started. On a cluster
(``spark://``) tasks of its first partition are slow, so that Spark runs copies of them
(speculation); ``copied-STAGE`` appears when both have lived at the same time.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.clients.spark import QUICK, limited

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "0ms",
    # A task that reads nothing meanwhile is slow, too.
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.memory": "512m",
    # Executors that a test kills are no fault of the query.
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}

SLOW_SECONDS = 5.0
"""So long a slow task waits for its copy: Spark makes none of a stage's only task."""


def slow_in(folder: str) -> Callable[[Iterator[object]], Iterator[object]]:
    """What makes the first attempt of the first partition wait for a copy of it."""

    def passed_on(batches: Iterator[object]) -> Iterator[object]:
        context = TaskContext.get()
        if context.partitionId() == 0:
            copy = Path(folder, f"copy-{context.stageId()}")
            if context.attemptNumber():
                copy.touch()
            else:
                copy.unlink(missing_ok=True)
                deadline = time.monotonic() + SLOW_SECONDS
                while not copy.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                if copy.exists():
                    Path(folder, f"copied-{context.stageId()}").touch()
        yield from batches

    return passed_on


if __name__ == "__main__":
    name_server, topic, folder, master, offsets = sys.argv[1:]
    builder = SparkSession.builder.master(master).config(map={**QUICK, **SPECULATION})
    session = builder.getOrCreate()
    stream = session.readStream.format("rocketmq").options(
        nameServer=name_server,
        subscribe=topic,
        startingOffsets="earliest",
        **limited(maxOffsetsPerTrigger=offsets),
        minPartitions="2",
        columns="queueId,queueOffset,body",
    )
    frame = stream.load()
    if master.startswith("spark://"):
        frame = frame.mapInArrow(slow_in(folder), frame.schema)
    writer = frame.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query = writer.start(str(Path(folder) / "table"))
    (Path(folder) / "running").touch()
    query.awaitTermination()
