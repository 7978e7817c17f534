"""A driver that kills itself, its JVM and its workers at a step of a transactional batch.

Arguments: name server, a topic to read, a topic to write, a folder for the checkpoint, the step.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kerolox.spark.source import RocketMQDataSource
from kerolox.spark.writer import StreamWriter
from tests.spark.drivers import die, tell_workers
from tests.support.clients.spark import QUICK, limited

KILLED_BATCH = 1
STEPS = ("write", "before-decide", "decide", "end", "before-mark", "mark", "commit")


class KillingWriter(StreamWriter):
    """Writes as the sink does, and dies at a step."""

    step = ""

    def write(self, iterator):
        from pyspark import TaskContext

        message = super().write(iterator)
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        if self.step == "write" and int(batch) == KILLED_BATCH:
            die()
        return message

    def commit(self, messages, batchId):
        if batchId == KILLED_BATCH:
            die_at(self.step)
        super().commit(messages, batchId)
        if batchId == KILLED_BATCH and self.step == "commit":
            die()


def die_at(step: str) -> None:
    """Have the driver of this process die at a step of the next commit."""
    from kerolox.spark.sink.transactions.commit import Transaction

    decide, mark, end = Transaction.decide, Transaction.mark_done, Transaction.end_halves

    def deciding(self, messages):
        if step == "before-decide":
            die()
        decision = decide(self, messages)
        if step == "decide":
            die()
        return decision

    def marking(self, batch, ends):
        if step == "before-mark":
            die()
        mark(self, batch, ends)
        if step == "mark":
            die()

    def ending(self, queue, start, stop, selection, *, is_again):
        if step == "end":
            end(self, queue, start, (start + stop) // 2, selection, is_again=is_again)
            die()
        end(self, queue, start, stop, selection, is_again=is_again)

    Transaction.decide, Transaction.mark_done = deciding, marking
    Transaction.end_halves = ending


class KillingSource(RocketMQDataSource):
    """The format with a sink that dies."""

    step = ""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-killed"

    def streamWriter(self, schema, overwrite):
        self.step = self.options.pop("step", self.step)
        killing = KillingWriter(super().streamWriter(schema, overwrite).carried)
        killing.step = self.step
        return killing


def copying(
    session: SparkSession,
    name_server: str,
    origin: str,
    target: str,
    checkpoint: str,
    *,
    per_batch: int = 200,
    partitions: int = 1,
) -> DataStreamWriter:
    """The query that is killed, and that goes on."""
    stream = session.readStream.format("rocketmq").option("nameServer", name_server)
    stream = stream.option("subscribe", origin).option("startingOffsets", "earliest")
    stream = stream.option("minPartitions", str(partitions))
    rows = stream.options(**limited(maxOffsetsPerTrigger=str(per_batch))).load().select("body")
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.option("nameServer", name_server).option("topic", target)
    return writer.option("transactional", "true").trigger(availableNow=True)


if __name__ == "__main__":
    name_server, origin, target, folder, step = sys.argv[1:]
    tell_workers()
    session = SparkSession.builder.master("local[2]").config(map=QUICK).getOrCreate()
    session.dataSource.register(KillingSource)
    query = copying(session, name_server, origin, target, str(Path(folder) / "checkpoint"))
    query.format("rocketmq-killed").option("step", step).start().awaitTermination()
