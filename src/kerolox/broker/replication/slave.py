"""What a slave decides about its master (``HAClient``)."""

from __future__ import annotations

from typing import Protocol

from kerolox.broker.replication.wire import REPORT, Frames, Piece, ReplicationError
from kerolox.broker.replication.wire import ReplicationSettings as Settings

COMPARED_BYTES = 64 * 1024
"""Of the end of the slave's log, which the master sends anew: they have to be equal."""


class ReplicaLog(Protocol):
    """The log of a slave, as the kernel offers it."""

    @property
    def min_physical_offset(self) -> int:
        """Where it begins."""

    @property
    def max_physical_offset(self) -> int:
        """Behind its last whole record."""

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Its bytes from an offset on, of one file."""

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        """Append the master's bytes; the end of the last whole record."""


class MasterLink:
    """The slave's end of one connection.

    The master begins a little before the end of the slave's log. What the slave has already is
    compared: two logs that were written by two masters have the same offsets and other bytes.
    """

    def __init__(self, log: ReplicaLog, file_size: int, settings: Settings, now_ms: int) -> None:
        """It was opened just now. ``file_size``: mappedFileSizeCommitLog."""
        self._log = log
        self._settings = settings
        self._frames = Frames()
        self._heard_ms = self._spoke_ms = now_ms
        self._end = log.max_physical_offset
        self._position = -1
        """Where the master goes on; -1: it says where."""
        self._reported = 0
        if self._end:
            # The master may have deleted all files before this one.
            file_begin = self._end - self._end % file_size
            begin = max(log.min_physical_offset, self._end - COMPARED_BYTES, file_begin)
            # 0 would ask for the last file.
            self._position = self._reported = max(begin, 1)

    def start(self) -> bytes:
        """The first report: where the master is to begin."""
        return REPORT.pack(self._reported)

    def received(self, data: bytes, now_ms: int) -> bytes:
        """Take what the master sent; the report to send, or b"".

        Raises:
            ReplicationError: the master's log is another one, or it is no master.
            OSError: the disk takes no more.
        """
        self._heard_ms = now_ms
        for piece in self._frames.feed(data):
            self._take(piece)
        reached = min(self._position, self._end)
        if reached <= self._reported:
            return b""
        return self._report(reached, now_ms)

    def tick(self, now_ms: int) -> bytes:
        """The report that is due, or b"".

        Raises:
            ReplicationError: the master was silent for longer than haHousekeepingInterval.
        """
        silence = now_ms - self._heard_ms
        if silence > self._settings.housekeeping_ms:
            raise ReplicationError(
                f"the master sent nothing for {silence} ms (haHousekeepingInterval is "
                f"{self._settings.housekeeping_ms})"
            )
        if now_ms - self._spoke_ms < self._settings.heartbeat_ms:
            return b""
        return self._report(self._reported, now_ms)

    def _report(self, offset: int, now_ms: int) -> bytes:
        self._spoke_ms = now_ms
        self._reported = offset
        return REPORT.pack(offset)

    def _take(self, piece: Piece) -> None:
        if self._position < 0:
            self._position = self._end = piece.offset
        if piece.offset != self._position:
            raise ReplicationError(
                f"the master goes on at {piece.offset}, and {self._position} comes next"
            )
        data = piece.data
        known = min(max(self._end - self._position, 0), len(data))
        if known:
            self._compare(data[:known])
        rest = data[known:]
        if rest:
            at = self._position + known
            try:
                self._end = self._log.append_log(at, rest)
            except ValueError as error:
                raise ReplicationError(f"the master's bytes at {at} are refused: {error}") from None
        self._position += len(data)

    def _compare(self, data: memoryview) -> None:
        at = self._position
        while data:
            own = self._log.read_log(at, len(data))
            if not own or own != data[: len(own)]:
                raise ReplicationError(
                    f"this log and the master's differ behind {at}: they were written by two "
                    "masters, or one lost its end in a crash; nothing was changed. Keep a copy of "
                    "this folder, then let the slave begin with an empty one"
                )
            at += len(own)
            data = data[len(own) :]
