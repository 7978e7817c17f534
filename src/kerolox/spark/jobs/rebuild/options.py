"""The options of ``rebuild``, and what it says at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kerolox.spark.jobs.frame.job import Summary
from kerolox.spark.jobs.frame.options import JobOptions, option

SPLIT_MIB_DEFAULT = 64

TOP_DEFAULT, TOP_MAX = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions(JobOptions):
    """Options of ``rebuild``."""

    store: str = option("folder or URI of the store, as storePathRootDir names it", metavar="PATH")
    to: str | None = option(
        "new folder for consumequeue, index and checkpoint, seen by every machine that runs tasks",
        default=None,
        metavar="PATH",
    )
    in_place: bool = option(
        "exchange those of the store itself; its broker must be stopped", default=False
    )
    config: str | None = option(
        "the store's broker.conf: sizes of files, delay levels, folders of the log",
        default=None,
        metavar="FILE",
    )
    index: bool = option("make the index too", default=True)
    all_topics: bool = option("queues of deleted topics too", default=False)
    skip_damaged: bool = option(
        "leave out what of the log is damaged, in place of stopping", default=False
    )
    split_mib: int = option(
        "most MiB of the log that a task reads",
        default=SPLIT_MIB_DEFAULT,
        minimum=1,
        maximum=65_536,
    )
    top: int = option(
        "most damages and notes that are named", default=TOP_DEFAULT, minimum=1, maximum=TOP_MAX
    )

    def check(self) -> None:
        """One place to write to, which is a local path."""
        if self.to is None and not self.in_place:
            raise self.error(
                "to", "name a new folder, or give --in-place to exchange the store's own"
            )
        if self.to is not None and self.in_place:
            raise self.error("in_place", "goes without --to: give one of both")
        if self.to is not None and ("://" in self.to or self.to.startswith("file:")):
            raise self.error(
                "to", f"{self.to} is a URI; give a local or mounted path, as a broker reads"
            )
        if self.in_place and "://" in self.store:
            raise self.error("in_place", f"{self.store} is a URI; name a new folder with --to")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSummary(Summary):
    """The result of ``rebuild``."""

    job: ClassVar[str] = "rebuild"

    store: str
    to: str
    """The folder that has the new queues and index."""
    records: int
    log_bytes: int
    queues: int
    queue_files: int
    queue_entries: int
    index_files: int
    index_entries: int
    unqueued_records: int
    """Prepared and rolled back ones, which have no place in a queue."""
    skipped_records: int
    """Of deleted topics; :attr:`skipped_topics` names the first ones."""
    wrong_crc_records: int
    """Their bodies do not match their CRC; they have their places all the same."""
    damages: int
    """Pieces of the log that hold no whole record; what they held is left out."""
    damaged_bytes: int
    torn_tail_bytes: int
    """Bytes at the log's end that are no whole record: a broker cuts them off when it starts."""
    odd_queues: int
    """Their records do not follow each other, because of damage or of a topic made again."""
    task_peak_mib: int
    """Most memory that a Python process of a task had."""
    skipped_topics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """The first sentences on damages and odd queues."""

    @property
    def exit_code(self) -> int:
        """1 when the log is damaged: what it lacks stays lacking."""
        return 1 if self.damages else 0
