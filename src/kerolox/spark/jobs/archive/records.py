"""What is known of an archive and of its batches, as small files of its state folder.

A batch has a record before anything of it can be seen. A batch that comes again finds it, and is
completed by it instead of being written once more: the record names each file and where it goes.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from kerolox.spark.jobs.archive.options import ArchiveOptions
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder

VERSION = 1
IDENTITY = "archive.json"
CHECKPOINT = "checkpoint"
STAGING = "staging"
BATCHES = "batches"

RECORDS_KEPT = 100
"""Spark repeats the last batch only; older records are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file of one topic and one day.

    Args:
        path: relative to the folder that it is in.
        topic, date: of all its rows; the date is that of the store time, in UTC.
        rows, size: how many, and bytes.
    """

    path: str
    topic: str
    date: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All that an archive has taken since it began."""

    batches: int = 0
    rows: int = 0
    files: int = 0
    size: int = 0
    quarantined: int = 0
    rows_by_topic: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: Totals) -> Totals:
        """What was added to ``before``."""
        by_topic = Counter(self.rows_by_topic)
        by_topic.subtract(before.rows_by_topic)
        return Totals(
            batches=self.batches - before.batches,
            rows=self.rows - before.rows,
            files=self.files - before.files,
            size=self.size - before.size,
            quarantined=self.quarantined - before.quarantined,
            rows_by_topic={topic: rows for topic, rows in by_topic.items() if rows},
        )

    def plus(self, data: list[DataFile], quarantined: list[DataFile]) -> Totals:
        """With one more batch."""
        by_topic = Counter(self.rows_by_topic)
        for each in data:
            by_topic[each.topic] += each.rows
        return Totals(
            batches=self.batches + 1,
            rows=self.rows + sum(each.rows for each in data),
            files=self.files + len(data),
            size=self.size + sum(each.size for each in data),
            quarantined=self.quarantined + sum(each.rows for each in quarantined),
            rows_by_topic=dict(by_topic),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch.

    Args:
        batch: Spark's number of it.
        folder: that its files were written into.
        data, quarantined: its files there.
        totals: of the archive with this batch.
    """

    batch: int
    is_done: bool
    folder: str
    data: tuple[DataFile, ...]
    quarantined: tuple[DataFile, ...]
    totals: Totals


class Records:
    """The state folder of an archive."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def identity(self) -> dict[str, object] | None:
        """Of the archive; None: it has not begun. JobError: it was written by a later version."""
        found = self.folder.read_json(IDENTITY)
        if found is not None and found.get("version") != VERSION:
            raise JobError(
                f"{self.folder.path(IDENTITY)} has version {found.get('version')}, not {VERSION}; "
                "go on with the Kerolox that wrote it"
            )
        return found

    def open(self, options: ArchiveOptions, schema: str) -> tuple[str, bool]:
        """The archive's id, and whether it is new; a new one is not written yet. ConfigError: the
        folder is that of another archive, or of another query.
        """
        wanted = {"format": options.format, "to": options.to, "schema": schema}
        found = self.identity()
        if found is None:
            if self.folder.below(CHECKPOINT).names():
                raise options.error(
                    "state",
                    f"{self.folder.uri} has the checkpoint of another query; name an empty folder",
                )
            return uuid.uuid4().hex, True
        for name, value in wanted.items():
            if found.get(name) != value:
                which = {"format": "format", "to": "to", "schema": "body_schema"}[name]
                raise options.error(
                    which,
                    f"the archive in {self.folder.uri} was begun with another {name}; "
                    "give the same, or another --state",
                )
        return str(found["id"]), False

    def begin(self, options: ArchiveOptions, archive: str, schema: str) -> None:
        """Write who the archive is."""
        values = {"format": options.format, "to": options.to, "schema": schema}
        self.folder.write_json(IDENTITY, {"version": VERSION, "id": archive, **values})

    def read(self, batch: int) -> BatchRecord | None:
        """The record of a batch."""
        found = self.folder.read_json(_name(batch))
        if found is None:
            return None
        try:
            return _record_of(cast("dict[str, Any]", found))
        except (KeyError, TypeError) as error:
            raise JobError(f"{self.folder.path(_name(batch))} is no record: {error}") from None

    def write(self, record: BatchRecord) -> None:
        """Write a record, and remove one that is old."""
        self.folder.write_json(_name(record.batch), dataclasses.asdict(record))
        self.folder.delete(_name(record.batch - RECORDS_KEPT))

    def has_open_batch(self) -> bool:
        """Whether Spark has planned a batch that is not in its commit log; its next run does that
        one first."""
        checkpoint = self.folder.below(CHECKPOINT)
        planned, done = (
            {int(name) for name in checkpoint.below(log).names() if name.isdigit()}
            for log in ("offsets", "commits")
        )
        return bool(planned) and max(planned) not in done

    def last(self) -> BatchRecord | None:
        """The record of the last batch."""
        names = [name for name in self.folder.below(BATCHES).names() if name.endswith(".json")]
        numbers = [int(name[:-5]) for name in names if name[:-5].isdigit()]
        return self.read(max(numbers)) if numbers else None

    def totals(self) -> Totals:
        """What is in its place."""
        last = self.last()
        if last is None or last.is_done:
            return last.totals if last else Totals()
        before = self.read(last.batch - 1)
        return before.totals if before else Totals()


def _name(batch: int) -> str:
    return f"{BATCHES}/{batch:09d}.json"


def _record_of(found: dict[str, Any]) -> BatchRecord:
    return BatchRecord(
        batch=found["batch"],
        is_done=found["is_done"],
        folder=found["folder"],
        data=tuple(DataFile(**each) for each in found["data"]),
        quarantined=tuple(DataFile(**each) for each in found["quarantined"]),
        totals=Totals(**found["totals"]),
    )
