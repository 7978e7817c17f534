"""Claim: Kafka's sink stores rows twice when its driver is killed while a batch is written; ours,
with ``transactional=true``, stores each once.

A stream copies numbers from a topic to another. The driver is killed by SIGKILL when some rows of
its second batch are stored, of ours as half messages; a second driver goes on from the checkpoint.
Prints the rows that are there twice, for each kill. ``--ours`` is our sink with our broker.

    python benchmarks/kafka_sink_doubles.py --kafka FOLDER [--kills 3]
    python benchmarks/kafka_sink_doubles.py --ours [--kills 3]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.spark.drivers import die, run_to_its_death  # noqa: E402
from tests.spark.sink_reading import stored  # noqa: E402
from tests.support.clients.patient import PatientConnection  # noqa: E402
from tests.support.clients.spark import Topics  # noqa: E402
from tests.support.servers.up import Up  # noqa: E402

from benchmarks.kafka import PARTITIONS, kafka_broker  # noqa: E402
from benchmarks.spark_write import start_spark  # noqa: E402
from kerolox.protocol.names import HALF_TOPIC  # noqa: E402
from kerolox.spark.java import require_java  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, PER_BATCH = 60_000, 20_000
SHARE_OF_A_BATCH = 0.3
"""How much of the second batch is stored when its driver is killed."""


class Side(Protocol):
    """A broker with its connector."""

    format: str
    body: str
    """The column of the numbers."""
    jars: str
    at: dict[str, str]
    """The option that says where the broker is."""
    writing: dict[str, str]
    """Further options of the sink."""

    def given(self) -> list[str]:
        """Arguments that make the same side in another process."""

    def create(self, topic: str) -> None:
        """Have a topic."""

    def written(self, topic: str) -> int:
        """How much is stored that was written to a topic, seen or not, in some unit."""


class KafkaSide:
    """Kafka's."""

    format, body = "kafka", "value"

    def __init__(self, address: str, jars: str, data: str) -> None:
        self._given = [address, jars, data]
        self.jars, self._data = jars, Path(data)
        self.at = {"kafka.bootstrap.servers": address}
        self.writing: dict[str, str] = {}

    def given(self) -> list[str]:
        return ["kafka", *self._given]

    def create(self, topic: str) -> None:
        """Its broker makes a topic that is written to."""

    def written(self, topic: str) -> int:
        """Bytes."""
        return sum(path.stat().st_size for path in self._data.glob(f"{topic}-*/*.log"))


class OurSide:
    """Ours, exactly once."""

    format, body, jars = "rocketmq", "body", ""

    def __init__(self, name_server: str, broker: str) -> None:
        self._given = [name_server, broker]
        self.at, self.writing = {"nameServer": name_server}, {"transactional": "true"}

    def given(self) -> list[str]:
        return ["ours", *self._given]

    def create(self, topic: str) -> None:
        Topics(*self._given).create(topic, PARTITIONS)

    def written(self, topic: str) -> int:
        """Half messages of all topics."""
        with PatientConnection(self._given[1]) as connection:
            return stored(connection, HALF_TOPIC, 0)


def side_of(kind: str, *given: str) -> Side:
    return KafkaSide(*given) if kind == "kafka" else OurSide(*given)


@contextmanager
def running(kafka: Path | None, folder: Path) -> Iterator[Side]:
    """Kafka's broker with the jars of a folder, or ours."""
    if kafka is None:
        with Up(folder / "up") as up:
            yield OurSide(up.namesrv, up.broker)
    else:
        with kafka_broker(kafka, folder / "kafka") as broker:
            yield KafkaSide(broker.address, broker.jars, str(broker.data))


def copy(spark: Any, side: Side, origin: str, target: str, folder: Path) -> Any:  # noqa: ANN401
    """The query that is killed, and that goes on."""
    stream = spark.readStream.format(side.format).options(**side.at, subscribe=origin)
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
    writer = stream.load().select(side.body).writeStream.format(side.format).options(**side.at)
    writer = writer.options(topic=target, checkpointLocation=str(folder), **side.writing)
    return writer.trigger(availableNow=True).start()


def die_in_the_second_batch(side: Side, target: str, checkpoint: Path, before: int) -> None:
    """When a share of it is stored."""
    while not (checkpoint / "commits" / "0").exists():
        time.sleep(0.001)
    first = side.written(target)
    while side.written(target) < first + (first - before) * SHARE_OF_A_BATCH:
        time.sleep(0.001)
    die()


def driver(origin: str, target: str, folder: str, *given: str) -> None:
    side = side_of(*given)
    spark = start_spark(side.jars)
    places = side, target, Path(folder), side.written(target)
    threading.Thread(target=die_in_the_second_batch, args=places, daemon=True).start()
    copy(spark, side, origin, target, Path(folder)).awaitTermination()


def kill_one(spark: Any, side: Side, origin: str, target: str, folder: Path) -> dict[str, int]:  # noqa: ANN401
    side.create(target)
    given = ["--driver", origin, target, folder, *side.given()]
    log = folder.with_suffix(".log")
    run_to_its_death("benchmarks.kafka_sink_doubles", *given, log=log)
    copy(spark, side, origin, target, folder).awaitTermination()
    read = spark.read.format(side.format).options(**side.at, subscribe=target)
    rows = read.load().select(side.body).collect()
    counts = Counter(bytes(row[0]) for row in rows)
    return {
        "rows": ROWS,
        "stored": len(rows),
        "missing": ROWS - len(counts),
        "twice": sum(count > 1 for count in counts.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", type=Path, help="folder of its jars")
    parser.add_argument("--ours", action="store_true", help="our sink and broker")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--driver", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        driver(*options.driver)
        return
    if options.ours == bool(options.kafka):
        parser.error("give either --kafka FOLDER or --ours")
    require_java()
    with tempfile.TemporaryDirectory() as name, running(options.kafka, Path(name)) as side:
        spark = start_spark(side.jars)
        side.create("origin")
        numbers = f"CAST(CAST(id AS string) AS binary) AS {side.body}"
        frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(numbers)
        frame.write.format(side.format).mode("append").options(**side.at, topic="origin").save()
        for number in range(options.kills):
            folder = Path(name, f"checkpoint-{number}")
            found = kill_one(spark, side, "origin", f"target-{number}", folder)
            facts = {"benchmark": "kafka_sink_doubles", "sink": side.format, "kill": number}
            print(json.dumps(facts | found), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
