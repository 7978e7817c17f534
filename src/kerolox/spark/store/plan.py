"""Planning what of a store is read: its range, and the partitions that tasks read."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kerolox.config import nearest
from kerolox.errors import ConfigError, RemoteProtocolError
from kerolox.protocol import fastjson
from kerolox.protocol.records import store_time_of
from kerolox.spark.positions.offsets import report_loss
from kerolox.spark.store.columns import check_store_schema
from kerolox.spark.store.ends import LogEnd, find_log_end
from kerolox.spark.store.entries import BYTES_PER_ENTRY, BYTES_PER_REMOTE_ENTRY
from kerolox.spark.store.files.listing import StoreListing, list_store
from kerolox.spark.store.files.queues import QueueRange, StoreQueue, queue_ids, queue_path
from kerolox.spark.store.options import ConsumeQueues, StoreOptions, is_system_topic
from kerolox.spark.store.partition import (
    StorePartition,
    log_partition,
    queue_partition,
    read_partition,
)
from kerolox.spark.store.scan import plan_splits
from kerolox.spark.worker import STORE_READING_MODULE, packed, short_errors

if TYPE_CHECKING:
    import pyarrow

_CLOCK_MARGIN_MS = 10 * 60 * 1000
"""A broker's clock may be set back by so much: files that a time just leaves out are read."""

ENTRIES_OF_PARTITION = 100_000

_HEAD_BYTES = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreRange:
    """A part of a store: records that begin in ``[start, end)``."""

    listing: StoreListing
    start: int
    end: int
    log_end: int
    broker_name: str | None = None
    at_border: bool = True
    """A record or a file begins at ``start``."""


def examine(
    options: StoreOptions, number: int, known: int | None = None, reported: int | None = None
) -> tuple[StoreListing, LogEnd]:
    """List one of the stores, by its number in the order of its paths, and find its log's end; odd
    files and a torn tail are warned of. StoreError: it is no store.

    ``known``: where the log's end was before; then faults of the listing were told before.
    ``reported``: where a torn tail was that needs no second warning.
    """
    listing = list_store(options.paths[number], options.log_paths)
    end = find_log_end(listing, known)
    for fault in listing.faults if known is None else ():
        _log.warning("%s: %s", listing.location, fault)
    if end.tail is not None and end.tail.offset != reported:
        _log.warning(
            "%s: the log ends at %d; %d bytes behind it are no whole record: %s",
            *(listing.location, end.offset, end.tail.length, end.tail.reason),
        )
    return listing, end


def broker_name_of(options: StoreOptions, number: int) -> str | None:
    """What column brokerName says of a store."""
    return options.broker_names[number] if options.broker_names else None


def batch_range(options: StoreOptions, number: int) -> StoreRange:
    """What a batch reads of a store. StoreError: it is none. ConfigError: it has not the topics
    that ``subscribe`` names. DataLossError: it has not all that was asked for, and
    ``failOnDataLoss`` is set.
    """
    listing, log_end = examine(options, number)
    check_topics(listing, options)
    loss_is_error = options.fail_on_data_loss
    start, end = listing.start, log_end.offset
    if options.first_offset:
        if options.first_offset < listing.start:
            what = (
                f"{listing.location}: the log begins at {listing.start}, behind "
                f"startingPhysicalOffset {options.first_offset}"
            )
            report_loss(what, fail_on_data_loss=loss_is_error)
        start = max(start, options.first_offset)
    if options.end_offset is not None:
        if options.end_offset > end:
            what = (
                f"{listing.location}: the log ends at {end}, before "
                f"endingPhysicalOffset {options.end_offset}"
            )
            report_loss(what, fail_on_data_loss=loss_is_error)
        end = min(end, options.end_offset)
    at_border = start == listing.start
    found = StoreRange(
        listing, start, end, log_end.offset, broker_name_of(options, number), at_border
    )
    return narrowed(found, options)


def check_gaps(found: StoreRange, options: StoreOptions) -> None:
    """Say which files of a range are missing."""
    for start, end in found.listing.gaps:
        if start < found.end and end > found.start:
            what = f"{found.listing.location}: files of the log from {start} to {end} are missing"
            report_loss(what, fail_on_data_loss=options.fail_on_data_loss)


def narrowed(found: StoreRange, options: StoreOptions) -> StoreRange:
    """Without the files at both ends that hold no messages of the times asked for.

    By the first record of each file: store times ascend as long as the broker's clock does.
    """
    files = [f for f in found.listing.files if f.end > found.start and f.start < found.end]
    start, end, at_border = found.start, found.end, found.at_border
    since, before = options.stored_from - _CLOCK_MARGIN_MS, options.stored_before
    if since > 0:
        for file in reversed(files[1:]):
            when = _first_time(found.listing, file.path)
            if when is not None and when < since:
                start, at_border = file.start, True
                break
    if before < 2**62:
        for file in files[1:]:
            when = _first_time(found.listing, file.path)
            if file.start > start and when is not None and when >= before + _CLOCK_MARGIN_MS:
                end = min(end, file.start)
                break
    return StoreRange(found.listing, start, end, found.log_end, found.broker_name, at_border)


def _first_time(listing: StoreListing, path: str) -> int | None:
    try:
        with closing(listing.disk.open(path)) as opened:
            return store_time_of(opened.read_at(0, _HEAD_BYTES))
    except (FileNotFoundError, RemoteProtocolError):
        return None


def plan_range(found: StoreRange, options: StoreOptions) -> list[StorePartition]:
    """The partitions of a range of a log."""
    if found.start >= found.end:
        return []
    check_gaps(found, options)
    splits = plan_splits(
        found.start,
        found.end,
        found.listing.files,
        options.split_bytes,
        at_border=found.at_border,
    )
    return [
        log_partition(found.listing, split, found.log_end, found.broker_name) for split in splits
    ]


def plan_batch(found: StoreRange, options: StoreOptions) -> list[StorePartition]:
    """The partitions of a batch: by queue entries where that is cheaper, else of the log.
    ConfigError: ``consumeQueues=always`` of a store without consume queues or without topics.
    DataLossError: files of it are missing, and ``failOnDataLoss`` is set.
    """
    if options.consume_queues is ConsumeQueues.NEVER or found.start >= found.end:
        return plan_range(found, options)
    must = options.consume_queues is ConsumeQueues.ALWAYS
    folder = found.listing.queue_folder
    if folder is None or not (options.topics or options.pattern):
        if must:
            lacks = (
                "the store has no folder consumequeue" if folder is None else "no topic is named"
            )
            raise ConfigError(
                f"option consumeQueues=always: {lacks}; use auto, or name topics with subscribe"
            )
        return plan_range(found, options)
    ranges = queue_ranges(found, options)
    entries = sum(each.end - each.start for each in ranges)
    cost = BYTES_PER_ENTRY if found.listing.disk.is_local else BYTES_PER_REMOTE_ENTRY
    if not must and entries * cost > found.end - found.start:
        return plan_range(found, options)
    check_gaps(found, options)
    bounds = (found.start, found.end)
    return [
        queue_partition(found.listing, group, bounds, found.broker_name)
        for group in queue_groups(ranges)
    ]


class StoreBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the stores hold when the query is planned."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        check_store_schema(schema, options.columns)
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        return packed(self._options, self._schema, STORE_READING_MODULE)

    @short_errors
    def partitions(self) -> list[InputPartition]:
        """List the stores, find where their logs end, and cut them."""
        options = self._options
        return [
            partition
            for number in range(len(options.paths))
            for partition in plan_batch(batch_range(options, number), options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read one partition, in a worker."""
        return read_partition(partition, self._options, self._schema)


def queue_ranges(found: StoreRange, options: StoreOptions) -> list[QueueRange]:
    """What the consume queues have of the topics asked for, wherever in the log; empty without
    consume queues."""
    folder = found.listing.queue_folder
    if folder is None:
        return []
    ranges = [
        QueueRange(topic, queue_id, *_bounds(found, topic, queue_id, options))
        for topic in _queued_topics(found.listing, options)
        for queue_id in queue_ids(found.listing.disk, folder, topic)
    ]
    return [each for each in ranges if each.start < each.end]


def _bounds(found: StoreRange, topic: str, queue_id: int, options: StoreOptions) -> tuple[int, int]:
    folder = found.listing.queue_folder or ""
    start, end = StoreQueue(found.listing.disk, queue_path(folder, topic, queue_id)).bounds()
    first = (options.starting_offsets or {}).get((topic, queue_id), start)
    last = (options.ending_offsets or {}).get((topic, queue_id), end)
    return max(start, first), min(end, last)


def queue_groups(ranges: list[QueueRange]) -> list[list[QueueRange]]:
    """Ranges cut and put together, so that each group has about as many entries."""
    groups: list[list[QueueRange]] = []
    room = 0
    for each in ranges:
        start = each.start
        while start < each.end:
            if room == 0:
                groups.append([])
                room = ENTRIES_OF_PARTITION
            end = min(each.end, start + room)
            groups[-1].append(QueueRange(each.topic, each.queue_id, start, end))
            room -= end - start
            start = end
    return groups


def _queued_topics(listing: StoreListing, options: StoreOptions) -> list[str]:
    if options.topics:
        return list(options.topics)
    folder = listing.queue_folder or ""
    names = sorted(child.name for child in listing.disk.children(folder) if not child.is_file)
    return [name for name in names if options.is_wanted(name.encode())]


def known_topics(listing: StoreListing) -> set[str] | None:
    """The topics of ``topics.json`` and of the consume queues; None: neither can be read."""
    found: set[str] = set()
    is_known = False
    if listing.queue_folder is not None:
        children = listing.disk.children(listing.queue_folder)
        found.update(child.name for child in children if not child.is_file)
        is_known = True
    configured = config_topics(listing)
    if configured is None:
        return found if is_known else None
    return found | configured


def config_topics(listing: StoreListing) -> set[str] | None:
    """The topics of ``topics.json``; None: it is not there or can't be read."""
    if listing.root is None:
        return None
    path = posixpath.join(listing.root, "config", "topics.json")
    for each in (path, path + ".bak"):
        try:
            with closing(listing.disk.open(each)) as opened:
                table = fastjson.members_of(fastjson.loads(opened.read_at(0, _TABLE_BYTES_MAX)))
            return {str(name) for name in fastjson.members_of(table["topicConfigTable"])}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


_TABLE_BYTES_MAX = 256 * 1024 * 1024


def check_topics(listing: StoreListing, options: StoreOptions) -> None:
    """Refuse topics that a store does not know, unless only its log is to be read; the ConfigError
    names the topic, and the nearest that there is.
    """
    if options.consume_queues is ConsumeQueues.NEVER or not (options.topics or options.pattern):
        return
    known = known_topics(listing)
    if known is None:
        return
    for topic in options.topics:
        if topic not in known:
            near = nearest(topic, known)
            users = sorted(name for name in known if not is_system_topic(name))[:10]
            hint = f"did you mean {near}?" if near else f"it has {', '.join(users) or 'none'}"
            raise ConfigError(
                f"option subscribe: {listing.location} has no topic {topic!r}; {hint} For what a "
                "deleted topic left in the log, set option consumeQueues=never"
            )
    if options.pattern and not any(re.fullmatch(options.pattern, name) for name in known):
        raise ConfigError(
            f"option subscribePattern={options.pattern!r} matches no topic of {listing.location}"
        )
