"""Stores as unbounded tables: micro-batches of their logs, the same whenever they are done.

A document of the checkpoint says of each store where its batch starts and where it ends, both
physical offsets at which a record begins or the log ended::

    {"version": 1, "starts": {"/data/store": 0}, "ends": {"/data/store": 4711}}

So a batch is what its own document says, also when the first one is done again after a crash, and a
store that was added to the paths starts in the first batch that knows it. The given path identifies
a store.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kerolox.errors import ConfigError
from kerolox.spark.positions.offsets import report_loss
from kerolox.spark.positions.read_limits import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadMaxBytes,
    check_limit,
)
from kerolox.spark.store.columns import check_store_schema
from kerolox.spark.store.files.listing import StoreListing
from kerolox.spark.store.options import StoreOptions
from kerolox.spark.store.plan import (
    StoreRange,
    broker_name_of,
    examine,
    narrowed,
    plan_range,
)
from kerolox.spark.store.scan import LogScan
from kerolox.spark.worker import short_errors

VERSION = 1
Document = dict[str, object]


@dataclass(frozen=True)
class StorePosition:
    """Where a micro-batch starts and ends in each store."""

    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> Document:
        """The document; equal positions have equal text."""
        return {
            "version": VERSION,
            "starts": dict(sorted(self.starts.items())),
            "ends": dict(sorted(self.ends.items())),
        }

    @classmethod
    def parse(cls, document: Document) -> StorePosition:
        """Read a document; ConfigError: it is of another source, or of a newer version."""
        version = document.get("version") if isinstance(document, dict) else None
        starts, ends = (
            (document.get("starts"), document.get("ends")) if version == VERSION else (None, None)
        )
        if not _are_offsets(starts) or not _are_offsets(ends):
            raise ConfigError(
                f"the checkpoint's offsets are no positions in stores of version {VERSION}: use "
                "the Kerolox that wrote them or a newer one, and a checkpoint of its own for each "
                "query"
            )
        return cls(cast("dict[str, int]", starts), cast("dict[str, int]", ends))


def _are_offsets(value: object) -> bool:
    return isinstance(value, dict) and all(type(each) is int for each in value.values())


class StoreStreamPlanner:
    """Plans micro-batches of stores, which are unbounded tables."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        options.check_stream()
        check_store_schema(schema, options.columns)
        limit = options.max_bytes_per_trigger
        check_limit("maxBytesPerTrigger", limit, has_limits=HAS_READ_LIMITS)
        self._options = options
        self._initial: Document | None = None
        self._last: Document | None = None
        """Where the newest batch ends; PySpark 4.1 does not report."""
        self._target: dict[str, int] | None = None
        self._known: dict[str, int] = {}
        """The ends of the logs when they were examined last."""
        self._tails: dict[str, int] = {}
        self._listed: dict[str, StoreListing] = {}
        self._is_new = False
        """The logs were examined to find where the query starts, and not since."""
        self._asked_at = 0.0
        self._is_idle = False

    # -- called by Spark, by way of LateStreamReader ------------------------------------------
    @short_errors
    def initialOffset(self) -> Document:
        """Where a query without a checkpoint starts: the first record that the options let pass."""
        if self._initial is None:
            starts = {}
            for number, path in enumerate(self._options.paths):
                end = self._poll_end(number)
                starts[path] = self._first_place(number, end)
            self._initial = StorePosition(starts, dict(starts)).to_json()
            self._is_new = True
        return self._initial

    def getDefaultReadLimit(self) -> object:
        """``maxBytesPerTrigger``, else everything."""
        limit = self._options.max_bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the logs end now; this run reads no further."""
        paths = self._options.paths
        self._target = {path: self._poll_end(number) for number, path in enumerate(paths)}

    @short_errors
    def latestOffset(self, start: Document | None = None, limit: object = None) -> Document:
        """Where the next batch ends. PySpark 4.1 calls it without arguments."""
        if start is None:
            start = self._last if self._last is not None else self.initialOffset()
        begin = StorePosition.parse(start)
        self._pause()
        starts, ends = {}, {}
        is_new, self._is_new = self._is_new, False
        for number, path in enumerate(self._options.paths):
            is_known = is_new and self._known[path] > begin.ends.get(path, 0)
            end = self._known[path] if is_known else self._poll_end(number)
            if self._target is not None:
                end = self._end_of_run(self._target, path, end)
            place = begin.ends.get(path)
            if place is None:
                place = self._first_place(number, end)
            elif end < place:
                what = (
                    f"{path}: the log ends at {end}, before {place}, up to which this query had "
                    "read: it is another store, or recovery cut its end"
                )
                report_loss(what, fail_on_data_loss=self._options.fail_on_data_loss)
                place = end
            starts[path] = place
            ends[path] = max(end, starts[path])
        bytes_max = self._options.max_bytes_per_trigger
        if bytes_max:
            ends = self._limited(starts, ends, bytes_max)
        self._is_idle = all(ends[path] == starts[path] for path in ends) and starts == {
            path: begin.ends.get(path) for path in starts
        }
        # Spark compares the text.
        self._last = start if self._is_idle else StorePosition(starts, ends).to_json()
        return self._last

    def reportLatestOffset(self) -> Document | None:
        """The newest ends seen, for the query's progress report."""
        return StorePosition({}, self._known).to_json() if self._known else None

    @short_errors
    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        """The partitions of a batch."""
        self._last = end
        if start == end:
            return []
        batch = StorePosition.parse(end)
        found: list[InputPartition] = []
        for number, path in enumerate(self._options.paths):
            if path in batch.ends and batch.starts.get(path, 0) < batch.ends[path]:
                found += self._planned(number, batch.starts[path], batch.ends[path])
        return found

    def commit(self, end: Document) -> None:
        """Nothing to do: the checkpoint is the only place where progress is kept."""

    def stop(self) -> None:
        """Nothing to do: nothing stays open between calls."""

    # -- parts -------------------------------------------------------------------------------
    def _poll_end(self, number: int) -> int:
        """Where the log of a store ends now; its files are remembered for the batch."""
        path = self._options.paths[number]
        listing, end = examine(self._options, number, self._known.get(path), self._tails.get(path))
        self._listed[path] = listing
        self._known[path] = end.offset
        self._tails[path] = -1 if end.tail is None else end.tail.offset
        return end.offset

    def _end_of_run(self, target: dict[str, int], path: str, end: int) -> int:
        """Where a run with an end ends in a log that now ends at ``end``; that may be sooner."""
        planned = target.get(path, end)
        if end < planned:
            what = (
                f"{path}: the log ends at {end}, before {planned}, where this run is to end: it is "
                "another store, or recovery cut its end"
            )
            report_loss(what, fail_on_data_loss=self._options.fail_on_data_loss)
            target[path] = end
        return min(end, planned)

    def _first_place(self, number: int, end: int) -> int:
        listing = self._listed[self._options.paths[number]]
        start = max(listing.start, self._options.first_offset)
        found = narrowed(StoreRange(listing, start, end, end), self._options)
        scan = LogScan(listing.disk, listing.files, log_end=end)
        return min(scan.border(found.start), end)

    def _limited(
        self, starts: dict[str, int], ends: dict[str, int], bytes_max: int
    ) -> dict[str, int]:
        """Ends that let pass so many bytes in all: each store its part of what it has."""
        ready = {path: ends[path] - starts[path] for path in ends if ends[path] > starts[path]}
        limited = dict(ends)
        left = bytes_max
        # The smallest first: what they leave of their part is for the others.
        for number, path in enumerate(sorted(ready, key=lambda each: ready[each])):
            part = max(left // (len(ready) - number), 1)
            if ready[path] > part:
                listing = self._listed[path]
                scan = LogScan(listing.disk, listing.files, log_end=ends[path])
                limited[path] = min(scan.last_border(starts[path], part), ends[path])
            left = max(left - (limited[path] - starts[path]), 0)
        return limited

    def _planned(self, number: int, start: int, end: int) -> list[InputPartition]:
        path = self._options.paths[number]
        loss_is_error = self._options.fail_on_data_loss
        if path not in self._listed or self._known.get(path, 0) < end:
            self._poll_end(number)
        listing, log_end = self._listed[path], self._known[path]
        if start < listing.start:
            what = (
                f"{path}: the log begins at {listing.start}, behind {start}, up to which this "
                "query had read: retention deleted the files in between"
            )
            report_loss(what, fail_on_data_loss=loss_is_error)
            start = listing.start
        if log_end < end:
            what = (
                f"{path}: the log ends at {log_end}, before {end}, up to which this batch goes: "
                "it is another store, or recovery cut its end"
            )
            report_loss(what, fail_on_data_loss=loss_is_error)
            end = log_end
        if start >= end:
            return []
        name = broker_name_of(self._options, number)
        return list(plan_range(StoreRange(listing, start, end, log_end, name), self._options))

    def _pause(self) -> None:
        """Not more often than every ``pollIntervalMs`` while nothing comes."""
        if self._is_idle and self._target is None:
            due = self._asked_at + self._options.poll_interval_ms / 1000
            time.sleep(max(due - time.monotonic(), 0.0))
        self._asked_at = time.monotonic()
