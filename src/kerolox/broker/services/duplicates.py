"""Messages that a topic had lately: found by their keys, noted, and read back from the log.

The kernel keeps the keys (:class:`~kerolox.kernel.dedup.DedupKernel`) and examines sends of the
fast path. Here is what the slow path asks, and how a master that starts gets its windows again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.config import BrokerConfig
from kerolox.broker.services.keyed_records import records_of_key
from kerolox.broker.tables.topics import TopicTable
from kerolox.kernel.dedup import NO_RECORD
from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.attributes import DedupRule
from kerolox.protocol.extensions.duplicates import DedupWindow
from kerolox.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from kerolox.protocol.records import decode_record

ENTRIES_PER_SLICE = 2_048
"""Entries of queues that are read before other work of the loop runs."""

WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""Whose messages are for another topic, and count there from when they were sent."""

_REAL_TOPIC = PropertyKey.REAL_TOPIC.encode()
_PREPARED = PropertyKey.TRANSACTION_PREPARED.encode()
_DELETES = PropertyKey.TIMER_DELETES.encode()
_ROLLED = PropertyKey.TIMER_ROLL_TIMES.encode()
_UNIQUE = PropertyKey.UNIQUE_KEY.encode()

_Queue = tuple[str, int]
_Found = tuple[int, bytes, bytes, bytes]
"""Place in the log, key, ``UNIQ_KEY`` of a message that waits, and that of the one that a command
deletes, as it names it; each empty where there is none."""

_log = logging.getLogger(__name__)


class First(NamedTuple):
    """The message that a topic had first with a key."""

    physical_offset: int
    end_offset: int
    """Physical offset behind its record."""
    queue_id: int
    queue_offset: int
    message_id: str
    properties: dict[str, str]


class Duplicates:
    """The windows of one broker.

    Attributes:
        answered: sends that were answered with the place of an earlier message, by topic.
    """

    def __init__(self, base: Base, topics: TopicTable) -> None:
        """Nothing is read before :meth:`rebuild`."""
        self._store = base.store
        self._topics = topics
        self._now_ms = base.now_ms
        self.answered: Counter[str] = Counter()
        self._keys_max = base.config.dedup_max_keys
        self._store.set_dedup_limit(self._keys_max)
        base.settings.subscribe(self._settings_changed)
        topics.on_deleted = lambda topic: self.answered.pop(topic, None)

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        self._keys_max = new.dedup_max_keys
        self._store.set_dedup_limit(self._keys_max)

    def key_of(self, topic: str, properties: dict[str, str]) -> bytes:
        """What a message that is sent to a topic is known by; empty: nothing is looked for."""
        rule = self._topics.dedup_rule(topic)
        if rule is None or PropertyKey.TIMER_DELETES in properties:
            return b""
        name = PropertyKey.KEYS if rule.by_keys else PropertyKey.UNIQUE_KEY
        return properties.get(name, "").encode()

    def find(self, topic: str, key: bytes) -> First | None:
        """The message with a key that the topic had within its window."""
        offset = self._store.find_key(topic, key)
        return None if offset == NO_RECORD else self.first_at(offset)

    def first_at(self, physical_offset: int) -> First | None:
        """The message at a place of the log; None: there is none."""
        data = self._store.lookup(physical_offset)
        if data is None:
            return None
        message, _ = decode_record(data, inflate=False)
        # As its own answer had it.
        queue_id = message.properties.get(PropertyKey.REAL_QUEUE_ID, "")
        return First(
            physical_offset,
            physical_offset + len(data),
            int(queue_id) if queue_id.isdecimal() else message.queue_id,
            message.queue_offset,
            message.offset_message_id,
            message.properties,
        )

    def note(self, topic: str, keys: Sequence[tuple[bytes, int]]) -> None:
        """The records of these keys were just stored at these places of the log."""
        self._store.note_keys(topic, keys)

    def taken_back(self, topic: str, properties: dict[str, str]) -> None:
        """A command to delete a message that waits for its moment was stored: its key is new again.
        Where KEYS count, the command does not say which they were: the message does, which the
        index finds. Without an index (``messageIndexEnable``) the key stays."""
        rule = self._topics.dedup_rule(topic)
        deleted = properties.get(PropertyKey.TIMER_DELETES)
        if rule is None or deleted is None:
            return
        unique_key = _deleted_key(topic, deleted.encode())
        if not rule.by_keys:
            self._store.forget_key(topic, unique_key)
            return
        name = str(unique_key, errors="replace")
        for each in records_of_key(self._store, TIMER_TOPIC, name):
            waiting = decode_properties(str(each.properties, errors="replace"))
            if waiting.get(PropertyKey.REAL_TOPIC) == topic:
                keys = waiting.get(PropertyKey.KEYS, "").encode()
                self._forget_first(topic, keys, each.physical_offset)

    def _forget_first(self, topic: str, key: bytes, physical_offset: int) -> None:
        """Take a key out if its first message is that one."""
        if key and self._store.find_key(topic, key) == physical_offset:
            self._store.forget_key(topic, key)

    def window_of(self, topic: str) -> DedupWindow | None:
        """What there is of a topic's window; None: it has none."""
        if self._topics.dedup_rule(topic) is None:
            return None
        for window in self._store.dedup_windows():
            if window.topic == topic:
                oldest_ms = window.oldest_ms if window.keys else -1
                return DedupWindow(
                    dedup_keys=window.keys,
                    dedup_bytes=window.bytes_taken,
                    dedup_age_ms=0 if oldest_ms < 0 else max(self._now_ms() - oldest_ms, 0),
                    dedup_keys_cut=window.cut,
                    dedup_answered=self.answered[topic],
                )
        return None

    # -- after a start ----------------------------------------------------------------------------
    async def rebuild(self) -> None:
        """Read the keys of all windows from the log again. To be called before anybody is served,
        and when this broker becomes the master."""
        rules = {
            name: rule for name in self._topics.names if (rule := self._topics.dedup_rule(name))
        }
        if not rules:
            return
        queues: dict[str, list[int]] = {}
        for bounds in self._store.queues():
            if bounds.topic in rules or bounds.topic in WAITING_TOPICS:
                queues.setdefault(bounds.topic, []).append(bounds.queue_id)
        for topic, rule in rules.items():
            # What a former time as a master left is older than what is read.
            self._store.set_dedup(topic, 0, rule.by_keys)
            self._store.set_dedup(topic, rule.window_ms, rule.by_keys)
            await self._rebuild(topic, rule, queues)

    async def _rebuild(self, topic: str, rule: DedupRule, queues: dict[str, list[int]]) -> None:
        begin = time.monotonic()
        own = [(topic, queue_id) for queue_id in queues.get(topic, ())]
        waiting = [(name, queue_id) for name in WAITING_TOPICS for queue_id in queues.get(name, ())]
        ranges = self._ranges(own, rule.window_ms) | self._ranges(waiting, rule.window_ms)
        name = (PropertyKey.KEYS if rule.by_keys else PropertyKey.UNIQUE_KEY).encode()
        count = max(1, ENTRIES_PER_SLICE // max(len(ranges), 1))
        merged = merge(
            *(
                self._keys_of(topic, queue, entries, count, name)
                for queue, entries in ranges.items()
            )
        )
        by_unique_key: dict[bytes, tuple[bytes, int]] = {}
        total = 0
        while some := list(islice(merged, ENTRIES_PER_SLICE)):
            self._take(topic, some, by_unique_key if rule.by_keys else None)
            total += len(some)
            await asyncio.sleep(0)
        if total:
            seconds = time.monotonic() - begin
            _log.info("window of topic %s: %d messages read in %.1f s", topic, total, seconds)

    def _ranges(self, queues: Sequence[tuple[str, int]], window_ms: int) -> dict[_Queue, range]:
        """The entries of queues within a window, or its end, where there are more than may be
        kept."""
        all_of = {queue: range(*self._store.queue_bounds(*queue)) for queue in queues}

        def since(time_ms: int) -> dict[_Queue, range]:
            def time_of(queue: _Queue) -> Callable[[int], int]:
                return lambda offset: self._store.store_time(*queue, offset)

            return {
                queue: entries[bisect_left(entries, time_ms, key=time_of(queue)) :]
                for queue, entries in all_of.items()
            }

        def fits(time_ms: int) -> bool:
            return sum(map(len, since(time_ms).values())) <= self._keys_max

        now_ms = self._store_now_ms(all_of)
        first_ms = now_ms - window_ms + 1
        if not fits(first_ms):
            times = range(first_ms, now_ms + 1)
            first_ms = times[0] + bisect_left(times, True, key=fits)
        return {queue: entries for queue, entries in since(first_ms).items() if entries}

    def _store_now_ms(self, queues: dict[_Queue, range]) -> int:
        """The time that the next record gets: no earlier than that of the last one."""
        lasts = [
            self._store.store_time(*queue, entries[-1])
            for queue, entries in queues.items()
            if entries
        ]
        return max(self._now_ms(), *lasts) if lasts else self._now_ms()

    def _keys_of(
        self, topic: str, queue: _Queue, entries: range, count: int, name: bytes
    ) -> Iterator[_Found]:
        """Keys of the messages of a queue that are for a topic, with their places."""
        is_own = queue[0] == topic
        names = (name, _REAL_TOPIC, _PREPARED, _DELETES, _ROLLED, _UNIQUE)
        wanted = topic.encode()
        for low in range(entries.start, entries.stop, count):
            some = min(count, entries.stop - low)
            for _, offset, _, values in self._store.queue_properties(*queue, low, some, names):
                if values is None:
                    continue
                key, real, prepared, deletes, rolled, unique = values
                if is_own:
                    # What waited counts from when it was sent, and is not new when it comes.
                    is_counted = real is None or prepared is not None
                else:
                    is_counted = real == wanted and rolled is None
                if is_counted and deletes is not None:
                    yield offset, b"", b"", deletes
                elif is_counted and key is not None:
                    yield offset, key, b"" if is_own else unique or b"", b""

    def _take(
        self,
        topic: str,
        found: Sequence[_Found],
        waiting: dict[bytes, tuple[bytes, int]] | None,
    ) -> None:
        """``waiting``: key and place of what waits by its ``UNIQ_KEY``, which is added to; None:
        that is the key itself."""
        keys: list[tuple[bytes, int]] = []
        for offset, key, unique, deletes in found:
            if not deletes:
                keys.append((key, offset))
                if waiting is not None and unique:
                    waiting[unique] = key, offset
                continue
            self._store.note_keys(topic, keys)
            keys = []
            deleted = _deleted_key(topic, deletes)
            if waiting is None:
                self._store.forget_key(topic, deleted)
            elif deleted in waiting:
                self._forget_first(topic, *waiting.pop(deleted))
        self._store.note_keys(topic, keys)


def _deleted_key(topic: str, deletes: bytes) -> bytes:
    """The UNIQ_KEY that a command to delete names (``delete_key``)."""
    return deletes.removeprefix(topic.encode() + b"+")
