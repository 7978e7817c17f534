"""What a Spark query costs while nothing comes: per cent of a core, by process.

Claim measured: a query on 50 idle topics of 8 queues costs less than 5 % of a core, the JVM, its
planning process and the broker together. Starts ``kerolox up`` with that many topics, one message
in each queue; then Spark without a query, with a ``rate`` stream of one row a second (what a
small batch costs Spark itself), and with the query. Prints one JSON object per case.

    python benchmarks/spark_idle.py --topics 50 --queues 8 --seconds 20
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.clients.spark import Sent, Topics  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from benchmarks.peers import cpu_seconds  # noqa: E402
from benchmarks.spark_read import start_spark  # noqa: E402
from kerolox.kernel.choice import kernel_name  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402

WARM_UP_SECONDS = 60.0
"""At four looks a second the JVM takes so long to compile what it runs."""


def processes(pid: int) -> dict[int, str]:
    """A process and its living descendants, each with what it is."""
    found, pending = {}, [pid]
    while pending:
        each = pending.pop()
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ")
            kinds = {"streaming": "planner", "pyspark.daemon": "workers", "/java": "jvm"}
            found[each] = next((kind for word, kind in kinds.items() if word in line), "driver")
            for task in Path(f"/proc/{each}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return found


def used(seconds: float, broker: int) -> dict[str, float]:
    """Per cent of a core that each kind of process uses from now on."""
    watched = {**processes(os.getpid()), broker: "broker"}
    before = {pid: cpu_seconds(pid) for pid in watched}
    started = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - started
    total: dict[str, float] = {}
    for pid, kind in watched.items():
        with contextlib.suppress(OSError):
            share = 100 * (cpu_seconds(pid) - before[pid]) / took
            total[kind] = total.get(kind, 0.0) + share
    total["all"] = sum(total.values())
    return {kind: round(share, 2) for kind, share in total.items()}


def measure(case: str, stream: Any, seconds: float, broker: int) -> None:  # noqa: ANN401
    query = None if stream is None else stream.load().writeStream.format("noop").start()
    time.sleep(WARM_UP_SECONDS)
    facts = {"benchmark": "spark_idle", "case": case, "kernel": kernel_name(), "seconds": seconds}
    print(json.dumps(facts | used(seconds, broker)), flush=True)
    if query is not None:
        assert query.exception() is None, query.exception()
        query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    require_java()
    with tempfile.TemporaryDirectory() as folder, Up(Path(folder, "up")) as cluster:
        topics = Topics(cluster.namesrv, cluster.broker)
        names = [f"Idle{number}" for number in range(options.topics)]
        for name in names:
            topics.create(name, queues=options.queues)
            topics.send(name, [Sent(b"x", queue_id=n) for n in range(options.queues)])
        assert cluster.process is not None
        broker = cluster.process.pid
        spark = start_spark()
        measure("nothing", None, options.seconds, broker)
        rate = spark.readStream.format("rate").option("rowsPerSecond", 1)
        measure("rate", rate, options.seconds, broker)
        idle = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv)
        measure("idle", idle.option("subscribe", ",".join(names)), options.seconds, broker)
        spark.stop()


if __name__ == "__main__":
    main()
