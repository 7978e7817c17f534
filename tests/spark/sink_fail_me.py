"""A driver whose tasks fail after they have written, write on beside others, or write slowly.

Arguments: name server, a topic to read, a topic to write, a folder for the checkpoint, how, rows of
a batch, Spark's master. Files in the folder tell the test what goes on.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

from kerolox.spark.source import RocketMQDataSource
from kerolox.spark.writer import StreamWriter
from tests.spark.read_on import SPECULATION
from tests.spark.sink_kill_me import copying
from tests.support.clients.spark import QUICK

WAIT_SECONDS_MAX = 60.0
PIECES = 20
"""Requests that end the halves of a segment while a broker is killed."""


class TaskFailedError(Exception):
    """A task has failed, as a test wants it."""


class FailingWriter(StreamWriter):
    """Writes as the sink does, with attempts that come to no good."""

    folder, how = Path(), ""

    def write(self, iterator):
        from pyspark import TaskContext

        context = TaskContext.get()
        self.batch = int(context.getLocalProperty("streaming.sql.batchId"))
        place = context.partitionId(), context.attemptNumber()
        if place[0] == 0 and (place[1] == 0 or self.how == "failures"):
            return getattr(self, f"_{self.how}")(iterator, place[1])
        message = super().write(iterator)
        self._tell(f"wrote-{self.batch}-{place[0]}")
        return message

    def commit(self, messages, batchId):
        begun = self.folder / f"ending-{batchId}"
        with _ends_in_pieces(begun) if self.how == "broker" else nullcontext():
            super().commit(messages, batchId)

    def _failures(self, iterator, attempt):
        """The first attempt fails behind its rows, the second one between them."""
        if attempt == 1:
            iterator = _failing(iterator)
        message = super().write(iterator)
        if attempt == 0:
            raise TaskFailedError
        return message

    def _zombies(self, iterator, _attempt):
        """Fails, while its copy writes one half of the rows, and the other after the decision."""
        rows = list(iterator)
        begun = self.folder / f"zombie-{self.batch}-begins"
        if os.fork():
            _wait_for(begun)
            raise TaskFailedError
        # Spark ends the group of its workers with the driver.
        os.setsid()
        try:
            decision = self.folder / "checkpoint" / "kerolox-sink" / str(self.batch)
            super().write(_halting(rows, begun, decision))
            self._tell(f"zombie-{self.batch}-ends")
        finally:
            os._exit(0)

    def _speculation(self, iterator, _attempt):
        """Waits in the midst of its rows until the other attempt has written."""
        rows = list(iterator)
        begun = self.folder / f"slow-{self.batch}"
        try:
            return super().write(_halting(rows, begun, self.folder / f"wrote-{self.batch}-0"))
        except AssertionError:
            self._tell(f"alone-{self.batch}")
            raise

    def _broker(self, iterator, _attempt):
        """Takes its time, so that a broker can be killed meanwhile."""
        return super().write(_slowly(iterator, self.folder / f"writing-{self.batch}"))

    def _tell(self, name):
        (self.folder / name).touch()


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.005)


def _failing(iterator):
    yield next(iterator)
    raise TaskFailedError


def _halting(rows, begun, goes_on):
    """Half of the rows; the others when a file is there."""
    middle = (len(rows) + 1) // 2
    yield from rows[:middle]
    begun.touch()
    _wait_for(goes_on)
    yield from rows[middle:]


def _slowly(iterator, begun):
    for number, rows in enumerate(iterator):
        yield rows
        if number == 1:
            begun.touch()
        time.sleep(0.005)


@contextmanager
def _ends_in_pieces(begun: Path):
    """Halves are ended by many requests, with pauses."""
    from kerolox.spark.sink.transactions.commit import Transaction

    end = Transaction.end_halves

    def ending(self, queue, start, stop, selection, *, is_again):
        step = max((stop - start) // PIECES, 1)
        for number, first in enumerate(range(start, stop, step)):
            if number == 2:
                begun.touch()
            end(self, queue, first, min(first + step, stop), selection, is_again=is_again)
            time.sleep(0.005)

    Transaction.end_halves = ending
    try:
        yield
    finally:
        Transaction.end_halves = end


class FailingSource(RocketMQDataSource):
    """The format with a sink whose tasks fail."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-failing"

    def streamWriter(self, schema, overwrite):
        folder, how = self.options.pop("folder", ""), self.options.pop("how", "")
        failing = FailingWriter(super().streamWriter(schema, overwrite).carried)
        failing.folder, failing.how = Path(folder), how
        return failing


if __name__ == "__main__":
    name_server, origin, target, folder, how, per_batch, master = sys.argv[1:]
    builder = SparkSession.builder.master(master).config(map=QUICK)
    if how == "speculation":
        builder = builder.config(map=SPECULATION)
    # Several record batches a task.
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    session = builder.getOrCreate()
    session.dataSource.register(FailingSource)
    checkpoint = str(Path(folder) / "checkpoint")
    given = session, name_server, origin, target, checkpoint
    # Spark starts a copy of a task when another has ended.
    partitions = 2 if how == "speculation" else 1
    query = copying(*given, per_batch=int(per_batch), partitions=partitions)
    options = {"folder": folder, "how": how, "batchBytes": "2k"}
    query.format("rocketmq-failing").options(**options).start().awaitTermination()
