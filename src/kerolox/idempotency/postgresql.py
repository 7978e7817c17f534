"""Notes of handled messages in PostgreSQL, by psycopg 3."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from kerolox.idempotency.sql import SqlProcessed


class PostgresqlProcessed(SqlProcessed[Any]):
    """Notes in a table of PostgreSQL, by its server's clock.

    ``connection``: of psycopg 3, with ``autocommit=True``. ``transaction()`` gives it, for effects
    in the same database.
    """

    _now = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    _mark = "%s"

    def _run(self, sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        cursor = self.connection.execute(sql, tuple(values))
        return cursor.fetchall() if cursor.description else []

    def _begin(self) -> contextlib.AbstractContextManager[object]:
        transaction: contextlib.AbstractContextManager[object] = self.connection.transaction()
        return transaction
