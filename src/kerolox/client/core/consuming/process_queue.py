"""The messages of one queue that were pulled and are not yet consumed (``ProcessQueue``).

The offset that may be committed is that of the oldest message still here: listeners finish in any
order, and nothing unfinished may be skipped. When nothing is left it is one after the newest
message that was ever here.

Most messages come and leave with all others of their pull. So a pull stays as it came, as a row,
until one of its messages leaves without the others. From then on each of them counts by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kerolox.codec.pulling import Pulled, pulled_of

if TYPE_CHECKING:
    from kerolox.message import MessageExt

MIB = 1024 * 1024


class Backlog:
    """Unfinished messages of several queues together."""

    __slots__ = ("body_bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0


class _Row:
    """The messages of one pull, none of which has left."""

    __slots__ = ("body_bytes", "first", "last", "messages")

    def __init__(self, pulled: Pulled) -> None:
        self.messages = pulled.messages
        self.body_bytes = pulled.body_bytes
        self.first = pulled.messages[0].queue_offset
        self.last = pulled.messages[-1].queue_offset


class ProcessQueue:
    """Counts, bytes, span and commit offset of one queue's unfinished messages."""

    def __init__(self, backlogs: Sequence[Backlog] = ()) -> None:
        """An empty queue; ``backlogs`` are what its messages are counted in, too."""
        self._backlogs = backlogs
        self._singles: dict[int, MessageExt] = {}
        """Messages that count by themselves, all of them before the rows."""
        self._order: deque[int] = deque()
        """Their offsets, sorted; of those that left some may still be here."""
        self._rows: deque[_Row] = deque()
        """Whole pulls, sorted; none overlaps another."""
        self._count = 0
        self._newest_offset = -1
        self.message_bytes = 0
        """Bytes of the bodies, as they came."""
        self.is_dropped = False
        """The queue is no longer ours; what finishes now is not committed."""
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        """When a message was given to a listener last, or the queue was taken."""

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> MessageExt | None:
        """The oldest unfinished message."""
        first = self._first_single()
        if first is not None:
            return self._singles[first]
        return self._rows[0].messages[0] if self._rows else None

    @property
    def first_offset(self) -> int | None:
        """Offset of the oldest unfinished message."""
        first = self._first_single() if self._order else None
        if first is None and self._rows:
            return self._rows[0].first
        return first

    @property
    def last_offset(self) -> int | None:
        """Offset of the newest unfinished message."""
        if self._rows:
            return self._rows[-1].last
        order, singles = self._order, self._singles
        while order and order[-1] not in singles:
            order.pop()
        return order[-1] if order else None

    @property
    def span(self) -> int:
        """Distance in offsets between the oldest and the newest unfinished message."""
        first, last = self.first_offset, self.last_offset
        return 0 if first is None or last is None else last - first

    def _first_single(self) -> int | None:
        order, singles = self._order, self._singles
        while order and order[0] not in singles:
            order.popleft()
        return order[0] if order else None

    def put(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Take pulled messages; those that were not here before are given back."""
        return self.put_pulled(pulled_of(messages))

    def put_pulled(self, pulled: Pulled) -> list[MessageExt]:
        """As :meth:`put`. The list of the messages is not to be changed any more."""
        messages = pulled.messages
        if not messages:
            return messages
        last = self.last_offset
        if not pulled.ascends or (last is not None and messages[0].queue_offset <= last):
            return self._put_anywhere(messages)
        # As brokers answer; all others are rare.
        row = _Row(pulled)
        self._rows.append(row)
        self._newest_offset = max(self._newest_offset, row.last)
        self._note(len(messages), row.body_bytes)
        return messages

    def _put_anywhere(self, messages: list[MessageExt]) -> list[MessageExt]:
        if self._rows:
            self._break_rows(self._rows[-1].first)
        singles = self._singles
        added: list[MessageExt] = []
        for message in messages:
            offset = message.queue_offset
            if offset not in singles:
                singles[offset] = message
                added.append(message)
                self._newest_offset = max(self._newest_offset, offset)
        self._order = deque(sorted(singles))
        self._note(len(added), sum([len(message.body) for message in added]))
        return added

    def oldest(self, count: int) -> list[MessageExt]:
        """The oldest unfinished messages, at most so many."""
        singles = self._singles
        found = list(islice((singles[each] for each in self._order if each in singles), count))
        for row in self._rows:
            if len(found) >= count:
                break
            found += row.messages[: count - len(found)]
        return found

    def remove(self, messages: Sequence[MessageExt]) -> int:
        """Finished messages leave; the offset to commit, or -1 when nothing was here."""
        if not self._count:
            return -1
        at, rows = 0, self._rows
        while at < len(messages) and rows and _is_row(rows[0], messages, at):
            row = rows.popleft()
            at += len(row.messages)
            self._note(-len(row.messages), -row.body_bytes)
        left = len(messages) - at
        if left == 1:
            self._remove_single(messages[at])
        elif left:
            self._remove_singles(messages[at:] if at else messages)
        first = self.first_offset
        if first is None:
            # Whatever listeners did to bodies meanwhile, nothing is left of them.
            self._note(0, -self.message_bytes)
            return self._newest_offset + 1
        return first

    def _remove_single(self, message: MessageExt) -> None:
        """As :meth:`_remove_singles`; most who settle messages themselves do so one by one."""
        offset, rows = message.queue_offset, self._rows
        if rows and rows[0].first <= offset:
            self._break_rows(offset)
        gone = self._singles.pop(offset, None)
        if gone is not None:
            self._note(-1, -len(gone.body))

    def _remove_singles(self, messages: Sequence[MessageExt]) -> None:
        self._break_rows(max([message.queue_offset for message in messages]))
        pop = self._singles.pop
        gone = [pop(message.queue_offset, None) for message in messages]
        left = [message for message in gone if message is not None]
        self._note(-len(left), -sum([len(message.body) for message in left]))

    def _break_rows(self, offset: int) -> None:
        """Have the messages of all rows that begin up to an offset count by themselves."""
        rows = self._rows
        while rows and rows[0].first <= offset:
            row = rows.popleft()
            offsets = [message.queue_offset for message in row.messages]
            self._singles.update(zip(offsets, row.messages, strict=True))
            self._order.extend(offsets)

    def _note(self, messages: int, body_bytes: int) -> None:
        """So many more are here now."""
        self._count += messages
        self.message_bytes += body_bytes
        for backlog in self._backlogs:
            backlog.messages += messages
            backlog.body_bytes += body_bytes

    def drop(self) -> None:
        """The queue is no longer ours: forget its messages."""
        self.is_dropped = True
        self._singles.clear()
        self._order.clear()
        self._rows.clear()
        self._note(-self._count, -self.message_bytes)

    def flow_limit(self, *, count_max: int, mib_max: int, span_max: int) -> str | None:
        """Why no more may be pulled now; None when more may."""
        if self._count > count_max:
            return f"{self._count} messages are cached; the limit is {count_max}"
        # RocketMQ compares whole MiB, so the limit is passed only by a whole one more.
        if self.message_bytes // MIB > mib_max:
            return f"{self.message_bytes} bytes are cached; the limit is {mib_max} MiB"
        span = self.span
        if span > span_max:
            return f"cached offsets span {span}; the limit is {span_max}"
        return None


class PopQueue(ProcessQueue):
    """Counts what was popped and is not yet consumed. It comes from any queue in any order, and has
    no offset to commit."""

    def put_pulled(self, pulled: Pulled) -> list[MessageExt]:
        """Take popped messages."""
        self._note(len(pulled.messages), pulled.body_bytes)
        return pulled.messages

    def remove(self, messages: Sequence[MessageExt]) -> int:
        """Messages are settled; -1."""
        if not self.is_dropped:
            self._note(-len(messages), -sum([len(message.body) for message in messages]))
            if not self._count:
                # Whatever listeners did to bodies meanwhile, nothing is left of them.
                self._note(0, -self.message_bytes)
        return -1


def _is_row(row: _Row, messages: Sequence[MessageExt], at: int) -> bool:
    """The messages from ``at`` on begin with those of the row."""
    own, end = row.messages, at + len(row.messages)
    return (
        end <= len(messages)
        # The same objects, before all are compared: of others many parts would have to be made.
        and messages[at] is own[0]
        and messages[end - 1] is own[-1]
        and messages[at:end] == own
    )
