"""Messages, queues and message ids: the nouns that producers, consumers and the broker share."""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from kerolox.errors import MessageRejectedError
from kerolox.text import wrong_type

ALL_TAGS = "*"
"""The tag expression that every message matches."""


BODY_BYTES_SHOWN = 64
"""How much of a body the ``repr`` of a message shows."""


class PropertyKey:
    """Names of the properties that RocketMQ itself reads or writes (``MessageConst``)."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQUE_KEY = "UNIQ_KEY"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    CLUSTER = "CLUSTER"
    INSTANCE_ID = "INSTANCE_ID"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    MESSAGE_TYPE = "MSG_TYPE"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    REPLY_ARRIVE_TIME = "ARRIVE_TIME"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    START_DELIVER_TIME = "__STARTDELIVERTIME"
    TIMER_DELIVER = "TIMER_DELIVER_MS"
    TIMER_DELAY = "TIMER_DELAY_MS"
    TIMER_DELAY_SECONDS = "TIMER_DELAY_SEC"
    """When a message is to be delivered (:data:`TIMERS`); brokers of 4.x know none."""
    TIMER_OUT = "TIMER_OUT_MS"
    TIMER_ENQUEUED = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUED = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    """What the timer notes in a message."""
    TIMER_DELETES = "TIMER_DEL_UNIQKEY"
    """Of a command to delete a message that waits: its topic, a plus sign, its ``UNIQ_KEY``."""
    POP_RECEIPT = "POP_CK"
    """The receipt of a popped message, see ``protocol.pop``."""
    FIRST_POP_TIME = "1ST_POP_TIME"
    """When a message was popped first, in a copy among the retries."""
    SINK = "KEROLOX_SINK"
    """Kerolox's own: the attempt that wrote a half message, see ``protocol.own.half_messages``."""


TIMERS = frozenset(
    (PropertyKey.TIMER_DELIVER, PropertyKey.TIMER_DELAY, PropertyKey.TIMER_DELAY_SECONDS)
)
"""A message with one of these is for a moment."""

DEAD_LETTER_REASON = "DEAD_LETTER_REASON"
"""The property of a dead letter that says why it is one, when a listener gave a reason. RocketMQ
has none."""

RESERVED_PROPERTIES = frozenset(
    (
        "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET "
        "MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
        "RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES "
        "CONSUME_START_TIME INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME "
        "PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET"
    ).split()
)
"""Names that no user property has (``MessageConst.STRING_HASH_SET``)."""


NAME_END = "\x01"
ITEM_END = "\x02"
"""What stands behind a property's name, and between properties, in property text."""


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int


def check_body_type(body: object) -> None:
    """Refuse a body that is no bytes.

    Raises:
        MessageRejectedError: with what would be right.
    """
    if isinstance(body, (bytes, bytearray, memoryview)):
        return
    hint = "write text.encode()" if isinstance(body, str) else "encode it, as JSON for instance"
    raise MessageRejectedError(f"the body is of type {type(body).__name__}, not bytes; {hint}")


def check_parts(message: Message) -> None:
    """Refuse tags and keys of a wrong type. Keys that can be gone through only once are kept as a
    tuple, so that a message can be sent again.

    Raises:
        MessageRejectedError: with the part, what it is, what it must be.
    """
    tags, keys = message.tags, message.keys
    if not isinstance(tags, str):
        hint = "; a message has one tag" if isinstance(tags, (list, tuple, set)) else ""
        raise MessageRejectedError(f"tags {wrong_type(tags, 'str')}{hint}")
    if isinstance(keys, str):
        return
    if isinstance(keys, (bytes, bytearray, memoryview)) or not isinstance(keys, Iterable):
        raise MessageRejectedError(f"keys {wrong_type(keys, 'str')}; or a list of texts")
    if not isinstance(keys, (list, tuple)):
        message.keys = keys = tuple(keys)
    for index, key in enumerate(keys):
        if not isinstance(key, str):
            raise MessageRejectedError(f"item {index} of keys {wrong_type(key, 'str')}")


def _message_text(message: Message | MessageExt) -> str:
    """The ``repr`` of a message: what is not the default, and the beginning of a long body."""
    shown = []
    for each in fields(message):
        value = getattr(message, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.name == "body" and len(value) > BODY_BYTES_SHOWN:
            shown.append(f"body=<{len(value)} bytes: {bytes(value[:BODY_BYTES_SHOWN])!r}...>")
        elif value != default:
            shown.append(f"{each.name}={value!r}")
    return f"{type(message).__name__}({', '.join(shown)})"


def _check_properties(properties: dict[str, str]) -> None:
    """Raises MessageRejectedError for what may not be a user property."""
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRejectedError(
                f"property {name!r} is {value!r}; names and values are texts, so write "
                f"str({value!r})"
            )
        if name in RESERVED_PROPERTIES:
            raise MessageRejectedError(
                f"property {name!r} is reserved by RocketMQ; choose another name"
            )
        if not name.strip() or not value.strip():
            raise MessageRejectedError(f"property {name!r} has a blank name or value")


@dataclass(slots=True, init=False)
class Message:
    """What a producer sends.

    ``body`` is bytes, so a text is encoded first (``text.encode()``). ``properties`` may only hold
    user properties, whose names and values are str; tags, keys and the other reserved names have
    arguments of their own. ``delay_level`` 0 means at once; 1 to 18 are the levels of the
    brokers' ``messageDelayLevel``, which may have more (``ProducerSettings.delay_level_max``).
    ``keys`` is a text, or texts; those of an iterator are kept as a tuple.

    A producer refuses a message whose tags, keys or properties have U+0001 or U+0002 in them. These
    end names and values where properties travel as one text.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | Iterable[str] = ""
    flag: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    wait_store_ok: bool = True
    delay_level: int = 0

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str = "",
        keys: str | Iterable[str] = "",
        flag: int = 0,
        properties: dict[str, str] | None = None,
        wait_store_ok: bool = True,
        delay_level: int = 0,
    ) -> None:
        # By hand, since each send makes one: checks of arguments cost half of those of attributes.
        self.topic = topic
        self.body = body
        self.tags = tags
        self.keys = keys
        self.flag = flag
        self.properties = {} if properties is None else properties
        self.wait_store_ok = wait_store_ok
        self.delay_level = delay_level
        if type(body) is not bytes:
            check_body_type(body)
        if type(keys) is not str or type(tags) is not str:
            check_parts(self)
        if properties is not None:
            _check_properties(properties)

    def __post_init__(self) -> None:
        """The same checks, for dataclasses that are made of this one: they have an ``__init__`` of
        their own."""
        check_body_type(self.body)
        check_parts(self)
        _check_properties(self.properties)

    def __repr__(self) -> str:
        return _message_text(self)

    def wire_properties(self) -> dict[str, str]:
        """All properties as they travel: the user's, then KEYS, TAGS, DELAY, WAIT."""
        keys = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        wire = dict(self.properties)
        if keys:
            wire[PropertyKey.KEYS] = keys
        if self.tags:
            wire[PropertyKey.TAGS] = self.tags
        if self.delay_level:
            wire[PropertyKey.DELAY] = str(self.delay_level)
        wire[PropertyKey.WAIT] = "true" if self.wait_store_ok else "false"
        return wire


class RecordParts(Protocol):
    """Makes parts of messages from what they keep of their records: all that stands before the
    body, and behind that the property text."""

    bounds: tuple[str, str] | None
    """Of their queue, as the answer to the pull tells them."""

    def properties(self, kept: bytes) -> dict[str, str]:
        """The properties."""

    def part(self, kept: bytes, name: str) -> object:
        """Any other part, by its name in :class:`MessageExt`."""


class Received:
    """What a received message has beside its fields."""

    __slots__ = ("_kept", "_parts", "_started_ms")
    _kept: bytes
    _parts: RecordParts
    _started_ms: int
    """When its listener began; 0: it did not, -1: the properties say it."""

    def _late_part(self, name: str) -> object:
        return self._parts.part(self._kept, name)

    def _late_properties(self) -> dict[str, str]:
        properties = self._parts.properties(self._kept)
        if self._started_ms > 0:
            properties[PropertyKey.CONSUME_START_TIME] = str(self._started_ms)
        self._started_ms = -1
        return properties


@dataclass(slots=True, kw_only=True)
class MessageExt(Received):
    """A stored message, as a consumer receives it.

    ``body`` is inflated. Where it can't be, it is as stored, and ``body_error`` says why: it is
    corrupt, or its compression needs a package that is not installed. Else ``body_error`` is empty.

    The properties and numbers of a pulled message are made when they are first read. It holds
    a copy of its own record for that, so it keeps nothing of the messages that came with it.
    """

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    properties: dict[str, str]
    broker_name: str = ""
    flag: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    store_size: int = 0
    born_timestamp: int = 0
    store_timestamp: int = 0
    born_host: tuple[str, int] = ("", 0)
    store_host: tuple[str, int] = ("", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_error: str = ""

    if not TYPE_CHECKING:  # for type checkers each field is simply there

        def __getattr__(self, name: str) -> object:
            """A part that is not made yet: Python asks here for what has no value."""
            if name == "_started_ms":
                return -1
            if name not in _LATE_PARTS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = self._late_properties() if name == "properties" else self._late_part(name)
            setattr(self, name, value)
            return value

    def __getstate__(self) -> tuple[object, dict[str, object]]:
        """All fields, for ``pickle`` and ``copy``."""
        for name in _LATE_PARTS:
            getattr(self, name)
        state, slots = cast("tuple[object, dict[str, object]]", object.__getstate__(self))
        return state, {n: value for n, value in slots.items() if n not in Received.__slots__}

    def __repr__(self) -> str:
        return _message_text(self)

    @property
    def tags(self) -> str:
        """The tag (TAGS); empty when there is none."""
        return self.properties.get(PropertyKey.TAGS, "")

    @property
    def keys(self) -> str:
        """The business keys (KEYS), separated by blanks."""
        return self.properties.get(PropertyKey.KEYS, "")

    @property
    def unique_key(self) -> str:
        """The id that the producer gave (UNIQ_KEY); empty when it gave none."""
        return self.properties.get(PropertyKey.UNIQUE_KEY, "")

    @property
    def offset_message_id(self) -> str:
        """The id that the broker gave: store host and physical offset, upper-case hex."""
        return MessageId(self.store_host[0], self.store_host[1], self.commit_log_offset).text

    @property
    def message_id(self) -> str:
        """``unique_key`` if there is one, else ``offset_message_id``, as Java clients show it."""
        return self.unique_key or self.offset_message_id

    @property
    def queue_bounds(self) -> tuple[int, int] | None:
        """The offsets of its queue's first message and of the one that comes next, as they were
        when it was pulled (Java has them as its properties MIN_OFFSET and MAX_OFFSET); None: it
        was not pulled, or copied since."""
        parts: RecordParts | None = getattr(self, "_parts", None)
        if parts is None or parts.bounds is None:
            return None
        first, following = parts.bounds
        try:
            return int(first), int(following)
        except ValueError:  # what a broker writes
            return None

    @property
    def queue(self) -> MessageQueue:
        """The queue that holds it."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


_LATE_PARTS = frozenset(MessageExt.__slots__) - {"topic", "body", "broker_name", "body_error"}


def received_message(
    topic: str, body: bytes, queue_offset: int, broker_name: str, kept: bytes, parts: RecordParts
) -> MessageExt:
    """A message whose other parts are made from ``kept`` when they are read."""
    message = MessageExt.__new__(MessageExt)
    message.topic = topic
    message.body = body
    message.queue_offset = queue_offset
    message.broker_name = broker_name
    message.body_error = ""
    received: Received = message
    received._kept = kept
    received._parts = parts
    received._started_ms = 0
    return message


def parts_of(message: MessageExt) -> RecordParts | None:
    """What makes the parts of a message that nobody has read; None: it has all of them."""
    parts: RecordParts | None = getattr(message, "_parts", None)
    return parts


def give_parts(messages: Iterable[MessageExt], parts: RecordParts) -> None:
    """Have the parts of these that nobody has read made by another one."""
    for message in messages:
        received: Received = message
        received._parts = parts


def has_properties(message: MessageExt) -> bool:
    """Somebody has read the properties of a message, or it came with them."""
    return message._started_ms < 0


def queue_ids_fit(messages: Iterable[MessageExt], queue_id: int) -> bool:
    """Whether messages that nobody has read are of a queue, by their records."""
    wanted = queue_id.to_bytes(4, "big")
    return all([message._kept[12:16] == wanted for message in messages])


def note_consume_start(messages: Iterable[MessageExt], now_ms: int) -> None:
    """The listener of these begins (CONSUME_START_TIME)."""
    for message in messages:
        if message._started_ms < 0:
            message.properties[PropertyKey.CONSUME_START_TIME] = str(now_ms)
        else:
            received: Received = message
            received._started_ms = now_ms


def consume_start_ms(message: MessageExt) -> int:
    """When the listener of a message began, ms; 0: it did not yet."""
    started_ms = message._started_ms
    if started_ms < 0:
        return int(message.properties.get(PropertyKey.CONSUME_START_TIME) or 0)
    return started_ms


class MessageId(NamedTuple):
    """A server message id: who stores the record, and where in its commit log."""

    host: str
    port: int
    physical_offset: int

    @property
    def text(self) -> str:
        """32 hex digits for IPv4, 56 for IPv6."""
        packed = pack_host(self.host, self.port) + struct.pack(">q", self.physical_offset)
        return packed.hex().upper()

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse the text form.

        Raises:
            ValueError: not 32 or 56 hex digits.
        """
        if len(text) not in (32, 56):
            raise ValueError(f"message id {text!r} has {len(text)} characters, not 32 or 56")
        try:
            data = bytes.fromhex(text)
        except ValueError:
            raise ValueError(f"message id {text!r} is not hexadecimal") from None
        host, port = unpack_host(data[:-8])
        return cls(host, port, struct.unpack(">q", data[-8:])[0])


class ConsumeFromWhere(Enum):
    """Where a group starts in a queue of which its broker gives no offset. To a new group it gives
    0 while the queue's first message is stored and near the end of the log."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    """Whether a group's members share the messages or each gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 units, a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def tags_code(tags: str | None) -> int:
    """The tags code of a queue entry: 0 for no tags."""
    return java_hash(tags) if tags else 0


def encode_properties(properties: Mapping[str, str]) -> str:
    """Property text: name 0x01 value, joined by 0x02 (4.9.8: no trailing separator)."""
    return ITEM_END.join(f"{name}{NAME_END}{value}" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Parse property text; an item without 0x01, or with an empty name or value, is dropped."""
    properties: dict[str, str] = {}
    for item in text.split(ITEM_END):
        name, separator, value = item.partition(NAME_END)
        if separator and name and value:
            properties[name] = value
    return properties


def property_value(text: bytes, name: str) -> bytes | None:
    """The value of a property in property text; the last one counts, an empty one does not."""
    wanted = _start_of(name)
    item_end = wanted[:1]
    text = item_end + text
    at = text.rfind(wanted)
    while at >= 0:
        start = at + len(wanted)
        stop = text.find(item_end, start)
        value = text[start:] if stop < 0 else text[start:stop]
        if value:
            return value
        at = text.rfind(wanted, 0, at)
    return None


@functools.lru_cache(maxsize=64)
def _start_of(name: str) -> bytes:
    """What stands before the value of a property behind another one."""
    return f"{ITEM_END}{name}{NAME_END}".encode()


def is_true(value: str) -> bool:
    """``Boolean.parseBoolean`` of Java: everything but ``true``, in any case, is false."""
    return value.lower() == "true"


def pack_host(host: str, port: int) -> bytes:
    """8 bytes for IPv4, 20 for IPv6: address, then the port as a 4-byte number.

    Raises:
        ValueError: ``host`` is no IP address.
    """
    return ipaddress.ip_address(host).packed + struct.pack(">I", port)


@functools.lru_cache(maxsize=1024)
def unpack_host(data: bytes) -> tuple[str, int]:
    """The inverse of :func:`pack_host`. Few hosts stand in many records, so they are kept."""
    return str(ipaddress.ip_address(data[:-4])), struct.unpack(">I", data[-4:])[0]
