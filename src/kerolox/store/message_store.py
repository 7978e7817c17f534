"""The store as the broker sees it (skeleton: the signatures below are final)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kerolox.store.consume_queue import ConsumeQueue
    from kerolox.store.settings import StoreSettings

__all__ = ["ChunkItem", "MessageStore"]

ChunkItem = tuple["ConsumeQueue", int, int, int, int, int, bytes, bytes]
"""(queue, tags code, flag, sys flag, born timestamp ms, reconsume times, body, properties).

A plain tuple, since the hot path makes one per message. ``tags code`` is what the queue entry
holds; ``body`` and ``properties`` are stored as given (any bytes-like for ``body``).
"""


class MessageStore:
    """Commit log, consume queues and index of one folder."""

    settings: StoreSettings
    store_host: bytes
    """8 or 20 bytes, goes into records of ``append_chunk``; the subclass sets it."""
    failure: str
    """Why the store takes no writes any more; empty while it does."""
    last_store_timestamp: int
    max_offset: int
    """Physical offset behind the last record; plain attribute, cheap to read."""

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The consume queue, made when it is new (no file yet). ``ValueError``: illegal topic."""
        raise NotImplementedError

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The consume queue when it exists."""
        raise NotImplementedError

    def append_chunk(
        self, items: Sequence[ChunkItem], born_host: bytes
    ) -> list[tuple[int, int]]:
        """Hot path: store all items with one write per file and queue.

        Gives (physical offset, queue offset) of each item, in order. Shorter than ``items``:
        the store refused the rest, nothing of which was written (``failure`` says why, or the
        record does not fit a file). The caller has checked limits: topic <= 127 bytes (made by
        ``queue``), properties <= 32767 bytes, body <= ``max_message_size``; no transaction bits.
        Host bits of the sys flag are set here. ``self.max_offset`` is the end of the last record.
        Calls ``after_append`` once per queue.
        """
        raise NotImplementedError

    def after_append(
        self, queue: ConsumeQueue, first_offset: int, count: int, tag_codes: Sequence[int]
    ) -> None:
        """Overridable: records ``first_offset .. first_offset + count - 1`` can be read now."""

    def read_queue(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        tag_codes: frozenset[int] | set[int] | None,
    ) -> tuple[int, int, int, int, bool, int, bytes]:
        """``read`` for a queue at hand; a plain tuple shaped as ``kernel.Read``."""
        raise NotImplementedError

    def put_flushed(self) -> None:
        """Overridable, called in the FLUSH THREAD after ``flushed_offset`` moved and before
        ``notify_fd`` is made readable; do next to nothing here."""
