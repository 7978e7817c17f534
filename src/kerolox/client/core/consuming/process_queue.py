"""The messages of one queue that were pulled and are not yet consumed (``ProcessQueue``).

The offset that may be committed is that of the oldest message still here: listeners finish in any
order, and nothing unfinished may be skipped. When nothing is left it is one after the newest
message that was ever here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.message import MessageExt

MIB = 1024 * 1024


class ProcessQueue:
    """Counts, bytes, span and commit offset of one queue's unfinished messages."""

    def __init__(self) -> None:
        self._messages: OrderedDict[int, MessageExt] = OrderedDict()
        self._newest_offset = -1
        self.message_bytes = 0
        """Bytes of the bodies."""
        self.is_dropped = False
        """The queue is no longer ours; what finishes now is not committed."""
        self.last_pull_ms = 0
        self.last_consume_ms = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first(self) -> MessageExt | None:
        """The oldest unfinished message."""
        return next(iter(self._messages.values()), None)

    @property
    def first_offset(self) -> int | None:
        """Offset of the oldest unfinished message."""
        return next(iter(self._messages), None)

    @property
    def last_offset(self) -> int | None:
        """Offset of the newest unfinished message."""
        return next(reversed(self._messages), None)

    @property
    def span(self) -> int:
        """Distance in offsets between the oldest and the newest unfinished message."""
        if not self._messages:
            return 0
        return next(reversed(self._messages)) - next(iter(self._messages))

    def put(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Take pulled messages; those that were not here before are given back."""
        cached = self._messages
        added: list[MessageExt] = []
        last = self.last_offset
        in_order = True
        for message in messages:
            offset = message.queue_offset
            if offset in cached:
                continue
            in_order = in_order and (last is None or offset > last)
            last = offset
            cached[offset] = message
            self.message_bytes += len(message.body)
            added.append(message)
            self._newest_offset = max(self._newest_offset, offset)
        if not in_order:
            self._messages = OrderedDict(sorted(cached.items()))
        return added

    def remove(self, messages: Iterable[MessageExt]) -> int:
        """Finished messages leave; the offset to commit, or -1 when nothing was here."""
        cached = self._messages
        if not cached:
            return -1
        for message in messages:
            if cached.pop(message.queue_offset, None) is not None:
                self.message_bytes -= len(message.body)
        if not cached:
            return self._newest_offset + 1
        return next(iter(cached))

    def drop(self) -> None:
        """The queue is no longer ours: forget its messages."""
        self.is_dropped = True
        self._messages.clear()
        self.message_bytes = 0

    def flow_limit(self, *, count_max: int, mib_max: int, span_max: int) -> str | None:
        """Why no more may be pulled now; None when more may."""
        count = len(self._messages)
        if count > count_max:
            return f"{count} messages are cached; the limit is {count_max}"
        # RocketMQ compares whole MiB, so the limit is passed only by a whole one more.
        if self.message_bytes // MIB > mib_max:
            return f"{self.message_bytes} bytes are cached; the limit is {mib_max} MiB"
        span = self.span
        if span > span_max:
            return f"cached offsets span {span}; the limit is {span_max}"
        return None
