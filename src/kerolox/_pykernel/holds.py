"""Held pulls (long polling): who waits for which queue, and until when.

Plain data: it knows neither sockets nor files and reads no clock. A pull is held under its
(topic, queue id); new records wake those whose tags they match. Woken and expired pulls leave the
table; the caller reads again and puts back whoever found nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kerolox.kernel.held_pulls import (
    ARRIVED_AT_ONCE_MAX,
    HELD_CODES_MAX,
    HELD_OF_CONNECTION_MAX,
    HELD_PULLS_MAX,
    OFFSET_WAITS_MAX,
)


class Wait(NamedTuple):
    """One wait."""

    group: str
    key: QueueKey
    offset: int
    deadline_ms: int


class OffsetWaits:
    """All waits of a store for an offset of a queue. A wait has a number and no answer."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self.queues: dict[QueueKey, list[int]] = {}
        self.over: deque[int] = deque()
        """Those that are over and were not told."""
        self._own = 0
        """How many of ``_waits`` are of no group: the broker's own."""

    def __len__(self) -> int:
        return len(self._waits) + len(self.over)

    @property
    def of_groups(self) -> int:
        """How many wait, without the broker's own."""
        return len(self) - self._own

    def add(self, wait_id: int, wait: Wait, end: int) -> bool:
        """Add a wait, over at once when its offset is below ``end``. False: there are too many."""
        if len(self) >= OFFSET_WAITS_MAX:
            return False
        if wait.offset < end:
            self.over.append(wait_id)
        else:
            self._waits[wait_id] = wait
            self._own += not wait.group
            self.queues.setdefault(wait.key, []).append(wait_id)
        return True

    def cancel(self, wait_id: int) -> None:
        """Forget a wait."""
        if wait_id in self.over:
            self.over.remove(wait_id)
        self._remove(wait_id)

    def end_below(self, key: QueueKey, end: int) -> None:
        """End the waits of a queue whose offsets are below its end."""
        for wait_id in list(self.queues.get(key, ())):
            if self._waits[wait_id].offset < end:
                self._end(wait_id)

    def end_where(self, is_over: Callable[[Wait], bool]) -> None:
        """End some waits."""
        for wait_id in [each for each, wait in self._waits.items() if is_over(wait)]:
            self._end(wait_id)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that wait for messages of a topic."""
        return {wait.group for wait in self._waits.values() if wait.key[0] == topic}

    def take(self) -> list[int]:
        """Some of those that are over, in the order of their ends."""
        return [self.over.popleft() for _ in range(min(len(self.over), ARRIVED_AT_ONCE_MAX))]

    def _end(self, wait_id: int) -> None:
        self._remove(wait_id)
        self.over.append(wait_id)

    def _remove(self, wait_id: int) -> None:
        wait = self._waits.pop(wait_id, None)
        if wait is not None:
            self._own -= not wait.group
            ids = self.queues[wait.key]
            ids.remove(wait_id)
            if not ids:
                del self.queues[wait.key]


ENDED_MS = 0
"""The deadline of a pull that was ended before its time."""

_EXPIRY_SLACK = 1_024
"""Entries of pulls that are gone that the expiry heap may hold beyond the living ones."""

QueueKey = tuple[str, int]

_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits. ``tags`` None: any record wakes it."""

    connection_id: int
    serialize_type: int
    opaque: int
    group: str
    key: QueueKey
    offset: int
    max_count: int
    tags: frozenset[int] | None
    deadline_ms: int
    sequence: int = 0
    live: bool = False
    is_waking: bool = False

    def __lt__(self, other: HeldPull) -> bool:
        return (self.deadline_ms, self.sequence) < (other.deadline_ms, other.sequence)


class Ended:
    """Whose held pulls the next tick ends. Until then nothing may wake them, or they would be given
    what their group does not want any more, and passed over what it wants now."""

    def __init__(self) -> None:
        self.everyone = False
        """The accounts changed."""
        self.connections: set[int] = set()
        """Those that a white list had."""
        self.groups: set[str] = set()
        self.topics: set[str] = set()
        """Those that may not be read any more."""
        self.subscriptions: set[tuple[str, str]] = set()
        """Groups and the topics of which they want other tags now."""

    def __bool__(self) -> bool:
        return self.everyone or any(
            (self.connections, self.groups, self.topics, self.subscriptions)
        )

    def has(self, group: str, topic: str, connection_id: int | None = None) -> bool:
        """Whether a pull, or a wait of no connection, has waited long enough."""
        return (
            self.everyone
            or connection_id in self.connections
            or group in self.groups
            or topic in self.topics
            or (group, topic) in self.subscriptions
        )


class HeldPulls:
    """All held pulls of a store."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, dict[int, HeldPull]] = {}
        self._connections: dict[int, dict[int, HeldPull]] = {}
        self._expiry: list[HeldPull] = []
        self._sequence = 0
        self._count = 0
        self._codes = 0

    def __len__(self) -> int:
        return self._count

    def has_capacity_for(self, connection_id: int, tags: frozenset[int] | None) -> bool:
        """Another pull of that connection may be held, with those tags."""
        of_connection = self._connections.get(connection_id, ())
        return (
            self._count < HELD_PULLS_MAX
            and len(of_connection) < HELD_OF_CONNECTION_MAX
            and self._codes + len(tags or ()) <= HELD_CODES_MAX
        )

    def add(self, pull: HeldPull) -> bool:
        """Hold a pull; False when the table is full."""
        if not self.has_capacity_for(pull.connection_id, pull.tags):
            return False
        self._sequence += 1
        pull.sequence = self._sequence
        self._insert(pull)
        heapq.heappush(self._expiry, pull)
        if len(self._expiry) > 2 * self._count + _EXPIRY_SLACK:
            self._expiry = sorted(pull for pull in self._expiry if pull.live)
        return True

    def matching(self, key: QueueKey, codes: Iterable[int]) -> list[HeldPull]:
        """The pulls of a queue that want a record with one of these tags codes, oldest first.

        They stay held until ``remove``.
        """
        held = self.queues.get(key)
        if not held:
            return []
        numbers = {_int32(code) for code in codes}
        return [
            pull for pull in held.values() if pull.tags is None or not pull.tags.isdisjoint(numbers)
        ]

    def expired(self, now_ms: int, count_max: int) -> list[HeldPull]:
        """So many of the pulls whose deadline has come, in order of (deadline, age); they are
        removed."""
        gone: list[HeldPull] = []
        expiry = self._expiry
        while len(gone) < count_max and self.has_expired(now_ms):
            pull = heapq.heappop(expiry)
            self.remove(pull)
            gone.append(pull)
        return gone

    def has_expired(self, now_ms: int) -> bool:
        """Whether the deadline of some pull has come."""
        expiry = self._expiry
        while expiry and not expiry[0].live:
            heapq.heappop(expiry)
        return bool(expiry) and expiry[0].deadline_ms <= now_ms

    def end_where(self, is_over: Callable[[HeldPull], bool], deadline_ms: int = ENDED_MS) -> None:
        """Let the time of some pulls be over, or at another deadline."""
        for pull in self._expiry:
            if pull.live and is_over(pull):
                pull.deadline_ms = deadline_ms
        heapq.heapify(self._expiry)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that wait for messages of a topic."""
        held = self._connections.values()
        return {pull.group for pulls in held for pull in pulls.values() if pull.key[0] == topic}

    def remove(self, pull: HeldPull) -> None:
        """Take out a pull that is held."""
        pull.live = False
        self._count -= 1
        self._codes -= len(pull.tags or ())
        self._discard(self.queues, pull.key, pull)
        self._discard(self._connections, pull.connection_id, pull)

    def remove_connection(self, connection_id: int) -> None:
        """Take out every pull of a connection."""
        for pull in list(self._connections.get(connection_id, {}).values()):
            self.remove(pull)

    def _insert(self, pull: HeldPull) -> None:
        pull.live = True
        self._count += 1
        self._codes += len(pull.tags or ())
        self.queues.setdefault(pull.key, {})[pull.sequence] = pull
        self._connections.setdefault(pull.connection_id, {})[pull.sequence] = pull

    @staticmethod
    def _discard(table: dict[_Key, dict[int, HeldPull]], key: _Key, pull: HeldPull) -> None:
        pulls = table[key]
        del pulls[pull.sequence]
        if not pulls:
            del table[key]


def _int32(code: int) -> int:
    """The low 32 bits as Java's ``Long.intValue`` gives them."""
    return (code + 0x80000000 & 0xFFFFFFFF) - 0x80000000
