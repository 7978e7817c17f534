"""Pops and notifications that wait (``PopLongPollingService``).

A pop of all queues waits for a topic. The kernel is asked once for each queue that somebody waits
for, however many do. When something comes, those who wait try again in the order of their age, for
each group until one finds nothing: then there is nothing for the others either.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.tables.topics import TopicTable
from kerolox.kernel.held_pulls import HELD_OF_CONNECTION_MAX

WATCH_MS = 3_600_000
"""How long a queue is watched before it is watched anew."""

POLL_MS_MAX = 24 * 3_600_000
"""Longest time that a pop may wait."""

SLICE_SECONDS_MAX = 0.002
"""How long those who wait try again before others get their turn."""

ALL_QUEUES = -1

_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    """What a group waits for."""

    topic: str
    group: str


@dataclass(slots=True, eq=False)
class HeldPop:
    """A pop or a notification that waits."""

    topic: str
    group: str
    queue_id: int
    connection_id: int
    try_again: Callable[[], bool]
    """Whether it is answered."""
    give_up: Callable[[], None]
    """Answers that its time is over."""
    deadline_ms: int = 0
    """By the steady clock."""
    sequence: int = 0
    is_held: bool = False

    @property
    def place(self) -> _Place:
        """Whose it is."""
        return _Place(self.topic, self.group)

    def __lt__(self, other: HeldPop) -> bool:
        return (self.deadline_ms, self.sequence) < (other.deadline_ms, other.sequence)


class _Round(NamedTuple):
    """Some who try again."""

    place: _Place
    is_for_all: bool
    """Each of them; else until one finds nothing."""
    pops: deque[HeldPop] | None = None
    """Those left; None: all who wait when it begins."""


class HeldPops:
    """All that wait at one broker."""

    def __init__(self, base: Base, topics: TopicTable, arrivals: Arrivals) -> None:
        """Nobody waits."""
        self._base = base
        self._topics = topics
        self._arrivals = arrivals
        self._held: dict[_Place, dict[int, HeldPop]] = {}
        self._groups: dict[str, set[str]] = {}
        """The groups that wait for a topic."""
        self._by_queue: Counter[tuple[str, str, int]] = Counter()
        self._by_connection: dict[int, set[HeldPop]] = {}
        self._ends: list[HeldPop] = []
        self._watches: dict[tuple[str, int], int] = {}
        self._starved: set[_Place] = set()
        self._free_at: list[tuple[int, _Place]] = []
        self._next_free: dict[_Place, int] = {}
        self._rounds: deque[_Round] = deque()
        self._is_running = False
        self._count = 0
        self._sequence = 0
        base.role.subscribe(lambda old, new: self.wake_where(lambda topic, group: True))

    def __len__(self) -> int:
        return self._count

    @property
    def is_starved(self) -> bool:
        """Somebody waits until something that is out is done."""
        return bool(self._starved)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Those of a group that wait for a queue, or with -1 for all queues (``pollingNum``)."""
        return self._by_queue[topic, group, queue_id]

    def waits(self, topic: str, group: str) -> bool:
        """Whether somebody of a group waits for messages of a topic."""
        return _Place(topic, group) in self._held

    # -- waiting --------------------------------------------------------------------------------
    def hold(
        self, pop: HeldPop, wait_ms: int, *, is_starved: bool = False, free_at: int | None = None
    ) -> bool:
        """Let a pop wait that found nothing, for so long at most. False: too many do
        (POLLING_FULL). ``is_starved``: it may get something when something that is out is done.
        ``free_at``: by the steady clock, when a blocked queue is free.
        """
        config = self._base.config
        key = pop.topic, pop.group, pop.queue_id
        if (
            self._count >= config.max_pop_polling_size
            or self._by_queue[key] >= config.pop_polling_size
            or len(self._by_connection.get(pop.connection_id, ())) >= HELD_OF_CONNECTION_MAX
            or not self._arrivals.may_hold
            or not self._watch(pop.topic, pop.queue_id)
        ):
            return False
        self._sequence += 1
        pop.sequence, pop.is_held = self._sequence, True
        pop.deadline_ms = self._base.steady_ms() + min(wait_ms, POLL_MS_MAX)
        self._held.setdefault(pop.place, {})[pop.sequence] = pop
        self._groups.setdefault(pop.topic, set()).add(pop.group)
        self._by_queue[key] += 1
        self._by_connection.setdefault(pop.connection_id, set()).add(pop)
        self._count += 1
        heapq.heappush(self._ends, pop)
        if len(self._ends) > 2 * self._count + HELD_OF_CONNECTION_MAX:
            self._ends = sorted(each for each in self._ends if each.is_held)
        self.note(pop.place, is_starved=is_starved, free_at=free_at)
        return True

    def note(self, place: tuple[str, str], *, is_starved: bool, free_at: int | None) -> None:
        """What else may let a group (topic, group) find something; see :meth:`hold`."""
        at = _Place(*place)
        if is_starved:
            self._starved.add(at)
        if free_at is not None and free_at < self._next_free.get(at, free_at + 1):
            self._next_free[at] = free_at
            heapq.heappush(self._free_at, (free_at, at))

    def _remove(self, pop: HeldPop) -> None:
        pop.is_held = False
        self._count -= 1
        self._by_queue[pop.topic, pop.group, pop.queue_id] -= 1
        if not self._by_queue[pop.topic, pop.group, pop.queue_id]:
            del self._by_queue[pop.topic, pop.group, pop.queue_id]
        own = self._by_connection[pop.connection_id]
        own.discard(pop)
        if not own:
            del self._by_connection[pop.connection_id]
        held = self._held[pop.place]
        del held[pop.sequence]
        if held:
            return
        del self._held[pop.place]
        self._starved.discard(pop.place)
        self._next_free.pop(pop.place, None)
        groups = self._groups[pop.topic]
        groups.discard(pop.group)
        if not groups:
            del self._groups[pop.topic]
            for key in [each for each in self._watches if each[0] == pop.topic]:
                self._arrivals.unwatch(self._watches.pop(key))

    def connection_closed(self, connection_id: int) -> None:
        """Forget those of a connection."""
        for pop in list(self._by_connection.get(connection_id, ())):
            self._remove(pop)

    # -- arrivals -------------------------------------------------------------------------------
    def _watch(self, topic: str, queue_id: int) -> bool:
        """Have the queues watched that a pop waits for. False: too many are."""
        known = self._topics.get(topic)
        count = 0 if known is None else known.read_queue_nums
        wanted = range(count) if queue_id == ALL_QUEUES else (queue_id,)
        return all(self._watch_queue(topic, each) for each in wanted)

    def _watch_queue(self, topic: str, queue_id: int) -> bool:
        key = topic, queue_id
        if key in self._watches:
            return True
        end = self._base.store.queue_bounds(topic, queue_id)[1]
        deadline_ms = self._base.now_ms() + WATCH_MS
        watch = self._arrivals.watch(
            topic, queue_id, end, deadline_ms, lambda: self._arrived(topic, queue_id, end)
        )
        if watch is None:
            return False
        self._watches[key] = watch
        return True

    def _arrived(self, topic: str, queue_id: int, offset: int) -> None:
        """A queue has a message, or all have to be checked again: accounts or topics changed."""
        del self._watches[topic, queue_id]
        is_for_all = self._base.store.queue_bounds(topic, queue_id)[1] <= offset
        for group in self._groups.get(topic, ()):
            self._start(_Round(_Place(topic, group), is_for_all))

    # -- trying again ---------------------------------------------------------------------------
    def wake(self, topic: str, group: str, *, is_for_all: bool = False) -> None:
        """Those of a group try again, until one finds nothing; ``is_for_all``: each."""
        place = _Place(topic, group)
        if place in self._held:
            self._start(_Round(place, is_for_all))

    def wake_starved(self, topic: str, group: str) -> None:
        """Something that was out for a group is done, or free."""
        place = _Place(topic, group)
        if place in self._starved:
            self._starved.discard(place)
            self._start(_Round(place, False))

    def wake_where(self, is_meant: Callable[[str, str], bool]) -> None:
        """All of some topics and groups try again: what they may have changed."""
        for place in self._held:
            if is_meant(*place):
                self._start(_Round(place, True))

    def tick(self) -> None:
        """Answer those whose time is over; let those try again whose queues are free. Called every
        100 ms."""
        now = self._base.steady_ms()
        while self._free_at and self._free_at[0][0] <= now:
            at, place = heapq.heappop(self._free_at)
            if self._next_free.get(place) == at:
                del self._next_free[place]
                self._start(_Round(place, False))
        while self._ends and (not self._ends[0].is_held or self._ends[0].deadline_ms <= now):
            pop = heapq.heappop(self._ends)
            if pop.is_held:
                self._remove(pop)
                pop.give_up()

    def stop(self) -> None:
        """Answer all, as if their time were over."""
        for pop in self._ends:
            if pop.is_held:
                self._remove(pop)
                pop.give_up()
        self._ends.clear()

    def _start(self, round_: _Round) -> None:
        self._rounds.append(round_)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        end = time.monotonic() + SLICE_SECONDS_MAX
        while self._rounds and time.monotonic() < end:
            place, is_for_all, pops = self._rounds.popleft()
            if pops is None:
                pops = deque(self._held.get(place, {}).values())
            is_over = False
            while pops and not is_over and time.monotonic() < end:
                pop = pops.popleft()
                is_over = pop.is_held and not self._tried(pop) and not is_for_all
            if pops and not is_over:
                self._rounds.appendleft(_Round(place, is_for_all, pops))
            elif place in self._held:
                self._watch(place.topic, ALL_QUEUES)
        self._is_running = bool(self._rounds)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._run)

    def _tried(self, pop: HeldPop) -> bool:
        """Whether one that waits is answered now."""
        try:
            is_answered = pop.try_again()
        except Exception:
            _log.exception("a pop of group %s, topic %s failed", pop.group, pop.topic)
            pop.give_up()
            is_answered = True
        if is_answered and pop.is_held:
            self._remove(pop)
        return is_answered
