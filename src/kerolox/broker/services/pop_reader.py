"""Pops and peeks: the queues of a topic and its retries, read as the state of pops says.

Whatever one pop does is one step of the loop: plan, read, deliver. So no two pops get the same
message.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.pop.copies import kind_of
from kerolox.broker.pop.leases import Instant, QueueKey
from kerolox.broker.pop.sequence import queues_to_read
from kerolox.broker.pop.starts import first_offset
from kerolox.broker.pop.state import PopPlan
from kerolox.broker.services import filtered_pull
from kerolox.broker.services.filtered_pull import PullFilter, PullPlace
from kerolox.broker.services.pop_retries import RetryTopics
from kerolox.broker.tables.pops import SELF
from kerolox.broker.tables.tables import Tables
from kerolox.kernel.status import GetMessageStatus
from kerolox.kernel.values import Read
from kerolox.protocol.pop import PoppedBatch, PopReceipt, popped_record
from kerolox.protocol.pop_names import ORDER_REVIVE_QUEUE, TopicKind
from kerolox.store.layout import memory_bytes

READS_MAX = 8
"""Reads of one queue that find only what the filter leaves out, before others get their turn."""

_MOVES_ON = (
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
    GetMessageStatus.OFFSET_TOO_SMALL,
)
_SIZE_BYTES, _OFFSET_AT, _OFFSET_END = 4, 20, 28


@dataclass(frozen=True, slots=True)
class PopWish:
    """What a pop asks for."""

    group: str
    topic: str
    queue_id: int
    """-1: all queues."""
    count: int
    invisible_ms: int = 0
    init_mode: int = 0
    is_order: bool = False
    attempt_id: str | None = None
    tag_codes: Sequence[int] | None = None
    filter: PullFilter | None = None
    owner: str = ""


@dataclass(slots=True)
class Popped:
    """What a pop got."""

    pop_time: int
    batches: list[PoppedBatch] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    rest: int = 0
    """Messages that are left in the queues that were read."""
    is_unfinished: bool = False
    """There may be more: who got nothing has to come again, soon."""
    is_starved: bool = False
    """A queue was passed over, since too much of it is out, or what another kind of pops has."""
    free_at: int | None = None
    """By the steady clock: when a queue is free that was blocked."""

    @property
    def count(self) -> int:
        """Messages."""
        return sum(len(each.offsets) for each in self.batches)


class _Taken(NamedTuple):
    """What was read of one queue."""

    offsets: list[int]
    records: list[bytes]
    next_offset: int
    end: int
    """Behind the last message of the queue."""
    is_cut: bool = False


class PopReader:
    """Reads for pops; the state is that of the tables."""

    def __init__(self, base: Base, tables: Tables, retries: RetryTopics) -> None:
        """Nothing is read."""
        self._base = base
        self._tables = tables
        self._retries = retries

    # -- which queues ---------------------------------------------------------------------------
    def _queues(self, wish: PopWish) -> Sequence[QueueKey]:
        topic = self._tables.topics.get(wish.topic)
        config = self._base.config
        return queues_to_read(
            wish.group,
            wish.topic,
            wish.queue_id,
            queue_count=0 if topic is None else topic.read_queue_nums,
            retry_kinds=() if wish.is_order else self._retry_kinds(wish.group, wish.topic),
            chance=random.randrange(100),
            is_order=wish.is_order,
            retry_percent=config.pop_from_retry_probability,
        )

    def _retry_kinds(self, group: str, topic: str) -> Collection[TopicKind]:
        """The topics of retries that the group reads."""
        config = self._base.config
        is_v2_only = (
            config.enable_retry_topic_v2 and not config.retrieve_message_from_pop_retry_topic_v1
        )
        kinds = (TopicKind.RETRY_V2,) if is_v2_only else (TopicKind.RETRY_V1, TopicKind.RETRY_V2)
        topics, is_own = self._tables.topics, self._retries.is_own
        return [
            kind
            for kind in kinds
            if (name := kind.topic(topic, group)) in topics and is_own(group, name)
        ]

    def _committed(self, wish: PopWish, keys: Sequence[QueueKey]) -> dict[QueueKey, int]:
        of_topic = self._tables.offsets.of_topic(wish.group, wish.topic)
        query = self._tables.offsets.query
        return {
            key: of_topic.get(key.queue_id, -1)
            if key.topic == wish.topic
            else query(wish.group, key.topic, key.queue_id)
            for key in keys
        }

    def _begin(self, wish: PopWish, key: QueueKey, bounds: tuple[int, int]) -> int:
        """Where a group begins that has no offset, which it gets thereby; BrokerError, code 1: the
        table of offsets has no space for it.
        """
        is_retry = kind_of(key) is not TopicKind.NORMAL
        is_young = (
            self._base.config.init_pop_offset_by_check_msg_in_mem
            and bounds[0] <= 0
            and self._is_in_memory(key)
        )
        offset = first_offset(wish.init_mode, bounds, is_retry=is_retry, is_young=is_young)
        self._tables.offsets.commit(key.group, key.topic, key.queue_id, offset, SELF)
        return offset

    def _is_in_memory(self, key: QueueKey) -> bool:
        store = self._base.store
        entry = store.queue_entry(key.topic, key.queue_id, 0)
        ratio = self._base.config.access_message_in_memory_max_ratio
        memory = memory_bytes() * ratio // 100
        return entry is None or store.max_physical_offset - entry[0] <= memory

    # -- pops -----------------------------------------------------------------------------------
    def pop(self, wish: PopWish) -> Popped:
        """Take messages, at most ``wish.count``. BrokerError, code 1: the group is new, and the
        table of offsets has no space for it.
        """
        now = self._tables.pops.now()
        found = Popped(now.wall_ms)
        size_max = self._base.config.transfer_bytes_max[0]
        keys = self._queues(wish)
        committed = self._committed(wish, keys)
        try:
            for key in keys:
                if found.count >= wish.count or sum(map(len, found.records)) >= size_max:
                    break
                bounds = self._base.store.queue_bounds(key.topic, key.queue_id)
                offset = committed[key]
                if offset < 0:
                    offset = self._begin(wish, key, bounds)
                plan = self._tables.pops.state.plan(
                    key,
                    is_order=wish.is_order,
                    attempt_id=wish.attempt_id,
                    committed=offset,
                    bounds=bounds,
                    now=now,
                )
                if plan is None:
                    self._note_blocked(found, wish, key, now)
                elif plan.start < bounds[1]:
                    self._pop_queue(found, wish, plan, now)
        finally:
            self._tables.pops.commit()
        return found

    def _pop_queue(self, found: Popped, wish: PopWish, plan: PopPlan, now: Instant) -> None:
        """Take messages of a queue that has some."""
        state = self._tables.pops.state
        if found.count and not self._has_pop_time(found.pop_time, plan, now):
            # All messages of an answer have one pop time: this queue's is for the next pop.
            found.is_unfinished = True
            return
        taken = self._take(plan, min(plan.count, wish.count - found.count), wish)
        found.is_unfinished |= taken.is_cut
        if not taken.offsets and taken.next_offset == plan.start:
            return
        if found.count and wish.is_order:
            now = now._replace(wall_ms=found.pop_time)
        delivery = state.deliver(
            plan,
            taken.offsets,
            taken.next_offset,
            attempt_id=wish.attempt_id,
            invisible_ms=wish.invisible_ms,
            now=now,
            owner=wish.owner,
        )
        found.rest += max(taken.end - taken.next_offset, 0)
        if not taken.offsets:
            return
        found.pop_time = delivery.pop_time
        batch = PoppedBatch(
            kind_of(plan.key),
            plan.key.queue_id,
            plan.start,
            tuple(taken.offsets),
            delivery.times_consumed if wish.is_order else None,
            delivery.times_by_offset,
        )
        found.batches.append(batch)
        found.records += self._answered(wish, found.pop_time, batch, taken.records)

    def _note_blocked(self, found: Popped, wish: PopWish, key: QueueKey, now: Instant) -> None:
        state = self._tables.pops.state
        free_at = state.orders.free_at(key)
        if free_at is None or free_at <= now.steady_ms:
            found.is_starved = True
        elif found.free_at is None or free_at < found.free_at:
            found.free_at = free_at

    def _has_pop_time(self, pop_time: int, plan: PopPlan, now: Instant) -> bool:
        state = self._tables.pops.state
        if plan.is_order:
            now = now._replace(wall_ms=pop_time)
            return state.orders.next_pop_time(plan.key, now) == pop_time
        return max(state.queues.pop_time, now.wall_ms) == pop_time

    def _take(self, plan: PopPlan, count: int, wish: PopWish) -> _Taken:
        """Read messages of a queue that are wanted and not done."""
        key, offset = plan.key, plan.start
        offsets: list[int] = []
        records: list[bytes] = []
        place = PullPlace(key.topic, key.queue_id, offset, count + len(plan.done))
        end = offset
        for _ in range(READS_MAX):
            read = self._read(place._replace(offset=offset), wish)
            end = read.max_offset
            if read.status == GetMessageStatus.FOUND:
                offset = read.next_offset
                for number, record in _records_of(read.records):
                    if number in plan.done:
                        continue
                    if len(offsets) == count:
                        return _Taken(offsets, records, number, end)
                    offsets.append(number)
                    records.append(record)
                if offsets:
                    return _Taken(offsets, records, offset, end)
            elif read.status in _MOVES_ON and read.next_offset > offset:
                offset = read.next_offset
            else:
                return _Taken(offsets, records, offset, end)
            if offset >= end:
                return _Taken(offsets, records, offset, end)
        return _Taken(offsets, records, offset, end, is_cut=True)

    def _read(self, place: PullPlace, wish: PopWish) -> Read:
        if wish.filter is None:
            return self._base.store.read(*place, wish.tag_codes, wish.group)
        return filtered_pull.read(self._base.config, self._base.store, place, wish.filter)

    def _answered(
        self, wish: PopWish, pop_time: int, batch: PoppedBatch, records: list[bytes]
    ) -> list[bytes]:
        """Records as the answer has them: a retry with the topic that it was sent to."""
        config = self._base.config
        if batch.kind is TopicKind.NORMAL or config.pop_response_return_actual_retry_topic:
            return records
        return [
            popped_record(
                record,
                wish.topic,
                PopReceipt(
                    start_offset=batch.start_offset,
                    pop_time=pop_time,
                    invisible_time=wish.invisible_ms,
                    revive_queue_id=ORDER_REVIVE_QUEUE if wish.is_order else 0,
                    kind=batch.kind,
                    broker_name=config.broker_name,
                    queue_id=batch.queue_id,
                    queue_offset=offset,
                ).text,
            )
            for offset, record in zip(batch.offsets, records, strict=True)
        ]

    # -- looks ----------------------------------------------------------------------------------
    def has_message(self, wish: PopWish) -> Popped | None:
        """Whether a pop would find something, a filter aside. None: it would; else what it would
        wait for."""
        found = Popped(0)
        for key, plan, end in self._plans(wish):
            if plan is None:
                self._note_blocked(found, wish, key, self._tables.pops.now())
            elif plan.start < end:
                return None
        return found

    def peek(self, wish: PopWish) -> Popped:
        """What a pop would get, without taking it."""
        found = Popped(self._tables.pops.now().wall_ms)
        size, size_max = 0, self._base.config.transfer_bytes_max[0]
        count = 0
        for _, plan, end in self._plans(wish):
            if plan is None or plan.start >= end or count >= wish.count or size >= size_max:
                continue
            taken = self._take(plan, min(plan.count, wish.count - count), wish)
            found.records += taken.records
            found.rest += max(taken.end - taken.next_offset, 0)
            count += len(taken.offsets)
            size += sum(map(len, taken.records))
        return found

    def _plans(self, wish: PopWish) -> Iterator[tuple[QueueKey, PopPlan | None, int]]:
        """How each queue would be read, and where it ends. A group without an offset gets none."""
        pops, now = self._tables.pops, self._tables.pops.now()
        keys = self._queues(wish)
        committed = self._committed(wish, keys)
        for key in keys:
            bounds = self._base.store.queue_bounds(key.topic, key.queue_id)
            offset = committed[key]
            plan = pops.state.plan(
                key,
                is_order=wish.is_order,
                attempt_id=wish.attempt_id,
                committed=bounds[0] if offset < 0 else offset,
                bounds=bounds,
                now=now,
            )
            yield key, plan, bounds[1]
        pops.commit()


def _records_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(queue offset, record) of records that follow each other."""
    at = 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + _SIZE_BYTES], "big")
        offset = int.from_bytes(data[at + _OFFSET_AT : at + _OFFSET_END], "big")
        yield offset, data[at:end]
        at = end
