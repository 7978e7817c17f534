"""Series of metrics in an SQLite file, for a week and of bounded size.

A point is a mean and a peak over a step of time. Steps are of a minute for a day, and of a quarter
of an hour for a week, so a series has at most :data:`POINTS_OF_SERIES_MAX` points. The file is
written and read in one thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kerolox.errors import ConfigError

__all__ = ["History", "Point", "Tier"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Tier:
    """Points of one step."""

    step_seconds: int
    keep_seconds: int


DAY, WEEK = 86_400, 7 * 86_400
FINE = Tier(60, DAY)
COARSE = Tier(900, WEEK)
TIERS = (FINE, COARSE)
POINTS_OF_SERIES_MAX = sum(tier.keep_seconds // tier.step_seconds for tier in TIERS)

SERIES_MAX = 2_000
"""Of a further one nothing is kept until another has ended."""
FILE_PAGES_MAX = 65_536
"""Pages of 4 KiB: 256 MiB. Above that the oldest points go."""
PRUNE_SECONDS = 900
BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS point (
  series INTEGER NOT NULL, step INTEGER NOT NULL, at INTEGER NOT NULL,
  total REAL NOT NULL, count INTEGER NOT NULL, peak REAL NOT NULL,
  PRIMARY KEY (series, step, at)
) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO point VALUES (?, ?, ?, ?, 1, ?)
ON CONFLICT (series, step, at) DO UPDATE SET
  total = total + excluded.total, count = count + 1, peak = max(peak, excluded.peak)
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A series over one step."""

    at: int
    """Begin of the step, in seconds since the epoch."""
    mean: float
    peak: float


class History:
    """The file. Methods may be called by one event loop; the work is done in a thread."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, and make it where it is not; None: in memory, and gone at the end.
        ConfigError: it can't be opened, or is no file of SQLite.
        """
        self._path = path
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._ids: dict[str, int] = {}
        self._pruned = 0
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = sqlite3.connect(
                path or ":memory:", check_same_thread=False, timeout=BUSY_SECONDS
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(f"PRAGMA max_page_count={FILE_PAGES_MAX}")
            self._file.executescript(_SCHEMA)
            self._ids = dict(self._file.execute("SELECT name, id FROM series"))
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{path}: {error}; mend or remove it, or name another file (--history)"
            ) from error

    async def add(self, at: int, values: Mapping[str, float]) -> None:
        """Add one value to each series named. ``at``: seconds since the epoch. sqlite3.Error: the
        disk refused; what was there is still there.
        """
        await self._do(lambda: self._add(at, dict(values)))

    async def read(self, name: str, begin: int, end: int) -> list[Point]:
        """The points of a series between two times, oldest first: of minutes where it is about a
        day, else of quarters of an hour. None for a series that is not known."""
        tier = FINE if end - begin <= FINE.keep_seconds else COARSE
        return await self._do(lambda: self._read(name, tier, begin, end))

    async def close(self) -> None:
        """Write what is under way and close the file. Idempotent."""
        pool = self._pool
        await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        self._file.close()

    async def _do(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _add(self, at: int, values: dict[str, float]) -> None:
        try:
            self._write(at, values)
        except sqlite3.Error as error:
            # Series that were new are rolled back.
            self._ids = dict(self._file.execute("SELECT name, id FROM series"))
            if "full" not in str(error):
                raise
            # Of a file at its bound the older half goes, and what came now is left out.
            with self._file:
                self._file.execute("DELETE FROM point WHERE at < ?", (at - WEEK // 2,))

    def _write(self, at: int, values: dict[str, float]) -> None:
        with self._file:
            if at - self._pruned >= PRUNE_SECONDS:
                self._prune(at)
            rows = [
                (self._ids[name], tier.step_seconds, at - at % tier.step_seconds, value, value)
                for name, value in values.items()
                if self._id(name) is not None
                for tier in TIERS
            ]
            self._file.executemany(_ADD, rows)

    def _id(self, name: str) -> int | None:
        found = self._ids.get(name)
        if found is None and len(self._ids) < SERIES_MAX:
            found = self._file.execute("INSERT INTO series (name) VALUES (?)", (name,)).lastrowid
            assert found is not None
            self._ids[name] = found
        return found

    def _prune(self, at: int) -> None:
        for tier in TIERS:
            self._file.execute(
                "DELETE FROM point WHERE step = ? AND at < ?",
                (tier.step_seconds, at - tier.keep_seconds),
            )
        self._file.execute("DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM point)")
        self._ids = dict(self._file.execute("SELECT name, id FROM series"))
        self._pruned = at

    def _read(self, name: str, tier: Tier, begin: int, end: int) -> list[Point]:
        found = self._ids.get(name)
        if found is None:
            return []
        rows: Sequence[tuple[int, float, float]] = self._file.execute(
            "SELECT at, total / count, peak FROM point"
            " WHERE series = ? AND step = ? AND at >= ? AND at <= ? ORDER BY at",
            (found, tier.step_seconds, begin - begin % tier.step_seconds, end),
        ).fetchall()
        return [Point(*row) for row in rows]
