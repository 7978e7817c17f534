"""Writing records for the slow path: delay, flush waits, statuses.

The fast path writes inside the kernel. Everything that it declines comes through
:class:`RecordWriter`, which does what ``CommitLog.asyncPutMessage`` does around the append. A
message with a delay level goes to its schedule queue; under SYNC_FLUSH the caller waits until the
record is on disk.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kerolox.broker.base import Base
from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.errors import system_error
from kerolox.broker.role import BrokerRole
from kerolox.broker.services.duplicates import Duplicates, First
from kerolox.broker.services.timed_puts import TimedPuts
from kerolox.broker.tables.filters import FilterTable
from kerolox.kernel.append import Durability
from kerolox.kernel.metrics import PutDurations
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.values import Batch, Copied, Copies, Record
from kerolox.message import (
    ITEM_END,
    MessageExt,
    PropertyKey,
    decode_properties,
    encode_properties,
    is_true,
    pack_host,
)
from kerolox.protocol.codes import TRANSACTION_MASK, MessageSysFlag, ResponseCode
from kerolox.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from kerolox.store.timer.puts import Refused


class WriteGate:
    """One switch for all who store messages: handlers, services and the kernel.

    The disk, the broker's role, its controller and ``startAcceptSendRequestTimeStamp`` say where it
    stands.

    Attributes:
        fenced: why another broker may be the master, or this one has too few slaves, as its
            controller says; empty: nothing speaks against it.
        has_space: the disk is not too full for writes.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        role: BrokerRole,
        store: StoreKernel,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._role = role
        self._is_slave = False
        self._store = store
        self._now_ms = now_ms
        self.has_space = True
        self._is_held = False
        self.fenced = ""
        self._is_closed = False
        settings.subscribe(lambda old, new: self.refresh())
        role.subscribe(lambda old, new: self.refresh())
        self.refresh()

    @property
    def writable(self) -> bool:
        """False: every put ends with SERVICE_NOT_AVAILABLE, and what is delayed waits. A slave
        never is."""
        is_shut = self._is_held or bool(self.fenced) or self._is_closed
        return self.has_space and not is_shut and not self._is_slave

    def set_writable(self, writable: bool) -> None:
        """Open or close it for all, as the disk says."""
        self.has_space = writable
        self.refresh()

    def hold(self, is_held: bool) -> None:
        """The same, as the broker's role says: it is about to change, or another broker has it."""
        self._is_held = is_held
        self.refresh()

    def fence(self, reason: str) -> None:
        """The same, as a controller says (``makeFenced``). ``reason``: of ``fenced``."""
        if reason != self.fenced:
            self.fenced = reason
            self.refresh()

    def close(self) -> None:
        """The same for good, whatever disk and role say later: the broker stops."""
        self._is_closed = True
        self.refresh()

    def refresh(self) -> None:
        """Let the kernel take sends when nothing speaks against all of them, and say what the role
        of the broker asks of it. The kernel does not know startAcceptSendRequestTimeStamp, which
        handlers answer with."""
        config, role, store = self._settings.current, self._role.current, self._store
        self._is_slave = role.is_slave
        is_time = self._now_ms() >= config.start_accept_send_request_time_stamp
        store.set_commits(not role.is_slave)
        store.set_slave_timeout(config.slave_timeout if role.is_sync_master else None)
        store.set_writable(self.writable and is_time)


_STORED = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


class Slaves(Protocol):
    """The slaves of a SYNC_MASTER."""

    def is_available(self, end_offset: int) -> bool:
        """Whether it makes sense to wait for one (``isSlaveOK``)."""

    async def wait(self, end_offset: int) -> bool:
        """Wait until everything below an offset is on a slave. False: not in time."""


@dataclass(slots=True, kw_only=True)
class NewRecord:
    """One message to store. ``body`` is stored as it is, hosts are packed."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    property_text: str | None = None
    """What to store; None: ``properties``, encoded."""
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_once: bool = False
    """A topic that had its key lately does not store it again."""

    @property
    def delay_level(self) -> int:
        """The DELAY property; 0 when absent. BrokerError, code 1: it is no number."""
        text = self.properties.get(PropertyKey.DELAY, "0")
        try:
            return int(text)
        except ValueError:
            raise system_error(
                f"the property {PropertyKey.DELAY} is no number: {text[:32]!r}"
            ) from None

    @property
    def is_final(self) -> bool:
        """It is no half of a transaction: those wait for nothing but their end."""
        return self.sys_flag & TRANSACTION_MASK in (0, MessageSysFlag.TRANSACTION_COMMIT)

    @property
    def waits_for_flush(self) -> bool:
        """The producer wants to hear only when it is on disk (WAIT, true unless said otherwise)."""
        return is_true(self.properties.get(PropertyKey.WAIT, "true"))


def copy_of(
    message: MessageExt, topic: str, queue_id: int, properties: dict[str, str]
) -> NewRecord:
    """A message of the log, to be stored once more: all but its place and properties stays."""
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        born_timestamp=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        store_host=pack_host(*message.store_host),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
    )


class Put(NamedTuple):
    """The result of storing a record or batch."""

    status: PutMessageStatus
    physical_offsets: Sequence[int] = ()
    queue_offset: int = 0
    refused: Refused | None = None
    """Why a message for a moment is not stored."""
    firsts: Sequence[First | None] = ()
    """Of each message, the earlier one whose place its answer names; empty: all are stored."""

    @property
    def is_duplicate(self) -> bool:
        """No message of it was stored: the topic had them all."""
        return bool(self.firsts) and all(self.firsts)

    @property
    def is_stored(self) -> bool:
        """It is in the log, though perhaps not on disk, or on a slave, in time."""
        return self.status in _STORED


class Unflushed(NamedTuple):
    """A record that was appended; whether it is on disk was not asked."""

    put: Put
    end_offset: int = 0
    """Physical offset behind it."""
    waits: bool = False
    """Its sender wants to hear only when it is on disk."""


class FlushWaits:
    """Coroutines that wait for the flushed position; one wake-up releases all that it covers."""

    def __init__(self, store: Durability, timeout_seconds: float) -> None:
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._waits: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._order = itertools.count()

    async def wait(self, physical_offset: int) -> bool:
        """Wait until everything below an offset is on disk. False: not within the time limit, or
        a flush failed."""
        if self._store.flushed_offset >= physical_offset:
            return True
        if self._store.has_failed:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        heapq.heappush(self._waits, (physical_offset, next(self._order), future))
        timer = loop.call_later(self._timeout_seconds, _resolve, future, False)
        self._store.request_flush(physical_offset)
        try:
            return await future
        finally:
            timer.cancel()

    def wake(self) -> None:
        """The flushed position may have moved, or can't move any more."""
        if not self._waits:
            return
        flushed = self._store.flushed_offset
        while self._waits and (self._waits[0][0] <= flushed or self._waits[0][2].done()):
            _resolve(heapq.heappop(self._waits)[2], True)
        if self._store.has_failed:
            for _offset, _order, future in self._waits:
                _resolve(future, False)
            self._waits.clear()


class RecordWriter:
    """Appends records on behalf of the handlers."""

    def __init__(
        self,
        base: Base,
        filters: FilterTable,
        timed: TimedPuts,
        duplicates: Duplicates,
        gate: WriteGate,
        slaves: Slaves,
        *,
        on_delayed: Callable[[int, int], None] = lambda queue_id, size: None,
    ) -> None:
        """Nothing is written yet. ``timed`` says which records wait for a moment. While ``gate`` is
        closed every put ends with SERVICE_NOT_AVAILABLE. ``slaves``: those that senders wait for
        while the broker is a SYNC_MASTER. ``on_delayed`` is called with the schedule queue of each
        message that is to come later, and the size of its record.
        """
        self._store = base.store
        self._filters = filters
        self._timed = timed
        self._duplicates = duplicates
        self._gate = gate
        self._on_delayed = on_delayed
        self._now_ms = base.now_ms
        config = base.config
        self._max_message_size = config.max_message_size
        self._delay_levels_ms = config.delay_levels_ms
        self._is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self._role = base.role
        self._slaves = slaves
        self.flush_waits = FlushWaits(base.store, config.sync_flush_timeout / 1000)
        self.failed_count = 0
        """Puts that stored nothing (``putMessageFailedTimes``)."""
        self.put_durations = PutDurations()
        base.settings.subscribe(self._settings_changed)

    def _settings_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        self._max_message_size = new.max_message_size
        self._store.set_max_message_size(new.max_message_size)

    async def put(self, record: NewRecord) -> Put:
        """Append one record, after its delay if it has one, and wait for the flush if it must."""
        start = self._now_ms()
        return self._noted(await self._put(record), start)

    def put_now(self, record: NewRecord) -> Unflushed:
        """Append one record before anything else happens; :meth:`flushed` waits for the disk."""
        start = self._now_ms()
        done = self._append(record)
        self._noted(done.put, start)
        return done

    async def flushed(self, done: Unflushed) -> Put:
        """Wait until a record is on disk and on a slave, where settings and sender want that."""
        if not done.put.is_stored:
            return done.put
        return await self._flushed(done.put, done.end_offset, done.waits)

    async def may_keep_positions(self) -> bool:
        """Wait until all that is stored now is on disk, under SYNC_FLUSH. False: it is not in time.
        A file must not have a position then: after a loss of power it would stand for records that
        are gone."""
        return not self._is_sync or await self.flush_waits.wait(self._store.max_physical_offset)

    async def safe(self, end_offset: int) -> bool:
        """Wait until all before an offset is on disk, however the broker flushes, and on a slave,
        if one follows closely. False: it is not on disk in time. A slave that takes too long is
        waited for no more."""
        if not await self.flush_waits.wait(end_offset):
            return False
        if self._slaves.is_available(end_offset):
            await self._slaves.wait(end_offset)
        return True

    @property
    def is_writable(self) -> bool:
        """Records are taken."""
        return self._gate.writable

    async def put_batch(self, record: NewRecord, items: Sequence[tuple[int, bytes, bytes]]) -> Put:
        """Append (flag, body, property text) items with everything else from ``record``."""
        start = self._now_ms()
        return self._noted(await self._put_batch(record, items), start)

    def copy(self, copies: Copies) -> Copied:
        """Store plain records again before anything else happens (``CopyKernel``). Whatever stops
        it, the record that it stops at is for :meth:`put_now`."""
        if not self._gate.writable:
            return Copied(0, 0, [])
        start = self._now_ms()
        done = self._store.copy_records(copies)
        self.put_durations.note(self._now_ms() - start, done.count)
        return done

    def _noted(self, done: Put, start_ms: int) -> Put:
        self.put_durations.note(self._now_ms() - start_ms)
        self.failed_count += not done.is_stored
        return done

    async def _put(self, record: NewRecord) -> Put:
        return await self.flushed(self._append(record))

    def _append(self, record: NewRecord) -> Unflushed:
        if not self._gate.writable:
            return Unflushed(Put(PutMessageStatus.SERVICE_NOT_AVAILABLE))
        if len(record.body) > self._max_message_size:
            return Unflushed(Put(PutMessageStatus.MESSAGE_ILLEGAL))
        topic, key = record.topic, b""
        if record.is_once:
            key = self._duplicates.key_of(topic, record.properties)
            first = self._duplicates.find(topic, key) if key else None
            if first is not None:
                return self._answered(topic, [first], record)
        refused = self._timed.place(record)
        if refused is not None:
            return Unflushed(_refused(refused))
        self._delay(record)
        text = record.property_text
        if text is None:
            text = encode_properties(record.properties)
        stored = Record(
            record.topic.encode(),
            record.queue_id,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            record.store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            record.body,
            text.encode(),
            # Of a delayed record the time it is due: the store counts it from the time it notes.
            None,
            self._bit_map(record.topic, text),
        )
        status, physical_offset, queue_offset, size, _ = self._store.append(stored)
        if status != PutMessageStatus.PUT_OK:
            return Unflushed(Put(PutMessageStatus(status)))
        if record.topic == SCHEDULE_TOPIC:
            self._on_delayed(record.queue_id, size)
        if key:
            self._duplicates.note(topic, ((key, physical_offset),))
        elif PropertyKey.TIMER_DELETES in record.properties:
            self._duplicates.taken_back(topic, record.properties)
        done = Put(PutMessageStatus.PUT_OK, (physical_offset,), queue_offset)
        return Unflushed(done, physical_offset + size, record.waits_for_flush)

    def _answered(self, topic: str, firsts: Sequence[First | None], record: NewRecord) -> Unflushed:
        """The result of messages that the topic had: those are waited for as for their own."""
        known = [first for first in firsts if first is not None]
        self._duplicates.answered[topic] += len(known)
        offsets = [first.physical_offset for first in known]
        done = Put(PutMessageStatus.PUT_OK, offsets, known[0].queue_offset, firsts=firsts)
        end_offset = max(first.end_offset for first in known)
        return Unflushed(done, end_offset, record.waits_for_flush)

    async def _put_batch(self, record: NewRecord, items: Sequence[tuple[int, bytes, bytes]]) -> Put:
        if not self._gate.writable:
            return Put(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        if record.sys_flag & TRANSACTION_MASK or record.delay_level > 0:
            return Put(PutMessageStatus.MESSAGE_ILLEGAL)
        topic = record.topic
        check = _BatchKeys(self._duplicates, topic, items) if record.is_once else None
        if check is not None and check.firsts:
            items = check.fresh
            if not items:
                return await self.flushed(self._answered(topic, check.all_firsts(()), record))
        given = record.properties
        refused = self._timed.place(record)
        if refused is not None:
            return _refused(refused)
        if record.topic == TIMER_TOPIC:
            added = {k: v for k, v in record.properties.items() if given.get(k) != v}
            end = (ITEM_END + encode_properties(added)).encode()
            items = [(flag, body, text + end) for flag, body, text in items]
        batch = Batch(
            record.topic.encode(),
            record.queue_id,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            record.store_host,
            record.reconsume_times,
            items,
            self._bit_maps(record.topic, items),
        )
        status, offsets, queue_offset, end_offset, _ = self._store.append_batch(batch)
        if status != PutMessageStatus.PUT_OK:
            return Put(PutMessageStatus(status))
        done = Put(PutMessageStatus.PUT_OK, offsets, queue_offset)
        if check is not None:
            done = self._with_firsts(done, check, topic)
        return await self._flushed(done, end_offset, record.waits_for_flush)

    def _with_firsts(self, done: Put, check: _BatchKeys, topic: str) -> Put:
        """The result of a batch of which the fresh messages were stored."""
        self._duplicates.note(topic, check.noted(done.physical_offsets))
        if not check.firsts:
            return done
        firsts = check.all_firsts(done.physical_offsets)
        self._duplicates.answered[topic] += len(check.firsts)
        fresh = iter(done.physical_offsets)
        offsets = [each.physical_offset if each else next(fresh) for each in firsts]
        return done._replace(physical_offsets=offsets, firsts=firsts)

    def _bit_map(self, topic: str, property_text: str) -> bytes:
        if not self._filters.needs_bit_map(topic):
            return b""
        return self._filters.bit_map(topic, decode_properties(property_text))

    def _bit_maps(self, topic: str, items: Sequence[tuple[int, bytes, bytes]]) -> list[bytes]:
        if not self._filters.needs_bit_map(topic):
            return []
        return [
            self._filters.bit_map(topic, decode_properties(text.decode(errors="replace")))
            for _flag, _body, text in items
        ]

    def _delay(self, record: NewRecord) -> None:
        """Turn a delayed record into one of its schedule queue."""
        if not record.is_final:
            return
        level = min(record.delay_level, len(self._delay_levels_ms))
        if level <= 0:
            return
        record.properties = {
            **record.properties,
            PropertyKey.DELAY: str(level),
            PropertyKey.REAL_TOPIC: record.topic,
            PropertyKey.REAL_QUEUE_ID: str(record.queue_id),
        }
        record.property_text = None
        record.topic, record.queue_id = SCHEDULE_TOPIC, level - 1

    async def _flushed(self, done: Put, end_offset: int, waits: bool) -> Put:
        if not waits:
            if self._is_sync:
                self._store.request_flush(end_offset)
            return done
        if not self._role.current.is_sync_master:
            status = await self._on_disk(end_offset)
        elif not self._is_sync:
            status = await self._on_slave(end_offset)
        else:
            # What a slave says counts more, as in RocketMQ.
            on_disk, on_slave = await asyncio.gather(
                self._on_disk(end_offset), self._on_slave(end_offset)
            )
            status = on_slave or on_disk
        return done if status == PutMessageStatus.PUT_OK else done._replace(status=status)

    async def _on_disk(self, end_offset: int) -> PutMessageStatus:
        if not self._is_sync or await self.flush_waits.wait(end_offset):
            return PutMessageStatus.PUT_OK
        return PutMessageStatus.FLUSH_DISK_TIMEOUT

    async def _on_slave(self, end_offset: int) -> PutMessageStatus:
        if not self._slaves.is_available(end_offset):
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        if await self._slaves.wait(end_offset):
            return PutMessageStatus.PUT_OK
        return PutMessageStatus.FLUSH_SLAVE_TIMEOUT


class _BatchKeys:
    """Which messages of a batch its topic has, or the batch itself before them.

    Attributes:
        fresh: the items that are to be stored.
        firsts: by number of the others, the message that the topic had; None: one of the batch.
    """

    def __init__(
        self, duplicates: Duplicates, topic: str, items: Sequence[tuple[int, bytes, bytes]]
    ) -> None:
        self._duplicates = duplicates
        self._count = len(items)
        self._places: dict[bytes, int] = {}
        """Keys of fresh items, with their numbers among these."""
        self._within: dict[int, bytes] = {}
        self.fresh: list[tuple[int, bytes, bytes]] = []
        self.firsts: dict[int, First | None] = {}
        for number, item in enumerate(items):
            key = duplicates.key_of(topic, decode_properties(str(item[2], errors="replace")))
            if key in self._places:
                self.firsts[number] = None
                self._within[number] = key
                continue
            first = duplicates.find(topic, key) if key else None
            if first is not None:
                self.firsts[number] = first
                continue
            if key:
                self._places[key] = len(self.fresh)
            self.fresh.append(item)

    def noted(self, offsets: Sequence[int]) -> list[tuple[bytes, int]]:
        """The keys of the fresh items, which are stored at these places."""
        return [(key, offsets[place]) for key, place in self._places.items()]

    def all_firsts(self, offsets: Sequence[int]) -> list[First | None]:
        """Of each item of the batch the message that was stored instead of it."""
        for number, key in self._within.items():
            self.firsts[number] = self._duplicates.first_at(offsets[self._places[key]])
        return [self.firsts.get(number) for number in range(self._count)]


def _refused(why: Refused) -> Put:
    is_illegal = why.code == ResponseCode.MESSAGE_ILLEGAL
    status = PutMessageStatus.MESSAGE_ILLEGAL if is_illegal else PutMessageStatus.UNKNOWN_ERROR
    return Put(status, refused=why)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
