"""Rows per second that Spark writes to topics: our sink and Kafka's, in one run, in turn.

Claim measured: our sink writes at least 1.5 times as many rows as Kafka's, and exactly once half as
many as without. Each row has a body, keys and a tag, with Kafka a key and three headers; 4
partitions, ``local[2]``. Every run of a case has a topic of its own; a tenth of the rows warms each
case up. ``generator`` writes the rows nowhere. Prints one JSON object per case: seconds of each
run, rows/s of the median, CPU seconds of Spark and of the brokers per run; then the ratios.

    python benchmarks/spark_write.py --kafka FOLDER [--rows 2000000] [--size 128] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.clients.spark import Topics, spark_variables  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from benchmarks.kafka import Kafka, kafka_broker  # noqa: E402
from benchmarks.spark_read import cpu_seconds  # noqa: E402
from kerolox.kernel.choice import kernel_name  # noqa: E402
from kerolox.protocol.codes import RequestCode  # noqa: E402
from kerolox.protocol.command import RemotingCommand  # noqa: E402
from kerolox.remoting.blocking import BlockingConnection  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402

QUEUES = 4
CASES = ("kafka", "rocketmq", "transactional", "generator")
HEADERS = (
    "array(struct('TAGS' AS key, CAST(concat('tag', id % 8) AS binary) AS value), "
    "struct('UNIQ_KEY' AS key, CAST(lpad(hex(id), 32, '0') AS binary) AS value), "
    "struct('WAIT' AS key, CAST('true' AS binary) AS value)) AS headers"
)


def start_spark(jars: str) -> Any:  # noqa: ANN401
    os.environ.update(spark_variables())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    if jars:
        builder = builder.config("spark.jars", jars)
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


class Bench:
    """Writes the rows of each case."""

    def __init__(self, spark: Any, up: Up, kafka: Kafka | None, size: int, folder: Path) -> None:  # noqa: ANN401
        self._spark, self._up, self._kafka = spark, up, kafka
        self._topics = Topics(up.namesrv, up.broker)
        self._size, self._folder = size, folder

    def frame(self, rows: int, *columns: str) -> Any:  # noqa: ANN401
        """Bodies are hex digits of hashes, as those of the peer's own benchmark."""
        times = -(-self._size // 128)
        hashed = f"substr(repeat(sha2(CAST(id AS string), 512), {times}), 1, {self._size})"
        made = self._spark.range(0, rows, 1, 4).selectExpr(
            "id", "concat('key-', id) AS key", f"CAST({hashed} AS binary) AS body"
        )
        return made.selectExpr(*columns)

    def write(self, case: str, rows: int) -> float:
        """Write rows to a new topic; the seconds that it took."""
        topic = f"{case}-{uuid.uuid4().hex[:8]}"
        if case in ("rocketmq", "transactional"):
            self._topics.create(topic, QUEUES)
        run = self._writer(case, rows, topic)
        started = time.monotonic()
        run()
        seconds = time.monotonic() - started
        if case in ("rocketmq", "transactional"):
            assert self._stored(topic) == rows
        return seconds

    def _writer(self, case: str, rows: int, topic: str) -> Callable[[], None]:
        save: Callable[[], None]
        if case == "kafka":
            assert self._kafka is not None
            columns = ("CAST(key AS binary) AS key", "body AS value", HEADERS)
            writer = self.frame(rows, *columns).write.format("kafka").option("topic", topic)
            save = writer.option("kafka.bootstrap.servers", self._kafka.address).save
            return save
        columns = ("body", "key AS keys", "concat('tag', id % 8) AS tags")
        writer = self.frame(rows, *columns).write
        if case == "generator":
            save = writer.format("noop").mode("overwrite").save
            return save
        writer = writer.format("rocketmq").mode("append").option("nameServer", self._up.namesrv)
        if case == "transactional":
            place = {"transactionLocation": str(self._folder), "transactionId": topic}
            writer = writer.options(transactional="true", **place)
        save = writer.option("topic", topic).save
        return save

    def _stored(self, topic: str) -> int:
        with BlockingConnection(self._up.broker) as connection:
            code, total = RequestCode.GET_MAX_OFFSET, 0
            for queue in range(QUEUES):
                fields = {"topic": topic, "queueId": queue}
                answer = connection.invoke(RemotingCommand.request(code, fields), 30)
                total += int(answer.ext_fields["offset"])
        return total

    def cpu(self, case: str) -> tuple[float, float]:
        """CPU seconds so far of Spark, and of the broker of a case."""
        process = self._up.process
        assert process is not None
        broker = self._kafka.pid if case == "kafka" and self._kafka else process.pid
        servers = sum(
            cpu_seconds(pid) for pid in (process.pid, self._kafka.pid if self._kafka else 0) if pid
        )
        return cpu_seconds(os.getpid()) - servers, cpu_seconds(broker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--kafka", type=Path, help="folder of its jars; needed by case kafka")
    options = parser.parse_args()
    require_java()
    cases = options.cases.split(",")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        up = stack.enter_context(Up(folder / "up"))
        kafka = None
        if "kafka" in cases:
            kafka = stack.enter_context(kafka_broker(options.kafka, folder / "kafka"))
        spark = start_spark(kafka.jars if kafka else "")
        stack.callback(spark.stop)
        bench = Bench(spark, up, kafka, options.size, folder / "decisions")
        seconds: dict[str, list[float]] = {case: [] for case in cases}
        cpu: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for run in range(options.runs + 1):
            for case in cases:
                before = bench.cpu(case)
                took = bench.write(case, options.rows if run else options.rows // 10)
                print(f"run {run}: {case} {took:.2f} s", file=sys.stderr, flush=True)
                if run:
                    after = bench.cpu(case)
                    seconds[case].append(round(took, 2))
                    cpu[case].append((after[0] - before[0], after[1] - before[1]))
    report(options, seconds, cpu)


def report(
    options: argparse.Namespace,
    seconds: dict[str, list[float]],
    cpu: dict[str, list[tuple[float, float]]],
) -> None:
    medians = {case: statistics.median(each) for case, each in seconds.items()}
    for case, each in seconds.items():
        facts = {"benchmark": "spark_write", "case": case, "rows": options.rows}
        facts |= {"size": options.size, "kernel": kernel_name(), "seconds": each}
        facts["rows_per_second"] = round(options.rows / medians[case])
        for index, name in enumerate(("spark_cpu_seconds", "broker_cpu_seconds")):
            facts[name] = round(statistics.median(some[index] for some in cpu[case]), 2)
        print(json.dumps(facts), flush=True)
    for ours, theirs in (("rocketmq", "kafka"), ("transactional", "rocketmq")):
        if ours in medians and theirs in medians:
            print(f"{ours}: {medians[theirs] / medians[ours]:.2f} times the rows/s of {theirs}")


if __name__ == "__main__":
    main()
