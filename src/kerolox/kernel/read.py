"""Records out: by queue, by physical offset, by key, by time. The log as raw bytes, out and in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.kernel.values import QueueBounds, Read, StreamPosition

COLUMN_MS_MIN = -9_214_560_000_000
"""1678-01-01: columns of times have no earlier one, whatever a producer wrote. So pandas, whose
times are nanoseconds in 64 bits, can have them all, and so can Python's ``datetime`` in any zone.
"""
COLUMN_MS_MAX = 9_214_646_399_999
"""The last millisecond of 2261; the latest time of a column."""

STREAM_TIME = 0
"""``MasterStream.follow``: the time is over."""
STREAM_CLOSED = 1
"""The master closed its side."""
STREAM_OTHER = 2
"""What comes next is not the next part of the log."""


class RecordReader(Protocol):
    """Reads of the slow path, and the bounds of log and queues."""

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        tag_codes: Sequence[int] | None,
        group: str | None = None,
        bits: tuple[int, int, Sequence[int]] | None = None,
    ) -> Read:
        """getMessage of RocketMQ, with its limits and its next offsets.

        ``bits`` is (length of a bit map, born, positions) of a filter by expression: a message
        whose unit (``enable_consume_queue_ext``) has a map of that length, was stored after
        ``born`` and lacks one of the positions is passed over, as one without the tag is.

        With a ``group`` it counts for ``group_stats`` and ``lag``, as fast pulls do. A
        queue that does not exist is empty (RocketMQ makes the queue that it looks for).
        """

    def lookup(self, physical_offset: int) -> bytes | None:
        """The record that starts at a physical offset; None when none does."""

    def query_key(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> tuple[int, int, bytes]:
        """(index last update timestamp, its physical offset, raw records) for topic#key; the newest
        where all together have more than 8 MiB."""

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min offset, max offset) of a queue; (0, 0) when it does not exist."""

    def queues(self) -> list[QueueBounds]:
        """Every consume queue."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """getOffsetInQueueByTime: exact match, else the nearest; 0 when there is no queue."""

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp of the message at a queue offset; -1 when there is none."""

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of a queue entry; None when there is none.

        The tags code is looked up where the entry holds the address of a unit; below all ints it
        is an address whose unit is missing.
        """

    def queue_unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, bytes] | None:
        """(tags code, store time, bit map) of the unit beside a queue entry
        (``enable_consume_queue_ext``); None when it has none."""

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the oldest byte kept."""

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the last record that can be read: with a transient store pool
        those that are not committed can't be, neither from the log nor from their queues."""


class RawLog(Protocol):
    """Bytes of the log out and in, whatever records they hold."""

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Up to ``max_bytes`` of the log from a physical offset on, of one file and no further than
        ``max_physical_offset``; b"" outside."""

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        """Append bytes of a master's log, cut anywhere, which go on where the last ones ended.

        Each record gets its queue and index entries when it is whole, and wakes held pulls. Gives
        the end of the last whole record; what follows it is seen by nobody and gone after a
        restart. Bytes may also go on at that end: what followed it is dropped, so none at all
        make the log end there. An empty log begins at ``offset``, a multiple of
        ``mappedFileSizeCommitLog``.

        A record whose queue offset is 0 deletes the queue that was there: its topic was made anew.
        Reads behind the end of the new one go on at its start, not at its end.

        Raises:
            ValueError: they do not go on there, or are not what stands in a log with these queues.
                The records before that are stored, and the rest is dropped.
            OSError: they can't be written; the same.
        """

    def read_master(
        self, descriptor: int, stream_position: StreamPosition, frame_bytes: int, read_bytes: int
    ) -> MasterStream | None:
        """Take over a connection that brings a master's log; None: this kernel reads none.

        Args:
            descriptor: of a socket that does not block; a copy is made.
            stream_position: where it stands; the log ends at ``end``.
            frame_bytes: where the log has a multiple of these a frame ends.
            read_bytes: asked of the socket at once, at most; more than ``frame_bytes``.

        Raises:
            OSError: there is no such descriptor.
        """


class MasterStream(Protocol):
    """The frames of a master (:mod:`kerolox.broker.replication.wire`), read and appended without an
    iteration of the event loop for each."""

    def follow(self, seconds: float) -> int:
        """Append what comes, as ``append_log`` does, and report it with each read. Blocks without
        the GIL, so it wants a thread of its own.

        A master that takes no report now gets a later one.

        Args:
            seconds: for so long at most.

        Returns:
            Why it paused: ``STREAM_TIME``, ``STREAM_CLOSED`` or ``STREAM_OTHER``.

        Raises:
            ValueError: the bytes are not what stands in a log with these queues.
            OSError: they can't be written, or the connection broke.
        """

    def stream_position(self) -> StreamPosition:
        """Where it stands, while ``follow`` does not run."""

    def has_received(self) -> bool:
        """Whether anything came since this was asked last, while ``follow`` does not run."""
