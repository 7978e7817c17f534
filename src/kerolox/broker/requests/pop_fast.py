"""The common pops and acknowledgements, answered from the bytes of their frames in one step.

Handlers (``pop.py``, ``pop_acks.py``) are complete by themselves, at ten times the cost: the
command, its header and its answer as objects, a coroutine, each check anew. Here a frame is decoded
to what is needed, what was checked of a group and a topic is remembered with what it was checked
against, and the answer is written as bytes. A frame that is not common gives None, **before
anything has changed**, and its handler answers it: a filter, an order, a retry that waits, access
control, a group that begins, nothing to get, anything wrong.
"""

from __future__ import annotations

import re
from random import random

import msgspec

from kerolox.broker.context import Context
from kerolox.broker.pop.checks import check_group, check_invisible, check_poll, check_topic
from kerolox.broker.pop.leases import AckOutcome, QueueKey
from kerolox.broker.pop.lending import Terms
from kerolox.kernel.status import GetMessageStatus
from kerolox.kernel.values import Read
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from kerolox.protocol.codes import (
    BATCH_ITEMS_MAX,
    VERSION,
    LanguageCode,
    Perm,
    RequestCode,
    SerializeType,
)
from kerolox.protocol.framing import encode_frame, split_frame
from kerolox.protocol.names import (
    LMQ_PREFIX,
    NAME_BYTES_MAX,
    Int32,
    Int64,
    has_name_characters,
    is_reserved_group,
    is_system_topic,
)
from kerolox.protocol.pop import (
    RECEIPT_BYTES_MAX,
    BatchAckBody,
    PoppedBatch,
    PopReceipt,
)
from kerolox.protocol.pop_names import PopInitMode, TopicKind
from kerolox.protocol.serialize import decode_plain_header
from kerolox.remoting.server import ServerConnection

HEADER_BYTES_MAX = 4 << 10
BODY_BYTES_MAX = 16 << 10
"""Longer ones are left to the handlers, which take longer bodies in slices."""

NAME_CHARACTERS_MAX = NAME_BYTES_MAX // 4

PLACES_MAX = 4_096
"""Groups and topics that are remembered."""

_FOUND = GetMessageStatus.FOUND.value
_RECEIPT = re.compile(
    r"[0-9]{1,18} ([0-9]{1,18}) [0-9]{1,18} 0 [0-2] [^ ]+ ([0-9]{1,9}) ([0-9]{1,18})",
    re.ASCII,
)
_TAIL = f',"serializeTypeCurrentRPC":"{SerializeType.JSON.name}","version":{VERSION}}}'
_LANGUAGE = f'"flag":1,"language":"{LanguageCode.PYTHON.name}","opaque":'


class _Fields(msgspec.Struct, rename="camel"):
    """Members of all three requests. A missing one is -1, or empty."""

    consumer_group: str = ""
    topic: str = ""
    queue_id: Int32 = -2
    max_msg_nums: Int32 = -1
    invisible_time: Int64 = -1
    poll_time: Int64 | None = None
    born_time: Int64 = 0
    init_mode: Int32 | None = None
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    extra_info: str = ""
    offset: Int64 = -1


_decode_fields = msgspec.json.Decoder(_Fields, strict=False).decode
_decode_acks = msgspec.json.Decoder(BatchAckBody, strict=False).decode


class _Place:
    """A group and a topic that were checked, and what they were checked against."""

    __slots__ = ("group", "is_for_calls", "keys", "retries", "topic")

    def __init__(
        self, name: str, group_name: str, topic: TopicConfig, group: SubscriptionGroupConfig
    ) -> None:
        self.topic = topic
        self.group = group
        self.keys = [QueueKey(group_name, name, each) for each in range(topic.read_queue_nums)]
        kinds = TopicKind.RETRY_V1, TopicKind.RETRY_V2
        self.retries = [QueueKey(group_name, kind.topic(name, group_name), 0) for kind in kinds]
        self.is_for_calls = (
            group.consume_message_orderly is not True
            and has_name_characters(name)
            and has_name_characters(group_name)
            and not is_system_topic(name)
            and not is_reserved_group(group_name)
        )
        """Whether receives by gRPC are pops without order, and nothing is wrong with the names."""


class FoundMessages:
    """What a pop got."""

    __slots__ = ("batches", "bodies", "pop_time", "rest", "size", "touched")

    def __init__(self, pop_time: int) -> None:
        self.pop_time = pop_time
        self.rest = self.size = 0
        self.batches: list[PoppedBatch] = []
        self.bodies: list[bytes] = []
        self.touched: list[tuple[QueueKey, int]] = []
        """The queues that were read, and where each goes on."""

    def add(self, key: QueueKey, start: int, read: Read) -> None:
        """Messages of a queue, which follow each other."""
        self.touched.append((key, read.next_offset))
        self.rest += max(read.max_offset - read.next_offset, 0)
        offsets = tuple(range(start, read.next_offset))
        self.batches.append(PoppedBatch(TopicKind.NORMAL, key.queue_id, start, offsets))
        self.bodies.append(read.records)
        self.size += len(read.records)

    def answer(self, opaque: int, invisible_ms: int) -> bytes:
        """The whole frame."""
        starts = ";".join(f"0 {each.queue_id} {each.start_offset}" for each in self.batches)
        numbers = ";".join(
            f"0 {each.queue_id} {','.join(map(str, each.offsets))}" for each in self.batches
        )
        header = (
            f'{{"code":0,"extFields":{{"popTime":"{self.pop_time}",'
            f'"invisibleTime":"{invisible_ms}","reviveQid":"0","restNum":"{self.rest}",'
            f'"startOffsetInfo":"{starts}","msgOffsetInfo":"{numbers}"}},{_LANGUAGE}{opaque},'
            f'"remark":"FOUND"{_TAIL}'
        ).encode()
        size = len(header) + 4 + self.size
        lengths = size.to_bytes(4, "big"), len(header).to_bytes(4, "big")
        return b"".join((*lengths, header, *self.bodies))


class FastPops:
    """Answers what is common; everything else is left to the handlers."""

    def __init__(self, broker: Context) -> None:
        """Nothing is remembered."""
        self._broker = broker
        self._places: dict[tuple[str, str], _Place] = {}
        self._store = broker.store
        self._topics = broker.tables.topics
        self._groups = broker.tables.groups
        self._offsets = broker.tables.offsets
        self._pops = broker.tables.pops

    def answer(self, frame: bytes, connection: ServerConnection) -> bytes | None:
        """The whole answer to a frame that begins with ``POP_FRAME``, without its length; None: it
        is not common."""
        broker = self._broker
        kind, header, body = split_frame(frame)
        if (
            kind != SerializeType.JSON
            or len(header) > HEADER_BYTES_MAX
            or len(body) > BODY_BYTES_MAX
            or not self._is_common
        ):
            return None
        try:
            command = decode_plain_header(header)
            if command.flag:
                return None
            if command.code == RequestCode.BATCH_ACK_MESSAGE:
                return self._ack_batch(command.opaque, body)
            if body:
                return None
            if command.code == RequestCode.POP_MESSAGE:
                fields = _decode_fields(command.extFields)
                owner = broker.tables.clients.named(fields.consumer_group, connection)
                return self._pop(command.opaque, fields, owner)
            if command.code == RequestCode.ACK_MESSAGE:
                return self._ack(command.opaque, _decode_fields(command.extFields))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        return None

    @property
    def _is_common(self) -> bool:
        """Nobody but the broker itself has a say in requests."""
        return self._is_own and not self._broker.guards.access.is_on

    @property
    def _is_own(self) -> bool:
        """No other broker has a say in requests."""
        return not (self._broker.roles.forwarder.is_on or self._broker.role.current.is_slave)

    # -- pops -----------------------------------------------------------------------------------
    def _place(self, topic: str, group: str) -> _Place | None:
        """A topic and a group that may be popped from; None: the handler says why not."""
        topic_config, group_config = self._topics.get(topic), self._groups.get(group)
        place = self._places.get((topic, group))
        if place is not None and place.topic is topic_config and place.group is group_config:
            return place
        if (
            topic_config is None
            or group_config is None
            or topic.startswith(LMQ_PREFIX)
            or group.startswith(LMQ_PREFIX)
            or check_topic(topic_config, topic) is not None
            or check_group(group_config, group, topic) is not None
        ):
            return None
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        place = self._places[topic, group] = _Place(topic, group, topic_config, group_config)
        return place

    def _pop(self, opaque: int, asked: _Fields, owner: str) -> bytes | None:
        state = self._pops.state
        if (
            asked.order
            or asked.exp not in (None, "", "*")
            or asked.exp_type not in (None, "", "TAG")
            or asked.attempt_id is not None
            or asked.init_mode is None
            or asked.poll_time is None
            or check_invisible(asked.invisible_time, is_change=False) is not None
            or not state.orders.is_empty
            or not self._broker.config.broker_permission & Perm.READ
        ):
            return None
        place = self._place(asked.topic, asked.consumer_group)
        found = None if place is None else self._found(place, asked, owner)
        return None if found is None else found.answer(opaque, asked.invisible_time)

    def receive(
        self, topic: str, group: str, count: int, invisible_ms: int, owner: str
    ) -> FoundMessages | None:
        """All messages that are there, for a call of gRPC that was checked and let in. None: that
        is not common, or there are none."""
        place = self._place_of_calls(topic, group)
        if place is None:
            return None
        asked = _Fields(
            consumer_group=group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=0,
            init_mode=PopInitMode.MAX,
        )
        return self._found(place, asked, owner, lends_empty=True)

    def _place_of_calls(self, topic: str, group: str) -> _Place | None:
        """A topic and a group that calls of gRPC receive from in a common way."""
        if (
            not self._is_own
            or self._broker.guards.limits.is_on
            or not self._pops.state.orders.is_empty
            or not self._broker.config.broker_permission & Perm.READ
        ):
            return None
        place = self._place(topic, group)
        return place if place is not None and place.is_for_calls else None

    def lend_queues(self, topic: str, group: str) -> bool:
        """Let the kernel have all queues, for a call of gRPC that was checked and let in and asks
        for messages with some tags. False: it has some already, or that is not common."""
        table = self._pops.state.queues
        place = self._place_of_calls(topic, group)
        if place is None or not table.lends or self._has_retry(place):
            return False
        offsets = self._offsets.of_topic(group, topic)
        touched: list[tuple[QueueKey, int]] = []
        for key in place.keys:
            low, end = self._store.queue_bounds(topic, key.queue_id)
            committed = offsets.get(key.queue_id, -1)
            start = table.start(key, committed, low) if committed >= 0 else end + 1
            if start > end or not table.capacity(key):
                return False
            touched.append((key, start))
        self._pops.commit()
        self._lend(place, touched)
        return True

    def _found(
        self, place: _Place, asked: _Fields, owner: str, *, lends_empty: bool = False
    ) -> FoundMessages | None:
        """What a pop gets. ``lends_empty``: let the kernel know when something comes, if there is
        nothing."""
        now, config = self._pops.now(), self._broker.config
        count, born_ms, poll_ms = asked.max_msg_nums, asked.born_time, asked.poll_time or 0
        if check_poll(config.broker_ip1, count, born_ms, poll_ms, now.wall_ms) is not None:
            return None
        keys = place.keys
        if asked.queue_id >= 0:
            if asked.queue_id >= len(keys):
                return None
            keys = [keys[asked.queue_id]]
        chance = int(random() * 100)
        if chance < config.pop_from_retry_probability and self._has_retry(place):
            return None
        found = FoundMessages(now.wall_ms)
        first = chance % len(keys) if keys else 0
        self._take(found, asked, keys[first:] + keys[:first], owner)
        self._pops.commit()
        is_empty = lends_empty and len(found.touched) == len(keys) and not self._has_retry(place)
        if self._pops.state.queues.lends and (found.batches or is_empty):
            self._lend(place, found.touched)
        return found if found.batches else None

    def _take(self, found: FoundMessages, asked: _Fields, keys: list[QueueKey], owner: str) -> None:
        """Take messages of these queues, until one is not common."""
        group, topic, left = asked.consumer_group, asked.topic, asked.max_msg_nums
        store, table, now = self._store, self._pops.state.queues, self._pops.now()
        offsets = self._offsets.of_topic(group, topic)
        size_max = self._broker.config.transfer_bytes_max[0]
        for key in keys:
            low, end = store.queue_bounds(topic, key.queue_id)
            committed = offsets.get(key.queue_id, -1)
            start = table.start(key, committed, low) if committed >= 0 else end + 1
            if start > end:
                break
            count = min(left, table.capacity(key)) if start < end else 0
            if start == end:
                found.touched.append((key, start))
            if not count:
                continue
            read = store.read(topic, key.queue_id, start, count, None, group)
            if read.status != _FOUND or read.next_offset - start != read.count:
                break
            found.pop_time = table.deliver(
                key,
                start,
                range(start, read.next_offset),
                read.next_offset,
                invisible_ms=asked.invisible_time,
                now=now,
                owner=owner,
            )
            found.add(key, start, read)
            left -= read.count
            if not left or found.size >= size_max:
                break

    def _has_retry(self, place: _Place) -> bool:
        """Whether there are retries that the group has not got."""
        return any(
            self._next_retry(key) < self._store.queue_bounds(key.topic, 0)[1]
            for key in place.retries
            if key.topic in self._topics
        )

    def _next_retry(self, key: QueueKey) -> int:
        """Where a group goes on in a topic of retries."""
        queue = self._pops.state.queues.queue(key)
        return max(self._offsets.query(*key), 0) if queue is None else queue.next_offset

    def _lend(self, place: _Place, touched: list[tuple[QueueKey, int]]) -> None:
        """Let the kernel answer the next pops of these queues, unless somebody has to be told when
        their messages are done."""
        if self._broker.popping.held.is_starved or self._offsets.stale:
            return
        v1, v2 = map(self._next_retry, place.retries)
        percent = self._broker.config.pop_from_retry_probability
        name = self._broker.config.broker_name
        broker_name = name if place.is_for_calls and " " not in name else ""
        terms = Terms(self._pops.now().steady_ms, (v1, v2), percent, broker_name)
        for key, next_offset in touched:
            self._pops.state.queues.lend(key, next_offset, terms)

    # -- acknowledgements -----------------------------------------------------------------------
    def _ack(self, opaque: int, asked: _Fields) -> bytes | None:
        key = QueueKey(asked.consumer_group, asked.topic, asked.queue_id)
        found = _RECEIPT.fullmatch(asked.extra_info)
        if found is None or len(asked.extra_info) > RECEIPT_BYTES_MAX:
            return None
        offset = asked.offset
        if int(found[2]) != key.queue_id or int(found[3]) != offset:
            return None
        return _answered(opaque) if self._is_done(key, offset, int(found[1])) else None

    def _is_done(self, key: QueueKey, offset: int, pop_time: int) -> bool:
        table = self._pops.state.queues
        if key.topic not in self._topics or not table.has_out(key):
            return False
        low, _ = self._store.queue_bounds(key.topic, key.queue_id)
        if offset < low or table.ack(key, offset, pop_time) is not AckOutcome.DONE:
            return False
        self._pops.commit()
        self._broker.popping.is_done(key)
        return True

    def acknowledge(self, key: QueueKey, receipt: PopReceipt) -> bool:
        """A message is done that a call of gRPC received; False: that is not common."""
        return (
            self._is_common
            and not self._broker.guards.limits.is_on
            and not receipt.is_order
            and self._is_done(key, receipt.queue_offset, receipt.pop_time)
        )

    def _ack_batch(self, opaque: int, body: bytes | memoryview) -> bytes | None:
        table = self._pops.state.queues
        decoded = _decode_acks(body)
        if len(decoded.broker_name or "") > NAME_CHARACTERS_MAX:
            return None
        count, acks = 0, decoded.acks
        keys = []
        for each in acks:
            count += len(each.b)
            topic = each.t if each.r == "0" else each.kind.topic(each.t, each.c)
            key = QueueKey(each.c, topic, each.q)
            if each.rq or not table.has_out(key) or key.topic not in self._topics:
                return None
            keys.append(key)
        if not keys or 8 * count > BATCH_ITEMS_MAX:
            return None
        for key, each in zip(keys, acks, strict=True):
            low, end = self._store.queue_bounds(key.topic, key.queue_id)
            if table.ack_run(key, each.so, each.bits_between(low, end), each.pt):
                self._broker.popping.is_done(key)
        self._pops.commit()
        return _answered(opaque)


def _answered(opaque: int) -> bytes:
    return encode_frame(f'{{"code":0,{_LANGUAGE}{opaque}{_TAIL}'.encode())
