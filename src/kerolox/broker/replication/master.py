"""What a master decides about its slaves (``HAConnection`` and ``GroupTransferService``)."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.broker.replication.wire import HEAD, ReplicationError, ReplicationSettings, Reports


class LogRange(NamedTuple):
    """What a log has, in physical offsets."""

    begin: int
    end: int


class SlaveLink:
    """The master's end of one connection.

    Attributes:
        position: where the next frame begins; -1: the slave has not said where.
        acknowledged: its log reaches this offset; -1: not known.
    """

    def __init__(self, settings: ReplicationSettings, file_size: int, now_ms: int) -> None:
        """It was opened just now. ``file_size``: mappedFileSizeCommitLog."""
        self._settings = settings
        self._file_size = file_size
        self._reports = Reports()
        self._heard_ms = self._spoke_ms = now_ms
        self.position = -1
        self.acknowledged = -1

    def received(self, data: bytes, log: LogRange, now_ms: int) -> None:
        """Take what the slave sent.

        Raises:
            ReplicationError: it can't be served, or is no slave.
        """
        self._heard_ms = now_ms
        offsets = self._reports.feed(data)
        if not offsets:
            return
        if self.position < 0:
            self.position = self._begin_at(offsets[0], log)
        highest = max(offsets)
        if highest > self.position:
            raise ReplicationError(
                f"it reports the offset {highest}, but it was sent no more than {self.position}"
            )
        self.acknowledged = max(self.acknowledged, highest)

    def _begin_at(self, offset: int, log: LogRange) -> int:
        if offset == 0:
            # An empty slave gets the last file only, as RocketMQ does it.
            return max(log.end - log.end % self._file_size, log.begin)
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

    def transfer(self, end: int) -> tuple[int, int] | None:
        """(offset, size) of the next frame of a log that ends at ``end``; None: nothing to send.

        A frame never crosses the end of a file: a Java slave would drop it.
        """
        if not 0 <= self.position < end:
            return None
        room = self._file_size - self.position % self._file_size
        return self.position, min(end - self.position, room, self._settings.batch_bytes)

    def sent(self, size: int, now_ms: int) -> bytes:
        """Count a frame as sent; its head."""
        head = HEAD.pack(self.position, size)
        self.position += size
        self._spoke_ms = now_ms
        return head

    def heartbeat(self, now_ms: int) -> bytes:
        """An empty frame when it is time for one; else b""."""
        is_due = now_ms - self._spoke_ms >= self._settings.heartbeat_ms
        return self.sent(0, now_ms) if is_due and self.position >= 0 else b""

    def check(self, now_ms: int) -> None:
        """Look at the silence of the slave.

        Raises:
            ReplicationError: it lasts longer than haHousekeepingInterval.
        """
        silence = now_ms - self._heard_ms
        if silence > self._settings.housekeeping_ms:
            raise ReplicationError(
                f"it sent nothing for {silence} ms (haHousekeepingInterval is "
                f"{self._settings.housekeeping_ms})"
            )


class Replicated:
    """How far the log is on a slave, any of which is enough.

    Attributes:
        offset: everything below it is on a slave (``push2SlaveMaxOffset``).
    """

    def __init__(self, behind_max: int) -> None:
        """Without slaves. ``behind_max``: haSlaveFallbehindMax."""
        self._behind_max = behind_max
        self._links: set[SlaveLink] = set()
        self.offset = 0

    @property
    def slaves(self) -> int:
        """Slaves that said where they stand."""
        return sum(link.position >= 0 for link in self._links)

    def add(self, link: SlaveLink) -> None:
        """A slave connected."""
        self._links.add(link)

    def remove(self, link: SlaveLink) -> None:
        """It is gone; what it acknowledged stays so."""
        self._links.discard(link)

    def note(self, link: SlaveLink) -> bool:
        """Look at what a slave acknowledged; whether ``offset`` moved."""
        if link.acknowledged <= self.offset:
            return False
        self.offset = link.acknowledged
        return True

    def is_available(self, end_offset: int) -> bool:
        """Whether a record that ends there may wait for a slave (``isSlaveOK``): one is connected
        and not too far behind. False is SLAVE_NOT_AVAILABLE."""
        return self.slaves > 0 and end_offset - self.offset < self._behind_max
