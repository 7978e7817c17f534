"""A driver that a test kills: a store as a stream into Parquet, in micro-batches that never end.

Arguments: a store, a folder. Files of the target appear in the folder's ``rows``.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.clients.spark import QUICK

if __name__ == "__main__":
    store, folder = sys.argv[1], Path(sys.argv[2])
    session = SparkSession.builder.master("local[2]").config(map=QUICK).getOrCreate()
    reader = session.readStream.format("rocketmq-store").option("columns", "keys,commitLogOffset")
    query = (
        reader.option("maxBytesPerTrigger", "8k")
        .load(store)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
