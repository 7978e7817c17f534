"""The options of ``audit``, and what it says at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kerolox.spark.jobs.frame.job import Summary
from kerolox.spark.jobs.frame.options import JobOptions, option

SPLIT_MIB_DEFAULT = 64

TOP_DEFAULT, TOP_MAX = 100, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(JobOptions):
    """Options of ``audit``."""

    store: str = field(
        metadata=option("folder or URI of the store, as storePathRootDir names it", metavar="PATH")
    )
    split_mib: int = field(
        default=SPLIT_MIB_DEFAULT,
        metadata=option("most MiB of the log that a task reads", minimum=1, maximum=65_536),
    )
    top: int = field(
        default=TOP_DEFAULT,
        metadata=option("most findings of each kind that are named", minimum=1, maximum=TOP_MAX),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One thing that is not as a broker leaves it.

    Args:
        kind: ``file``, ``damage``, ``crc``, ``gap``, ``missing entry``, ``wrong entry`` or
            ``dangling entry``.
        path: of the file.
        position: byte of the file; -1: the file as a whole, or nothing that stands in one.
        text: a sentence.
    """

    kind: str
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        where = self.path if self.position < 0 else f"{self.path}: byte {self.position}"
        return f"{where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary(Summary):
    """The result of ``audit``."""

    job: ClassVar[str] = "audit"

    store: str
    records: int
    log_bytes: int
    queues: int
    queue_entries: int
    expired_entries: int
    """Entries of records that retention has deleted."""
    reused_offsets: int
    """Queue offsets that older records of a topic had, which was deleted and made again."""
    repeated_messages: int
    """Messages of producers that are stored more than once, as retries of sends do."""
    unqueued_records: int
    """Records that have no queue: prepared and rolled back, or of a topic that is deleted."""
    torn_tail_bytes: int
    """Bytes at the log's end that are no whole record: a broker cuts them off when it starts."""
    counts: Mapping[str, int]
    """Findings by kind."""
    findings: tuple[AuditFinding, ...]
    """The first ones of each kind, in the order of the log and of the queues."""

    @property
    def exit_code(self) -> int:
        """1 when something is not as it must be."""
        return 1 if self.counts else 0

    def lines(self) -> Iterator[str]:
        """The figures, then a line for each finding."""
        for name, value in self.as_json().items():
            if name not in ("findings", "counts"):
                yield f"{name}: {value}"
        for kind, count in self.counts.items():
            yield f"{kind}: {count}"
        yield from map(str, self.findings)
