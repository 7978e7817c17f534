"""A write as Spark drives it: one call per task, then one on the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import pyarrow

from kerolox.errors import KeroloxError
from kerolox.spark.network.connecting import Connector
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.queues import PublishRoutes
from kerolox.spark.sink.task import TaskWriter
from kerolox.spark.sink.transactions.commit import Transaction, half_queue, query_of, store_of
from kerolox.spark.sink.transactions.decisions import Decision
from kerolox.spark.sink.transactions.half_queue import HalfQueue
from kerolox.spark.sink.transactions.halves import Checks, HalfWriter, new_attempt
from kerolox.spark.sink.transactions.messages import SinkMessage

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties by which Spark tells tasks of a stream what they belong to."""

DECISIONS_KNOWN_MAX = 16
"""Decisions that a task keeps in memory."""

_log = logging.getLogger(__name__)


def write_partition(
    options: SinkOptions,
    batches: Iterable[pyarrow.RecordBatch],
    batch: int = 0,
    rows_per_second: float | None = None,
) -> SinkMessage:
    """Write one partition; runs in a Spark worker. ``batch``: which of the writes of option
    ``transactionId``; a stream has its own numbers. ``rows_per_second``: most rows of this
    partition; None: as fast as brokers take them. SinkError: a row is illegal, or rows can't be
    stored.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    if not options.transactional:
        with closing(TaskWriter(options, partition)) as writer:
            writer.write(batches, rows_per_second)
            return SinkMessage(writer.rows)
    number = context.attemptNumber() if context else 0
    query = options.transaction_id
    if not query:
        query = (context and context.getLocalProperty(QUERY_PROPERTY)) or ""
        batch = int((context and context.getLocalProperty(BATCH_PROPERTY)) or 0)
    return write_halves(options, query, batch, partition, number, batches, rows_per_second)


def write_halves(
    options: SinkOptions,
    query: str,
    batch: int,
    partition: int,
    number: int,
    batches: Iterable[pyarrow.RecordBatch],
    rows_per_second: float | None = None,
) -> SinkMessage:
    """Write one partition of a transaction. ``query``: the id of the query, or the name of a batch
    write, whose ``batch`` is 0. ``number``: Spark's of the attempt.
    """
    attempt = new_attempt(query, batch, partition, number)
    if _is_decided(options, query, batch):
        # The rows are read all the same: Spark waits for that.
        for _ in batches:
            pass
        return SinkMessage(0, attempt.text, is_decided=True)
    group = options.group_of(query)
    connector = Connector(options.credentials, options.tls)
    seconds = options.send_timeout_ms / 1000
    routes = PublishRoutes(options.name_servers, connector, wait_seconds=seconds, first=0)
    topics: dict[str, str] = {}

    def queue_of(broker_name: str) -> HalfQueue:
        topic = topics[broker_name]
        return half_queue(broker_name, topic, routes, connector, group, seconds)

    checks = Checks(group, query, _decisions(options, query))
    halves = HalfWriter(attempt, group, queue_of, checks)
    with (
        closing(routes),
        closing(halves),
        closing(TaskWriter(options, partition, halves, topics)) as writer,
    ):
        writer.write(batches, rows_per_second)
        ranges = tuple(
            halves.range_of(name, topics[name], broker_sender.outcome)
            for name, broker_sender in writer.sender.broker_senders.items()
            if broker_sender.outcome.rows
        )
        return SinkMessage(writer.rows, attempt.text, ranges)


def commit(options: SinkOptions, messages: Sequence[SinkMessage | None], batch: int) -> None:
    """All tasks of a batch have written; runs on the driver. SinkError: a transaction can't be
    decided or ended; the batch is to be run again.
    """
    _on_driver(options, messages, batch, Transaction.commit)


def abort(options: SinkOptions, messages: Sequence[SinkMessage | None], batch: int) -> None:
    """A batch has failed; runs on the driver."""
    try:
        _on_driver(options, messages, batch, Transaction.abort)
    except KeroloxError as error:
        # What failed first is what the user is to see.
        _log.warning("half messages of batch %d are not rolled back now: %s", batch, error)


def _on_driver(
    options: SinkOptions,
    messages: Sequence[SinkMessage | None],
    batch: int,
    step: Callable[[Transaction, list[SinkMessage]], None],
) -> None:
    if not options.transactional:
        return
    known = [each for each in messages if each is not None]
    query = options.transaction_id or query_of(known)
    if not query:
        return
    with closing(Transaction(options, query, batch)) as transaction:
        step(transaction, known)


def _is_decided(options: SinkOptions, query: str, batch: int) -> bool:
    """Whether a batch is decided, as far as this machine can see the decisions."""
    try:
        return store_of(options, query).decision(batch) is not None
    except KeroloxError as error:
        _log.info("decisions can't be read here, so the driver looks: %s", error)
        return False


def _decisions(options: SinkOptions, query: str) -> Callable[[int], Decision | None]:
    """Tells what was decided of a batch; what is known once stays."""
    known: dict[int, Decision] = {}

    def decision_of(batch: int) -> Decision | None:
        found = known.get(batch)
        if found is None:
            try:
                found = store_of(options, query).decision(batch)
            except KeroloxError:
                return None
            if found is not None:
                if len(known) >= DECISIONS_KNOWN_MAX:
                    known.clear()
                known[batch] = found
        return found

    return decision_of
