"""Records of splits of a log, as the entries that they have in queues.

The classes here travel to the workers; they hold plain values only.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kerolox.inspect.check_queues import further_entries
from kerolox.inspect.places import LogFile
from kerolox.message import PropertyKey, encode_properties
from kerolox.protocol.codes import TRANSACTION_MASK
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.protocol.records import RECORD_BYTES_MIN
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.lazy import arrow, compute
from kerolox.spark.jobs.frame.tasks import numbers_of
from kerolox.spark.jobs.rebuild.source import Rules
from kerolox.spark.store.columns import RowBatches, store_schema, tags_codes
from kerolox.spark.store.files.disk import disk_of
from kerolox.spark.store.scan import Damage, LogScan, Split, Wanted
from kerolox.store.appends import UNQUEUED
from kerolox.store.layout import record_tags_code
from kerolox.store.queues.names import check_queue_name

if TYPE_CHECKING:
    import pyarrow

PLACE_SCHEMA = (
    "topic string, queueId int, queueOffset long, physical long, size int, code long, time long"
)
"""An entry of a queue, with the store time (ms) of its record."""

ENTRY_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "size", "sysFlag", "tags")
TIME = "storeTimestamp"
PROPERTIES = "properties"

_SCHEDULE = SCHEDULE_TOPIC.encode()


@dataclass(frozen=True, slots=True)
class LogSplits:
    """A log, and the splits that tasks read by their numbers."""

    location: str
    files: tuple[LogFile, ...]
    log_end: int
    splits: tuple[Split, ...]

    def parts(
        self, number: int, columns: Sequence[str], *, with_properties: bool
    ) -> Iterator[pyarrow.RecordBatch | Damage]:
        """The records of a split in the order of the log, those of the delayed messages behind.
        ``with_properties``: also column properties, which delayed messages have in any case.
        """
        disk, _ = disk_of(self.location)
        scan = LogScan(disk, self.files, log_end=self.log_end)
        split = self.splits[number]
        has_delayed = False

        def is_plain(topic: bytes) -> bool:
            nonlocal has_delayed
            has_delayed = has_delayed or topic == _SCHEDULE
            return topic != _SCHEDULE

        all_columns = (*columns, PROPERTIES)
        plain = all_columns if with_properties else columns
        yield from _parts(scan, split, plain, is_plain)
        if has_delayed:
            # Their entries say when they are due, which a property tells.
            for part in _parts(scan, split, all_columns, lambda topic: topic == _SCHEDULE):
                if not isinstance(part, Damage):
                    yield part

    def records(
        self, number: int, columns: Sequence[str], *, skips: bool
    ) -> Iterator[pyarrow.RecordBatch]:
        """All records of a split in the order of the log; ``skips``: damages are stepped over.
        JobError: there is one otherwise, or a file is gone.
        """
        disk, _ = disk_of(self.location)
        scan = LogScan(disk, self.files, log_end=self.log_end)
        for part in _parts(scan, self.splits[number], columns, None):
            if isinstance(part, Damage):
                check_damage(part, skips=skips)
            else:
                yield part


def _parts(
    scan: LogScan, split: Split, columns: Sequence[str], topics: Callable[[bytes], bool] | None
) -> Iterator[pyarrow.RecordBatch | Damage]:
    made = RowBatches(store_schema(columns), None)
    wanted = Wanted(columns=made.wanted, topics=topics, checks_crc=False)
    for part in scan.scan(split, wanted):
        if isinstance(part, Damage):
            yield part
        elif part.count:
            yield made.batch(part)


def check_damage(damage: Damage, *, skips: bool) -> None:
    """Let a damage pass that is left out; JobError: it is not, or its file was deleted."""
    if damage.is_tail or (skips and not damage.is_gone):
        return
    raise JobError(
        f"the log changed while it was read: at {damage.offset} {damage.reason}; stop the broker "
        "that uses the store, and run it again"
    )


class Places(NamedTuple):
    """What :func:`places_of` makes of a batch of records."""

    entries: pyarrow.RecordBatch
    """As :data:`PLACE_SCHEMA`."""
    unqueued: int
    """Records without a place in a queue: prepared or rolled back."""
    deleted: dict[str, int]
    """Entries by topics that were deleted."""
    impossible: list[tuple[int, int, str]]
    """(physical offset, size, sentence) of records that say a place that can't be."""


def places_of(batch: pyarrow.RecordBatch, rules: Rules) -> Places:
    """The entries of queues that some records have (``CommitLogDispatcherBuildConsumeQueue``). The
    batch has :data:`ENTRY_COLUMNS`, :data:`TIME`, maybe :data:`PROPERTIES`; those of delayed
    messages apart from others.
    """
    small = arrow.int32()
    kind = compute.bit_wise_and(batch.column("sysFlag"), arrow.scalar(TRANSACTION_MASK, small))
    kinds = arrow.array(UNQUEUED, small)
    queued = batch.filter(compute.invert(compute.is_in(kind, value_set=kinds)))
    entries = _own_entries(queued, rules)
    if rules.multi_dispatch:
        further = _further_entries(queued, entries, rules)
        if further.num_rows:
            table = arrow.Table.from_batches([entries, further]).combine_chunks()
            entries = table.to_batches()[0]
    alive, deleted = _alive(entries, rules)
    kept, impossible = _possible(alive)
    return Places(kept, batch.num_rows - queued.num_rows, deleted, impossible)


def store_times(batch: pyarrow.RecordBatch) -> pyarrow.Array:
    """Store times in ms."""
    return compute.divide(batch.column(TIME).cast(arrow.int64()), 1_000)


def _own_entries(batch: pyarrow.RecordBatch, rules: Rules) -> pyarrow.RecordBatch:
    times = store_times(batch)
    topics = batch.column("topic")
    if batch.num_rows and topics[0].as_py() == SCHEDULE_TOPIC:
        texts = [encode_properties(dict(items)) for items in batch.column(PROPERTIES).to_pylist()]
        codes = arrow.array(
            [
                record_tags_code(_SCHEDULE, text.encode(), when, rules.delays_ms)
                for text, when in zip(texts, times.to_pylist(), strict=True)
            ],
            arrow.int64(),
        )
    else:
        codes = tags_codes(batch.column("tags"))
    return arrow.RecordBatch.from_pydict(
        {
            "topic": topics,
            "queueId": batch.column("queueId"),
            "queueOffset": batch.column("queueOffset"),
            "physical": batch.column("physicalOffset"),
            "size": batch.column("size"),
            "code": codes,
            "time": times,
        }
    )


def _further_entries(
    batch: pyarrow.RecordBatch, own: pyarrow.RecordBatch, rules: Rules
) -> pyarrow.RecordBatch:
    """The entries in the further queues that records name (multi dispatch)."""
    texts = batch.column(PROPERTIES)
    name = arrow.scalar(PropertyKey.INNER_MULTI_DISPATCH)
    named = compute.is_valid(compute.map_lookup(texts, name, "first"))
    rows: list[dict[str, object]] = []
    for row, items in zip(
        own.filter(named).to_pylist(), texts.filter(named).to_pylist(), strict=True
    ):
        text = encode_properties(dict(items)).encode()
        for target, queue_id, offset in further_entries(
            row["topic"].encode(), row["queueId"], text, lmq=rules.lmq
        ):
            topic = target.decode()
            if rules.further is None or topic in rules.further:
                rows.append({**row, "topic": topic, "queueId": queue_id, "queueOffset": offset})
    return arrow.RecordBatch.from_pylist(rows, schema=own.schema)


def _alive(
    entries: pyarrow.RecordBatch, rules: Rules
) -> tuple[pyarrow.RecordBatch, dict[str, int]]:
    topics = entries.column("topic").dictionary_encode()
    floors = arrow.array(
        [rules.floor_of(topic) for topic in topics.dictionary.to_pylist()], arrow.int64()
    )
    is_alive = compute.greater_equal(entries.column("physical"), floors.take(topics.indices))
    if compute.all(is_alive, min_count=0).as_py():
        return entries, {}
    dead = entries.filter(compute.invert(is_alive)).column("topic").value_counts()
    counts = {each["values"]: each["counts"] for each in dead.to_pylist()}
    return entries.filter(is_alive), counts


def _possible(
    entries: pyarrow.RecordBatch,
) -> tuple[pyarrow.RecordBatch, list[tuple[int, int, str]]]:
    """Without entries whose place can't be: each entry before one was of a record before it."""
    topics = entries.column("topic").dictionary_encode()
    usable = arrow.array(
        [_is_usable(topic) for topic in topics.dictionary.to_pylist()], arrow.bool_()
    ).take(topics.indices)
    most = compute.divide(entries.column("physical"), RECORD_BYTES_MIN)
    offsets = entries.column("queueOffset")
    is_possible = compute.and_(
        compute.and_(usable, compute.greater_equal(entries.column("queueId"), 0)),
        compute.and_(compute.greater_equal(offsets, 0), compute.less_equal(offsets, most)),
    )
    if compute.all(is_possible, min_count=0).as_py():
        return entries, []
    odd = [
        (
            row["physical"],
            row["size"],
            f"it says that it is number {row['queueOffset']} of queue {row['queueId']} of topic "
            f"{row['topic']!r}, which can't be",
        )
        for row in entries.filter(compute.invert(is_possible)).to_pylist()
    ]
    return entries.filter(is_possible), odd


def _is_usable(topic: str) -> bool:
    try:
        check_queue_name(topic)
    except ValueError:
        return False
    return True


def peak_kib() -> int:
    """Most memory that this process had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True, slots=True)
class PlaceReader:
    """Reads the entries of splits by their numbers."""

    log: LogSplits
    rules: Rules
    skips: bool

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: the entries of the splits whose numbers are the first column."""
        columns = (*ENTRY_COLUMNS, TIME)
        for number in numbers_of(batches):
            for part in self.log.parts(number, columns, with_properties=self.rules.multi_dispatch):
                if isinstance(part, Damage):
                    check_damage(part, skips=self.skips)
                    continue
                entries = places_of(part, self.rules).entries
                if entries.num_rows:
                    yield entries
