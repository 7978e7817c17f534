"""Transactions: ``TransactionalMessageService`` and ``EndTransactionProcessor`` of RocketMQ.

A message of a transaction is first stored as a *half* message, in a topic that nobody reads. Its
producer then ends the transaction. A commit stores it again under its real topic, a rollback does
not. Both write a note, the *op* message, that the half is done. For a half that stays open the
broker stores a copy and asks its producer group. It sets aside a half that stays open for too long.

All state is on disk, as RocketMQ keeps it: half and op queues, and the positions of the group
``CID_RMQ_SYS_TRANS`` in both. In memory there is what the op queue says (:mod:`.op_queue`).

Beyond RocketMQ: a half is ended once, whoever says so and how often. Nothing else happens between
the search in what is ended, the final message and its note, so a kill leaves one note at most
that is missing: :meth:`Transactions.recover` writes it before anybody is served. A copy that the
check stores says where its original is, and both are one half.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.services.keyed_records import records_of_key
from kerolox.broker.services.op_queue import OpQueue, records_behind
from kerolox.broker.services.writer import NewRecord, Put, RecordWriter, Unflushed, copy_of
from kerolox.broker.tables.tables import Tables
from kerolox.errors import RemoteProtocolError, RemotingError, StoreError
from kerolox.kernel.append import HALF_QUEUE, OP_PROPERTIES
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import RecoveryReport
from kerolox.message import (
    MessageExt,
    PropertyKey,
    encode_properties,
    property_value,
)
from kerolox.protocol.codes import MessageSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from kerolox.protocol.records import RecordView, decode_record, encode_record

CHECK_SECONDS_MAX = 60.0
"""Longest time that one run of checks takes (MAX_PROCESS_TIME_LIMIT)."""

RECOVERED_OPS = 10_000
"""Op messages at the end of their queue behind whose first one a crash may have taken notes."""

HALVES_PER_SLICE = 50
"""Halves examined before other work of the loop runs."""

SET_BACK_MS_MAX = 24 * 3_600_000
"""A clock that was set back by more may have a half be committed twice, after a crash."""

_KIND = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_log = logging.getLogger(__name__)


class HalfEnd(NamedTuple):
    """The result of ending a half message."""

    was_open: bool
    """False: it was ended before."""
    done: Unflushed = Unflushed(Put(PutMessageStatus.PUT_OK))
    """The final message, which may not have been stored; then the half is open."""


class Transactions:
    """Half messages of one broker."""

    def __init__(self, base: Base, tables: Tables, writer: RecordWriter) -> None:
        """Halves and positions are read when they are first needed."""
        self._settings = base.settings
        self._store = base.store
        self.now_ms = base.now_ms
        self._identity = base.identity
        self._topics = tables.topics
        self._clients = tables.clients
        self._writer = writer
        self._former_queues = tables.former_queues
        self.ops = OpQueue(base.store, tables.offsets)
        self._is_loaded = False
        self._recovered_below = 0
        """Commits of halves below were perhaps stored by another broker, without their notes."""
        self._next_producer = 0

    @property
    def open_halves(self) -> int:
        """Halves between position and end that no op message is known of."""
        self.load()
        return self.ops.open_halves

    def open_groups(self) -> set[str]:
        """The producer groups of open halves, of the first :data:`HALVES_PER_SLICE`."""
        self.load()
        first = self.ops.half_position
        last = min(self._end_of_halves(), first + HALVES_PER_SLICE)
        offsets = (n for n in range(first, last) if not self.ops.is_ended(n))
        halves = [half for half in map(self.half, offsets) if half is not None]
        return {half.properties.get(PropertyKey.PRODUCER_GROUP, "") for half in halves}

    def load(self) -> None:
        """Read positions and op messages, once."""
        if not self._is_loaded:
            self._is_loaded = True
            self.ops.load()
            self._recovered_below = self._end_of_halves()

    def forget(self) -> None:
        """Have the next check read positions and op messages anew: this broker becomes a master, or
        is none any more, and another one writes them."""
        self._is_loaded = False
        self.ops.forget()

    # -- the producer's requests ----------------------------------------------------------------
    async def prepare(self, record: NewRecord) -> Put:
        """Store a half message; topic and queue of the record become those of halves."""
        await self.make_half(record)
        return await self._writer.put(record)

    async def make_half(self, record: NewRecord) -> None:
        """Have a record say where it is for, and be for the half queue."""
        record.properties = {
            **record.properties,
            PropertyKey.REAL_TOPIC: record.topic,
            PropertyKey.REAL_QUEUE_ID: str(record.queue_id),
        }
        record.sys_flag &= ~_KIND
        record.topic, record.queue_id = await self._topic(HALF_TOPIC), HALF_QUEUE
        record.property_text = encode_properties(record.properties)

    def half_at(self, physical_offset: int) -> MessageExt | None:
        """The half message that a transaction's end names."""
        return self._message_at(physical_offset, (HALF_TOPIC,))

    def given_up_at(self, physical_offset: int) -> MessageExt | None:
        """A half message, or one that was given up, that an operator names."""
        return self._message_at(physical_offset, (HALF_TOPIC, CHECK_MAX_TIME_TOPIC))

    async def resume(self, message: MessageExt) -> Put:
        """Store it as a half message that nobody was asked about yet."""
        properties = _of_copy(message) if message.topic == HALF_TOPIC else message.properties
        properties = {**properties, PropertyKey.TRANSACTION_CHECK_TIMES: "0"}
        topic = await self._topic(HALF_TOPIC)
        return await self._writer.put(_copy_of(message, topic, HALF_QUEUE, properties))

    async def commit(self, half: MessageExt) -> Put:
        """Store the message under its real topic, once, and note that its half is done."""
        return await self._end(half, commit=True)

    async def rollback(self, half: MessageExt) -> None:
        """Note that a half is done; nobody will see its message."""
        await self._end(half, commit=False)

    async def _end(self, half: MessageExt, *, commit: bool) -> Put:
        await self.ready_to_end(half)
        return await self._writer.flushed(self.end_now(half, commit=commit).done)

    # -- ends -----------------------------------------------------------------------------------
    async def ready_to_end(self, half: MessageExt) -> None:
        """Learn what there is to know of a half, and of all behind it, before :meth:`end_now`."""
        first = half.commit_log_offset
        claimed = claimed_first(half)
        if claimed >= 0:
            original = self.half(claimed)
            first = original.commit_log_offset if original is not None else 0
        await self.ready_since(first)

    async def ready_since(self, physical_offset: int) -> None:
        """The same, of all halves that lie behind a place in the log."""
        self.load()
        await self._topic(OP_HALF_TOPIC)
        await self.ops.learn_since(physical_offset)

    def end_now(self, half: MessageExt, *, commit: bool) -> HalfEnd:
        """End a half unless it was ended before, all at once: nothing happens in between."""
        if self._was_ended(half):
            return HalfEnd(was_open=False)
        if self._was_committed(half):
            self._note(half)
            return HalfEnd(was_open=False)
        done = Unflushed(Put(PutMessageStatus.PUT_OK))
        if commit:
            done = self._writer.put_now(self._final(half))
            if not done.put.is_stored:
                return HalfEnd(was_open=True, done=done)
        self._note(half)
        return HalfEnd(was_open=True, done=done)

    def _was_ended(self, half: MessageExt) -> bool:
        """Whether the op queue says that a half was ended, by its place or that of its original."""
        claimed = claimed_first(half)
        return self.ops.is_ended(half.queue_offset) or (claimed >= 0 and self.ops.is_ended(claimed))

    def _original(self, half: MessageExt) -> MessageExt | None:
        """The half that a copy is of; None: it is no copy, or the original can't be read. What a
        copy says is checked, since a producer can write any property into its halves."""
        claimed = claimed_first(half)
        original = self.half(claimed) if 0 <= claimed < half.queue_offset else None
        if original is None or _identity(original) != _identity(half):
            return None
        return original

    # -- after a crash --------------------------------------------------------------------------
    async def recover(self, report: RecoveryReport) -> int:
        """Note the halves whose final messages are stored and whose notes a crash took; how many.
        To be called before anybody is served.

        A note follows its final message at once, so one is missing at most, and its final message
        is the last of the log. Of a store that another broker wrote there may be some more: those
        behind the last :data:`RECOVERED_OPS` op messages are looked for.
        """
        if report.clean or not self._end_of_halves():
            return 0
        self.load()
        count = 0
        start = max(report.begin_offset, self._store.min_physical_offset, self._last_ops_start())
        file_size = self._settings.current.mapped_file_size_commit_log
        for number, final in enumerate(records_behind(self._store, start, file_size)):
            half = final and self.half_at(final.prepared_transaction_offset)
            if final and half and half.unique_key == _unique_key(final):
                await self.ready_to_end(half)
                if not self._was_ended(half):
                    self._note(half)
                    count += 1
            if number % HALVES_PER_SLICE == 0:
                await asyncio.sleep(0)
        if count:
            _log.warning("noted %d halves that were committed before the crash", count)
        return count

    def _last_ops_start(self) -> int:
        """Where in the log the last op messages begin."""
        low, high = self._store.queue_bounds(OP_HALF_TOPIC, HALF_QUEUE)
        entry = self._store.queue_entry(OP_HALF_TOPIC, HALF_QUEUE, max(low, high - RECOVERED_OPS))
        first_half = self._store.queue_entry(
            HALF_TOPIC, HALF_QUEUE, self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[0]
        )
        return entry[0] if entry else first_half[0] if first_half else 0

    # -- the check ------------------------------------------------------------------------------
    async def check(self) -> int:
        """One run: pass what is done, ask producers about what is open; how many were asked."""
        self.load()
        ops = self.ops
        start_ms = self.now_ms()
        deadline = asyncio.get_running_loop().time() + CHECK_SECONDS_MAX
        asked = looked_at = 0
        end = self._end_of_halves()
        ops.pass_ended()
        while ops.half_position < end and asyncio.get_running_loop().time() < deadline:
            offset = ops.half_position
            half = None if ops.is_noted(offset) else self.half(offset, warn=True)
            if half is not None:
                if half.store_timestamp >= start_ms or self._is_young(half):
                    break
                asked += await self._resolve(half)
            # It may have been ended while its copy was on the way to the disk.
            ops.pass_half(offset)
            looked_at += 1
            if looked_at % HALVES_PER_SLICE == 0:
                await self._keep_positions()
                await asyncio.sleep(0)
        await self._keep_positions()
        return asked

    async def _keep_positions(self) -> None:
        positions = self.ops.positions()
        # Another broker may have become the master meanwhile.
        if await self._writer.may_keep_positions() and self._is_loaded:
            self.ops.keep_positions(positions)

    def _is_young(self, half: MessageExt) -> bool:
        """Its producer still has time; none of those after it is older then."""
        age = self.now_ms() - half.born_timestamp
        has_own_time = PropertyKey.CHECK_IMMUNITY_TIME in half.properties
        return not has_own_time and 0 <= age < self._immunity_ms(half)

    def _immunity_ms(self, half: MessageExt) -> int:
        """For how long nobody is asked about a half."""
        seconds = _number(half.properties.get(PropertyKey.CHECK_IMMUNITY_TIME), -1)
        return self._settings.current.transaction_time_out if seconds == -1 else seconds * 1000

    async def _resolve(self, half: MessageExt) -> int:
        """Deal with an open half that is old enough; 1 when its producer was asked."""
        await self.ready_to_end(half)
        if self._was_ended(half) or self._was_committed(half):
            self._note(half)
            return 0
        # Whoever was never asked about is asked once, even where transactionCheckMax is 0.
        check_text = half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES)
        checks = _number(check_text, 0)
        config = self._settings.current
        age = self.now_ms() - half.born_timestamp
        is_asked_out = check_text is not None and checks >= config.transaction_check_max
        if is_asked_out or age > config.file_reserved_time * 3_600_000:
            await self._discard(half)
            return 0
        # One that comes from the future, by its producer's clock, has its own immunity before it.
        if PropertyKey.CHECK_IMMUNITY_TIME in half.properties and age < self._immunity_ms(half):
            await self._postpone(half)
            return 0
        properties = {**_of_copy(half), PropertyKey.TRANSACTION_CHECK_TIMES: str(checks + 1)}
        self._ask(half, properties, await self._put_again(half, properties))
        return 1

    async def _postpone(self, half: MessageExt) -> None:
        """A half with an immunity of its own goes to the end of the queue, so that others after it
        are checked. It remembers where it was first: there its producer ends it."""
        name = PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET
        claimed = claimed_first(half)
        first = claimed if claimed >= 0 else half.queue_offset
        await self._put_again(half, {**half.properties, name: str(first)})

    async def _put_again(self, half: MessageExt, properties: dict[str, str]) -> Put:
        """Store a half again, at the end of its queue. StoreError: it was not stored; the run ends,
        and the next one starts with this half.
        """
        put = await self._writer.put(_copy_of(half, half.topic, HALF_QUEUE, properties))
        if not put.is_stored:
            raise StoreError(
                f"half message {half.queue_offset} is not stored again: {put.status.name}"
            )
        return put

    async def _discard(self, half: MessageExt) -> None:
        """Set a half aside for good."""
        topic = await self._topic(CHECK_MAX_TIME_TOPIC)
        _log.warning(
            "half message %s is open after %s checks; it goes to %s",
            half.unique_key or half.offset_message_id,
            half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "no"),
            CHECK_MAX_TIME_TOPIC,
        )
        put = await self._writer.put(_copy_of(half, topic, HALF_QUEUE, _of_copy(half)))
        if not put.is_stored:
            raise StoreError(
                f"half message {half.queue_offset} is not set aside: {put.status.name}"
            )

    def _ask(self, half: MessageExt, properties: dict[str, str], put: Put) -> None:
        """CHECK_TRANSACTION_STATE to one producer of the group, without waiting for an answer."""
        group = properties.get(PropertyKey.PRODUCER_GROUP, "")
        producers = self._clients.producers(group) or []
        if not producers:
            _log.warning("no producer of group %s is here to be asked", group)
            return
        self._next_producer += 1
        client = producers[self._next_producer % len(producers)]
        half.queue_offset, half.commit_log_offset = put.queue_offset, put.physical_offsets[0]
        fields = {
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.commit_log_offset,
            "msgId": half.unique_key,
            "transactionId": half.unique_key,
            "offsetMsgId": half.offset_message_id,
        }
        half.topic = properties.get(PropertyKey.REAL_TOPIC, "")
        half.queue_id = _number(properties.get(PropertyKey.REAL_QUEUE_ID), 0)
        body = encode_record(half, encode_properties(properties))
        command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, fields, body=body)
        try:
            client.connection.send_oneway(command)
        except RemotingError as error:
            _log.warning("%s can't be asked: %s", client.connection.remote_address, error)

    # -- what is done -----------------------------------------------------------------------------
    def _was_committed(self, half: MessageExt) -> bool:
        """Whether a half that may have been ended under another place has a committed copy: one
        that was passed while it was open, or a copy that does not say of which half."""
        is_copy = PropertyKey.TRANSACTION_CHECK_TIMES in half.properties
        if is_copy and claimed_first(half) >= 0:
            return False
        if not is_copy and half.queue_offset >= max(self.ops.half_position, self._recovered_below):
            return False
        topic = half.properties.get(PropertyKey.REAL_TOPIC, "")
        key = half.unique_key
        if not key:
            return False
        # Times of the store's own clock: its producer's may be ahead, and either may be set back.
        start_ms = min(half.born_timestamp, half.store_timestamp) - SET_BACK_MS_MAX
        return any(
            copy.sys_flag & _KIND == MessageSysFlag.TRANSACTION_COMMIT
            and copy.born_timestamp == half.born_timestamp
            for copy in records_of_key(self._store, topic, key, start_ms=start_ms)
        )

    def _note(self, half: MessageExt) -> None:
        """Write the op message of a half, and that of the half which it is a copy of."""
        original = self._original(half)
        if original is not None and not self.ops.is_ended(original.queue_offset):
            self.note_place(original.queue_offset)
        if not self.ops.is_noted(half.queue_offset):
            self.note_place(half.queue_offset)

    def note_place(self, half_offset: int) -> None:
        """Write the op message of the half at a place."""
        host = self._identity.store_host
        record = NewRecord(
            topic=OP_HALF_TOPIC,
            queue_id=HALF_QUEUE,
            body=str(half_offset).encode(),
            properties={PropertyKey.WAIT: "false"},
            property_text=OP_PROPERTIES,
            born_timestamp=self.now_ms(),
            born_host=host,
            store_host=host,
        )
        put = self._writer.put_now(record).put
        if put.is_stored:
            self.ops.know(half_offset, put.queue_offset)
        else:
            _log.error("half message %d is done, but not noted", half_offset)
            self.ops.know_unwritten(half_offset)

    def _message_at(self, physical_offset: int, topics: tuple[str, ...]) -> MessageExt | None:
        data = self._store.lookup(physical_offset) if physical_offset >= 0 else None
        if data is None:
            return None
        message = decode_record(data, inflate=False)[0]
        return message if message.topic in topics else None

    def _end_of_halves(self) -> int:
        return self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1]

    def half(self, offset: int, *, warn: bool = False) -> MessageExt | None:
        """The half at a queue offset; None when it can't be read (any more)."""
        entry = self._store.queue_entry(HALF_TOPIC, HALF_QUEUE, offset)
        data = None if entry is None else self._store.lookup(entry[0])
        try:
            return None if data is None else decode_record(data, inflate=False)[0]
        except RemoteProtocolError:
            return None
        finally:
            if warn and data is None:
                _log.warning("half message %d can't be read; it is passed", offset)

    # -- records ----------------------------------------------------------------------------------
    async def _topic(self, name: str) -> str:
        """One of the three topics, made when it is first needed."""
        if name not in self._topics:
            self._topics.create_for_group(name, 1)
        if not self._topics.is_durable(name):
            await self._topics.make_durable(name)
        return name

    def _final(self, half: MessageExt) -> NewRecord:
        """``endMessageTransaction``: the stored text stays that of the half."""
        topic = half.properties.get(PropertyKey.REAL_TOPIC, "")
        queue_id = _number(half.properties.get(PropertyKey.REAL_QUEUE_ID), 0)
        record = _copy_of(
            half, topic, self._former_queues.queue_now(topic, queue_id), half.properties
        )
        hidden = (
            PropertyKey.REAL_TOPIC,
            PropertyKey.REAL_QUEUE_ID,
            PropertyKey.TRANSACTION_PREPARED,
        )
        record.properties = {k: v for k, v in half.properties.items() if k not in hidden}
        record.sys_flag |= MessageSysFlag.TRANSACTION_COMMIT
        record.prepared_transaction_offset = half.commit_log_offset
        record.is_once = True
        return record


def _copy_of(half: MessageExt, topic: str, queue_id: int, properties: dict[str, str]) -> NewRecord:
    record = copy_of(half, topic, queue_id, dict(properties))
    record.property_text = encode_properties(properties)
    record.sys_flag &= ~_KIND
    return record


def claimed_first(half: MessageExt) -> int:
    """Where a copy says that its original is in the half queue; -1: it is no copy."""
    return _number(half.properties.get(PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET), -1)


def _of_copy(half: MessageExt) -> dict[str, str]:
    """The properties of a copy of a half: it says where its original is, where that is known."""
    name = PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET
    is_original = PropertyKey.TRANSACTION_CHECK_TIMES not in half.properties
    if is_original and claimed_first(half) < 0:
        return {**half.properties, name: str(half.queue_offset)}
    return dict(half.properties)


def _unique_key(record: RecordView) -> str:
    return (property_value(record.properties, PropertyKey.UNIQUE_KEY) or b"").decode()


def _identity(half: MessageExt) -> tuple[object, ...]:
    """What a half and its copies have in common."""
    properties = half.properties
    return (
        properties.get(PropertyKey.UNIQUE_KEY),
        properties.get(PropertyKey.PRODUCER_GROUP),
        properties.get(PropertyKey.REAL_TOPIC),
        half.born_timestamp,
        half.born_host,
        half.body,
    )


def _number(text: str | bytes | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
