"""Topic → Parquet with Structured Streaming, then a question: when and where are departures late?

The stream runs with a checkpoint and ends by itself (``availableNow``); each micro-batch takes a
bounded number of messages.
"""

from __future__ import annotations

import csv
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import kerolox
from kerolox.demo.flights import BODY_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kerolox.demo.report import Progress

MICRO_BATCH_OFFSETS = 120_000
FLIGHTS_MIN = 100
"""Hours with fewer departures at an airport say little."""

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
COLOURS = {"EWR": "#b5402a", "JFK": "#2b6c8f", "LGA": "#6b8f3c"}

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


class TableCounts(NamedTuple):
    """What the Parquet table holds."""

    rows: int
    unique_keys: int
    flight_keys: int
    distance: int
    of_carrier: int


class Delay(NamedTuple):
    """Departures of one airport in one hour of the day."""

    origin: str
    hour: int
    flights: int
    mean_delay: float
    """Minutes."""
    late_share: float
    """Part of the flights that left more than 30 minutes late."""


def start_spark(folder: Path) -> SparkSession:
    """A local session whose workers run this interpreter and find this package."""
    source = str(Path(kerolox.__file__).parents[1])
    inherited = [path for path in [os.environ.get("PYTHONPATH")] if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *inherited])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # PySpark remarks on the versions of its dependencies, here and in its workers.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    logging_file = folder / "log4j2.properties"
    logging_file.write_text(_LOGGING)
    # A job of seconds on few cores: the optimizing compiler would cost more than it gives.
    java_options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    java_options += f"-Dlog4j2.configurationFile={logging_file}"
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("kerolox-demo")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )


def stream_to_parquet(
    spark: SparkSession,
    name_server: str,
    topic: str,
    folder: Path,
    total: int,
    progress: Progress,
) -> int:
    """Read the whole topic into ``folder/flights.parquet``; how many micro-batches it took."""
    from pyspark.sql.functions import col, from_json

    from kerolox.spark.positions.read_limits import limited

    stream = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**limited(maxOffsetsPerTrigger=str(MICRO_BATCH_OFFSETS)))
        .option("columns", "brokerName,queueId,queueOffset,storeTimestamp,tags,keys,uniqKey,body")
        .load()
    )
    flight = from_json(col("body").cast("string"), BODY_SCHEMA)
    query = (
        stream.withColumn("flight", flight)
        .select("brokerName", "queueId", "queueOffset", "tags", "keys", "uniqKey", "flight.*")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "flights.parquet"))
    )
    try:
        # The progress reports are Spark's own; the last one may be shown twice.
        while not query.awaitTermination(0.3):
            done = sum(each["numInputRows"] for each in query.recentProgress)
            started = f"Parquet has {done:,} of {total:,}" if done else "the first micro-batch runs"
            progress.show(started)
    finally:
        query.stop()
    return sum(1 for each in query.recentProgress if each["numInputRows"])


def count_table(spark: SparkSession, folder: Path, tag: str) -> TableCounts:
    """Count rows and distinct keys of the table, and the flights of one carrier."""
    row = (
        spark.read.parquet(str(folder / "flights.parquet"))
        .selectExpr(
            "count(*) as records",
            "count(distinct uniqKey) as unique_keys",
            "count(distinct keys) as flight_keys",
            "coalesce(sum(distance), 0) as distance",
            f"count_if(carrier = '{tag}') as of_carrier",
        )
        .collect()[0]
    )
    return TableCounts(
        row.records, row.unique_keys, row.flight_keys, row.distance or 0, row.of_carrier
    )


def count_tag(spark: SparkSession, name_server: str, topic: str, tag: str) -> int:
    """Messages with a tag, filtered by the broker, in a batch query."""
    frame = (
        spark.read.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("subExpression", tag)
        .option("columns", "tags")
        .load()
    )
    return int(frame.count())


def delays(spark: SparkSession, folder: Path) -> list[Delay]:
    """Departure delays by airport and scheduled hour, the worst first; into ``delays.csv``."""
    from pyspark.sql.functions import expr

    frame = spark.read.parquet(str(folder / "flights.parquet")).where("dep_delay is not null")
    rows = (
        frame.groupBy("origin", "hour")
        .agg(
            expr("count(*) as flights"),
            expr("avg(dep_delay) as mean_delay"),
            expr("avg(if(dep_delay > 30, 1, 0)) as late_share"),
        )
        .where(f"flights >= {FLIGHTS_MIN}")
        .collect()
    )
    found = [Delay(*row) for row in rows]
    found.sort(key=lambda delay: -delay.mean_delay)
    with (folder / "delays.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["origin", "hour", "flights", "mean_delay_minutes", "share_over_30_min"])
        writer.writerows(
            [
                each.origin,
                each.hour,
                each.flights,
                f"{each.mean_delay:.2f}",
                f"{each.late_share:.4f}",
            ]
            for each in found
        )
    return found


def draw(found: list[Delay], folder: Path) -> Path:
    """A line per airport over the hours of the day; into ``delays.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    for origin in sorted({delay.origin for delay in found}):
        line = sorted((delay.hour, delay.mean_delay) for delay in found if delay.origin == origin)
        hours, minutes = zip(*line, strict=True)
        name, colour = AIRPORTS.get(origin, origin), COLOURS.get(origin, "#555555")
        axes.plot(hours, minutes, color=colour, linewidth=2, marker="o", ms=3.5, label=name)
    axes.legend(frameon=False, loc="upper left")
    worst = found[0]
    axes.set_title(
        f"Delays pile up during the day: {AIRPORTS.get(worst.origin, worst.origin)} at "
        f"{worst.hour}:00 is worst, {worst.mean_delay:.0f} minutes on average",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("scheduled hour of departure, 2013")
    axes.set_ylabel("mean departure delay, minutes")
    axes.set_xticks(range(5, 24, 2))
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path = folder / "delays.png"
    figure.savefig(path)
    pyplot.close(figure)
    return path
