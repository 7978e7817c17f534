"""The messages of one queue that were pulled and are not yet consumed (``ProcessQueue``).

The offset that may be committed is that of the oldest message still here: listeners finish in any
order, and nothing unfinished may be skipped. When nothing is left it is one after the newest
message that was ever here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.message import MessageExt

MIB = 1024 * 1024


class Backlog:
    """Unfinished messages of several queues together."""

    __slots__ = ("body_bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0


class ProcessQueue:
    """Counts, bytes, span and commit offset of one queue's unfinished messages."""

    def __init__(self, backlogs: Sequence[Backlog] = ()) -> None:
        """An empty queue; ``backlogs`` are what its messages are counted in, too."""
        self._backlogs = backlogs
        self._counted = self._counted_bytes = 0
        self._messages: dict[int, MessageExt] = {}
        self._order: deque[int] = deque()
        """Their offsets, sorted; of those that left some may still be here."""
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
        first = self.first_offset
        return None if first is None else self._messages[first]

    @property
    def first_offset(self) -> int | None:
        """Offset of the oldest unfinished message."""
        order, cached = self._order, self._messages
        while order and order[0] not in cached:
            order.popleft()
        return order[0] if order else None

    @property
    def last_offset(self) -> int | None:
        """Offset of the newest unfinished message."""
        order, cached = self._order, self._messages
        while order and order[-1] not in cached:
            order.pop()
        return order[-1] if order else None

    @property
    def span(self) -> int:
        """Distance in offsets between the oldest and the newest unfinished message."""
        first, last = self.first_offset, self.last_offset
        return 0 if first is None or last is None else last - first

    def put(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Take pulled messages; those that were not here before are given back."""
        offsets = [message.queue_offset for message in messages]
        if not offsets:
            return messages
        last = self.last_offset
        follows = (last is None or offsets[0] > last) and all(map(lt, offsets, offsets[1:]))
        if not follows:
            return self._put_anywhere(messages)
        # As brokers answer; all others are rare.
        self._messages.update(zip(offsets, messages, strict=True))
        self._order.extend(offsets)
        self._newest_offset = max(self._newest_offset, offsets[-1])
        self.message_bytes += sum([len(message.body) for message in messages])
        self._count()
        return messages

    def _put_anywhere(self, messages: list[MessageExt]) -> list[MessageExt]:
        cached = self._messages
        added: list[MessageExt] = []
        for message in messages:
            offset = message.queue_offset
            if offset not in cached:
                cached[offset] = message
                added.append(message)
                self.message_bytes += len(message.body)
                self._newest_offset = max(self._newest_offset, offset)
        self._order = deque(sorted(cached))
        self._count()
        return added

    def oldest(self, count: int) -> list[MessageExt]:
        """The oldest unfinished messages, at most so many."""
        cached = self._messages
        return list(islice((cached[each] for each in self._order if each in cached), count))

    def _count(self) -> None:
        """Tell the backlogs what there is now."""
        messages = len(self._messages) - self._counted
        body_bytes = self.message_bytes - self._counted_bytes
        for backlog in self._backlogs:
            backlog.messages += messages
            backlog.body_bytes += body_bytes
        self._counted += messages
        self._counted_bytes += body_bytes

    def remove(self, messages: Iterable[MessageExt]) -> int:
        """Finished messages leave; the offset to commit, or -1 when nothing was here."""
        cached = self._messages
        if not cached:
            return -1
        pop = cached.pop
        gone = [pop(message.queue_offset, None) for message in messages]
        self.message_bytes -= sum([len(each.body) for each in gone if each is not None])
        first = self.first_offset
        if first is None:
            # Whatever listeners did to bodies meanwhile, nothing is left of them.
            self.message_bytes = 0
            first = self._newest_offset + 1
        self._count()
        return first

    def drop(self) -> None:
        """The queue is no longer ours: forget its messages."""
        self.is_dropped = True
        self._messages.clear()
        self._order.clear()
        self.message_bytes = 0
        self._count()

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
