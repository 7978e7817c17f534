"""Both ends of a connection between brokers that have a controller, without I/O.

They are the ends of :mod:`.master` and :mod:`.slave` with another wire (:mod:`.auto_switch`), and
with epochs. A slave cuts its log by the epochs first. Then it compares the end of it with the
master's bytes, as without a controller: a master that crashed with its machine may go on in the
same epoch, and lack what it had sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kerolox.broker.replication.auto_switch import (
    FrameHead,
    MasterHandshake,
    MasterMessages,
    SlaveHandshake,
    SlaveMessages,
    encode_report,
)
from kerolox.broker.replication.comparing import (
    COMPARED_BYTES,
    DivergedError,
    LogGoneError,
)
from kerolox.broker.replication.log_epochs import LogEpochs
from kerolox.broker.replication.master import LogRange, SlaveEnd
from kerolox.broker.replication.slave import MasterLink, ReplicaLog
from kerolox.broker.replication.wire import READ_BYTES, Note, Piece, ReplicationError
from kerolox.broker.replication.wire import ReplicationSettings as Settings
from kerolox.kernel.values import StreamPosition
from kerolox.store.log.epochs import EpochError, EpochStart, EpochTable

NO_PART = EpochStart(-1, 0)
"""Named by a heartbeat of a log without epochs."""


class MasterSide(Protocol):
    """What the ends at a master ask and tell."""

    @property
    def table(self) -> EpochTable:
        """Epochs of its log."""

    @property
    def confirmed(self) -> int:
        """Up to this offset the log is on each broker of the sync state set."""

    def connected(self, link: SyncSlaveLink) -> None:
        """A slave said which broker it is."""

    def sent(self, link: SyncSlaveLink) -> None:
        """Something is sent to it."""


class SyncSlaveLink(SlaveEnd):
    """The master's end of one connection.

    Attributes:
        broker_id: that the controller gave the slave; 0: it has not said.
        is_learner: it never comes into the sync state set.
    """

    def __init__(self, settings: Settings, file_size: int, now_ms: int, side: MasterSide) -> None:
        """See :class:`SlaveEnd`."""
        super().__init__(settings, file_size, now_ms)
        self._side = side
        self._messages = SlaveMessages()
        self._from_last_file = False
        self.broker_id = 0
        self.is_learner = False

    def received(self, data: bytes, log: LogRange, now_ms: int) -> bytes:
        """See :meth:`SlaveEnd.received`; the answer to a handshake is one."""
        self._received_ms = now_ms
        answer = b""
        for each in self._messages.feed(data):
            if isinstance(each, SlaveHandshake):
                answer += self._shook_hands(each, log)
            elif not self.broker_id:
                raise ReplicationError("it reports before it said which broker it is")
            else:
                if self.position < 0:
                    self.position = self._begin_at(each, log)
                self._reported(each)
        return answer

    def _shook_hands(self, handshake: SlaveHandshake, log: LogRange) -> bytes:
        if self.broker_id or not handshake.broker_id:
            raise ReplicationError("it says twice which broker it is, or that it is none")
        self.broker_id, self.is_learner = handshake.broker_id, handshake.is_learner
        self._from_last_file = handshake.from_last_file
        self._side.connected(self)
        return MasterHandshake(log.end, self._side.table).encode()

    def _begin_at(self, offset: int, log: LogRange) -> int:
        if offset == 0:
            return self._last_file(log) if self._from_last_file else log.begin
        return self._begin_within(offset, log)

    def _frame_bytes_max(self) -> int:
        most = super()._frame_bytes_max()
        end = self._side.table.end_at(self.position)
        return most if end is None else min(most, end - self.position)

    def _head(self, size: int) -> bytes:
        self._side.sent(self)
        part = self._side.table.at(self.position) or NO_PART
        return FrameHead(self.position, size, part, self._side.confirmed).encode()


class SyncMasterLink(MasterLink):
    """The slave's end of one connection."""

    def __init__(
        self,
        log: ReplicaLog,
        file_size: int,
        settings: Settings,
        now_ms: int,
        compared_bytes: int = COMPARED_BYTES,
        *,
        epochs: LogEpochs,
        handshake: SlaveHandshake,
        epoch: int,
        on_confirmed: Callable[[int], None] = lambda offset: None,
    ) -> None:
        """``epochs``: of the log here; they follow the master's. ``handshake``: who this broker is.
        ``epoch``: of the master, as the controller says. ``on_confirmed`` is called with the offset
        up to which the log here is on each broker of the sync state set.
        """
        super().__init__(log, file_size, settings, now_ms, compared_bytes)
        self._epochs = epochs
        self._handshake = handshake
        self._epoch = epoch
        self._messages = MasterMessages()
        self._of_master = EpochTable()
        self._has_epochs = False
        """Those here are the master's, as far as this log goes."""
        self._head: FrameHead | None = None
        self._on_confirmed = on_confirmed
        self._end_of_master = -1
        """When it shook hands."""

    @property
    def has_all(self) -> bool:
        """All is here that the master had when it shook hands."""
        return self.is_equal and 0 <= self._end_of_master <= self._end

    def start(self) -> bytes:
        """What the slave says first."""
        return self._handshake.encode()

    @property
    def next_bytes(self) -> int:
        """How many bytes to read of the connection next."""
        return READ_BYTES

    def hand_over(self) -> StreamPosition | None:
        """No kernel reads this wire."""
        return None

    def received(self, data: bytes | memoryview, now_ms: int) -> bytes:
        """See :meth:`MasterLink.received`. OSError: the epochs can't be written."""
        self._received_ms = now_ms
        self.has_received = True
        answer = b""
        for each in self._messages.feed(data):
            if isinstance(each, MasterHandshake):
                answer += self._shook_hands(each, now_ms)
            elif isinstance(each, FrameHead):
                self._begin_frame(each)
            else:
                self._take_part(each)
        return answer + self._acknowledge(now_ms)

    def tick(self, now_ms: int) -> bytes:
        """See :meth:`MasterLink.tick`."""
        return self._tick(now_ms)

    def _encoded_report(self, offset: int) -> bytes:
        return encode_report(offset)

    def _shook_hands(self, handshake: MasterHandshake, now_ms: int) -> bytes:
        if self._has_started:
            raise ReplicationError("the master shakes hands twice")
        if handshake.epochs.last_epoch < self._epoch:
            raise ReplicationError(
                f"it says that its epoch is {handshake.epochs.last_epoch}, and the controller that "
                f"there is a master of epoch {self._epoch}: it is not that one, or not yet"
            )
        self._of_master, self._end_of_master = handshake.epochs, handshake.end
        self._check_epochs(handshake)
        self._note = Note(begin=0, end=handshake.end, file_size=self._file_size)
        answer = self._first_report(now_ms)
        self._take_epochs()
        return answer

    def _check_epochs(self, handshake: MasterHandshake) -> None:
        """Raise an error: this log goes on where the master's has something else."""
        if not self._end:
            return
        common = self._epochs.table.common_end(self._end, handshake.epochs, handshake.end)
        if common is None or common >= self._end:
            # Without an epoch in both the bytes alone say whether they are the same.
            return
        text = (
            f"this log ends at {self._end}, and by its epochs it is the master's up to {common}: "
            "what follows was written by another master"
        )
        if common <= self._log.min_physical_offset:
            raise LogGoneError(text)
        raise DivergedError(text, common)

    def _begin_frame(self, head: FrameHead) -> None:
        self._head = head
        if head.offset < 0:
            return  # A master of RocketMQ that has nothing yet.
        if not head.size:
            self._take(Piece(head.offset, memoryview(b"")))
        self._take_epochs()
        self._confirm(head)

    def _take_part(self, piece: Piece) -> None:
        assert self._head is not None, "the head of a frame comes before its body"
        self._take(piece)
        self._take_epochs()
        self._confirm(self._head)

    def _confirm(self, head: FrameHead) -> None:
        if self.is_equal:
            self._on_confirmed(min(head.confirmed, self._end))

    def _take_epochs(self) -> None:
        """Once the logs are equal the epochs are, too, and each further one is written before its
        first record."""
        if not self.is_equal:
            return
        at = max(self._position, 0)
        try:
            if not self._has_epochs:
                self._has_epochs = True
                self._epochs.become(each for each in self._of_master.starts if each.start <= at)
                return
            for part in self._next_parts(at):
                self._epochs.begin(*part)
        except EpochError as error:
            raise ReplicationError(f"the master's epochs can't be: {error}") from None

    def _next_parts(self, at: int) -> list[EpochStart]:
        last = self._epochs.table.last_epoch
        known = self._of_master.at(at)
        named = None if self._head is None else self._head.part
        return sorted(
            each
            for each in {known, named}
            if each is not None and each.epoch > last and each.start <= at
        )
