"""The options of the ``rocketmq`` format: names as a user of Spark's Kafka source expects them.

All is checked here, before anything is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kerolox.client.core.namespaces import queue_with_namespace, with_namespace
from kerolox.client.core.validate import check_consumer_group
from kerolox.errors import ConfigError
from kerolox.filter.sql92 import compile_sql92
from kerolox.filter.sql92_error import Sql92Error
from kerolox.filter.tags import looks_like_sql92, parse_tags
from kerolox.message import ALL_TAGS, MessageQueue
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.spark.bounds import (
    EARLIEST,
    LATEST,
    Beyond,
    Bound,
    OffsetBound,
    Since,
    parse_bound,
    parse_queues,
    parse_times,
)
from kerolox.spark.option_values import CONNECTION_OPTIONS, OptionValues, of_option
from kerolox.spark.selection import Selection, checked_pattern, checked_topics
from kerolox.text import printable

OPTIONS = {
    "nameServer": CONNECTION_OPTIONS["nameServer"],
    "subscribe": "topics, joined by ','; this, subscribePattern or assign is required",
    "subscribePattern": "a regular expression that the whole name of a topic matches",
    "assign": 'single queues, as JSON: {"topic":{"broker-a":[0,1]}}',
    "startingOffsets": "earliest, latest, group or JSON; batch: earliest, new stream: latest",
    "endingOffsets": "latest or JSON; batch only, default latest",
    "startingTimestamp": "start with the first message stored then or later, ms since 1970",
    "endingTimestamp": "end before the first message stored then or later; batch only",
    "startingOffsetsByTimestamp": "the same per queue, as JSON",
    "endingOffsetsByTimestamp": "the same per queue, as JSON; batch only",
    "startingOffsetsByTimestampStrategy": "no message is that new: latest (default) or error",
    "subExpression": "tags, as in 'a || b', or a condition; default '*': all",
    "subExpressionType": "TAG (default), or SQL92: subExpression is a condition on properties",
    "pushFilters": "batch: true: read less where the query's filters tell what is not needed",
    "maxOffsetsPerTrigger": "stream: at most so many queue offsets in a micro-batch, shared fairly",
    "minOffsetsPerTrigger": "stream: a micro-batch waits until so many offsets can be read",
    "maxTriggerDelay": "but no longer than this, as in 30s or 15m (default)",
    "minPartitions": "at least so many Spark partitions; default: as few as are worth it",
    "maxRecordsPerPartition": "at most so many offsets in a Spark partition",
    "failOnDataLoss": "true (default): fail when messages asked for are gone; false: warn, go on",
    "bodyErrors": "bodies that can't be inflated: fail (default), null, or raw: the stored bytes",
    "columns": "a subset of the columns, joined by ',', in this order; fewer are faster",
    "consumerGroup": "the group in pull requests, and of offsets; default spark-rocketmq",
    "commitGroupOffsets": "stream: true: store what is done as offsets of consumerGroup",
    "namespace": "before topics and groups, as the clients have it",
    "readFromSlaves": "true: read from the slave that a broker suggests, or if its master is away",
    "pollTimeoutMs": "longest wait for a broker to come back or to answer, default 120000",
    "pollIntervalMs": "stream: time between checks while nothing comes, default 250, later twice",
    **CONNECTION_OPTIONS,
}

_log = logging.getLogger(__name__)

CONSUMER_GROUP_DEFAULT = "spark-rocketmq"
"""One group for all queries: a broker keeps for ever each group that it has seen once."""

MAX_TRIGGER_DELAY_MS_DEFAULT = 15 * 60 * 1000
"""As of Spark's Kafka source."""

POLL_TIMEOUT_MS_DEFAULT = 120_000

POLL_INTERVAL_MS_DEFAULT = 250
"""Spark's own delay of a batch is as long."""


class ExpressionType(Enum):
    """The language of ``subExpression`` (RocketMQ's ``ExpressionType``)."""

    TAG = "TAG"
    SQL92 = "SQL92"


class BodyErrors(Enum):
    """The value of a body that can't be read: none (the query fails), null, the raw bytes."""

    FAIL = "fail"
    NULL = "null"
    RAW = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of one ``spark.read`` or ``spark.readStream``."""

    name_servers: tuple[str, ...]
    selection: Selection
    starting_offsets: OffsetBound | None = None
    """None: not given; the default differs between batch and stream."""
    ending_offsets: OffsetBound | None = None
    beyond: Beyond = Beyond.LATEST
    """What to do in a queue without a message since the time to start from."""
    sub_expression: str = ALL_TAGS
    expression_type: ExpressionType = ExpressionType.TAG
    push_filters: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS_DEFAULT
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    body_errors: BodyErrors = BodyErrors.FAIL
    columns: tuple[str, ...] | None = None
    consumer_group: str = CONSUMER_GROUP_DEFAULT
    commit_group_offsets: bool = False
    read_from_slaves: bool = False
    poll_timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT
    poll_interval_ms: int = POLL_INTERVAL_MS_DEFAULT
    credentials: Credentials | None = None
    tls: bool | TlsSettings = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read, as brokers know them; empty with a pattern."""
        return self.selection.topics

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags to keep; empty: all messages, or a condition says which."""
        if self.expression_type is ExpressionType.SQL92:
            return ()
        return parse_tags(self.sub_expression)

    @property
    def is_filtered(self) -> bool:
        """Brokers leave messages out, so offsets have no rows."""
        return bool(self.tags) or self.expression_type is ExpressionType.SQL92

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Check the options of a query; ConfigError: an unknown or missing option, or a value that
        its option can't have.
        """
        values = OptionValues("rocketmq", OPTIONS, given)
        selection = _selection(values)
        _check_together(values)
        return cls(
            name_servers=values.name_servers(),
            selection=selection,
            starting_offsets=_bound(values, "starting", selection),
            ending_offsets=_bound(values, "ending", selection),
            beyond=values.choice("startingOffsetsByTimestampStrategy", Beyond.LATEST),
            sub_expression=_expression(values),
            expression_type=values.choice("subExpressionType", ExpressionType.TAG),
            push_filters=values.boolean("pushFilters", default=False),
            max_offsets_per_trigger=values.positive("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=values.positive("minOffsetsPerTrigger"),
            max_trigger_delay_ms=(
                values.duration_ms("maxTriggerDelay") or MAX_TRIGGER_DELAY_MS_DEFAULT
            ),
            min_partitions=values.positive("minPartitions"),
            max_records_per_partition=values.positive("maxRecordsPerPartition"),
            fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
            body_errors=values.choice("bodyErrors", BodyErrors.FAIL),
            columns=values.columns(),
            consumer_group=_group(values, selection),
            commit_group_offsets=values.boolean("commitGroupOffsets", default=False),
            read_from_slaves=values.boolean("readFromSlaves", default=False),
            poll_timeout_ms=values.wait_ms("pollTimeoutMs") or POLL_TIMEOUT_MS_DEFAULT,
            poll_interval_ms=values.wait_ms("pollIntervalMs") or POLL_INTERVAL_MS_DEFAULT,
            credentials=values.credentials(),
            tls=values.tls(),
        )

    def check_batch(self) -> None:
        """Refuse what only a stream can mean; warn of what has no effect. ConfigError: a batch that
        starts after the last message or after its own end, or ends at the first message.
        """
        if self.starting_offsets is Bound.LATEST or _has(self.starting_offsets, LATEST):
            raise ConfigError(
                "option startingOffsets can't be latest (-1) in a batch: it would read nothing; "
                "use earliest or offsets"
            )
        if self.ending_offsets is Bound.EARLIEST or _has(self.ending_offsets, EARLIEST):
            raise ConfigError("option endingOffsets can't be earliest (-2); use latest or offsets")
        self._check_order()
        if self.commit_group_offsets:
            raise ConfigError(
                "option commitGroupOffsets is for streams only: nobody tells a batch's reader "
                "that the batch is done"
            )
        for option, value in (
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger),
            ("minOffsetsPerTrigger", self.min_offsets_per_trigger),
        ):
            if value is not None:
                # As Spark's Kafka source does: the same options are often used for both.
                _log.warning(
                    "option %s has no effect in a batch, which reads all between its start and "
                    "its end; set endingOffsets to read less",
                    option,
                )

    def _check_order(self) -> None:
        starting, ending = self.starting_offsets, self.ending_offsets
        if isinstance(starting, Since) and isinstance(ending, Since):
            _check_times(starting, ending)
        if not isinstance(starting, dict) or not isinstance(ending, dict):
            return
        for queue, start in starting.items():
            end = ending.get(queue, LATEST)
            if 0 <= end < start:
                raise ConfigError(
                    f"startingOffsets {start} of {queue.topic} queue {queue.queue_id} on "
                    f"{queue.broker_name} is behind its endingOffsets {end}, so nothing would be "
                    "read; exchange them, or give both the same offset to leave the queue out"
                )

    def check_stream(self) -> None:
        """Refuse by a ConfigError what only a batch can mean: an end."""
        if self.push_filters:
            raise ConfigError(
                "option pushFilters is for batches only: Spark hands no filters to a stream"
            )
        if self.ending_offsets is not None:
            end = self.ending_offsets
            option = end.option if isinstance(end, Since) else "endingOffsets"
            raise ConfigError(
                f"option {option} is for batches only; a stream with "
                "trigger(availableNow=True) ends by itself"
            )


def _selection(values: OptionValues) -> Selection:
    option = values.one_of("subscribe", "subscribePattern", "assign")
    if option is None:
        raise ConfigError(
            "option subscribe is missing: topics, joined by ','; or give subscribePattern or assign"
        )
    namespace = values.namespace()
    if option == "subscribePattern":
        pattern = checked_pattern(values.text(option))
        return Selection(option=option, pattern=pattern, namespace=namespace)
    queues: frozenset[MessageQueue] = frozenset()
    names = values.items(option)
    if option == "assign":
        given_queues = parse_queues(values.text(option), option=option)
        queues = frozenset(queue_with_namespace(namespace, queue) for queue in given_queues)
        names = tuple(sorted({queue.topic for queue in given_queues}))
    topics = tuple(dict.fromkeys(with_namespace(namespace, name) for name in names))
    return Selection(
        option=option, topics=checked_topics(option, topics), queues=queues, namespace=namespace
    )


def _expression(values: OptionValues) -> str:
    kind = values.choice("subExpressionType", ExpressionType.TAG)
    expression = values.text("subExpression", ALL_TAGS)
    shown = f"option subExpression={printable(expression)!r}"
    if kind is ExpressionType.SQL92:
        if "subExpression" not in values:
            raise ConfigError("option subExpressionType=SQL92 needs subExpression, the condition")
        try:
            compile_sql92(expression)
        except Sql92Error as error:
            raise ConfigError(f"{shown} is no condition (SQL92): {error}") from error
        return expression
    try:
        parse_tags(expression)
    except ValueError as error:
        raise ConfigError(f"option subExpression: {error}") from error
    if looks_like_sql92(expression):
        raise ConfigError(
            f"{shown} is no tag expression: write tags as in 'a || b', or give option "
            "subExpressionType=SQL92 for a condition on properties"
        )
    return expression


def _bound(values: OptionValues, end: str, selection: Selection) -> OffsetBound | None:
    """What the options of one end say; ``end`` is ``starting`` or ``ending``."""
    offsets, time, times = f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp"
    option = values.one_of(offsets, time, times)
    if option is None:
        return None
    if option == time:
        return Since(values.timestamp_ms(option) or 0, option)
    text = values.text(option)
    if option == times:
        return parse_times(text, selection, option=option)
    words = [Bound.GROUP] if end == "starting" else []
    return parse_bound(text, selection, option=option, words=words)


def _check_together(values: OptionValues) -> None:
    """Refuse options that make sense only with another one, or not with it."""
    least, most = values.positive("minOffsetsPerTrigger"), values.positive("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option minOffsetsPerTrigger={least} is over maxOffsetsPerTrigger={most}, so no "
            "batch could ever be made; write it smaller"
        )
    if values.duration_ms("maxTriggerDelay") is not None and least is None:
        raise ConfigError("option maxTriggerDelay needs minOffsetsPerTrigger; give both or none")
    is_start = values.text("startingOffsets").lower() == Bound.GROUP.value
    for option, uses_group in (
        ("startingOffsets=group", is_start),
        ("commitGroupOffsets", values.boolean("commitGroupOffsets", default=False)),
    ):
        if uses_group and not values.text("consumerGroup"):
            raise ConfigError(f"option {option} needs consumerGroup: whose offsets they are")


def _group(values: OptionValues, selection: Selection) -> str:
    """The consumer group as brokers know it."""
    group = selection.wire_topic(values.text("consumerGroup", CONSUMER_GROUP_DEFAULT))
    with of_option("consumerGroup"):
        check_consumer_group(group)
    return group


def _check_times(starting: Since, ending: Since) -> None:
    start, end = starting.times, ending.times
    if isinstance(start, int) and isinstance(end, int) and start > end:
        raise ConfigError(
            f"option {starting.option}={start} is later than {ending.option}={end}, so nothing "
            "would be read; exchange them"
        )


def _has(bound: OffsetBound | None, offset: int) -> bool:
    return isinstance(bound, dict) and offset in bound.values()
