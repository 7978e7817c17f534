"""Records in, and how far they are on disk."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kerolox.kernel.values import Appended, Batch, BatchAppended, Record


@runtime_checkable
class Durability(Protocol):
    """How far the log is on disk."""

    @property
    def flushed_offset(self) -> int:
        """Everything below this physical offset is on disk."""

    @property
    def has_failed(self) -> bool:
        """A flush failed: ``flushed_offset`` moves no more, and nobody should wait for it.
        ``notify_fd`` tells."""

    def request_flush(self, physical_offset: int) -> None:
        """Ask the flush thread to reach an offset; ``notify_fd`` tells when it did (group
        commit: one flush covers all that asked meanwhile)."""


@runtime_checkable
class RecordAppender(Durability, Protocol):
    """Appends of the slow path."""

    def append(self, record: Record) -> Appended:
        """Append one record, its queue entry and its index entries; wakes held pulls.

        Prepared and rollback types (``sys_flag & 12`` in 4, 12) get queue offset 0 and no queue
        entry. With ``enable_multi_dispatch`` a record that names further queues in
        ``INNER_MULTI_DISPATCH`` gets an entry in each, and ``INNER_MULTI_QUEUE_OFFSET`` added to
        its properties.
        """

    def append_batch(self, batch: Batch) -> BatchAppended:
        """Append the items of a batch as records that follow each other, or none."""

    def set_max_message_size(self, size: int) -> None:
        """``maxMessageSize`` from now on: the bytes of a body, or of a batch, that are stored."""
