"""Records in, how far they are on disk and on slaves, and half messages in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.kernel.values import (
    Appended,
    Batch,
    BatchAppended,
    Copied,
    Copies,
    HalfRun,
    HalvesEnded,
    Record,
)
from kerolox.message import PropertyKey, encode_properties

HALF_QUEUE = 0
"""There is one half queue and one op queue."""

TIMER_QUEUE = 0
"""The timer's topic has one queue."""

REMOVE_TAG = "d"
"""Of an op message: the half that its body names is done."""

OP_PROPERTIES = encode_properties({PropertyKey.WAIT: "true", PropertyKey.TAGS: REMOVE_TAG})

HALF_RUNS_MAX = 1_024
"""Runs that one ``half_runs`` gives."""


COPY_MARK = 1
"""A copy that names its record says where that is, and this more: 0 is what all others have."""


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


class ReplicationKernel(Protocol):
    """Sends that wait for a slave, and pulls that a slave answers.

    The answer to a send that waits (``WAIT``) comes when its record is on disk (SYNC_FLUSH) and on
    a slave. What a slave does counts more than what the disk does, as in RocketMQ. A record that
    ends where no slave may be waited for is SLAVE_NOT_AVAILABLE; one that is late for a slave is
    FLUSH_SLAVE_TIMEOUT, else one that is late for the disk FLUSH_DISK_TIMEOUT. All are stored.
    """

    def set_slave_timeout(self, timeout_ms: int | None) -> None:
        """For how long sends wait for a slave (``slaveTimeout`` of a SYNC_MASTER); None, as in a
        new store: not at all. Those that wait then are late with the next tick."""

    def set_replicated(self, offset: int, available_below: int) -> bool:
        """Say how far the log is on a slave; releases the answers that waited for it.

        Args:
            offset: everything below is on a slave (``push2SlaveMaxOffset``).
            available_below: a record that ends here or later does not wait for one
                (``isSlaveOK``); 0: none does.

        Returns:
            Whether ``drain_ready`` has something.
        """

    def set_confirmed(self, offset: int | None) -> bool:
        """Say up to which physical offset no change of masters takes records back
        (``confirmOffset``); releases the pulls that waited for it.

        Queues end there for those who read them or ask for their ends; the log itself, and
        ``queues`` and ``queue_entry``, do not. None, as in a new store: all is shown.

        Returns:
            Whether ``drain_ready`` has something.
        """

    def set_commits(self, takes_commits: bool) -> None:
        """Whether fast pulls commit the offsets that they carry, as in a new store. A slave answers
        such pulls and leaves their offsets alone."""


class HalfKernel(Protocol):
    """What the fast path and the ends in bulk need of half messages."""

    def set_halves(self, fast: bool) -> None:
        """Whether sends of halves are fast: the half topic is there, and they are allowed."""

    def half_runs(
        self, group: str, start: int, end: int, max_bytes: int
    ) -> tuple[int, list[HalfRun]]:
        """(where the next call goes on, the halves of a producer group with a ``KEROLOX_SINK``)
        from offset ``start`` of the half queue to before ``end``. Reads ``max_bytes`` of records,
        the last one beyond it. Entries without a record are passed."""

    def half_ops(self, start: int, end: int) -> list[int]:
        """Which half each op message from queue offset ``start`` to before ``end`` ends; -1: none,
        or it can't be read."""

    def end_halves(
        self, first: int, count: int, commit: bool, now_ms: int, host: bytes
    ) -> HalvesEnded:
        """End plain halves that follow each other, whatever was before: with ``commit`` the final
        message of each, behind it its op message, which is born at ``now_ms`` on ``host``. Stops
        before a half that is not plain, before one to commit whose topic is not in the table of
        topics, has no such read queue or has a window of keys, and when the store refuses one.
        Wakes held pulls."""


class TimerKernel(Protocol):
    """What the fast path needs of messages for a moment."""

    def set_timer(self, precision_ms: int, max_delay_ms: int, broker_name: str) -> None:
        """Say which sends for a moment are fast: none with steps of 0 ms, as in a new store.

        Fast is a single message that names one moment to come, not further away than
        ``max_delay_ms`` by the store's clock, in plain digits; not a half, not a command to delete,
        and none that says where it is for. It is stored in the timer's topic with the begin of the
        step (``TIMER_OUT_MS``), and its answer has the ``recallHandle``, which names the broker.
        """


class CopyKernel(Protocol):
    """What waits in a topic of the broker's and comes to its own: read and stored in bulk."""

    def queue_properties(
        self, topic: str, queue_id: int, offset: int, count: int, names: Sequence[bytes]
    ) -> list[tuple[int, int, int, tuple[bytes | None, ...] | None]]:
        """(queue offset, physical offset, size, values of some properties) of the entries from a
        queue offset on, up to ``count``; those that can't be read are left out. None instead of a
        value: the record lacks the property; None instead of all: there is no record."""

    def copy_records(self, copies: Copies) -> Copied:
        """Store plain records again, one after the other: with their properties as they are. Stops
        before one that is not there or not plain, whose topic is not in the table of topics or has
        no such read queue, and when the store refuses one. Wakes held pulls.

        Not plain is one with malformed property text, a property twice, more than 64 of them, one
        for several queues, one that would be in no queue, and one for the half topic or the
        schedule topic.
        """

    def moments(self, offsets: Sequence[int]) -> list[int | None]:
        """When the message of the record at each physical offset is due, in milliseconds since the
        epoch: by its one property for that, in at most 15 plain digits. A delay counts from the
        time when the record was stored. None: it has none, or several, or there is no record."""
