"""What stores in databases of SQL share: one table, and one statement for each step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from kerolox.idempotency.core import Claim, ClaimOutcome, InProgressError, new_token

TABLE = "kerolox_processed"

_Connection = TypeVar("_Connection")

CREATE = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    consumer_group TEXT NOT NULL,
    message_key TEXT NOT NULL,
    token TEXT NOT NULL,
    until_ms BIGINT NOT NULL,
    done_ms BIGINT,
    PRIMARY KEY (consumer_group, message_key))"""


class SqlProcessed(Generic[_Connection]):
    """Notes of handled messages in a table, ``kerolox_processed``.

    Subclasses give ``_run`` and ``_begin`` of their database, and ``_now``: its clock in
    milliseconds as SQL.
    """

    _now: str
    _mark = "?"

    def __init__(self, connection: _Connection) -> None:
        """Makes the table where it is not there. ``connection``: used by nobody else meanwhile."""
        self.connection = connection
        self._lock = threading.RLock()
        self._run(CREATE, ())

    def _run(self, sql: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        """Run a statement by itself, or within the transaction that is open."""
        raise NotImplementedError

    def _begin(self) -> contextlib.AbstractContextManager[object]:
        """A transaction: committed at its end, rolled back where something was raised."""
        raise NotImplementedError

    def _ask(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with self._lock:
            return self._run(sql.replace("?", self._mark), values)

    def _claim(self, group: str, key: str, lease_ms: int, done: str) -> Claim:
        token = new_token()
        taken = self._ask(
            f"INSERT INTO {TABLE} AS t (consumer_group, message_key, token, until_ms, done_ms) "
            f"VALUES (?, ?, ?, {self._now} + ?, {done}) "
            "ON CONFLICT (consumer_group, message_key) DO UPDATE "
            "SET token = excluded.token, until_ms = excluded.until_ms, done_ms = excluded.done_ms "
            f"WHERE t.done_ms IS NULL AND t.until_ms <= {self._now} RETURNING token",
            group,
            key,
            token,
            lease_ms,
        )
        if taken:
            return Claim(group, key, token, ClaimOutcome.NEW)
        found = self._ask(
            f"SELECT done_ms FROM {TABLE} WHERE consumer_group = ? AND message_key = ?", group, key
        )
        is_done = bool(found) and found[0][0] is not None
        return Claim(group, key, token, ClaimOutcome.DONE if is_done else ClaimOutcome.BUSY)

    def claim(self, group: str, key: str, lease_seconds: float) -> Claim:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        return self._claim(group, key, int(lease_seconds * 1_000), "NULL")

    def complete(self, claim: Claim) -> bool:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        return bool(
            self._ask(
                f"UPDATE {TABLE} SET done_ms = {self._now} "
                "WHERE consumer_group = ? AND message_key = ? AND token = ? RETURNING token",
                claim.group,
                claim.key,
                claim.token,
            )
        )

    def release(self, claim: Claim) -> None:
        """See :class:`~kerolox.idempotency.ProcessedMessages`."""
        self._ask(
            f"DELETE FROM {TABLE} "
            "WHERE consumer_group = ? AND message_key = ? AND token = ? AND done_ms IS NULL",
            claim.group,
            claim.key,
            claim.token,
        )

    @contextlib.contextmanager
    def transaction(self, group: str, key: str) -> Iterator[_Connection | None]:
        """A transaction in which a message is handled: its note and what is done with the
        connection are committed together, or not at all.

        Yields:
            The connection, for the effects; None: the message was handled.

        Raises:
            InProgressError: another consumer claimed it, and its lease is not over.
        """
        with self._lock, self._begin():
            claim = self._claim(group, key, 0, self._now)
            if claim.outcome is ClaimOutcome.BUSY:
                raise InProgressError(claim)
            yield self.connection if claim.outcome is ClaimOutcome.NEW else None

    def forget(self, older_than_seconds: float) -> int:
        """Delete notes of messages that were handled so long ago; how many. A message that comes
        again after that is handled again."""
        return len(
            self._ask(
                f"DELETE FROM {TABLE} WHERE done_ms < {self._now} - ? RETURNING token",
                int(older_than_seconds * 1_000),
            )
        )
