"""Log files that are deleted under a stream: each message is there once, or its loss is
reported."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyspark.errors import StreamingQueryException

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.testing import LocalBroker
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import SECONDS_OF_SPARK, Gathered, Sent, Topics
from tests.support.eventually import SECONDS_MAX, wait_until
from tests.support.servers.settings import ANY_DISK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BODY = b"x" * 8192
COUNT = 8_000
"""Messages of 64 files. A task that has given its first rows has asked for less than half of them:
64 answers are on their way at most, and rows of 8 MiB wait to be given."""

BATCH_ROWS = 100
"""Of the record batches that Spark hands to Python: so few that it asks for more soon."""


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    """Deletes files by request alone."""
    settings = {
        **ANY_DISK,
        "mappedFileSizeCommitLog": 1024 * 1024,
        "fileReservedTime": 0,
        "deleteWhen": (time.localtime().tm_hour + 12) % 24,
        "deleteCommitLogFilesInterval": 0,
    }
    texts = {name: str(value) for name, value in settings.items()}
    with (
        mock.patch("kerolox.broker.broker.FIRST_CLEAN_SECONDS", 1e6),
        LocalBroker(settings=texts) as made,
    ):
        yield made


class Log:
    """A topic of one queue, and the broker's files."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self.topic = broker.create_topic(queues=1)

    def send(self, count: int) -> None:
        topics = Topics(self._broker.name_server, self._broker.address)
        topics.send(self.topic, [Sent(BODY) for _ in range(count)])

    def first(self) -> int:
        """The offset of the first message that is there."""
        fields = {"topic": self.topic, "queueId": 0}
        with PatientConnection(self._broker.address) as connection:
            request = RemotingCommand.request(RequestCode.GET_MIN_OFFSET, fields)
            return int(connection.invoke(request, SECONDS_MAX).ext_fields["offset"])

    def delete_past(self, offset: int) -> int:
        """Delete files as an operator's requests do, this message's too; the first that is left."""

        def is_shorter() -> bool:
            self._broker.advance()
            return self.first() > offset

        wait_until(is_shorter, what=f"a log without offset {offset}")
        return self.first()


@pytest.fixture
def log(broker: LocalBroker) -> Log:
    return Log(broker)


@pytest.fixture
def run(
    spark: SparkSession, broker: LocalBroker, log: Log, tmp_path: Path
) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query on the log, from its beginning or its checkpoint on, up to the end."""
    made: list[StreamingQuery] = []

    def start(
        take: Callable[[DataFrame, int], None],
        change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        **options: str,
    ) -> StreamingQuery:
        source = spark.readStream.format("rocketmq").option("nameServer", broker.name_server)
        source = source.options(subscribe=log.topic, startingOffsets="earliest", **options)
        frame = change(source.option("columns", "queueId,queueOffset,body").load())
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        made.append(writer.foreachBatch(take).trigger(availableNow=True).start())
        return made[-1]

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, str(BATCH_ROWS))
    yield start
    spark.conf.set(name, before)
    for query in made:
        query.stop()


def loss_of(query: StreamingQuery) -> str:
    """What a query that fails says of its loss."""
    with pytest.raises(StreamingQueryException, match="DataLossError") as caught:
        query.awaitTermination(SECONDS_OF_SPARK)
    return str(caught.value)


def offsets(gathered: Gathered) -> list[int]:
    assert set(gathered.places.values()) <= {1}, "a message is there twice"
    return sorted(offset for _, offset in gathered.places)


def test_files_deleted_between_two_runs_are_an_error_or_left_out(log: Log, run):
    log.send(1000)
    first, then = Gathered(), Gathered()
    assert run(first.take).awaitTermination(SECONDS_OF_SPARK)
    assert offsets(first) == list(range(1000))
    log.send(1000)
    minimum = log.delete_past(1000)
    told = loss_of(run(then.take))
    assert f"holds offsets {minimum} to before 2000, not the 1000 to start from" in told
    assert not then.places
    assert run(then.take, failOnDataLoss="false").awaitTermination(SECONDS_OF_SPARK)
    assert offsets(then) == list(range(minimum, 2000))


# PySpark's own remark on the versions of what it needs.
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")
@pytest.mark.parametrize("fails", ["true", "false"])
def test_files_deleted_under_a_task_that_reads_are_an_error_or_left_out(
    log: Log, run, tmp_path: Path, fails: str
):
    log.send(COUNT)
    reading, deleted = str(tmp_path / "reading"), str(tmp_path / "deleted")

    def held(frame: DataFrame) -> DataFrame:
        """Behind the first rows no more are asked for until files are deleted."""

        def wait_once(batches):
            import time
            from pathlib import Path

            deadline = time.monotonic() + 240
            for batch in batches:
                yield batch
                Path(reading).touch()
                while not Path(deleted).exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)

        return frame.mapInArrow(wait_once, frame.schema)

    minimum: list[int] = []

    def delete() -> None:
        path = tmp_path / "reading"
        wait_until(path.exists, seconds=SECONDS_OF_SPARK, what="a task that reads")
        minimum.append(log.delete_past(COUNT * 7 // 8))
        (tmp_path / "deleted").touch()

    gathered = Gathered()
    deleting = threading.Thread(target=delete)
    deleting.start()
    query = run(gathered.take, held, failOnDataLoss=fails)
    told = ""
    if fails == "true":
        told = loss_of(query)
    else:
        assert query.awaitTermination(SECONDS_OF_SPARK)
    deleting.join(SECONDS_OF_SPARK)
    there = offsets(gathered)
    if fails == "true":
        found = re.search(r"offsets (\d+) to (\d+) of .* are not there any more", told)
        assert found is not None, told
        assert 0 < int(found[1]) <= int(found[2]) < minimum[0]
        assert not there, "of a batch that failed no row is there"
    else:
        gone = set(range(COUNT)) - set(there)
        assert gone, "the files were deleted before they were read"
        assert max(gone) < minimum[0], "a message is missing that is there"
