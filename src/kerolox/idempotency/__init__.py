"""Idempotent consumers: a message that comes again is not handled again.

A group notes the key of each message that it handled in a store::

    store = SqliteProcessed("billing.db")
    consumer.subscribe_each("Orders", idempotent(store, "billing", charge))

The store is a database that outlives the consumer: SQLite (one machine), PostgreSQL
(:mod:`kerolox.idempotency.postgresql`), Redis (:mod:`kerolox.idempotency.redis`), or anything with
the three methods of :class:`ProcessedMessages`.

A handler that ends, and whose note is lost (its process is killed between the two), runs once more
when its lease is over. Where the effects are in the same database, put both into one transaction
(:meth:`~kerolox.idempotency.sql.SqlProcessed.transaction`): then each happens once.
"""

from __future__ import annotations

from kerolox.idempotency.core import (
    AsyncProcessedMessages,
    Claim,
    ClaimOutcome,
    InProgressError,
    InThreads,
    ProcessedMessages,
    idempotent,
    idempotent_async,
    message_key,
)
from kerolox.idempotency.sqlite import SqliteProcessed

__all__ = [
    "AsyncProcessedMessages",
    "Claim",
    "ClaimOutcome",
    "InProgressError",
    "InThreads",
    "ProcessedMessages",
    "SqliteProcessed",
    "idempotent",
    "idempotent_async",
    "message_key",
]
