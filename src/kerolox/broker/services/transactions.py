"""Transactions: ``TransactionalMessageService`` and ``EndTransactionProcessor`` of RocketMQ.

A message of a transaction is first stored as a *half* message, in a topic that nobody reads. Its
producer then ends the transaction. A commit stores it again under its real topic, a rollback does
not. Both write a note, the *op* message, that the half is done. A half that stays open is stored
again and its producer group is asked; one that stays open for too long is set aside.

All state is on disk, as RocketMQ keeps it: half and op queues, and the positions of the group
``CID_RMQ_SYS_TRANS`` in both. In memory there is what the op queue says about halves that are not
passed yet.

Beyond RocketMQ: a commit is stored once. It may have been stored before a crash (its note not), or
come from the producer and from the answer to a check. Then it is found by its key in the index.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

from kerolox.broker.config import BrokerConfig
from kerolox.broker.identity import Identity
from kerolox.broker.services.writer import NewRecord, Put, RecordWriter
from kerolox.broker.tables.clients import ClientTable
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.errors import RemoteProtocolError, RemotingError, StoreError
from kerolox.kernel import RecordReader
from kerolox.kernel.status import PutMessageStatus
from kerolox.message import MessageExt, PropertyKey, encode_properties, pack_host
from kerolox.protocol.codes import MessageSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from kerolox.protocol.records import decode_record, decode_records, encode_record

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Whose offsets in the half and op topics are the positions of the check."""

REMOVE_TAG = "d"
QUEUE = 0
"""There is one half queue and one op queue."""

CHECK_SECONDS_MAX = 60.0
"""Longest time that one run of checks takes (MAX_PROCESS_TIME_LIMIT)."""

POSTPONED_MAX = 100_000
"""Halves with an immunity of their own whose ends are remembered; others are asked about once more,
as after a restart."""

ENDED_MAX = 100_000
"""Halves known to be done at which their positions are moved on without waiting for the run."""

PASSED_OPS_MAX = 10_000
"""Op messages of halves that were passed that the heap of waiting ones may hold beyond as many as
wait."""

UNKNOWN_OPS_MAX = 10_000
"""Op messages on their way to the disk that the position waits for. Of more it passes the oldest:
after a crash such a half is asked about once more."""

HALVES_PER_SLICE = 50
"""Halves looked at before other work of the loop gets its turn."""

COPIES_MAX = 64
"""Records of one key that are looked at for an earlier commit (the index answers no more)."""

_KIND = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_log = logging.getLogger(__name__)


class Transactions:
    """Half messages of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: RecordReader,
        now_ms: Callable[[], int],
        identity: Identity,
        topics: TopicTable,
        offsets: OffsetTable,
        clients: ClientTable,
        writer: RecordWriter,
    ) -> None:
        """Halves and positions are read when they are first needed."""
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._identity = identity
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._writer = writer
        self._ended: dict[int, int] = {}
        """Queue offset of a half that is done → that of its op message."""
        self._waiting_ops: list[tuple[int, int]] = []
        """A heap of (op message, its half) of halves that are done and not passed, and of some that
        were passed since. All other op messages that are known are passed."""
        self._op_end = 0
        """After the last op message that is known."""
        self._unknown_ops: dict[int, None] = {}
        """Those before it that are not known, in their order: mostly on their way to the disk."""
        self._postponed: dict[int, bool] = {}
        """Where halves were first that were put again for their immunity → they were ended there.
        Not kept over a restart: such a half is asked about once more."""
        self._half_position = 0
        self._op_position = 0
        self._is_loaded = False
        self._recovered_below = 0
        """Commits of halves below were perhaps stored by an earlier run, without their notes."""
        self._ending: set[int] = set()
        self._next_producer = 0

    @property
    def open_halves(self) -> int:
        """Halves between position and end that no op message is known of."""
        self._load()
        end = self._store.queue_bounds(HALF_TOPIC, QUEUE)[1]
        return max(0, end - self._half_position - len(self._ended))

    def open_groups(self) -> set[str]:
        """The producer groups of open halves, of the first :data:`HALVES_PER_SLICE`."""
        self._load()
        end = self._store.queue_bounds(HALF_TOPIC, QUEUE)[1]
        last = min(end, self._half_position + HALVES_PER_SLICE)
        offsets = (n for n in range(self._half_position, last) if n not in self._ended)
        halves = [half for half in map(self._half, offsets) if half is not None]
        return {half.properties.get(PropertyKey.PRODUCER_GROUP, "") for half in halves}

    # -- the producer's requests ----------------------------------------------------------------
    async def prepare(self, record: NewRecord) -> Put:
        """Store a half message; topic and queue of the record become those of halves."""
        record.properties = {
            **record.properties,
            PropertyKey.REAL_TOPIC: record.topic,
            PropertyKey.REAL_QUEUE_ID: str(record.queue_id),
        }
        record.sys_flag &= ~_KIND
        record.topic, record.queue_id = await self._topic(HALF_TOPIC), QUEUE
        record.property_text = encode_properties(record.properties)
        return await self._writer.put(record)

    def half_at(self, physical_offset: int) -> MessageExt | None:
        """The half message that a transaction's end names."""
        return self._message_at(physical_offset, (HALF_TOPIC,))

    def given_up_at(self, physical_offset: int) -> MessageExt | None:
        """A half message, or one that was given up, that an operator names."""
        return self._message_at(physical_offset, (HALF_TOPIC, CHECK_MAX_TIME_TOPIC))

    async def resume(self, message: MessageExt) -> Put:
        """Store it as a half message that nobody was asked about yet."""
        properties = {**message.properties, PropertyKey.TRANSACTION_CHECK_TIMES: "0"}
        topic = await self._topic(HALF_TOPIC)
        return await self._writer.put(_copy_of(message, topic, QUEUE, properties))

    async def commit(self, half: MessageExt) -> Put:
        """Store the message under its real topic, once, and note that its half is done."""
        self._load()
        offset = half.queue_offset
        if offset in self._ending or offset in self._ended:
            return Put(PutMessageStatus.PUT_OK)
        self._ending.add(offset)
        try:
            put = Put(PutMessageStatus.PUT_OK)
            if not self._was_committed(half):
                put = await self._writer.put(self._final(half))
            if put.is_stored:
                await self._note(half)
            return put
        finally:
            self._ending.discard(offset)

    async def rollback(self, half: MessageExt) -> None:
        """Note that a half is done; nobody will see its message."""
        self._load()
        await self._note(half)

    # -- the check ------------------------------------------------------------------------------
    async def check(self) -> int:
        """One run: pass what is done, ask producers about what is open; how many were asked."""
        self._load()
        start_ms = self._now_ms()
        deadline = asyncio.get_running_loop().time() + CHECK_SECONDS_MAX
        asked = looked_at = 0
        end = self._store.queue_bounds(HALF_TOPIC, QUEUE)[1]
        while self._half_position < end and asyncio.get_running_loop().time() < deadline:
            if not self._pass_ended():
                half = self._half(self._half_position)
                if half is not None:
                    if half.store_timestamp >= start_ms or self._is_young(half):
                        break
                    asked += await self._resolve(half)
                    self._take_ended_meanwhile()
                self._half_position += 1
            looked_at += 1
            if looked_at % HALVES_PER_SLICE == 0:
                self._keep_positions()
                await asyncio.sleep(0)
        self._keep_positions()
        return asked

    def _take_ended_meanwhile(self) -> None:
        """The half at the position was ended while its copy was on the way to the disk."""
        if self._take_ended(self._half_position) and self._half_position in self._postponed:
            self._postponed[self._half_position] = True

    def _is_young(self, half: MessageExt) -> bool:
        """Its producer still has time; none of those after it is older then."""
        age = self._now_ms() - half.born_timestamp
        has_own_time = PropertyKey.CHECK_IMMUNITY_TIME in half.properties
        return not has_own_time and 0 <= age < self._immunity_ms(half)

    def _immunity_ms(self, half: MessageExt) -> int:
        """For how long nobody is asked about a half."""
        seconds = _number(half.properties.get(PropertyKey.CHECK_IMMUNITY_TIME), -1)
        return self._config.transaction_time_out if seconds == -1 else seconds * 1000

    async def _resolve(self, half: MessageExt) -> int:
        """Deal with an open half that is old enough; 1 when its producer was asked."""
        was_ended = self._postponed.pop(self._first_offset(half), False)
        if was_ended or self._was_committed(half):
            await self._note(half)
            return 0
        # Whoever was never asked about is asked once, even where transactionCheckMax is 0.
        told = half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES)
        checks = _number(told, 0)
        config = self._config
        age = self._now_ms() - half.born_timestamp
        is_asked_out = told is not None and checks >= config.transaction_check_max
        if is_asked_out or age > config.file_reserved_time * 3_600_000:
            await self._discard(half)
            return 0
        # One that comes from the future, by its producer's clock, has its own immunity before it.
        if PropertyKey.CHECK_IMMUNITY_TIME in half.properties and age < self._immunity_ms(half):
            await self._postpone(half)
            return 0
        properties = {**half.properties, PropertyKey.TRANSACTION_CHECK_TIMES: str(checks + 1)}
        self._ask(half, properties, await self._put_again(half, properties))
        return 1

    async def _postpone(self, half: MessageExt) -> None:
        """A half with an immunity of its own goes to the end of the queue, so that others after it
        are checked. It remembers where it was first: there its producer ends it."""
        name = PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET
        first = self._first_offset(half)
        await self._put_again(half, {**half.properties, name: str(first)})
        if len(self._postponed) < POSTPONED_MAX:
            self._postponed[first] = False

    @staticmethod
    def _first_offset(half: MessageExt) -> int:
        """Where its producer put it."""
        first = _number(half.properties.get(PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET), -1)
        return first if first >= 0 else half.queue_offset

    async def _put_again(self, half: MessageExt, properties: dict[str, str]) -> Put:
        """Store a half again, at the end of its queue.

        Raises:
            StoreError: it was not stored; the run ends, and the next one starts with this half.
        """
        put = await self._writer.put(_copy_of(half, half.topic, QUEUE, properties))
        if not put.is_stored:
            raise StoreError(
                f"half message {half.queue_offset} is not stored again: {put.status.name}"
            )
        return put

    async def _discard(self, half: MessageExt) -> None:
        """Set a half aside for good.

        Raises:
            StoreError: as for :meth:`_put_again`; RocketMQ would lose it.
        """
        topic = await self._topic(CHECK_MAX_TIME_TOPIC)
        _log.warning(
            "half message %s is open after %s checks; it goes to %s",
            half.unique_key or half.offset_message_id,
            half.properties.get(PropertyKey.TRANSACTION_CHECK_TIMES, "no"),
            CHECK_MAX_TIME_TOPIC,
        )
        put = await self._writer.put(_copy_of(half, topic, QUEUE, half.properties))
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
        """Whether a half that may have been ended before has a committed copy."""
        is_first = PropertyKey.TRANSACTION_CHECK_TIMES not in half.properties
        if is_first and half.queue_offset >= max(self._half_position, self._recovered_below):
            return False
        topic = half.properties.get(PropertyKey.REAL_TOPIC, "")
        key = half.unique_key
        if not key:
            return False
        end_ms = self._now_ms() + 1000
        # Whole seconds count in the index.
        start_ms = half.born_timestamp - 1000
        _, _, data = self._store.query_key(topic, key, COPIES_MAX, start_ms, end_ms)
        return any(
            copy.unique_key == key
            and copy.topic == topic
            and copy.sys_flag & _KIND == MessageSysFlag.TRANSACTION_COMMIT
            and copy.born_timestamp == half.born_timestamp
            for copy in decode_records(data, inflate=False)
        )

    async def _note(self, half: MessageExt) -> None:
        """Write the op message of a half."""
        if half.queue_offset in self._ended:
            return
        host = self._identity.store_host
        record = NewRecord(
            topic=await self._topic(OP_HALF_TOPIC),
            queue_id=half.queue_id,
            body=str(half.queue_offset).encode(),
            properties={PropertyKey.WAIT: "false"},
            property_text=encode_properties(
                {PropertyKey.WAIT: "true", PropertyKey.TAGS: REMOVE_TAG}
            ),
            born_timestamp=self._now_ms(),
            born_host=host,
            store_host=host,
        )
        put = await self._writer.put(record)
        if not put.is_stored:
            _log.error("half message %d is done, but not noted", half.queue_offset)
            return
        self._know(half.queue_offset, put.queue_offset)
        if len(self._ended) >= ENDED_MAX:
            while self._pass_ended():
                pass
            self._keep_positions()

    def _know(self, half_offset: int, op_offset: int) -> None:
        self._know_op(op_offset)
        if half_offset < self._half_position:
            if half_offset in self._postponed:
                self._postponed[half_offset] = True
        else:
            self._ended[half_offset] = op_offset
            heapq.heappush(self._waiting_ops, (op_offset, half_offset))
            if len(self._waiting_ops) > 2 * len(self._ended) + PASSED_OPS_MAX:
                self._waiting_ops = sorted((op, half) for half, op in self._ended.items())

    def _know_op(self, op_offset: int) -> None:
        if op_offset < self._op_end:
            self._unknown_ops.pop(op_offset, None)
            return
        for offset in range(max(self._op_end, op_offset - UNKNOWN_OPS_MAX), op_offset):
            self._unknown_ops[offset] = None
        self._op_end = op_offset + 1
        while len(self._unknown_ops) > UNKNOWN_OPS_MAX:
            del self._unknown_ops[next(iter(self._unknown_ops))]

    def _pass_ended(self) -> bool:
        """Pass the half at the position if it is done."""
        if not self._take_ended(self._half_position):
            return False
        self._half_position += 1
        return True

    def _take_ended(self, half_offset: int) -> bool:
        return self._ended.pop(half_offset, None) is not None

    def _keep_positions(self) -> None:
        waiting = self._waiting_ops
        while waiting and self._ended.get(waiting[0][1]) != waiting[0][0]:
            heapq.heappop(waiting)
        firsts = [next(iter(self._unknown_ops), self._op_end)]
        firsts += [op_offset for op_offset, _half in waiting[:1]]
        self._op_position = max(self._op_position, min(firsts))
        offsets = self._offsets
        for topic, offset in (
            (HALF_TOPIC, self._half_position),
            (OP_HALF_TOPIC, self._op_position),
        ):
            if offsets.query(TRANSACTION_GROUP, topic, QUEUE) != offset:
                offsets.commit(TRANSACTION_GROUP, topic, QUEUE, offset, "the broker", is_own=True)

    def _load(self) -> None:
        """Read positions and op messages, once."""
        if self._is_loaded:
            return
        self._is_loaded = True
        self._half_position = self._position(HALF_TOPIC)
        self._op_position = self._position(OP_HALF_TOPIC)
        self._op_end = self._op_position
        end = self._store.queue_bounds(OP_HALF_TOPIC, QUEUE)[1]
        for offset in range(self._op_position, end):
            op = self._message(OP_HALF_TOPIC, offset)
            half_offset = -1 if op is None or op.tags != REMOVE_TAG else _number(op.body, -1)
            if half_offset < 0:
                self._know_op(offset)
            else:
                self._know(half_offset, offset)
        self._recovered_below = self._store.queue_bounds(HALF_TOPIC, QUEUE)[1]

    def _position(self, topic: str) -> int:
        low, high = self._store.queue_bounds(topic, QUEUE)
        kept = self._offsets.query(TRANSACTION_GROUP, topic, QUEUE)
        return min(max(kept, low), high)

    def _message_at(self, physical_offset: int, topics: tuple[str, ...]) -> MessageExt | None:
        data = self._store.lookup(physical_offset) if physical_offset >= 0 else None
        if data is None:
            return None
        message = decode_record(data, inflate=False)[0]
        return message if message.topic in topics else None

    def _half(self, offset: int) -> MessageExt | None:
        half = self._message(HALF_TOPIC, offset)
        if half is None:
            _log.warning("half message %d can't be read; it is passed", offset)
        return half

    def _message(self, topic: str, offset: int) -> MessageExt | None:
        entry = self._store.queue_entry(topic, QUEUE, offset)
        data = None if entry is None else self._store.lookup(entry[0])
        if data is None:
            return None
        try:
            return decode_record(data, inflate=False)[0]
        except RemoteProtocolError:
            return None

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
        record = _copy_of(
            half,
            half.properties.get(PropertyKey.REAL_TOPIC, ""),
            _number(half.properties.get(PropertyKey.REAL_QUEUE_ID), 0),
            half.properties,
        )
        hidden = (
            PropertyKey.REAL_TOPIC,
            PropertyKey.REAL_QUEUE_ID,
            PropertyKey.TRANSACTION_PREPARED,
        )
        record.properties = {k: v for k, v in half.properties.items() if k not in hidden}
        record.sys_flag |= MessageSysFlag.TRANSACTION_COMMIT
        record.prepared_transaction_offset = half.commit_log_offset
        return record


def _copy_of(half: MessageExt, topic: str, queue_id: int, properties: dict[str, str]) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=dict(properties),
        property_text=encode_properties(properties),
        born_timestamp=half.born_timestamp,
        born_host=pack_host(*half.born_host),
        store_host=pack_host(*half.store_host),
        flag=half.flag,
        sys_flag=half.sys_flag & ~_KIND,
        reconsume_times=half.reconsume_times,
    )


def _number(text: str | bytes | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
