"""A pipeline as its user starts it, with nothing of the checkout on its path.

Arguments: JSON with ``url`` (a master, or ``sc://...``), ``settings``, ``namesrv``, ``store``,
``topics`` (two), ``folder`` and ``secret``; the file that gets what was found, as JSON.

A store is read and written to the first topic by a batch; the first topic is read and written to
the second by a stream, exactly once; another stream takes the store to Parquet.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def session_of(given: dict[str, Any]) -> SparkSession:
    if given["url"].startswith("sc://"):
        return SparkSession.builder.remote(given["url"]).getOrCreate()
    builder = SparkSession.builder.master(given["url"]).config(map=given["settings"])
    return builder.getOrCreate()


def run(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    first, second = given["topics"]
    folder = given["folder"]
    servers = {"nameServer": given["namesrv"], "accessKey": "a", "secretKey": given["secret"]}

    def store(reader):
        reader = reader.format("rocketmq-store").option("subscribe", "T")
        return reader.option("splitBytes", "64k").load(given["store"])

    def topic(reader, name, **options):
        return reader.format("rocketmq").options(**servers, subscribe=name, **options).load()

    def end(writer, name):
        writer = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        return query

    held = store(spark.read).select("body", "keys", "tags")
    held.write.format("rocketmq").mode("append").options(**servers, topic=first).save()
    stream = topic(spark.readStream, first, startingOffsets="earliest", minPartitions="4")
    writer = stream.select("body", "keys", "tags").writeStream.format("rocketmq")
    query = end(writer.options(**servers, topic=second, transactional="true"), "copy")
    table = store(spark.readStream).select("keys").writeStream.format("parquet")
    end(table.option("path", f"{folder}/table"), "table")
    rows = topic(spark.read, second, minPartitions="4").select("keys", "tags", "body").collect()
    return {
        "rows": sorted([row["keys"], row["tags"], bytes(row["body"]).decode()] for row in rows),
        "table": sorted(row["keys"] for row in spark.read.parquet(f"{folder}/table").collect()),
        "sources": json.loads(query.lastProgress.json)["sources"],
    }


def folders_of_executors(spark: SparkSession) -> list[str]:
    """Where two tasks at once run."""

    def folder(batches):
        import pyarrow

        for _ in batches:
            yield pyarrow.record_batch({"folder": [os.getcwd()]})

    rows = spark.range(0, 2, 1, 2).mapInArrow(folder, "folder STRING").collect()
    return sorted({row["folder"] for row in rows})


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    session = session_of(asked)
    answer = run(session, asked)
    answer["folders"] = folders_of_executors(session)
    Path(sys.argv[2]).write_text(json.dumps(answer))
    session.stop()
