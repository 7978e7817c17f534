"""Rows per second of a Spark batch read from our broker to the noop sink.

Claim measured: the source reads a topic about as fast as the JVM can take Arrow batches. Fills a
topic of a fresh ``kerolox up``, then reads it all ``--runs`` times after a warm-up. Prints one JSON
object per case: minimum, median and maximum seconds, rows/s of the median, CPU seconds of broker
and of Spark (JVM and workers) per run, and the most resident memory of the JVM and of each worker,
which counts all cases so far.

    python benchmarks/spark_read.py --rows 1000000 --size 128
    python benchmarks/spark_read.py --rows 4000 --size 524288 --cases all
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.eventually import wait_until  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from benchmarks.spark_memory import Memory  # noqa: E402
from kerolox.kernel.choice import kernel_name  # noqa: E402
from kerolox.message import encode_properties  # noqa: E402
from kerolox.protocol.codes import RequestCode  # noqa: E402
from kerolox.protocol.command import RemotingCommand  # noqa: E402
from kerolox.protocol.records import encode_batch  # noqa: E402
from kerolox.remoting.blocking import BlockingConnection  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402

QUEUES = 4
BATCH = 500
BATCH_BYTES = 1024 * 1024
"""Of bodies in one request."""
TOPIC = "SparkRead"

NINE = "topic,queueId,queueOffset,bornTimestamp,storeTimestamp,tags,keys,body,properties"
CASES = {
    "body": "body",
    "raw": "topic,queueId,queueOffset,storeTimestamp,tags,keys,body",
    "nine": NINE,
    "all": None,
}


def create_topic(address: str, topic: str) -> None:
    create = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    with BlockingConnection(address) as connection:
        connection.invoke(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, create))


def fill(address: str, rows: int, size: int) -> None:
    create_topic(address, TOPIC)
    batch = max(min(BATCH, BATCH_BYTES // size), 1)
    with BlockingConnection(address) as connection:
        requests: list[RemotingCommand] = []
        for first in range(0, rows, batch):
            items = []
            for number in range(first, min(first + batch, rows)):
                properties = {"TAGS": f"tag{number % 8}", "KEYS": f"k{number}"}
                properties |= {"UNIQ_KEY": f"{number:032X}", "WAIT": "true"}
                digits = hashlib.sha512(str(number).encode()).hexdigest()
                body = (digits * -(-size // 128))[:size].encode()
                items.append((0, body, encode_properties(properties).encode()))
            fields = {"a": "fill", "b": TOPIC, "c": "TBW102", "d": 4, "f": 0, "h": 0, "i": ""}
            fields |= {"e": first // batch % QUEUES, "g": time.time_ns() // 1_000_000}
            fields |= {"j": 0, "k": False, "m": True}
            code = RequestCode.SEND_BATCH_MESSAGE
            requests.append(RemotingCommand.request(code, fields, body=encode_batch(items)))
            if len(requests) > 16 or first + batch >= rows:
                for answer in connection.ask(requests, 30):
                    assert answer.code == 0, answer
                requests.clear()


def cpu_seconds(pid: int) -> float:
    """CPU of a process, its living descendants and those it has waited for."""
    total, pending = 0.0, [pid]
    tick = os.sysconf("SC_CLK_TCK")
    while pending:
        each = pending.pop()
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / tick
            for task in Path(f"/proc/{each}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return total


def start_spark() -> Any:  # noqa: ANN401
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def measure(
    spark: Any,  # noqa: ANN401
    name_server: str,
    columns: str | None,
    rows: int,
    runs: int,
    broker: int,
) -> dict[str, object]:
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    reader = reader.option("subscribe", TOPIC)
    if columns:
        reader = reader.option("columns", columns)
    seconds, broker_cpu, spark_cpu = [], [], []
    for run in range(runs + 1):
        before = cpu_seconds(broker), cpu_seconds(os.getpid())
        started = time.monotonic()
        reader.load().write.format("noop").mode("overwrite").save()
        if run:
            seconds.append(time.monotonic() - started)
            broker_cpu.append(cpu_seconds(broker) - before[0])
            spark_cpu.append(cpu_seconds(os.getpid()) - before[1])
    assert reader.load().count() == rows
    median = statistics.median(seconds)
    return {
        "seconds": [round(each, 3) for each in (min(seconds), median, max(seconds))],
        "rows_per_second": round(rows / median),
        "spark_cpu_seconds": round(statistics.median(spark_cpu), 2),
        "broker_cpu_seconds": round(statistics.median(broker_cpu), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", default="nine,all", help=", ".join(CASES))
    options = parser.parse_args()
    require_java()
    with tempfile.TemporaryDirectory() as folder, Up(Path(folder, "up")) as cluster:
        fill(cluster.broker, options.rows, options.size)
        spark = start_spark()
        assert cluster.process is not None
        with BlockingConnection(cluster.namesrv) as names:
            route = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
            wait_until(lambda: names.invoke(route).code == 0, what="the topic's route")
        for case in options.cases.split(","):
            with Memory(spark.sparkContext._gateway.proc.pid) as memory:
                measured = measure(
                    *(spark, cluster.namesrv, CASES[case], options.rows, options.runs),
                    broker=cluster.process.pid,
                )
            measured |= memory.as_json()
            facts = {"benchmark": "spark_read", "case": case, "rows": options.rows}
            facts |= {"size": options.size, "kernel": kernel_name(), "runs": options.runs}
            print(json.dumps(facts | measured), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
