"""Reads a topic in a Spark of its own, and prints the error that its user gets."""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    name_server, topic = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    reader = session.read.format("rocketmq").option("nameServer", name_server)
    try:
        print(reader.option("subscribe", topic).load().collect())
    except Exception as error:
        print(error)
