"""Steps of archives and replays at which a driver ends, as on a machine that fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from kerolox.spark.jobs.archive.records import BatchRecord, Records
from kerolox.spark.jobs.archive.targets.parquet import ParquetTarget
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.replay.state import ReplayState
from kerolox.spark.sink.transactions.commit import Transaction
from tests.spark.drivers import die

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS_OF_ARCHIVE = ("staged", "recorded", "placing", "placed", "done")
"""Of a batch: its files are written aside; recorded; the first is in its place; all are; and so is
told."""

STEPS_OF_REPLAY = {
    "sent": (ReplayState, "keep", "before"),
    "kept": (ReplayState, "keep", "behind"),
    "decided": (Transaction, "decide", "behind"),
    "ended": (Transaction, "end_halves", "behind"),
    "marked": (Transaction, "mark_done", "behind"),
    "done": (ReplayState, "mark", "behind"),
}
"""Of a unit that is sent exactly once: which call it ends before or behind."""


@contextmanager
def ending_a_replay(step: str, end: Callable[[], None]) -> Iterator[None]:
    """The first unit that comes to this step calls ``end`` there."""
    owner, name, when = STEPS_OF_REPLAY[step]
    original = getattr(owner, name)

    def patched(self: object, *arguments: object, **options: object) -> object:
        if when == "before":
            end()
        result = original(self, *arguments, **options)
        if when == "behind":
            end()
        return result

    with mock.patch.object(owner, name, patched):
        yield


@contextmanager
def ending_an_archive(step: str, batch: int, target: Any) -> Iterator[None]:
    """The driver dies at a step of this batch.

    Args:
        step: one of :data:`STEPS_OF_ARCHIVE`; of a table, ``placing`` is ``placed``: one commit.
        batch: the first batch that may end so; the next one does if this one is over.
        target: the class of the archive's target.
    """
    write, move, commit = Records.write, Folder.move, target.commit
    current = [-1]

    def writing(self: Records, record: BatchRecord) -> None:
        is_it = record.batch >= batch
        if is_it and step == "staged" and not record.is_done:
            die()
        write(self, record)
        if is_it and step == ("done" if record.is_done else "recorded"):
            die()

    def moving(self: Folder, source: str, to: Folder, name: str) -> None:
        move(self, source, to, name)
        if step == "placing" and current[0] >= batch:
            die()

    def committing(self: object, archive: str, record: BatchRecord) -> None:
        current[0] = record.batch
        commit(self, archive, record)
        if step in ("placing", "placed") and record.batch >= batch:
            die()

    with (
        mock.patch.object(Records, "write", writing),
        mock.patch.object(Folder, "move", moving if target is ParquetTarget else move),
        mock.patch.object(target, "commit", committing),
    ):
        yield
