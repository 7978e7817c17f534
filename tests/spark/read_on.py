"""A driver that reads a topic into Parquet until it is killed; started again, it goes on.

Arguments: name server, topic, folder, Spark's master, offsets of a batch. The folder has the table
and its checkpoint; ``running`` appears in it when the query has started. With executors of their
own (``local-cluster``) slow tasks are started twice (speculation).
"""

import sys
from pathlib import Path

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
    writer = stream.load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    query = writer.start(str(Path(folder) / "table"))
    (Path(folder) / "running").touch()
    query.awaitTermination()
