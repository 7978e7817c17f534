"""The queues of a lite pull consumer, decided without I/O: where each is pulled next, what ``poll``
returns, and how far it counts as consumed (``AssignedMessageQueue`` and ``ConsumeRequest``).

A queue has three offsets: pulled up to ``next_offset``, returned to the user up to ``position``,
done with up to ``consumed``. What was returned counts as consumed when the user comes back for
more, or says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.flow import FlowControl, FlowLimits
from kerolox.client.core.consuming.process_queue import MIB, ProcessQueue
from kerolox.client.core.consuming.pull import PullResult, PullStatus, from_the_start

if TYPE_CHECKING:
    from kerolox.message import MessageExt, MessageQueue

UNKNOWN = -1
"""An offset that nobody has told yet."""


class Wait(Enum):
    """Why a queue is not pulled now."""

    DROPPED = "it is no longer ours"
    PAUSED = "it is paused"
    START_UNKNOWN = "nobody knows yet where it starts"
    CAPACITY = "enough of it is cached"
    TOTAL_CAPACITY = "enough of all queues is cached"


@dataclass(slots=True)
class _Batch:
    """What one pull found, as far as it was not returned."""

    messages: deque[MessageExt]
    end: int
    """Where the next pull went on: what lies between was not wanted."""


@dataclass(slots=True, eq=False)
class LiteQueue:
    """A queue that we own."""

    queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int = UNKNOWN
    position: int = UNKNOWN
    consumed: int = UNKNOWN
    noted: int = UNKNOWN
    """What of it is committed, or about to be."""
    epoch: int = 0
    """Counts the seeks: what was asked before one means nothing after it."""
    broker_id: int = 0
    """The node to pull from, as the broker suggested."""
    was_gone: bool = False
    """The broker said that there is no such topic, since the last other answer."""
    is_paused: bool = False
    is_withheld: bool = False
    """About to be given up: nothing of it is returned any more."""
    batches: deque[_Batch] = field(default_factory=deque)
    is_ready: bool = False
    """It stands among those that ``take`` examines."""

    @property
    def is_dropped(self) -> bool:
        """It is no longer ours."""
        return self.process_queue.is_dropped


class LitePull:
    """All queues of one consumer."""

    def __init__(self, limits: FlowLimits, wake: Callable[[LiteQueue], None]) -> None:
        """No queue yet. ``limits``: when pulling pauses. ``wake`` is called for a queue that may be
        pulled again after a :class:`Wait`.
        """
        self.queues: dict[MessageQueue, LiteQueue] = {}
        self._flow = FlowControl(limits)
        self._enough = limits.all_count * 3 // 4, limits.all_mib * MIB * 3 // 4
        """When no more than so much is cached in all there is capacity to share."""
        self._wake = wake
        self._ready: deque[LiteQueue] = deque()
        self._returned: set[LiteQueue] = set()
        """Those of which something was returned and does not count as consumed yet."""
        self._waiting: set[LiteQueue] = set()
        """Those that wait for capacity in all."""

    @property
    def message_count(self) -> int:
        """Messages that are cached, of all queues."""
        return self._flow.everything.messages

    # -- assignment -----------------------------------------------------------------------------
    def assign(self, queue: MessageQueue) -> LiteQueue:
        """A queue is ours from now on."""
        item = self.queues.get(queue)
        if item is None:
            item = LiteQueue(queue, self._flow.process_queue(queue.topic))
            self.queues[queue] = item
        return item

    def withhold(self, queues: Iterable[MessageQueue]) -> None:
        """Return nothing of these any more; they are about to be given up."""
        for item in self._ours(queues):
            item.is_withheld = True

    def keep(self, queues: Iterable[MessageQueue]) -> list[LiteQueue]:
        """These are ours after all; those of them that were withheld."""
        kept = [item for item in self._ours(queues) if item.is_withheld]
        for item in kept:
            item.is_withheld = False
            self._make_ready(item)
        return kept

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """These are ours no longer: what is cached of them is forgotten."""
        for item in self._ours(queues):
            self._forget_cached(item)
            item.process_queue.drop()
            self._returned.discard(item)
            self._waiting.discard(item)
            del self.queues[item.queue]
            self._wake(item)
        self._wake_if_capacity()

    def _ours(self, queues: Iterable[MessageQueue]) -> list[LiteQueue]:
        return [self.queues[queue] for queue in queues if queue in self.queues]

    # -- pulling --------------------------------------------------------------------------------
    def next_pull(self, item: LiteQueue) -> int | Wait:
        """The offset to pull a queue from, or why not now."""
        if item.is_dropped or item.is_withheld:
            return Wait.DROPPED
        if item.is_paused:
            return Wait.PAUSED
        if item.next_offset == UNKNOWN:
            return Wait.START_UNKNOWN
        hold = self._flow.hold(item.queue.topic, item.process_queue)
        if hold is None:
            return item.next_offset
        if hold.is_own:
            return Wait.CAPACITY
        self._waiting.add(item)
        return Wait.TOTAL_CAPACITY

    def located(self, item: LiteQueue, epoch: int, offset: int, *, is_stored: bool) -> None:
        """Where a queue starts, unless it was sought since it had this epoch, when that was asked.
        ``is_stored``: it is the group's committed offset.
        """
        if item.epoch != epoch or item.is_dropped:
            return
        item.next_offset = item.position = item.consumed = offset
        item.noted = offset if is_stored else UNKNOWN

    def pulled(self, item: LiteQueue, epoch: int, result: PullResult) -> bool:
        """A pull was answered; False when nobody waits for the answer any more."""
        if item.epoch != epoch or item.is_dropped:
            return False
        if item.was_gone:
            result = from_the_start(result, item.next_offset)
            item.was_gone = False
        item.next_offset = result.next_offset
        item.broker_id = result.suggested_broker_id
        fresh = item.process_queue.put(result.messages) if result.messages else []
        if fresh:
            item.batches.append(_Batch(deque(fresh), result.next_offset))
            self._make_ready(item)
        elif item.batches:
            item.batches[-1].end = result.next_offset
        else:
            self._skip_to(item, result)
        return True

    def _skip_to(self, item: LiteQueue, result: PullResult) -> None:
        """There was nothing for the user up to where the next pull goes on."""
        offset = result.next_offset
        is_done = item.consumed == item.position
        # An offset beyond the queue's end must not stay the committed one.
        went_back = result.status is PullStatus.OFFSET_ILLEGAL and offset < item.consumed
        if is_done or went_back:
            item.consumed = offset
        item.position = offset

    # -- poll -----------------------------------------------------------------------------------
    def take(self, most: int | None = None) -> tuple[MessageQueue, list[MessageExt]] | None:
        """Messages for the user, ``most`` at most, all of one queue and one pull; queues take
        turns.
        """
        for _ in range(len(self._ready)):
            item = self._ready.popleft()
            item.is_ready = False
            if item.batches and not item.is_paused and not item.is_withheld:
                messages = self._take_of(item, most)
                self._make_ready(item)
                return item.queue, messages
        return None

    @property
    def ready_count(self) -> int:
        """Messages that are there for the user, of all queues."""
        return sum(
            len(item.process_queue)
            for item in self._ready
            if not item.is_paused and not item.is_withheld
        )

    def take_many(self, most: int) -> dict[MessageQueue, list[MessageExt]]:
        """At most so many messages for the user, by queue, those of each in order."""
        found: dict[MessageQueue, list[MessageExt]] = {}
        while most and (taken := self.take(most)) is not None:
            queue, messages = taken
            found.setdefault(queue, []).extend(messages)
            most -= len(messages)
        return found

    def _take_of(self, item: LiteQueue, most: int | None) -> list[MessageExt]:
        batch = item.batches[0]
        if most is None or most >= len(batch.messages):
            item.batches.popleft()
            messages = list(batch.messages)
            item.position = batch.end
        else:
            messages = [batch.messages.popleft() for _ in range(most)]
            item.position = messages[-1].queue_offset + 1
        item.process_queue.remove(messages)
        self._returned.add(item)
        self._wake(item)
        self._wake_if_capacity()
        return messages

    def count_returned(self) -> None:
        """The user comes back: what was returned counts as consumed."""
        for item in self._returned:
            item.consumed = item.position
        self._returned.clear()

    # -- what users change ------------------------------------------------------------------------
    def seek(self, queue: MessageQueue, offset: int) -> LiteQueue:
        """Go on at another offset; what is cached and on its way is forgotten. KeyError: the queue
        is not ours.
        """
        item = self.queues[queue]
        self._forget_cached(item)
        item.epoch += 1
        item.next_offset = item.position = item.consumed = offset
        item.noted = UNKNOWN
        self._returned.discard(item)
        self._wake(item)
        self._wake_if_capacity()
        return item

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pull these nor return what is cached of them; those of others are ignored."""
        for item in self._ours(queues):
            item.is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """The end of :meth:`pause`."""
        for item in self._ours(queues):
            if item.is_paused:
                item.is_paused = False
                self._make_ready(item)
                self._wake(item)

    # -- commits --------------------------------------------------------------------------------
    def to_commit(self, queues: Collection[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """How far queues count as consumed, of those where that is not committed yet."""
        wanted = self.queues.values() if queues is None else self._ours(queues)
        changed = [item for item in wanted if item.consumed not in (UNKNOWN, item.noted)]
        for item in changed:
            item.noted = item.consumed
        return {item.queue: item.consumed for item in changed}

    def commit_returned(self, queues: Collection[MessageQueue] | None) -> dict[MessageQueue, int]:
        """The user is done with all that was returned of some queues, or of all; what to commit."""
        wanted = self.queues.values() if queues is None else self._ours(queues)
        offsets = {item.queue: item.position for item in wanted if item.position != UNKNOWN}
        self.commit(offsets)
        return offsets

    def commit(self, offsets: dict[MessageQueue, int]) -> None:
        """The user is done with queues up to offsets of its own choice."""
        for item in self._ours(offsets):
            item.consumed = item.noted = offsets[item.queue]

    # -- within -----------------------------------------------------------------------------------
    def _make_ready(self, item: LiteQueue) -> None:
        if item.batches and not item.is_ready:
            item.is_ready = True
            self._ready.append(item)

    def _forget_cached(self, item: LiteQueue) -> None:
        cached = [message for batch in item.batches for message in batch.messages]
        item.batches.clear()
        item.process_queue.remove(cached)
        if item.is_ready:
            item.is_ready = False
            self._ready.remove(item)

    def _wake_if_capacity(self) -> None:
        """Those that wait for capacity in all go on together, when there is some to share."""
        everything, (messages, body_bytes) = self._flow.everything, self._enough
        if (
            self._waiting
            and (messages < 0 or everything.messages <= messages)
            and (body_bytes < 0 or everything.body_bytes <= body_bytes)
        ):
            waiting, self._waiting = self._waiting, set()
            for item in waiting:
                self._wake(item)
