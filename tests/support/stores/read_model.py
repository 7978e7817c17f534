"""``getMessage`` written down plainly: what a read of a queue gives, on damaged stores too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kerolox.kernel.status import GetMessageStatus as Status

__all__ = ["LIMITS", "LOG_FILE", "PRE_BLANK", "QUEUE_FILE", "QueueReads"]

LOG_FILE, QUEUE_FILE = 16 * 1024, 20 * 60
PRE_BLANK = (0, 0x7FFFFFFF, 0)
LIMITS = {
    "max_transfer_bytes_on_message_in_memory": 3_000,
    "max_transfer_count_on_message_in_memory": 12,
    "max_transfer_bytes_on_message_in_disk": 1_500,
    "max_transfer_count_on_message_in_disk": 5,
}


@dataclass
class QueueReads:
    """One queue and the log as they are on disk, and what a read of them gives."""

    log: bytes
    log_min: int
    log_max: int
    minimum: int
    in_memory: bool
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    lost_files: set[int] = field(default_factory=set)
    behind: int = -1

    def record(self, offset: int, size: int) -> bytes | None:
        """``CommitLog.getMessage``."""
        if size <= 0 or offset < self.log_min or offset + size > self.log_max:
            return None
        return self.log[offset : offset + size]

    def is_far(self, position: int) -> bool:
        """``checkInDiskByCommitOffset``; without memory everything in the log is on disk."""
        return not self.in_memory and position < self.log_max

    def is_full(self, position: int, size: int, wanted: int, held: int, count: int) -> bool:
        """``isTheBatchFull``."""
        where = "in_disk" if self.is_far(position) else "in_memory"
        if not held or not count:
            return False
        return (
            wanted <= count
            or held + size > LIMITS[f"max_transfer_bytes_on_message_{where}"]
            or count >= LIMITS[f"max_transfer_count_on_message_{where}"]
        )

    def read(self, offset: int, wanted: int, codes: set[int] | None) -> tuple[Any, ...]:
        """``getMessage``: the members of ``kernel.Read``."""
        low, high = self.minimum, len(self.entries)
        self.behind = -1
        nothing = (low, high, False, 0, b"")
        per_file = QUEUE_FILE // 20
        if high == 0:
            return (Status.NO_MESSAGE_IN_QUEUE, 0, *nothing)
        if offset < low:
            return (Status.OFFSET_TOO_SMALL, low, *nothing)
        if offset >= high:
            status = Status.OFFSET_OVERFLOW_ONE if offset == high else Status.OFFSET_OVERFLOW_BADLY
            return (status, high, *nothing)
        next_file = offset + per_file - offset % per_file
        if offset // per_file in self.lost_files:
            return (Status.OFFSET_FOUND_NULL, next_file, *nothing)
        status = Status.NO_MATCHED_MESSAGE
        found: list[bytes] = []
        skip_before = None
        looked_at = 0
        for at in range(offset, min(next_file, high, offset + max(16_000 // 20, wanted))):
            position, size, code = self.entries[at]
            self.behind = self.log_max - position
            if skip_before is not None and position < skip_before:
                looked_at += 1
                continue
            if self.is_full(position, size, wanted, sum(map(len, found)), len(found)):
                break
            looked_at += 1
            if codes is not None and code not in codes:
                status = status if found else Status.NO_MATCHED_MESSAGE
                continue
            record = self.record(position, size)
            if record is None:
                status = status if found else Status.MESSAGE_WAS_REMOVING
                # Unlike in RocketMQ a filler says nothing of the file that it seems to point to.
                if (position, size) != PRE_BLANK[:2] and position < self.log_max:
                    skip_before = position + LOG_FILE - position % LOG_FILE
                continue
            found.append(record)
            status = Status.FOUND
            skip_before = None
        return (
            status,
            offset + looked_at,
            low,
            high,
            self.is_far(position),
            len(found),
            b"".join(found),
        )
