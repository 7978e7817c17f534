"""A streaming query that a test kills: topic → Parquet, in small batches, until it dies."""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    name_server, topic, output, checkpoint, rows = sys.argv[1:]
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
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows)
        .option("columns", "queueId,queueOffset,body")
        .load()
    )
    writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.start(output).awaitTermination()
