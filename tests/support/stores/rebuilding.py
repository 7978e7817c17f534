"""The job ``rebuild`` without a Spark: what its tasks do, one after the other in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow

from kerolox.spark.jobs.rebuild import RebuildOptions
from kerolox.spark.jobs.rebuild.index import IndexWriter, index_parts
from kerolox.spark.jobs.rebuild.log_summary import Surveyor
from kerolox.spark.jobs.rebuild.queues import OddQueueWriter, QueueFileWriter
from kerolox.spark.jobs.rebuild.reading import LogSplits, PlaceReader
from kerolox.spark.jobs.rebuild.source import Source, examine, settings_of
from kerolox.spark.jobs.rebuild.target import RebuildTarget, check_files, target_of
from kerolox.spark.store.scan import plan_splits
from tests.support.stores.bench import files

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Local", "numbers", "rows", "without_log"]

SPLIT_BYTES = 50_000
ORDER = ["topic", "queueId", "file", "queueOffset"]


class Local:
    """The job's steps, one after the other, in this process."""

    def __init__(self, root: Path, to: Path, **options: Any) -> None:
        given = RebuildOptions(store=str(root), to=str(to), **options)
        self.source: Source = examine(given, settings_of(given), is_ours=False)
        self.target: RebuildTarget = target_of(given, settings_of(given))
        listing, end = self.source.listing, self.source.end.offset
        splits = plan_splits(listing.start, end, listing.files, SPLIT_BYTES)
        self.log = LogSplits(str(root), listing.files, end, tuple(splits))
        self.file_bytes = self.source.queue_file_bytes

    def totals(self) -> list[dict[str, Any]]:
        shape = self.source.index_shape
        surveyor = Surveyor(self.log, self.source.rules, shape is not None)
        return rows(surveyor(numbers(len(self.log.splits))))

    def entries(self) -> pyarrow.Table:
        reader = PlaceReader(self.log, self.source.rules, skips=False)
        table = pyarrow.Table.from_batches(list(reader(numbers(len(self.log.splits)))))
        per_file = self.file_bytes // 20
        number = [offset // per_file for offset in table["queueOffset"].to_pylist()]
        return table.append_column("file", pyarrow.array(number, pyarrow.int64()))

    def write_queues(self) -> list[dict[str, Any]]:
        ordered = self.entries().sort_by([(name, "ascending") for name in ORDER])
        writer = QueueFileWriter(self.target.queue_root, self.target.scratch, self.file_bytes)
        return rows(writer(iter(ordered.combine_chunks().to_batches(max_chunksize=37))))

    def write_odd_queues(self) -> list[dict[str, Any]]:
        order = ["topic", "queueId", "physical"]
        ordered = self.entries().sort_by([(name, "ascending") for name in order])
        folders = (self.target.queue_root, self.target.scratch)
        writer = OddQueueWriter(*folders, self.file_bytes, top=5)
        return rows(writer(iter(ordered.combine_chunks().to_batches(max_chunksize=37))))

    def write_index(self) -> list[dict[str, Any]]:
        shape = self.source.index_shape
        assert shape is not None
        keys = [row["keys"] for row in self.totals() if row["kind"] == "split"]
        parts = tuple(index_parts(keys, shape, 1_763_715_347_123))
        folders = (self.target.index_folder, self.target.scratch)
        writer = IndexWriter(self.log, False, parts, shape, *folders)
        return rows(writer(numbers(len(parts))))

    def run(self) -> None:
        self.target.begin()
        queues, index = self.write_queues(), self.write_index()
        check_files(self.target, sum(row["files"] for row in queues), len(index))
        self.target.publish(7, has_index=True, state={})
        self.target.end()


def numbers(count: int) -> Iterator[pyarrow.RecordBatch]:
    yield pyarrow.RecordBatch.from_pydict({"id": list(range(count))})


def rows(batches: Iterator[pyarrow.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def without_log(root: Path) -> dict[str, list[bytes]]:
    return {folder: data for folder, data in files(root).items() if folder != "commitlog"}
