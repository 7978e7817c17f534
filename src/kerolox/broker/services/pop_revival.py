"""Messages that nobody acknowledged in their time come again (``PopReviveService``).

Each is copied to the topic of its group's retries, or to its dead letters. The copy counts when it
is safe; until then the message is reviving, and an acknowledgement comes too late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.pop.copies import CopyTarget, copy_target, kind_of, normal_topic
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.pop.table import Revival
from kerolox.broker.services.pop_retries import RetryTopics
from kerolox.broker.services.writer import NewRecord, RecordWriter, WriteGate, copy_of
from kerolox.broker.tables.tables import Tables
from kerolox.errors import KeroloxError
from kerolox.message import MessageExt, PropertyKey
from kerolox.protocol.codes import TRANSACTION_MASK
from kerolox.protocol.java_numbers import INT_MAX
from kerolox.protocol.pop_names import TopicKind, pop_retry_topic
from kerolox.protocol.records import decode_record

COPIES_PER_SLICE = 32
"""Messages that are copied before other work of the loop runs."""

COPIES_PER_FLUSH = 1_024
"""Messages whose copies are safe together."""

_OF_ITS_FIRST_STORE = (
    PropertyKey.DELAY,
    PropertyKey.TIMER_DELIVER,
    PropertyKey.TIMER_DELAY,
    PropertyKey.TIMER_DELAY_SECONDS,
    PropertyKey.INNER_MULTI_DISPATCH,
    PropertyKey.INNER_MULTI_QUEUE_OFFSET,
    PropertyKey.POP_RECEIPT,
)
"""Properties that would have the copy wait, or come to further queues, once more."""

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """A copy that is stored, and perhaps not safe yet."""

    revival: Revival
    end_offset: int


class PopRevival:
    """Copies what is overdue; to be run again and again."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        writer: RecordWriter,
        gate: WriteGate,
        retries: RetryTopics,
        on_visible: Callable[[str, str], None],
    ) -> None:
        """Nothing is copied. While ``gate`` is closed what is overdue waits. ``on_visible`` is
        called with the topic and the group of messages that come again.
        """
        self._base = base
        self._tables = tables
        self._writer = writer
        self._gate = gate
        self._retries = retries
        self._on_visible = on_visible
        self._lock = asyncio.Lock()
        self.copied = 0
        """Copies among retries since the start."""
        self.dead = 0
        """Dead letters since the start."""
        self.failed = 0
        """Copies that could not be stored, and are tried again."""

    @property
    def is_due(self) -> bool:
        """Something is overdue, and is not being copied."""
        end = self._tables.pops.state.queues.next_end
        return end is not None and end <= self._base.steady_ms() and not self._lock.locked()

    async def run(self) -> int:
        """Copy all that is overdue; how many messages that were."""
        async with self._lock:
            return await self._run()

    async def _run(self) -> int:
        count = 0
        pops = self._tables.pops
        while self._gate.writable:
            state, seen = pops.state, 0
            copies: list[_Copy] = []
            while seen < COPIES_PER_FLUSH:
                revivals = state.queues.expire(pops.now(), COPIES_PER_SLICE)
                if not revivals:
                    break
                seen += len(revivals)
                for revival in revivals:
                    copies += await self._copied(revival)
                await asyncio.sleep(0)
            if not seen:
                return count
            count += seen
            await self._settle(copies)
            pops.commit()
        return count

    async def _settle(self, copies: list[_Copy]) -> None:
        """Wait until copies are safe, and count them."""
        state = self._tables.pops.state
        if not copies:
            return
        is_safe = await self._writer.safe(max(each.end_offset for each in copies))
        now = self._tables.pops.now()
        places = set()
        for revival, end_offset in copies:
            if not is_safe:
                self.failed += 1
                state.queues.failed(revival, now)
                continue
            state.queues.revived(revival)
            self._tables.pops.copies.add(revival.key, revival.offset, end_offset)
            places.add((normal_topic(revival.key), revival.key.group))
        self._tables.pops.commit()
        for topic, group in places:
            self._on_visible(topic, group)

    async def _copied(self, revival: Revival) -> list[_Copy]:
        """Store the copy of a message; none: there is nothing to copy, or it is tried again."""
        key = revival.key
        queues = self._tables.pops.state.queues
        message = self._message(key, revival.offset)
        group = self._tables.groups.get(key.group)
        if message is None or group is None or normal_topic(key) not in self._tables.topics:
            queues.revived(revival)
            return []
        target = self._target(key, message, group.retry_max_times)
        try:
            await self._make(target, key.group)
            done = self._writer.put_now(self._record(message, target, revival))
        except (KeroloxError, OSError) as error:
            self._tried_again(revival, target, str(error))
            return []
        if not done.put.is_stored:
            self._tried_again(revival, target, done.put.status.name)
            return []
        if target.is_dead_letter:
            self.dead += 1
        else:
            self.copied += 1
        return [_Copy(revival, done.end_offset)]

    def _tried_again(self, revival: Revival, target: CopyTarget, why: str) -> None:
        self.failed += 1
        _log.error(
            "message %d of queue %d of %s, not acknowledged by group %s, can't go to %s: %s; it is "
            "tried again",
            *(revival.offset, revival.key.queue_id, revival.key.topic, revival.key.group),
            *(target.topic, why),
        )
        self._tables.pops.state.queues.failed(revival, self._tables.pops.now())

    def _message(self, key: QueueKey, offset: int) -> MessageExt | None:
        store = self._base.store
        entry = store.queue_entry(key.topic, key.queue_id, offset)
        data = None if entry is None else store.lookup(entry[0])
        if data is None:
            return None
        try:
            return decode_record(data, inflate=False)[0]
        except KeroloxError as error:
            _log.error("message %d of %s can't be read: %s; dropped", offset, key.topic, error)
            return None

    def _target(self, key: QueueKey, message: MessageExt, retries_max: int) -> CopyTarget:
        is_v2 = self._base.config.enable_retry_topic_v2
        if not is_v2 and kind_of(key) is TopicKind.NORMAL:
            # Two pairs of group and topic may have one name of version 1: the first has it.
            name = pop_retry_topic(key.topic, key.group)
            is_v2 = name in self._tables.topics and not self._retries.is_own(key.group, name)
        return copy_target(key, message.reconsume_times, retries_max, is_v2=is_v2)

    async def _make(self, target: CopyTarget, group: str) -> None:
        """Have the topic of a copy, in its file, and the group begin there."""
        topics = self._tables.topics
        topics.create_for_group(target.topic, 1)
        if not topics.is_durable(target.topic):
            await topics.make_durable(target.topic)
        if not target.is_dead_letter:
            self._retries.take(group, target.topic)

    def _record(self, message: MessageExt, target: CopyTarget, revival: Revival) -> NewRecord:
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in _OF_ITS_FIRST_STORE
        }
        properties.setdefault(PropertyKey.FIRST_POP_TIME, str(revival.first_pop_time))
        if target.is_dead_letter:
            properties.setdefault(PropertyKey.RETRY_TOPIC, normal_topic(revival.key))
            properties.setdefault(PropertyKey.ORIGIN_MESSAGE_ID, message.offset_message_id)
        record = copy_of(message, target.topic, 0, properties)
        record.store_host = self._base.identity.store_host
        record.sys_flag &= ~TRANSACTION_MASK
        record.reconsume_times = min(message.reconsume_times + 1, INT_MAX)
        return record
