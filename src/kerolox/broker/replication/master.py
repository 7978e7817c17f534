"""What a master decides about one of its slaves (``HAConnection``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kerolox.broker.replication.wire import (
    FRAME_BYTES,
    HEAD,
    Note,
    ReplicationError,
    Reports,
)
from kerolox.broker.replication.wire import ReplicationSettings as Settings


class LogRange(NamedTuple):
    """The bounds of a log, in physical offsets."""

    begin: int
    end: int


ProofCheck = Callable[[bytes, str], str]
"""Why a proof of an account, made for a number, is none; empty: it is one."""
JUDGED_MS = 1_000
"""How often it is checked again: accounts change."""


class SlaveEnd:
    """The master's end of one connection, whatever the wire.

    Attributes:
        position: where the next frame begins; -1: the slave has not said where.
        acknowledged: its log reaches this offset; -1: not known.
        is_ours: it is a slave of Kerolox, and can be told why its connection is closed.
        peer: ``host:port`` of its end, where it is known.
    """

    def __init__(self, settings: Settings, file_size: int, now_ms: int) -> None:
        """It was opened just now. ``file_size``: mappedFileSizeCommitLog. ``now_ms``: of a clock
        that nobody sets.
        """
        self._settings = settings
        self._file_size = file_size
        self._received_ms = self._spoke_ms = now_ms
        self.position = -1
        self.acknowledged = -1
        self.is_ours = False
        self.peer = ""

    def received(self, data: bytes, log: LogRange, now_ms: int) -> bytes:
        """Take what the slave sent; what to answer, or b"". ReplicationError: it can't be served,
        or is no slave.
        """
        raise NotImplementedError

    def _head(self, size: int) -> bytes:
        """What stands before the next part of the log."""
        raise NotImplementedError

    def _reported(self, offset: int) -> None:
        if offset > self.position:
            raise ReplicationError(
                f"it reports the offset {offset}, but it was sent no more than {self.position}"
            )
        self.acknowledged = max(self.acknowledged, offset)

    def _last_file(self, log: LogRange) -> int:
        """Where the last file of the log begins."""
        return max(log.end - log.end % self._file_size, log.begin)

    def _begin_within(self, offset: int, log: LogRange) -> int:
        """Where a slave with something goes on."""
        if offset > log.end:
            raise ReplicationError(
                f"its log reaches {offset}, and the one here ends at {log.end}: it has what this "
                "master lost or never had; keep a copy of its folder, then let it begin with an "
                "empty one"
            )
        if offset < log.begin:
            raise ReplicationError(
                f"its log ends at {offset}, and the one here begins at {log.begin}: the messages "
                "between them are deleted; let it begin with an empty folder"
            )
        return offset

    def _frame_bytes_max(self) -> int:
        """Most bytes of the next frame."""
        return self._settings.batch_bytes

    def transfer(self, end: int) -> tuple[int, int] | None:
        """(offset, size) of the next frame of a log that ends at ``end``; None: nothing to send.

        A frame never crosses the end of a file: a Java slave would drop it.
        """
        if not 0 <= self.position < end:
            return None
        room = self._file_size - self.position % self._file_size
        return self.position, min(end - self.position, room, self._frame_bytes_max())

    def sent(self, size: int, now_ms: int) -> bytes:
        """Count a frame as sent; its head."""
        head = self._head(size)
        self.position += size
        self._spoke_ms = now_ms
        return head

    def heartbeat(self, now_ms: int) -> bytes:
        """An empty frame when it is time for one; else b""."""
        is_due = now_ms - self._spoke_ms >= self._settings.heartbeat_ms
        return self.sent(0, now_ms) if is_due and self.position >= 0 else b""

    def check(self, now_ms: int) -> None:
        """Raise a ReplicationError: the slave is silent for longer than haHousekeepingInterval."""
        silence = now_ms - self._received_ms
        if silence > self._settings.housekeeping_ms:
            raise ReplicationError(
                f"it sent nothing for {silence} ms (haHousekeepingInterval is "
                f"{self._settings.housekeeping_ms})"
            )


class SlaveLink(SlaveEnd):
    """The master's end without a controller."""

    def __init__(
        self,
        settings: Settings,
        file_size: int,
        now_ms: int,
        check_proof: ProofCheck | None = None,
        nonce: str = "",
    ) -> None:
        """``check_proof``: of accounts; None: none is wanted. ``nonce``: a number that nobody can
        guess, used this once.
        """
        super().__init__(settings, file_size, now_ms)
        self._check_proof = check_proof
        self._nonce = nonce
        self._proof = b""
        self._judged_ms = now_ms
        self._reports = Reports()

    def received(self, data: bytes, log: LogRange, now_ms: int) -> bytes:
        """Take what the slave sent; the note to send, or b"". ReplicationError: it can't be served,
        or is no slave.
        """
        self._received_ms = now_ms
        answer = b""
        for each in self._reports.feed(data):
            if isinstance(each, bytes):
                answer += self._received(each, log)
            else:
                self._take_report(each, log)
        if self._proof and now_ms - self._judged_ms >= JUDGED_MS:
            self._judged_ms = now_ms
            self._refuse_proof()
        return answer

    def _received(self, message: bytes, log: LogRange) -> bytes:
        if self.position >= 0 or self.is_ours == (not message):
            raise ReplicationError("it sends what no slave sends there")
        self.is_ours = True
        if self._check_proof is not None and not self._proof:
            if not message:
                return Note(nonce=self._nonce).frame()
            self._proof = message
            self._refuse_proof()
        elif message:
            raise ReplicationError("it sends what no slave sends there")
        return Note(log.begin, log.end, self._file_size).frame()

    def _refuse_proof(self) -> None:
        refusal = (
            self._check_proof(self._proof, self._nonce) if self._check_proof is not None else ""
        )
        if refusal:
            raise ReplicationError(refusal)

    def _take_report(self, offset: int, log: LogRange) -> None:
        if self._check_proof is not None and not self._proof:
            raise ReplicationError(
                "it shows no account, which haAclEnable wants: a slave of ours has one in "
                "namesrvCredentialsFile, and a Java slave has none"
            )
        if self.position < 0:
            self.position = self._begin_at(offset, log)
            if self.is_ours:
                # From there on it compares; it says later how far it has the same.
                return
        self._reported(offset)

    def _begin_at(self, offset: int, log: LogRange) -> int:
        if offset == 0:
            # An empty slave of Java gets the last file only, as RocketMQ does it.
            return log.begin if self.is_ours else self._last_file(log)
        return self._begin_within(offset, log)

    def _frame_bytes_max(self) -> int:
        if self.is_ours:
            return FRAME_BYTES - self.position % FRAME_BYTES
        return self._settings.batch_bytes

    def _head(self, size: int) -> bytes:
        return HEAD.pack(self.position, size)
