"""What all targets do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kerolox.spark.jobs.archive.records import BatchRecord, DataFile
from kerolox.spark.jobs.frame.files import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class Stored(NamedTuple):
    """A file of an archive as Spark reads it."""

    path: str
    topic: str
    date: str
    rows: int
    size: int


class Target(Protocol):
    """A target. It is made anew for each batch, also on another machine, so it keeps nothing."""

    files_have_topic: bool
    """Whether its files have the column ``topic``."""
    keeps_files: bool
    """Whether files stay where they are written."""

    def prepare(self, archive: str, schema: StructType, *, is_new: bool, append: bool) -> None:
        """Make it, or check that it is ours. ``is_new``: the archive begins. ``append``: it may
        have data of others. ConfigError: it has other data, or other columns.
        """

    def folder_of(self, archive: str, batch: int) -> Folder:
        """Where files of a batch are written."""

    def commit(self, archive: str, record: BatchRecord) -> None:
        """Make the files of a batch visible, all or none where the format has that; nothing is
        done a second time."""

    def stored(self) -> Iterator[Stored]:
        """All files that a reader sees."""

    def compact(self, spark: SparkSession, target_bytes: int, before: str) -> tuple[int, int]:
        """Make large files of small ones, of days before a date; how many files became how many."""


def small_groups(files: Iterator[Stored], target_bytes: int, before: str) -> list[list[Stored]]:
    """The files of one topic and day that one rewriting takes: two or more, none of them large."""
    by_place: dict[tuple[str, str], list[Stored]] = {}
    for each in files:
        if each.date < before and each.size < target_bytes * 3 // 4:
            by_place.setdefault((each.topic, each.date), []).append(each)
    return [
        group
        for _, group in sorted(by_place.items())
        if len(group) > max(1, -(-sum(each.size for each in group) // target_bytes))
    ]


def rewrite(
    spark: SparkSession, group: Sequence[Stored], folder: Folder, target_bytes: int
) -> list[DataFile]:
    """Write the rows of some files of one topic and day into few new ones; JobError: these have not
    as many rows.
    """
    from kerolox.spark.jobs.archive.staging import SETTINGS, rows_of
    from kerolox.spark.jobs.frame.errors import JobError

    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    count = max(1, -(-sum(each.size for each in group) // target_bytes))
    frame = spark.read.parquet(*[each.path for each in group])
    frame.coalesce(count).write.mode("overwrite").parquet(folder.uri)
    made = [
        DataFile(
            path=each.path,
            topic=group[0].topic,
            date=group[0].date,
            rows=rows_of(folder, each.path),
            size=each.size,
        )
        for each in folder.files()
        if each.path.endswith(".parquet")
    ]
    before, after = sum(each.rows for each in group), sum(each.rows for each in made)
    if before != after:
        raise JobError(
            f"{len(group)} files of {group[0].topic} on {group[0].date} have {before} rows, but "
            f"rewritten {after}; the old files stay. Is something else changing them?"
        )
    return made
