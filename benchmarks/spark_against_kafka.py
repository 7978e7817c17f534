"""Both Spark sources beside Kafka's own connector: the same messages, one session, in turn.

Claim measured: topics are read faster with Kerolox than with ``spark-sql-kafka``, from the wire and
from the files of a store, and arrive no later in a stream. Systems: ``kafka-nine`` is the connector
with headers, projected to our nine columns; ``kafka-headers`` its own columns with headers;
``rocketmq`` and ``rocketmq-store`` the nine columns of ours; ``bare-python`` (not by default) a
Python source that makes its rows in memory, which is what PySpark allows. Servers run before: a
Kafka broker, and a ``kerolox up`` whose store holds nothing else. Prints one JSON object per case.

    python benchmarks/spark_against_kafka.py fill  --size 128 --rows 2000000
    python benchmarks/spark_against_kafka.py read  --size 128 --rows 2000000 --sinks noop,parquet
    python benchmarks/spark_against_kafka.py read  --size 128 --rows 2000000 --modes availnow
    python benchmarks/spark_against_kafka.py first --size 128 --rows 2000000
    python benchmarks/spark_against_kafka.py latency --rate 5000 --seconds 20

``--jars`` names the connector's jars, ``--kafka`` and ``--name-server`` the servers, ``--store``
the store's folder. ``fill`` and ``latency`` send to ``--broker``; ``latency`` needs the class path
of Kafka's tools, ``--kafka-classes``, for its topics and its producer.

For ``first`` Python's modules are compiled once, into ``--compiled``, as installing them with pip
compiles them; ``--compiled none`` is an installation without, where each process compiles what it
imports. With ``--no-archive`` PySpark's zip is not in Spark's home, so that Python takes the
installed PySpark, compiled (docs/spark/deployment.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.clients.patient import PatientConnection  # noqa: E402
from tests.support.clients.spark import spark_variables  # noqa: E402

from benchmarks.spark_read import NINE, TOPIC, cpu_seconds, create_topic, fill  # noqa: E402
from kerolox.kernel.choice import kernel_name  # noqa: E402
from kerolox.message import encode_properties  # noqa: E402
from kerolox.protocol.codes import RequestCode  # noqa: E402
from kerolox.protocol.command import RemotingCommand  # noqa: E402

BARE = "bare-python"
BARE_SOURCE = Path(__file__).with_name("bare_source")
SYSTEMS = ("kafka-nine", "kafka-headers", "rocketmq", "rocketmq-store")
KAFKA_NINE = (
    "topic",
    "partition as queueId",
    "offset as queueOffset",
    "timestamp as bornTimestamp",
    "timestamp as storeTimestamp",
    "cast(element_at(filter(headers, h -> h.key = 'TAGS'), 1).value as string) as tags",
    "cast(key as string) as keys",
    "value as body",
    "map_from_entries(transform(headers, h -> "
    "struct(h.key as key, cast(h.value as string) as value))) as properties",
)
WARM_SECONDS = 6.0
SECONDS_MAX = 120


def start_spark(options: argparse.Namespace) -> Any:  # noqa: ANN401
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    has_ours = not options.only or options.only.startswith("rocketmq")
    ours = [os.environ.get("KEROLOX_PATH", str(ROOT / "src"))] if has_ours else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, str(BARE_SOURCE)])
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4")
    )
    if options.jars:
        builder = builder.config("spark.jars", options.jars)
    for each in options.conf:
        builder = builder.config(*each.split("=", 1))
    return builder.getOrCreate()


def kafka_topic(options: argparse.Namespace) -> str:
    return f"{TOPIC}-{options.size}"


def frame(reader: Any, system: str, options: argparse.Namespace, topic: str = "") -> Any:  # noqa: ANN401
    """The rows of a system, by ``spark.read`` or ``spark.readStream``."""
    if system.startswith("kafka"):
        reader = (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", options.kafka)
            .option("subscribe", topic or kafka_topic(options))
            .option("includeHeaders", "true")
        )
        loaded = reader.load()
        return loaded.selectExpr(*KAFKA_NINE) if system == "kafka-nine" else loaded
    if system == BARE:
        return reader.format(system).options(rows=options.rows, size=options.size).load()
    reader = reader.format(system).option("subscribe", topic or TOPIC).option("columns", NINE)
    if system == "rocketmq-store":
        return reader.load(options.store)
    return reader.option("nameServer", options.name_server).load()


def run_once(spark: Any, system: str, mode: str, sink: str, options: argparse.Namespace) -> int:  # noqa: ANN401
    """Read all of the topic; how many rows the stream said it read (a batch does not report)."""
    with tempfile.TemporaryDirectory(dir=options.temporary) as folder:
        target = str(Path(folder, "rows"))
        if mode == "batch":
            writer = frame(spark.read, system, options).write.mode("overwrite")
            writer.parquet(target) if sink == "parquet" else writer.format("noop").save()
            return int(options.rows)
        reader = spark.readStream
        if not system.endswith("store"):
            reader = reader.option("startingOffsets", "earliest")
        writer = frame(reader, system, options).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(Path(folder, "checkpoint")))
        kind = "parquet" if sink == "parquet" else "noop"
        query = writer.format(kind).option("path", target).start()
        query.awaitTermination()
        return sum(int(each["numInputRows"]) for each in query.recentProgress)


def read(options: argparse.Namespace) -> None:
    spark = start_spark(options)
    systems = options.systems.split(",")
    for mode in options.modes.split(","):
        for sink in options.sinks.split(","):
            seconds: dict[str, list[float]] = {each: [] for each in systems}
            cpu: dict[str, list[float]] = {each: [] for each in systems}
            for run in range(options.warm + options.runs):
                for system in systems:
                    before, started = cpu_seconds(os.getpid()), time.monotonic()
                    rows = run_once(spark, system, mode, sink, options)
                    took = time.monotonic() - started
                    used = cpu_seconds(os.getpid()) - before
                    assert rows == options.rows, (system, rows)
                    print(f"# {system} {mode} {sink}: {took:.3f} s, CPU {used:.2f} s", flush=True)
                    if run >= options.warm:
                        seconds[system].append(took)
                        cpu[system].append(used)
            for system in systems:
                median = statistics.median(seconds[system])
                report(
                    options,
                    "read",
                    system=system,
                    mode=mode,
                    sink=sink,
                    seconds=[round(each, 3) for each in seconds[system]],
                    median=round(median, 3),
                    rows_per_second=round(options.rows / median),
                    spark_cpu_seconds=round(statistics.median(cpu[system]), 2),
                    times_as_fast_as={
                        other: round(statistics.median(seconds[other]) / median, 2)
                        for other in systems
                        if other.startswith("kafka") and other != system
                    },
                )
    spark.stop()


def report(options: argparse.Namespace, case: str, **facts: object) -> None:
    told = {"benchmark": "spark_against_kafka", "case": case, "rows": options.rows}
    told |= {"size": options.size, "kernel": kernel_name(), "load": os.getloadavg()[0]}
    print(json.dumps(told | facts), flush=True)


def first_batch(spark: Any, system: str, options: argparse.Namespace) -> tuple[float, float]:  # noqa: ANN401
    """From asking for a stream to ``foreachBatch`` being given its first rows: (seconds, seconds of
    CPU of Spark, its Python workers included)."""
    arrived = threading.Event()
    at = [0.0]

    def take(batch: Any, _number: int) -> None:  # noqa: ANN401
        if not arrived.is_set() and batch.limit(1).count():
            at[0] = time.monotonic()
            arrived.set()

    with tempfile.TemporaryDirectory(dir=options.temporary) as folder:
        before, started = cpu_seconds(os.getpid()), time.monotonic()
        reader = spark.readStream
        if system == "rocketmq-store":
            reader = reader.option("maxBytesPerTrigger", "4m")
        else:
            reader = reader.option("startingOffsets", "earliest")
            reader = reader.option("maxOffsetsPerTrigger", 10_000)
        writer = frame(reader, system, options).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(Path(folder, "checkpoint"))).start()
        assert arrived.wait(SECONDS_MAX), query.exception()
        used = cpu_seconds(os.getpid()) - before
        query.stop()
    return at[0] - started, used


def first(options: argparse.Namespace) -> None:
    """In a new session each time, then once more in the same."""
    if options.only:
        spark = start_spark(options)
        spark.range(1000).write.format("noop").mode("overwrite").save()
        print(json.dumps([first_batch(spark, options.only, options) for _ in range(2)]))
        spark.stop()
        return
    variables = dict(os.environ)
    if options.compiled != "none":
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables["PYTHONPYCACHEPREFIX"] = options.compiled or str(ROOT / ".cache" / "compiled")
    if options.no_archive:
        variables["SPARK_HOME"] = spark_variables()["SPARK_HOME"]
    systems = options.systems.split(",")
    found: dict[str, list[list[tuple[float, float]]]] = {each: [] for each in systems}
    for run in range(options.warm + options.runs):
        for system in systems:
            command = [sys.executable, __file__, *sys.argv[1:], "--only", system]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=variables
            )
            print(f"# {system}: {done.stdout.strip()}, load {os.getloadavg()[0]}", flush=True)
            if run >= options.warm:
                found[system].append(json.loads(done.stdout))
    how = {"compiled": options.compiled != "none", "archive": not options.no_archive}
    for system, runs in found.items():
        facts: dict[str, object] = {}
        for place, name in enumerate(("new_session", "again")):
            seconds = [round(run[place][0], 3) for run in runs]
            facts |= {f"{name}_seconds": seconds, f"{name}_median": statistics.median(seconds)}
            facts[f"{name}_cpu"] = round(statistics.median(run[place][1] for run in runs), 2)
        report(options, "first", system=system, **how, **facts)


def send(options: argparse.Namespace) -> None:
    """Send at a steady rate, each message on its own and born when it is sent."""
    tick = 0.001
    properties = encode_properties({"TAGS": "t", "WAIT": "true"})
    fields: dict[str, object] = {"a": "paced", "b": options.only, "c": "TBW102", "d": 4, "f": 0}
    fields |= {"h": 0, "i": properties, "j": 0, "k": False, "m": False}
    body = bytes(options.size)
    sent = received = 0
    with PatientConnection(options.broker) as connection:
        started = time.monotonic()
        while sent < options.rate * options.seconds:
            time.sleep(tick)
            due = min(int((time.monotonic() - started) * options.rate), options.rate * 60)
            frames = bytearray()
            for number in range(sent, due):
                fields |= {"e": number % 4, "g": time.time_ns() // 1_000_000}
                command = RemotingCommand.request(
                    RequestCode.SEND_MESSAGE_V2, dict(fields), body=body
                )
                frames += connection.encode(command)
            if frames:
                connection.send_frames(frames)
            sent = due
            while sent - received > options.rate // 10:
                assert connection.receive(SECONDS_MAX).code == 0
                received += 1
        for _ in range(sent - received):
            assert connection.receive(SECONDS_MAX).code == 0


def producer(system: str, topic: str, options: argparse.Namespace) -> list[str]:
    if system.startswith("kafka"):
        tool = "org.apache.kafka.tools.ProducerPerformance"
        command = ["java", "-Xmx256m", "-cp", options.kafka_classes, tool, "--topic", topic]
        command += ["--num-records", str(options.rate * options.seconds)]
        command += ["--record-size", str(options.size), "--throughput", str(options.rate)]
        return [*command, "--producer-props", f"bootstrap.servers={options.kafka}", "linger.ms=1"]
    command = [sys.executable, __file__, "send", "--only", topic, "--broker", options.broker]
    command += ["--rate", str(options.rate), "--seconds", str(options.seconds)]
    return [*command, "--size", str(options.size)]


def latencies(spark: Any, system: str, options: argparse.Namespace) -> dict[str, object]:  # noqa: ANN401
    """Ms from birth to ``foreachBatch`` having the rows, of what was born after the warm-up."""
    import numpy as np

    topic = f"Late{time.time_ns()}"
    if system == "rocketmq":
        create_topic(options.broker, topic)
    else:
        command = ["java", "-cp", options.kafka_classes, "org.apache.kafka.tools.TopicCommand"]
        command += ["--bootstrap-server", options.kafka, "--create", "--topic", topic]
        subprocess.run([*command, "--partitions", "4"], check=True, stdout=subprocess.DEVNULL)
    column = "timestamp" if system == "kafka-headers" else "bornTimestamp"
    arrived: list[tuple[float, Any]] = []

    def take(batch: Any, _number: int) -> None:  # noqa: ANN401
        table = batch.selectExpr(f"unix_millis({column}) as t").toArrow()
        now = time.time() * 1000
        arrived.append((time.monotonic(), now - table.column(0).to_numpy()))

    with tempfile.TemporaryDirectory(dir=options.temporary) as folder:
        writer = frame(spark.readStream, system, options, topic).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(Path(folder, "checkpoint")))
        query = writer.trigger(processingTime="0 seconds").start()
        time.sleep(WARM_SECONDS)
        started = time.monotonic()
        subprocess.run(producer(system, topic, options), check=True, stdout=subprocess.DEVNULL)
        time.sleep(2)
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        query.stop()
    kept = np.concatenate([late for at, late in arrived if at > started + WARM_SECONDS])
    phases: dict[str, list[int]] = {}
    for each in progress[len(progress) // 3 :]:
        for name, took in each["durationMs"].items():
            phases.setdefault(name, []).append(took)
    shares = {f"p{share}": round(float(np.percentile(kept, share)), 1) for share in (50, 90, 99)}
    medians = {name: statistics.median(took) for name, took in phases.items()}
    return {"messages": len(kept), "batches": len(progress)} | shares | {"phases_ms": medians}


def latency(options: argparse.Namespace) -> None:
    spark = start_spark(options)
    systems = [each for each in options.systems.split(",") if each != "rocketmq-store"]
    found: dict[str, list[dict[str, object]]] = {each: [] for each in systems}
    for _ in range(options.runs):
        for system in systems:
            found[system].append(latencies(spark, system, options))
            report(options, "latency", system=system, **found[system][-1])
    spark.stop()


def fill_both(options: argparse.Namespace) -> None:
    """The same messages in Kafka's topic and in ours."""
    if "rocketmq" in options.systems:
        fill(options.broker, options.rows, options.size)
    if "kafka" not in options.systems:
        return
    spark = start_spark(options)
    times = -(-options.size // 128)
    body = f"substr(repeat(sha2(cast(id as string), 512), {times}), 1, {options.size})"
    headers = {"TAGS": "concat('tag', id % 8)", "UNIQ_KEY": "lpad(hex(id), 32, '0')"}
    headers["WAIT"] = "'true'"
    texts = (f"struct('{k}' as key, cast({v} as binary) as value)" for k, v in headers.items())
    rows = spark.range(0, options.rows, 1, 4).selectExpr(
        f"'{kafka_topic(options)}' as topic",
        "cast(concat('k', id) as binary) as key",
        f"cast({body} as binary) as value",
        f"array({', '.join(texts)}) as headers",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", options.kafka)
    writer.mode("append").save()
    spark.stop()


CASES: dict[str, Callable[[argparse.Namespace], None]] = {
    "fill": fill_both,
    "read": read,
    "first": first,
    "latency": latency,
    "send": send,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1, help="runs before that do not count")
    parser.add_argument("--modes", default="batch", help="batch, availnow")
    parser.add_argument("--sinks", default="noop", help="noop, parquet")
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--kafka-classes", default="")
    parser.add_argument("--jars", default="")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    parser.add_argument("--broker", default="127.0.0.1:10911")
    parser.add_argument("--store", default="store")
    parser.add_argument("--compiled", default="", help="folder of compiled modules; none: without")
    parser.add_argument("--no-archive", action="store_true", help="use the installed PySpark")
    parser.add_argument("--conf", action="append", default=[], help="NAME=VALUE, of Spark")
    parser.add_argument("--temporary", default=None, help="folder of what is written")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.temporary:
        Path(options.temporary).mkdir(parents=True, exist_ok=True)
    CASES[options.case](options)


if __name__ == "__main__":
    main()
