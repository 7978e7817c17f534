"""Topics and messages for the Spark tests, made over blocking connections; their Spark."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kerolox
from kerolox.errors import RemotingError
from kerolox.message import encode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS, limited
from tests.support.clients.patient import PatientConnection
from tests.support.clients.requests import topic_fields
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.kept import forget_old, kept_folder
from tests.support.programs import QUICK_JAVA

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

__all__ = [
    "QUICK",
    "SECONDS_OF_SPARK",
    "Gathered",
    "Sending",
    "Sent",
    "Topics",
    "limited",
    "needs_limits",
    "read_to_end",
    "reason_of_worker",
    "share_classes",
    "spark_variables",
]

IN_FLIGHT_MAX = 256
HOMES_MAX = 4
"""Of Spark's files, one for each version of it and of Java."""

SECONDS_OF_SPARK = 240
"""A deadline for what takes Spark some seconds on a machine that does nothing else."""


def _home() -> Path:
    """Where the files of this PySpark are for this Java: one place for all checkouts, since shared
    classes fit the place of their jars alone."""
    java = Path(shutil.which("java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    digest = hashlib.sha256(f"{java} {changed}".encode()).hexdigest()[:8]
    return kept_folder("spark") / f"{version('pyspark')}-{digest}"


_HOME = _home()

SHARED_CLASSES = _HOME / "classes.jsa"
"""Spark's classes as Java has loaded them once; Java does without where they do not fit."""

_JAVA_OPTIONS = " ".join(QUICK_JAVA)

QUICK = {
    "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -XX:SharedArchiveFile={SHARED_CLASSES}",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    # Of a stream that has all: the ten milliseconds of Spark keep a tenth of a processor busy.
    "spark.sql.streaming.pollingDelay": "50",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without checksums: for each file of a checkpoint Hadoop starts processes (chmod, readlink),
    # and as many again for the file of its checksum.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Settings of a Spark session that costs little."""

needs_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 bounds no micro-batches")


def spark_variables() -> dict[str, str]:
    """Variables of a driver: this interpreter, this package, and a ``SPARK_HOME`` without PySpark's
    archive. Of that each of Spark's Python processes, one per stream and more per batch, compiles
    what it imports: a second and a half. Without it they import the installed PySpark, compiled."""
    if not _HOME.exists():
        _copy_home()
    source = str(Path(kerolox.__file__).parents[1])
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": str(Path(__file__).with_name("python_first.sh")),
        "KEROLOX_PYTHON": sys.executable,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _copy_home() -> None:
    """Links to the files of the installed PySpark, or copies of them on another file system."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    with tempfile.TemporaryDirectory(dir=_HOME.parent) as folder:
        fresh = Path(folder, "home")
        for part in ("bin", "jars", "sbin"):
            shutil.copytree(str(files("pyspark") / part), fresh / part, copy_function=link)
        with contextlib.suppress(OSError):  # another process was first
            fresh.rename(_HOME)
    forget_old(_HOME.parent.iterdir(), HOMES_MAX)


def share_classes() -> None:
    """Make :data:`SHARED_CLASSES`, once for a machine: each Spark after that needs half the
    processor's time to start. Whoever comes while another makes them returns at once."""
    if SHARED_CLASSES.exists():
        return
    environment = os.environ | spark_variables()
    # Without them all works as well.
    passing = BlockingIOError, subprocess.TimeoutExpired
    with SHARED_CLASSES.with_suffix(".lock").open("w") as lock, contextlib.suppress(*passing):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if SHARED_CLASSES.exists():
            return
        made = SHARED_CLASSES.with_suffix(".new")
        made.unlink(missing_ok=True)
        options = f"{_JAVA_OPTIONS} -XX:ArchiveClassesAtExit={made}"
        program = [sys.executable, "-W", "ignore", "-c", _LOADING]
        settings = json.dumps(QUICK | {"spark.driver.extraJavaOptions": options})
        subprocess.run(
            [*program, settings], env=environment, capture_output=True, timeout=SECONDS_OF_SPARK
        )
        if made.exists():
            made.rename(SHARED_CLASSES)


_LOADING = """
import json, sys, tempfile
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").config(map=json.loads(sys.argv[1])).getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    rows = session.range(0, 9, 1, 2).selectExpr("id", "id % 3 AS rest")
    rows.write.parquet(f"{folder}/rows")
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("rest").count().collect()
    stream = session.readStream.schema(rows.schema).parquet(f"{folder}/rows")
    writer = stream.writeStream.foreachBatch(lambda frame, batch: frame.collect())
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait(120)
"""
"""Loads the classes of usual queries, and ends when Java has ended."""


@dataclass
class Sent:
    """One message: what goes out, and where the broker put it."""

    body: bytes
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    born_timestamp: int = 1_700_000_000_123
    reconsume_times: int = 0
    wire_body: bytes | None = None
    queue_offset: int = -1
    message_id: str = ""


class Topics:
    """Creates topics and sends to them."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.namesrv = namesrv
        self.broker = broker

    def create(self, topic: str, queues: int = 4) -> str:
        """Create a topic, or change its number of queues, and wait for its route."""
        self._invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues=queues))
        expected = f'"readQueueNums":{queues}'.encode()
        with PatientConnection(self.namesrv) as names:

            def route() -> bytes:
                code, name = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
                return names.invoke(RemotingCommand.request(code, name), SECONDS_MAX).body

            wait_until(lambda: expected in route(), what=f"route of {topic}")
        return topic

    def send(self, topic: str, messages: Iterable[Sent]) -> list[Sent]:
        """Send in order of each queue; fills in queue offset and message id."""
        sent = list(messages)
        with PatientConnection(self.broker) as connection:
            for first in range(0, len(sent), IN_FLIGHT_MAX):
                group = sent[first : first + IN_FLIGHT_MAX]
                by_opaque = {connection.send(_request(topic, each)): each for each in group}
                for _ in group:
                    answer = connection.receive(SECONDS_MAX)
                    assert answer.code == ResponseCode.SUCCESS, answer
                    each = by_opaque[answer.opaque]
                    each.queue_offset = int(answer.ext_fields["queueOffset"])
                    each.message_id = answer.ext_fields["msgId"]
        return sent

    def send_numbers(self, topic: str, numbers: Iterable[int], *, queues: int = 4) -> None:
        """Messages whose body is a number, spread over the queues."""
        self.send(topic, [Sent(str(n).encode(), queue_id=n % queues) for n in numbers])

    def _invoke(self, code: int, fields: dict[str, object]) -> None:
        with PatientConnection(self.broker) as connection:
            answer = connection.invoke(RemotingCommand.request(code, fields), SECONDS_MAX)
        assert answer.code == ResponseCode.SUCCESS, answer


class Sending:
    """Sends to a topic as long as the context lasts, whatever happens to the broker."""

    def __init__(self, broker: str, topic: str, *, queues: int = 4, pause: float = 0.01) -> None:
        self._broker, self.topic = broker, topic
        self._queues, self._pause = queues, pause
        self.acknowledged: list[tuple[int, int]] = []
        """(queue id, queue offset)"""
        self.failures = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: len(self.acknowledged) >= 20, what="the first messages")
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(SECONDS_MAX)

    def _send(self) -> None:
        number = 0
        while not self._ending.wait(self._pause):
            self.failures += 1
            with contextlib.suppress(RemotingError), PatientConnection(self._broker) as connection:
                while not self._ending.wait(self._pause):
                    number += 1
                    sent = Sent(str(number).encode(), queue_id=number % self._queues)
                    answer = connection.invoke(_request(self.topic, sent), 3.0)
                    if answer.code == ResponseCode.SUCCESS:
                        offset = int(answer.ext_fields["queueOffset"])
                        self.acknowledged.append((sent.queue_id, offset))


class Gathered:
    """The places of all rows that a query has given; its ``take`` is for ``foreachBatch``."""

    def __init__(self) -> None:
        self.places: Counter[tuple[int, int]] = Counter()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("queueId", "queueOffset").collect()
        self.places.update((row.queueId, row.queueOffset) for row in rows)

    def first(self) -> dict[int, int]:
        """The first offset of each queue."""
        return dict(sorted(self.places, reverse=True))

    def has_all(self, acknowledged: list[tuple[int, int]]) -> bool:
        """Whether of these messages none is missing from the first row of its queue on."""
        if acknowledged[-1] not in self.places:
            return False
        first = self.first()
        return all(
            place in self.places for place in acknowledged if place[1] >= first.get(place[0], 0)
        )

    def catch_up(self, query: StreamingQuery, sending: Sending) -> None:
        """Wait until the query has rows, and then all up to where the sender is, each once."""

        def lives() -> bool:
            assert query.exception() is None, query.exception()
            return True

        wait_until(lambda: lives() and self.places, seconds=SECONDS_OF_SPARK, what="a row")
        # What was sent before the query began is behind its first row, if it starts at latest.
        sent = sending.acknowledged[-200:]
        wait_until(
            lambda: lives() and self.has_all(sent),
            seconds=SECONDS_OF_SPARK,
            what="rows up to the sender's place",
        )
        assert set(self.places.values()) == {1}


def reason_of_worker(error: Exception) -> str:
    """The one line that a task's error is, without a traceback, behind Spark's own first line: each
    version words that in its way."""
    first, reason, *_ = str(error).strip().splitlines()
    assert first.startswith("An exception was thrown from the Python worker"), error
    assert "Traceback" not in str(error), error
    return reason


def read_to_end(
    stream: DataStreamReader, folder: Path, sizes: list[int] | None = None
) -> list[int]:
    """All that is there now, with a checkpoint in ``folder``: the numbers that the bodies are.

    Args:
        sizes: gets the rows of each batch that is not empty.
    """
    batches: list[list[int]] = []

    def take(frame: DataFrame, _batch_id: int) -> None:
        batches.append([int(bytes(row.body)) for row in frame.select("body").collect()])

    writer = stream.load().writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.foreachBatch(take).trigger(availableNow=True)
    assert writer.start().awaitTermination(SECONDS_OF_SPARK)
    if sizes is not None:
        sizes += [len(batch) for batch in batches if batch]
    return sorted(itertools.chain.from_iterable(batches))


def _request(topic: str, message: Sent) -> RemotingCommand:
    fields = {
        "a": "spark-tests",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": message.queue_id,
        "f": message.sys_flag,
        "g": message.born_timestamp,
        "h": message.flag,
        "i": encode_properties(message.properties),
        "j": message.reconsume_times,
        "k": False,
        "l": 16,
        "m": False,
    }
    body = message.body if message.wire_body is None else message.wire_body
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, fields, body=body)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
