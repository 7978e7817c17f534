"""A streaming query that a test kills: topic → Parquet, in small batches, until it dies.

Arguments: name server, topic, output, checkpoint, rows of a batch, where it starts; and with
``stuck`` as the last one the first batch never ends.
"""

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession


def never_end(_frame: object, _batch_id: int) -> None:
    Path(output).with_suffix(".stuck").touch()
    threading.Event().wait()


if __name__ == "__main__":
    name_server, topic, output, checkpoint, rows, starting, *stuck = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    stream = (
        session.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", rows)
        .option("columns", "queueId,queueOffset,body")
        .load()
    )
    writer = stream.writeStream.option("checkpointLocation", checkpoint)
    if stuck:
        query = writer.foreachBatch(never_end).start()
    else:
        query = writer.format("parquet").start(output)
    query.awaitTermination()
