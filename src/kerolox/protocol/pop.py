"""The texts of pops: receipts, what an answer says of its messages, bodies.

Names are those of RocketMQ 5.3.3: ``ExtraInfoUtil``, ``KeyBuilder``, ``BatchAck``. Clients send all
of it back, unsigned. So each parser takes what the builder beside it writes, within bounds, and
refuses the rest with an error that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from kerolox.message import ITEM_END, PropertyKey, encode_properties, property_value
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import REQUEST_BODY_BYTES_MAX, BodyError
from kerolox.protocol.codes import BATCH_ITEMS_MAX
from kerolox.protocol.names import (
    NAME_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Int32,
    Int64,
    Name,
    TopicName,
    text_fault,
)
from kerolox.protocol.pop_names import ORDER_REVIVE_QUEUE, TopicKind
from kerolox.protocol.records import parse_record
from kerolox.text import printable

__all__ = [
    "BATCH_ACKS_MAX",
    "RECEIPT_BYTES_MAX",
    "BatchAck",
    "BatchAckBody",
    "PopReceipt",
    "PopTextError",
    "PoppedBatch",
    "batches_from_texts",
    "msg_offset_info",
    "order_count_info",
    "popped_record",
    "start_offset_info",
]

RECEIPT_BYTES_MAX = 512
"""Longest receipt: eight numbers and the name of a broker."""

BATCH_ACKS_MAX = 4_096
"""Most members of a batch of acknowledgements."""

_PARTS_MIN, _PARTS_MAX = 7, 9
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]{1,18}(?:,[0-9]{1,18})*", re.ASCII)
"""What nearly all lists of offsets are."""
_LONG_MAX, _INT_MAX = (1 << 63) - 1, (1 << 31) - 1
_OFFSET_KEY = "qo"
_ITEM_END = ITEM_END.encode()


class PopTextError(ValueError):
    """A receipt, or a text of an answer to a pop, is malformed; says where."""


@dataclass(frozen=True, slots=True)
class PopReceipt:
    """``extraInfo`` of an acknowledgement, the property ``POP_CK`` of a message at the client:
    which delivery is meant. Not signed: a client can make one that it never got."""

    start_offset: int
    """First offset of the queue that the pop read."""
    pop_time: int
    """Milliseconds since the epoch: of the pop, or of the last change of the invisible time."""
    invisible_time: int
    revive_queue_id: int
    kind: TopicKind
    broker_name: str
    queue_id: int
    queue_offset: int = -1
    """-1: the text does not say it, as with old clients."""
    commit_log_offset: int = -1
    """Only in receipts of gRPC clients."""

    @property
    def is_order(self) -> bool:
        """Whether it is of an ordered pop."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    @property
    def text(self) -> str:
        """As clients send it back; PopTextError: the name of the broker is empty, too long or has a
        blank.
        """
        name = self.broker_name
        if not name or " " in name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise PopTextError(
                f"the broker name [{printable(name[:NAME_BYTES_MAX])}] can't be part of a receipt; "
                f"set a brokerName of 1 to {NAME_BYTES_MAX} bytes without blanks"
            )
        parts: list[object] = [self.start_offset, self.pop_time, self.invisible_time]
        parts += [self.revive_queue_id, int(self.kind), name, self.queue_id, self.queue_offset]
        if self.commit_log_offset >= 0:
            parts.append(self.commit_log_offset)
        return " ".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> PopReceipt:
        """Read what a client sent; PopTextError says which part is wrong where it is no receipt."""
        if len(text) > RECEIPT_BYTES_MAX:
            raise PopTextError(
                f"the receipt has {len(text)} characters; at most {RECEIPT_BYTES_MAX} are allowed"
            )
        parts = text.split(" ")
        if not _PARTS_MIN <= len(parts) <= _PARTS_MAX:
            raise PopTextError(
                f"the receipt has {len(parts)} parts; it needs {_PARTS_MIN} to {_PARTS_MAX}: "
                f"{printable(text[:64])!r}"
            )
        kind = _number("topic type", parts[4], 0, TopicKind.RETRY_V2)
        if not parts[5]:
            raise PopTextError("the receipt names no broker")
        return cls(
            start_offset=_number("start offset", parts[0], 0),
            pop_time=_number("pop time", parts[1], 0),
            invisible_time=_number("invisible time", parts[2], 0),
            revive_queue_id=_number("revive queue", parts[3], 0, _INT_MAX),
            kind=TopicKind(kind),
            broker_name=parts[5],
            queue_id=_number("queue", parts[6], 0, _INT_MAX),
            queue_offset=_number("offset", parts[7], -1) if len(parts) > 7 else -1,
            commit_log_offset=_number("log offset", parts[8], -1) if len(parts) > 8 else -1,
        )


def popped_record(record: bytes, topic: str, receipt: str) -> bytes:
    """A record of retries as a pop delivers it: with the topic that it was sent to, and its receipt
    as a property (``popResponseReturnActualRetryTopic`` false). One that is torn, has a receipt, or
    has no space for one stays as it is: a client makes the receipt from the answer then.
    """
    view = parse_record(record, 0, len(record))
    name = topic.encode()
    if view is None or len(name) > TOPIC_BYTES_MAX:
        return record
    old = view.properties
    if property_value(old, PropertyKey.POP_RECEIPT) is not None:
        return record
    item = encode_properties({PropertyKey.POP_RECEIPT: receipt}).encode()
    separator = b"" if not old or old.endswith(_ITEM_END) else _ITEM_END
    properties = old + separator + item
    if len(properties) > PROPERTIES_BYTES_MAX:
        return record
    return b"".join(
        (
            (view.body_end + 3 + len(name) + len(properties)).to_bytes(4, "big"),
            record[4 : view.body_end],
            bytes([len(name)]),
            name,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


@dataclass(frozen=True, slots=True)
class PoppedBatch:
    """What an answer to a pop says of one queue."""

    kind: TopicKind
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]
    """Of the messages, in the order of the body."""
    times_consumed: int | None = None
    """Of an ordered pop: of the message that was delivered least often."""
    times_by_offset: Mapping[int, int] = field(default_factory=dict)
    """Of an ordered pop: how often each was delivered before; without those that never were."""


def start_offset_info(batches: Iterable[PoppedBatch]) -> str:
    """``startOffsetInfo``: kind, queue and start offset of each."""
    return ";".join(f"{each.kind:d} {each.queue_id} {each.start_offset}" for each in batches)


def msg_offset_info(batches: Iterable[PoppedBatch]) -> str:
    """``msgOffsetInfo``: kind, queue and the offsets of each. A record whose offset is missing here
    gets no receipt at the client."""
    return ";".join(
        f"{each.kind:d} {each.queue_id} {','.join(map(str, each.offsets))}" for each in batches
    )


def order_count_info(batches: Iterable[PoppedBatch]) -> str:
    """``orderCountInfo``: how often each message was delivered before, then, for old clients, the
    least of them by queue."""
    items: list[str] = []
    for each in batches:
        if each.times_consumed is not None:
            start = f"{each.kind:d} {_OFFSET_KEY}{each.queue_id}%"
            items += [f"{start}{offset} {count}" for offset, count in each.times_by_offset.items()]
            items.append(f"{each.kind:d} {each.queue_id} {each.times_consumed}")
    return ";".join(items)


def batches_from_texts(starts: str, offsets: str, counts: str = "") -> list[PoppedBatch]:
    """What an answer says, from its three texts. PopTextError: one is malformed, names a queue
    twice, or one that the first does not name; there are more than ``BATCH_ITEMS_MAX`` members.
    """
    begins: dict[tuple[TopicKind, int], int] = {}
    for kind, queue, value in _items("startOffsetInfo", starts):
        key = kind, _number("queue", queue, 0, _INT_MAX)
        if key in begins:
            raise PopTextError(f"startOffsetInfo names queue {key[1]} twice")
        begins[key] = _number("start offset", value, 0)
    found: dict[tuple[TopicKind, int], tuple[int, ...]] = {}
    for kind, queue, value in _items("msgOffsetInfo", offsets):
        key = kind, _number("queue", queue, 0, _INT_MAX)
        if key not in begins or key in found:
            raise PopTextError(f"msgOffsetInfo names queue {key[1]} twice, or one without a start")
        found[key] = _numbers(value)
    least: dict[tuple[TopicKind, int], int] = {}
    by_offset: dict[tuple[TopicKind, int], dict[int, int]] = {}
    for kind, queue, value in _items("orderCountInfo", counts):
        count = _number("count", value, 0, _INT_MAX)
        is_offset = queue.startswith(_OFFSET_KEY)
        queue, _, offset = queue.removeprefix(_OFFSET_KEY).partition("%")
        key = kind, _number("queue", queue, 0, _INT_MAX)
        if key not in begins:
            raise PopTextError(f"orderCountInfo names queue {key[1]}, which has no start")
        if is_offset:
            by_offset.setdefault(key, {})[_number("offset", offset, 0)] = count
        else:
            least[key] = count
    return [
        PoppedBatch(*key, start, found.get(key, ()), least.get(key), by_offset.get(key, {}))
        for key, start in begins.items()
    ]


def _numbers(text: str) -> tuple[int, ...]:
    texts = text.split(",", BATCH_ITEMS_MAX)
    if _NUMBERS.fullmatch(text) and len(texts) <= BATCH_ITEMS_MAX:
        return tuple(map(int, texts))
    return tuple(_number("offset", each, 0) for each in texts)


def _items(name: str, text: str) -> list[tuple[TopicKind, str, str]]:
    if not text:
        return []
    items = text.split(";", BATCH_ITEMS_MAX)
    if len(items) > BATCH_ITEMS_MAX:
        raise PopTextError(f"{name} has more than {BATCH_ITEMS_MAX} members")
    found = []
    for item in items:
        parts = item.split(" ", 3)
        if len(parts) != 3:
            raise PopTextError(f"{name} has a member without three parts: {printable(item[:64])!r}")
        kind = TopicKind(_number("topic type", parts[0], 0, TopicKind.RETRY_V2))
        found.append((kind, parts[1], parts[2]))
    return found


def _number(name: str, text: str, low: int, high: int = _LONG_MAX) -> int:
    if _NUMBER.fullmatch(text) is not None and low <= (value := int(text)) <= high:
        return value
    raise PopTextError(
        f"the {name} is {printable(text[:32])!r}, where a number from {low} to {high} is expected"
    )


# -- bodies ---------------------------------------------------------------------------------------
class BatchAck(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one pop that are acknowledged together (``BatchAck``)."""

    b: Annotated[bytes, msgspec.Meta(max_length=BATCH_ITEMS_MAX // 8)]
    """Bit i, from the lowest of the first byte on: offset ``so`` + i (``java.util.BitSet``)."""
    c: Name
    it: Int64
    pt: Int64
    q: Int32
    r: Literal["0", "1", "2"]
    rq: Int32 = 0
    so: Annotated[int, msgspec.Meta(ge=0, le=_LONG_MAX - BATCH_ITEMS_MAX)]
    t: TopicName

    @property
    def kind(self) -> TopicKind:
        """Which of the group's topics the queue is of."""
        return TopicKind(int(self.r))

    def bits_between(self, low: int, high: int) -> int:
        """Bit i: offset ``so`` + i, of those from ``low`` to ``high``."""
        bits = int.from_bytes(self.b, "little")
        below, above = low - self.so, high - self.so + 1
        if below > 0:
            bits = bits >> below << below
        if bits >> max(above, 0):
            bits &= (1 << max(above, 0)) - 1
        return bits

    @staticmethod
    def bits(start: int, offsets: Iterable[int]) -> bytes:
        """``b`` of offsets from ``start`` on, as short as Java writes it."""
        number = 0
        for offset in offsets:
            number |= 1 << (offset - start)
        return number.to_bytes((number.bit_length() + 7) // 8, "little")


_ACK_NAMES = {
    "bitSet": "b",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "popTime": "pt",
    "queueId": "q",
    "retry": "r",
    "reviveQueueId": "rq",
    "startOffset": "so",
    "topic": "t",
}
"""The long names that RocketMQ reads, too."""


class BatchAckBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of BATCH_ACK_MESSAGE (200151)."""

    acks: Annotated[list[BatchAck], msgspec.Meta(max_length=BATCH_ACKS_MAX)] = []
    broker_name: Name | None = None

    @classmethod
    def decode(cls, body: bytes | memoryview) -> BatchAckBody:
        """Read what a client sent. BodyError: it is none, is longer than
        ``REQUEST_BODY_BYTES_MAX``, or has more than ``BATCH_ACKS_MAX`` members or
        ``BATCH_ITEMS_MAX`` offsets.
        """
        if len(body) > REQUEST_BODY_BYTES_MAX:
            raise BodyError(
                f"the body has {len(body)} bytes; at most {REQUEST_BODY_BYTES_MAX} are taken"
            )
        try:
            loaded = fastjson.loads(body, lenient_bytes_max=0)
            if isinstance(loaded, dict) and isinstance(acks := loaded.get("acks"), list):
                loaded = {**loaded, "acks": [_short_names(each) for each in acks]}
            found = msgspec.convert(loaded, cls, strict=False)
        except (fastjson.FastjsonError, msgspec.ValidationError) as error:
            raise BodyError(f"the body is no BatchAckBody: {printable(str(error))}") from None
        fault = text_fault(found)
        if fault is not None:
            raise BodyError(f"the body's {fault}")
        count = sum(int.from_bytes(each.b, "little").bit_count() for each in found.acks)
        if count > BATCH_ITEMS_MAX:
            raise BodyError(
                f"the body acknowledges {count} messages; at most {BATCH_ITEMS_MAX} are taken"
            )
        return found

    def encode(self) -> bytes:
        """As a client sends it."""
        return msgspec.json.encode(self)


def _short_names(ack: object) -> object:
    if not isinstance(ack, dict):
        return ack
    return {_ACK_NAMES.get(name, name): value for name, value in ack.items()}
