"""The bytes between a master and its slaves that have a controller (``AutoSwitchHAService``).

Both ends first say who they are, in a handshake. The slave tells its broker id, the master where
its log ends and which epochs it has. By these the slave cuts its log back to what both have. Then
it reports where its log ends. The master sends the log as without a controller, but each frame
tells the epoch of its part of the log, and the confirm offset.

A frame is of one epoch, and of one file of the log. One without a body is a heartbeat. All numbers
are big-endian. Without a controller, brokers speak :mod:`~kerolox.broker.replication.wire`.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kerolox.broker.replication.wire import Piece, ReplicationError
from kerolox.protocol.controller import EPOCHS_MAX
from kerolox.protocol.java_numbers import LONG_MAX
from kerolox.store.log.epochs import EpochError, EpochStart, EpochTable

_HANDSHAKE, _TRANSFER = 1, 2
"""What a message is (ordinals of ``HAConnectionState``)."""
_STATE = Struct(">i")
_SLAVE_HANDSHAKE = Struct(">ihhq")
_REPORT = Struct(">iq")
_MASTER_HANDSHAKE = Struct(">iiqi")
_EPOCH = Struct(">iq")
_FRAME = Struct(">iiqiqq")


class SlaveHandshake(NamedTuple):
    """What a slave says first."""

    broker_id: int
    """That the controller gave it."""
    from_last_file: bool = False
    """An empty one wants the master's last file only (``syncFromLastFile``)."""
    is_learner: bool = False
    """It never comes into the sync state set (``asyncLearner``)."""

    def encode(self) -> bytes:
        """Its bytes."""
        return _SLAVE_HANDSHAKE.pack(
            _HANDSHAKE, self.from_last_file, self.is_learner, self.broker_id
        )


class MasterHandshake(NamedTuple):
    """What a master answers."""

    end: int
    """Of its log."""
    epochs: EpochTable

    def encode(self) -> bytes:
        """Its bytes."""
        body = b"".join(_EPOCH.pack(*each) for each in self.epochs.starts)
        head = _MASTER_HANDSHAKE.pack(_HANDSHAKE, len(body), self.end, self.epochs.last_epoch)
        return head + body


class FrameHead(NamedTuple):
    """What stands before a part of the log, and alone as a heartbeat."""

    offset: int
    """Where the part begins."""
    size: int
    """Bytes of it that follow."""
    part: EpochStart
    """Its epoch. RocketMQ's last frame of an epoch names the next one, which begins behind it."""
    confirmed: int
    """Up to this offset the log is on each broker of the sync state set (``confirmOffset``)."""

    def encode(self) -> bytes:
        """Its bytes."""
        return _FRAME.pack(_TRANSFER, self.size, self.offset, *self.part, self.confirmed)


def encode_report(end: int) -> bytes:
    """A slave's log ends there: the master goes on from there, and it acknowledges."""
    return _REPORT.pack(_TRANSFER, end)


class SlaveMessages:
    """Cuts what a slave sends into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[SlaveHandshake | int]:
        """What came whole so far; an offset is a report. ReplicationError: it is no slave of a
        broker with a controller.
        """
        data = self._rest + data
        found: list[SlaveHandshake | int] = []
        at = 0
        while len(data) - at >= _STATE.size:
            (state,) = _STATE.unpack_from(data, at)
            layout = {_HANDSHAKE: _SLAVE_HANDSHAKE, _TRANSFER: _REPORT}.get(state)
            if layout is None:
                raise ReplicationError(
                    f"it begins a message with {state}: it is no slave, or one without a "
                    "controller (enableControllerMode)"
                )
            if len(data) - at < layout.size:
                break
            found.append(_slave_message(layout.unpack_from(data, at)))
            at += layout.size
        self._rest = data[at:]
        return found


def _slave_message(fields: tuple[int, ...]) -> SlaveHandshake | int:
    number = fields[-1]
    if number < 0:
        raise ReplicationError(f"it tells {number} as its broker id, or as the end of its log")
    if fields[0] == _TRANSFER:
        return number
    # RocketMQ counts 1 alone as true.
    return SlaveHandshake(number, fields[1] == 1, fields[2] == 1)


class MasterMessages:
    """Cuts what a master sends into messages. A part of the log comes in pieces, as it arrives."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._offset = self._left = 0

    def feed(self, data: bytes | memoryview) -> list[MasterHandshake | FrameHead | Piece]:
        """What came: handshakes and heads of frames whole, bodies of frames in pieces with their
        physical offsets. ReplicationError: it is no master of brokers with a controller.
        """
        found: list[MasterHandshake | FrameHead | Piece] = []
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._left:
                body = view[at : at + self._left]
                found.append(Piece(self._offset, body))
                self._offset += len(body)
                self._left -= len(body)
                at += len(body)
                continue
            taken = view[at : at + self._wanted() - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < self._wanted():
                continue
            message = _master_message(bytes(self._head))
            self._head.clear()
            found.append(message)
            if isinstance(message, FrameHead):
                self._offset, self._left = message.offset, message.size
        return found

    def _wanted(self) -> int:
        """How many bytes the head has, as far as those that came can say."""
        if len(self._head) < _STATE.size:
            return _STATE.size
        (state,) = _STATE.unpack_from(self._head)
        if state == _TRANSFER:
            return _FRAME.size
        if state != _HANDSHAKE:
            raise ReplicationError(
                f"the master begins a message with {state}: it has no controller "
                "(enableControllerMode), or this is not its haListenPort"
            )
        if len(self._head) < _MASTER_HANDSHAKE.size:
            return _MASTER_HANDSHAKE.size
        size: int = _MASTER_HANDSHAKE.unpack_from(self._head)[1]
        if size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size:
            raise ReplicationError(
                f"the master tells its epochs in {size} bytes: it has {EPOCHS_MAX} at most, of "
                f"{_EPOCH.size} bytes each"
            )
        return _MASTER_HANDSHAKE.size + size


def _master_message(head: bytes) -> MasterHandshake | FrameHead:
    (state,) = _STATE.unpack_from(head)
    if state == _HANDSHAKE:
        _, _, end, last_epoch = _MASTER_HANDSHAKE.unpack_from(head)
        entries = _EPOCH.iter_unpack(head[_MASTER_HANDSHAKE.size :])
        try:
            epochs = EpochTable(EpochStart(*each) for each in entries)
        except EpochError as error:
            raise ReplicationError(f"the master's epochs can't be: {error}") from None
        if end < 0 or last_epoch != epochs.last_epoch:
            raise ReplicationError(
                f"the master tells epoch {last_epoch} and a log that ends at {end}, and its last "
                f"epoch is {epochs.last_epoch}"
            )
        return MasterHandshake(end, epochs)
    _, size, offset, epoch, start, confirmed = _FRAME.unpack(head)
    # A master of RocketMQ that has nothing to send yet says so at offset -1.
    is_first = offset == -1 and size == 0
    is_part = offset >= 0 and size >= 0 and start <= offset + size <= LONG_MAX
    if start < 0 or not (is_part or is_first):
        raise ReplicationError(
            f"the master sent a frame of {size} bytes at {offset}, of epoch {epoch} from {start} on"
        )
    return FrameHead(offset, size, EpochStart(epoch, start), confirmed)
