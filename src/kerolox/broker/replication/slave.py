"""What a slave decides about its master (``HAClient``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kerolox.broker.replication.comparing import (
    COMPARED_BYTES,
    DivergedError,
    LogGoneError,
    ReadableLog,
    begin_of,
    equal_count,
    holds_record,
)
from kerolox.broker.replication.wire import (
    HELLO,
    NOTE_OFFSET,
    REPORT,
    Frames,
    Note,
    Piece,
    ReplicationError,
)
from kerolox.broker.replication.wire import ReplicationSettings as Settings
from kerolox.kernel.values import StreamPosition

NOTE_MS_MAX = 2_000
"""A master of ours answers ``HELLO`` before; without an answer it is taken for a Java one. That one
hears nothing until then, so it is not more than half of haHousekeepingInterval."""
IDLE_HEARTBEATS = 2
"""So many without a byte between them say that a Java master has no more: the first may come
before the bytes do."""


class ReplicaLog(ReadableLog, Protocol):
    """The log of a slave, as the kernel offers it."""

    def append_log(self, offset: int, data: bytes | memoryview) -> int:
        """Append the master's bytes; the end of the last whole record."""


class MasterLink:
    """The slave's end of one connection.

    The master begins a little before the end of the slave's log. What the slave has already is
    compared: two logs that were written by two masters have the same offsets and other bytes.

    Attributes:
        is_equal: all that the slave had before is the master's as well, as far as it was compared.
        has_received: the master sent something.
    """

    def __init__(
        self,
        log: ReplicaLog,
        file_size: int,
        settings: Settings,
        now_ms: int,
        compared_bytes: int = COMPARED_BYTES,
        prove: Callable[[str], bytes] | None = None,
    ) -> None:
        """It was opened just now. ``file_size``: mappedFileSizeCommitLog. ``now_ms``: of a clock
        that nobody sets. ``compared_bytes``: of the end of its log, at least. ``prove`` makes the
        proof of the slave's account for a number; None: it has none.
        """
        self._log = log
        self._file_size = file_size
        self._settings = settings
        self._compared_bytes = compared_bytes
        self._prove = prove
        self._frames = Frames()
        self._opened_ms = self._received_ms = self._spoke_ms = now_ms
        self._note: Note | None = None
        self._note_ms = min(NOTE_MS_MAX, settings.housekeeping_ms // 2)
        self._has_started = self._is_proven = False
        self._end = log.max_physical_offset
        self._begin = self._position = -1
        """Where the master begins, and goes on; -1: it says where."""
        self._reported = 0
        self._idle = 0
        """Heartbeats since the last byte."""
        self.is_equal = not self._end
        self.has_received = False

    def start(self) -> bytes:
        """What the slave says first."""
        return HELLO

    @property
    def is_greeting(self) -> bool:
        """The master's note is waited for."""
        return not self._has_started

    @property
    def next_bytes(self) -> int:
        """How many bytes to read of the connection next, at most; at least 1."""
        return self._frames.next_bytes

    def received(self, data: bytes | memoryview, now_ms: int) -> bytes:
        """Take what the master sent; what to send, or b"". ReplicationError: the master's log is
        another one, or it is no master.
        """
        self._received_ms = now_ms
        self.has_received = True
        answer = b""
        for piece in self._frames.feed(data):
            if piece.offset == NOTE_OFFSET:
                answer += self._noted(Note.read(piece.data), now_ms)
            else:
                self._take(piece)
        return answer + self._acknowledge(now_ms)

    def _acknowledge(self, now_ms: int) -> bytes:
        """A report of what came; b"": nothing did."""
        # Whole records only: the part of one is gone after a kill, so nobody may count on it.
        reached = min(self._position, self._end)
        return self._report(reached, now_ms) if reached > self._reported else b""

    def tick(self, now_ms: int) -> bytes:
        """What is due to be sent, or b""; ReplicationError: the master was silent for longer than
        haHousekeepingInterval.
        """
        if not self._has_started:
            is_java = now_ms - self._opened_ms >= self._note_ms
            return self._first_report(now_ms) if is_java else b""
        return self._tick(now_ms)

    def _tick(self, now_ms: int) -> bytes:
        silence = now_ms - self._received_ms
        if silence > self._settings.housekeeping_ms:
            raise ReplicationError(
                f"the master sent nothing for {silence} ms (haHousekeepingInterval is "
                f"{self._settings.housekeeping_ms})"
            )
        if now_ms - self._spoke_ms < self._settings.heartbeat_ms:
            return b""
        return self._report(self._reported, now_ms)

    # -- a kernel that reads ------------------------------------------------------------------
    def hand_over(self) -> StreamPosition | None:
        """Where a kernel can go on reading; None: the logs are not known to be equal, or a note
        comes."""
        if not self.is_equal or self._position < self._end or self._frames.is_in_note:
            return None
        left, head = self._frames.partial_frame
        return StreamPosition(self._position, self._end, left, self._reported, head)

    def advanced(self, stream_position: StreamPosition, now_ms: int) -> None:
        """A kernel read on until there."""
        self._position, self._end, _left, self._reported, _rest = stream_position
        self._received_ms = now_ms

    def take_over(self, stream_position: StreamPosition) -> bytes:
        """Go on where a kernel stopped; what to send, or b""."""
        self.advanced(stream_position, self._received_ms)
        self._frames.go_on(stream_position.position, stream_position.left)
        return self.received(stream_position.rest, self._received_ms)

    def closed(self) -> ReplicationError:
        """Why the master may have closed the connection."""
        text = "the master closed the connection"
        if self._position != self._begin or self._note is not None:
            return ReplicationError(text)
        if self._has_started and self._end:
            # So does a Java master whose log ends before.
            text += f" and sent nothing from {self._begin} on, where this log is compared with its"
            return DivergedError(text, -1)
        return ReplicationError(f"{text} before it sent anything: is that its haListenPort?")

    # -- the begin ----------------------------------------------------------------------------
    def _noted(self, note: Note, now_ms: int) -> bytes:
        if note.refused:
            raise ReplicationError(f"the master refuses: {note.refused}")
        if note.nonce:
            return self._proof(note.nonce, now_ms)
        if note.file_size != self._file_size:
            raise ReplicationError(
                f"the files of the master's log have {note.file_size} bytes, and those here "
                f"{self._file_size}: mappedFileSizeCommitLog has to be the master's"
            )
        self._note = note
        # It may come late, to a report that a Java master understands.
        return b"" if self._has_started else self._first_report(now_ms)

    def _proof(self, nonce: str, now_ms: int) -> bytes:
        if self._prove is None:
            raise ReplicationError(
                "the master wants the account of an administrator (haAclEnable): name its file "
                "(namesrvCredentialsFile)"
            )
        if self._is_proven or self._has_started:
            raise ReplicationError("the master asks for an account at a wrong time")
        self._is_proven = True
        self._opened_ms = now_ms
        proof = self._prove(nonce)
        return REPORT.pack(-1 - len(proof)) + proof

    def _first_report(self, now_ms: int) -> bytes:
        """The first report: where the master is to begin."""
        self._has_started = True
        if self._end:
            self._begin = self._position = self._begin_at(self._note)
            self._reported = self._begin
            self.is_equal = self._begin == self._end
        self._received_ms = now_ms
        report = self._report(self._reported, now_ms)
        # The first one says where to begin, and only others are acknowledgements.
        return report * 2 if self._end and self.is_equal else report

    def _begin_at(self, note: Note | None) -> int:
        log, end = self._log, self._end
        if note is None:
            low, top = log.min_physical_offset, end
            if self._compared_bytes == COMPARED_BYTES:
                # The master may have deleted all files before the last one.
                low = max(low, (end - 1) // self._file_size * self._file_size)
            # 0 would ask for the last file.
            return max(begin_of(log, low, top, self._compared_bytes), 1)
        if end < note.begin:
            raise LogGoneError(
                f"this log ends at {end}, and the master's begins at {note.begin}: the messages "
                "between them are deleted there"
            )
        low, top = max(log.min_physical_offset, note.begin), min(end, note.end)
        if top <= low and end != note.begin:
            raise DivergedError(
                f"this log has [{log.min_physical_offset}, {end}), and the master's "
                f"[{note.begin}, {note.end}): they have nothing in common",
                -1,
            )
        return begin_of(log, low, top, self._compared_bytes)

    # -- the log ------------------------------------------------------------------------------
    def _report(self, offset: int, now_ms: int) -> bytes:
        self._spoke_ms = now_ms
        self._reported = offset
        return self._encoded_report(offset)

    def _encoded_report(self, offset: int) -> bytes:
        return REPORT.pack(offset)

    def _take(self, piece: Piece) -> None:
        if not self._has_started:
            raise ReplicationError("it sends before it was asked: it is no master")
        if self._position < 0:
            self._begin = self._position = self._end = piece.offset
        if piece.offset != self._position:
            raise ReplicationError(
                f"the master goes on at {piece.offset}, and {self._position} comes next"
            )
        data = piece.data
        if not data:
            self._check_end()
            return
        self._idle = 0
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
        self.is_equal = self.is_equal or self._position >= self._end

    def _check_end(self) -> None:
        """The master has no more for now. Where the slave has more, the master lost it or never
        had it."""
        if self._position >= self._end:
            return
        self._idle += 1
        if self._idle >= (1 if self._note is not None else IDLE_HEARTBEATS):
            raise self._diverged(
                self._position,
                f"this log ends at {self._end}, and the master has nothing from {self._position} "
                "on: it lost its end in a crash, or another master wrote this one",
            )

    def _compare(self, data: memoryview) -> None:
        at = self._position
        while data:
            own = self._log.read_log(at, len(data))
            count = equal_count(own, data)
            if not own or count < len(own):
                raise self._diverged(
                    at + count,
                    f"this log and the master's differ from {at + count} on: they were written by "
                    "two masters, or one lost its end in a crash",
                    has_others=True,
                )
            at += len(own)
            data = data[len(own) :]

    def _diverged(self, offset: int, text: str, *, has_others: bool = False) -> DivergedError:
        is_common = holds_record(self._log, self._begin, offset)
        return DivergedError(text, offset if is_common else -1, has_others=has_others)
