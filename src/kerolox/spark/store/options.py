"""The options of the ``rocketmq-store`` format, checked before anything is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kerolox.errors import ConfigError
from kerolox.protocol import names
from kerolox.spark.bounds import checked_queue_id, json_object, members
from kerolox.spark.option_values import OF_SPARK, WHOLE_MAX, OptionValues, check_path
from kerolox.spark.options import BodyErrors
from kerolox.spark.selection import checked_pattern, checked_topics
from kerolox.text import printable

FORMAT = "rocketmq-store"

OPTIONS = {
    "path": "folder or URI of a store, or of its commit log; load() takes several (required)",
    "commitLogPath": "folders of the commit log, joined by ',', when they are not in the store",
    "brokerName": "what column brokerName says of each store, joined by ','; default null",
    "subscribe": "topics, joined by ','; default: all that are no system topics",
    "subscribePattern": "a regular expression that whole names of topics match",
    "includeSystemTopics": "true: also RocketMQ's own topics, %RETRY% and %DLQ%; default false",
    "startingTimestamp": "only messages stored at this time or later: ms or ISO 8601 with a zone",
    "endingTimestamp": "only messages stored before this time",
    "startingPhysicalOffset": "only records that begin at this offset of the log or behind it",
    "endingPhysicalOffset": "only records that begin before it; batch only",
    "startingOffsets": 'only queue offsets from these on: {"topic":{"0":12}}',
    "endingOffsets": 'only queue offsets before these: {"topic":{"0":30}}',
    "columns": "a subset of the columns, joined by ',', in this order; fewer are faster",
    "bodyErrors": "bodies that can't be inflated: fail (default), null, or raw: the stored bytes",
    "failOnDataLoss": "true (default): fail when records are damaged or gone; false: warn, go on",
    "consumeQueues": "auto (default), always or never: read few messages by their queue entries",
    "splitBytes": "most bytes of the log that one Spark partition reads, default 256m",
    "maxBytesPerTrigger": "stream: most bytes of the log in a micro-batch; needs PySpark 4.2",
    "pollIntervalMs": "stream: time between checks while nothing comes, default 250",
}

SPLIT_BYTES_DEFAULT = 256 * 1024 * 1024
"""Twice what Spark gives a task of other files (spark.sql.files.maxPartitionBytes): a task of
a source in Python costs Spark some 40 ms more than its rows."""

SPLIT_BYTES_MIN = 64 * 1024

POLL_INTERVAL_MS_DEFAULT = 250

STORES_MAX = 1_000

_OFFSETS = '{"topic":{"0":12,"1":30}}'

QueueOffsets = dict[tuple[str, int], int]
"""Queue offsets by topic and queue id."""


class ConsumeQueues(Enum):
    """Whether messages are read by their queue entries."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The checked options of one query."""

    paths: tuple[str, ...]
    log_paths: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    """Empty: those of the pattern, else all."""
    pattern: str = ""
    has_system_topics: bool = False
    stored_from: int = 0
    stored_before: int = WHOLE_MAX
    """Store times in ms."""
    first_offset: int = 0
    end_offset: int | None = None
    """Physical offsets."""
    starting_offsets: QueueOffsets | None = None
    ending_offsets: QueueOffsets | None = None
    columns: tuple[str, ...] | None = None
    body_errors: BodyErrors = BodyErrors.FAIL
    fail_on_data_loss: bool = True
    consume_queues: ConsumeQueues = ConsumeQueues.AUTO
    split_bytes: int = SPLIT_BYTES_DEFAULT
    max_bytes_per_trigger: int | None = None
    poll_interval_ms: int = POLL_INTERVAL_MS_DEFAULT

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StoreOptions:
        """Check the options of a query; ConfigError: an unknown or missing option, or a value that
        its option can't have.
        """
        values = OptionValues(FORMAT, OPTIONS, given, ignored={*OF_SPARK, "paths"})
        paths = _paths(values, given)
        log_paths = values.filled_items("commitLogPath")
        if log_paths and len(paths) > 1:
            raise ConfigError("option commitLogPath is for one store; load each store by itself")
        topics, pattern = _subscription(values)
        first, end = values.whole("startingPhysicalOffset"), values.whole("endingPhysicalOffset")
        if len(paths) > 1 and (first is not None or end is not None):
            name = "startingPhysicalOffset" if first is not None else "endingPhysicalOffset"
            raise ConfigError(f"option {name} is for one store; load each store by itself")
        _check_order("PhysicalOffset", first, end)
        stored_from = values.timestamp_ms("startingTimestamp")
        stored_before = values.timestamp_ms("endingTimestamp")
        _check_order("Timestamp", stored_from, stored_before)
        return cls(
            paths=paths,
            log_paths=log_paths,
            broker_names=_broker_names(values, len(paths)),
            topics=topics,
            pattern=pattern,
            has_system_topics=values.boolean("includeSystemTopics", default=False),
            stored_from=stored_from or 0,
            stored_before=WHOLE_MAX if stored_before is None else stored_before,
            first_offset=first or 0,
            end_offset=end,
            starting_offsets=_queue_offsets(values, "startingOffsets", topics),
            ending_offsets=_queue_offsets(values, "endingOffsets", topics),
            columns=values.columns(),
            body_errors=values.choice("bodyErrors", BodyErrors.FAIL),
            fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
            consume_queues=values.choice("consumeQueues", ConsumeQueues.AUTO),
            split_bytes=_split_bytes(values),
            max_bytes_per_trigger=values.byte_size("maxBytesPerTrigger"),
            poll_interval_ms=values.wait_ms("pollIntervalMs") or POLL_INTERVAL_MS_DEFAULT,
        )

    def check_stream(self) -> None:
        """Refuse what only a batch can mean; ConfigError: a stream with an end, or one that is to
        be read by queue entries.
        """
        if self.end_offset is not None:
            raise ConfigError(
                "option endingPhysicalOffset is for batches only; a stream with "
                "trigger(availableNow=True) ends by itself"
            )
        if self.consume_queues is ConsumeQueues.ALWAYS:
            raise ConfigError(
                "option consumeQueues=always is for batches only; a stream reads the log"
            )

    def is_wanted(self, topic: bytes) -> bool:
        """Whether messages of a topic are read."""
        name = topic.decode("utf-8", "replace")
        if self.topics:
            return name in self.topics
        if is_system_topic(name) and not self.has_system_topics:
            return False
        return not self.pattern or re.fullmatch(self.pattern, name) is not None


def is_system_topic(name: str) -> bool:
    """A topic of RocketMQ's own: delayed messages, halves of transactions, traces ...; copies for
    retries (``%RETRY%``), dead letters (``%DLQ%``) and replies count as such."""
    return (
        names.is_system_topic(name)
        or name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX, names.LMQ_PREFIX))
        or name.endswith(names.REPLY_TOPIC_SUFFIX)
    )


def _paths(values: OptionValues, given: Mapping[str, str]) -> tuple[str, ...]:
    text = next((value for name, value in given.items() if name.lower() == "paths"), None)
    try:
        listed = json.loads("[]" if text is None else text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise ConfigError("option paths is no list in JSON; give the paths to load()")
    paths = tuple(dict.fromkeys(str(each) for each in listed))
    path = values.text("path")
    paths = (path, *(each for each in paths if each != path)) if path else paths
    if not paths:
        values.required("path")
        raise ConfigError("option path is empty; write the folder that storePathRootDir names")
    for each in (*paths, *values.items("commitLogPath")):
        check_path("path" if each in paths else "commitLogPath", each)
    if len(paths) > STORES_MAX:
        raise ConfigError(f"option path names {len(paths)} stores, over {STORES_MAX}")
    return paths


def _broker_names(values: OptionValues, stores: int) -> tuple[str, ...]:
    # Two brokers of one name can't be: a name that comes twice is a mistake.
    names = values.filled_items("brokerName")
    if names and len(names) != stores:
        raise ConfigError(
            f"option brokerName has {len(names)} different names for {stores} stores; write one "
            "for each, joined by ',', in the order of the paths"
        )
    return names


def _subscription(values: OptionValues) -> tuple[tuple[str, ...], str]:
    values.one_of("subscribe", "subscribePattern")
    topics = values.items("subscribe")
    if "subscribe" in values and not topics:
        raise ConfigError(
            "option subscribe names no topic; write one or more, joined by ',', or leave it out "
            "to read all"
        )
    if topics:
        return checked_topics("subscribe", topics), ""
    if "subscribePattern" in values:
        return (), checked_pattern(values.text("subscribePattern"))
    return (), ""


def _check_order(what: str, first: int | None, end: int | None) -> None:
    if first is not None and end is not None and end < first:
        raise ConfigError(
            f"option starting{what} ({first}) is behind ending{what} ({end}), so nothing would be "
            "read; exchange them"
        )


def _split_bytes(values: OptionValues) -> int:
    size = values.byte_size("splitBytes")
    if size is not None and size < SPLIT_BYTES_MIN:
        raise ConfigError(
            f"option splitBytes={size} is below {SPLIT_BYTES_MIN}; a task costs far more than "
            "reading so little"
        )
    return size or SPLIT_BYTES_DEFAULT


def _queue_offsets(values: OptionValues, name: str, topics: tuple[str, ...]) -> QueueOffsets | None:
    text = values.raw(name)
    if text is None:
        return None
    end = name.removesuffix("Offsets")
    fault = f"is no JSON; {end}Timestamp and {end}PhysicalOffset are for all queues"
    found: QueueOffsets = {}
    for topic, queues in json_object(text, name, fault, _OFFSETS).items():
        if topics and topic not in topics:
            raise ConfigError(
                f"option {name} has topic {printable(topic)!r}, which subscribe does not name"
            )
        for queue_id, offset in members(queues, name, _OFFSETS):
            if type(offset) is not int or not 0 <= offset <= WHOLE_MAX:
                raise ConfigError(
                    f"option {name} has offset {offset!r:.100} for "
                    f"{printable(topic)} {printable(queue_id)}; write 0 or more"
                )
            found[topic, checked_queue_id(queue_id, name, _OFFSETS)] = offset
    return found
