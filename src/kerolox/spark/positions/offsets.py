"""Offsets of many queues: their JSON, what an option means, and how a range becomes partitions.

Pure functions over ``dict[MessageQueue, int]``. The JSON form is nested by topic, broker name and
queue id (``{"topic":{"broker-a":{"0":123}}}``). It is sorted, because Spark decides by comparing
text whether there is anything new. An offset is the one to read next: ``[start, end)`` is a range.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

from kerolox.errors import ConfigError, KeroloxError
from kerolox.message import MessageQueue
from kerolox.spark.bounds import EARLIEST, LATEST, Bound, OffsetBound

PARTITION_ROWS_MIN = 100_000
"""A partition costs about 50 ms of start; fewer rows than these are not worth one more."""

PARTITIONS_MAX = 10_000
"""Most Spark partitions of one batch."""

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

Offsets = dict[MessageQueue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]


class DataLossError(KeroloxError):
    """Messages that the query asked for are gone: deleted by retention, or lost by the broker."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; set option failOnDataLoss=false to go on with what is left, "
            "or start from other offsets with a new checkpoint"
        )


def report_loss(what: str, *, fail_on_data_loss: bool, going_on: str = "") -> None:
    """Say that messages asked for are gone, and where a query goes on that bears it; DataLossError:
    ``fail_on_data_loss`` is set.
    """
    if fail_on_data_loss:
        raise DataLossError(what)
    _log.warning("data lost, going on%s: %s", going_on, what)


class Bounds(NamedTuple):
    """The offsets that a queue holds: from ``minimum`` to before ``maximum``."""

    minimum: int
    maximum: int
    last_time: int = 0
    """When the message before ``maximum`` was stored, ms; 0: unknown."""


class Mark(NamedTuple):
    """A message by which a life of a topic is known."""

    end: int
    """The offset after the message."""
    time: int
    """When it was stored, ms."""


class Known(NamedTuple):
    """What a task has to know of a queue that it reads."""

    mark: Mark | None = None
    """The last message when the range was planned."""
    from_minimum: bool = False
    """The range begins with the queue's first message, so what retention deletes is no loss."""


class QueueRange(NamedTuple):
    """The offsets ``[start, end)`` of one queue."""

    queue: MessageQueue
    start: int
    end: int


def to_json(offsets: Mapping[MessageQueue, _Value]) -> dict[str, dict[str, dict[str, _Value]]]:
    """Nested by topic, broker name and queue id; sorted."""
    nested: dict[str, dict[str, dict[str, _Value]]] = {}
    for queue in sorted(offsets):
        brokers = nested.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def from_json(nested: object, value: Callable[[object], _Value]) -> dict[MessageQueue, _Value]:
    """The inverse of :func:`to_json`, for what a checkpoint holds; ``value`` reads each value.
    ConfigError: another shape: the checkpoint belongs to another source.
    """
    table = cast("dict[str, dict[str, dict[str, object]]]", nested)
    try:
        return {
            MessageQueue(topic, broker_name, int(queue_id)): value(each)
            for topic, brokers in table.items()
            for broker_name, queues in brokers.items()
            for queue_id, each in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint's offsets {nested!r} are not those of a rocketmq source ({error}); "
            "use another checkpoint folder"
        ) from error


def offset_of(value: object) -> int:
    """One offset of an offsets JSON; raises what :func:`from_json` turns into its error."""
    return int(cast("int", value))


def resolve(bound: OffsetBound, bounds: Mapping[MessageQueue, Bounds], *, option: str) -> Offsets:
    """Offsets for exactly the queues of ``bounds``; -2 and -1 become numbers, others stay.
    ConfigError: ``bound`` leaves out a queue, or names one that does not exist.
    """
    if bound is Bound.EARLIEST:
        return {queue: held.minimum for queue, held in bounds.items()}
    if bound is Bound.LATEST:
        return {queue: held.maximum for queue, held in bounds.items()}
    assert isinstance(bound, dict)
    check_queues(bound, bounds, option=option)
    special = {EARLIEST: 0, LATEST: 1}
    return {
        queue: held[special[bound[queue]]] if bound[queue] in special else bound[queue]
        for queue, held in bounds.items()
    }


def check_queues(
    given: Mapping[MessageQueue, int],
    held: Mapping[MessageQueue, Bounds],
    *,
    option: str,
    advice: str = "an offset, -2 for earliest or -1 for latest",
) -> None:
    """Check that an option gives a value for each queue, and for no other; else a ConfigError names
    it.
    """
    unknown = sorted(given.keys() - held.keys())
    if unknown:
        raise ConfigError(
            f"option {option} names queues that do not exist: {queue_names(unknown)}; "
            f"there are {queue_names(sorted(held))}"
        )
    missing = sorted(held.keys() - given.keys())
    if missing:
        raise ConfigError(
            f"option {option} leaves out {queue_names(missing)}; give every queue {advice}"
        )


def plan_partitions(
    ranges: Sequence[QueueRange],
    *,
    min_partitions: int | None = None,
    rows_max: int | None = None,
) -> list[list[QueueRange]]:
    """Cut ranges into partitions of nearly equal length: few, and large.

    There are as many as queues with data, but not more than one for each ``PARTITION_ROWS_MIN``
    rows. There are at least ``min_partitions``, at least one if there is anything to read, and so
    many that none has more than ``rows_max`` rows. A partition may hold parts of several queues; a
    queue may be cut anywhere. Empty ranges are left out.

    Raises:
        ConfigError: ``rows_max`` would make more than ``PARTITIONS_MAX``.
    """
    filled = [each for each in sorted(ranges) if each.end > each.start]
    total = sum(each.end - each.start for each in filled)
    if not total:
        return []
    count = min(len(filled), math.ceil(total / PARTITION_ROWS_MIN))
    count = min(max(count, min_partitions or 1), total, PARTITIONS_MAX)
    if rows_max is not None and total > count * rows_max:
        count = math.ceil(total / rows_max)
        if count > PARTITIONS_MAX:
            raise ConfigError(
                f"option maxRecordsPerPartition={rows_max} makes {count} partitions of {total} "
                f"offsets, over {PARTITIONS_MAX}; write {math.ceil(total / PARTITIONS_MAX)} or more"
            )
    partitions: list[list[QueueRange]] = [[] for _ in range(count)]
    index, passed = 0, 0
    for queue, start, end in filled:
        position = start
        while position < end:
            boundary = total * (index + 1) // count
            stop = min(end, position + boundary - passed)
            partitions[index].append(QueueRange(queue, position, stop))
            passed += stop - position
            position = stop
            if passed == boundary:
                index += 1
    return partitions


def queue_names(queues: Sequence[MessageQueue]) -> str:
    """For people: the first of them, and how many more there are."""
    shown = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in queues[:5])
    return f"{shown} and {len(queues) - 5} more" if len(queues) > 5 else shown
