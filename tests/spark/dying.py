"""Drivers that end at a step of what they do, as on a machine that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from kerolox.spark.jobs.archive.records import BatchRecord, Records
from kerolox.spark.jobs.archive.targets.parquet import ParquetTarget
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.jobs.replay.state import ReplayState
from kerolox.spark.sink.transactions.commit import Transaction
from tests.support.clients.spark import SECONDS_OF_SPARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]

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


def die() -> None:
    """Kill this driver and its JVM, whose workers end with it."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def run_to_its_death(module: str, *arguments: object, log: Path) -> None:
    """Run a program, which is to kill itself."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path},
        )
    try:
        process.wait(2 * SECONDS_OF_SPARK)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    assert process.returncode == -signal.SIGKILL, log.read_text()


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
