"""Notes of handled messages in SQLite: for consumers of one machine."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from kerolox.idempotency.sql import SqlProcessed

BUSY_SECONDS_MAX = 30.0
"""How long a statement waits for another process that writes."""


class SqliteProcessed(SqlProcessed[sqlite3.Connection]):
    """Notes in a file of SQLite, which several processes may share; its clock is the machine's.

    ``transaction()`` gives its connection, for effects in the same file. SQLite 3.35 or later.
    """

    # Without subsec(), which came with SQLite 3.42.
    _now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

    def __init__(self, path: str | Path) -> None:
        """Opens the file, or makes it. sqlite3.Error: that can't be done."""
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        super().__init__(connection)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.connection.close()

    def _run(self, sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        return self.connection.execute(sql, tuple(values)).fetchall()

    @contextlib.contextmanager
    def _begin(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
