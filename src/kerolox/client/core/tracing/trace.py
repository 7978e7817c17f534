"""Message traces: the records that clients write, and the messages that carry them.

A trace message has records one after the other, each ended by 0x02, its fields separated by 0x01;
a field without a value is the word ``null``. Its keys are the ids and keys of the messages that it
reports, so that a query by id finds it. Readers know records by their first field (``TraceType``)
and take those of older clients, which have fewer fields (``TraceDataEncoder``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kerolox.client.core.hooks import ConsumeReturnType, MessageType
from kerolox.client.core.sending.transaction import TransactionState
from kerolox.errors import RemoteProtocolError

if TYPE_CHECKING:
    from kerolox.message import MessageExt

FIELD, END = "\x01", "\x02"

TRACE_MESSAGE_BYTES_MAX = 128_000
"""Largest body of a trace message."""

TRACE_MESSAGE_BYTES_FULL = TRACE_MESSAGE_BYTES_MAX - 10_000
"""A segment of so many bytes is sent at once."""

TRACE_KEYS_BYTES_MAX = 32_000
"""Most bytes of its keys' text: all properties together have 32,767."""

TRACE_KEYS_BYTES_FULL = 24_000
"""A segment whose keys have so many bytes is sent at once."""

JOINED_KEY_CHARACTERS_MAX = 1024
"""Joined ids of a batch that are longer are no key."""

TRACE_WAIT_MS = 500
"""A record waits for others at most so long."""

_STATE_NAMES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
_STATES = {name: state for state, name in _STATE_NAMES.items()}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProducerTrace:
    """What records of producers start with. Milliseconds, ``timestamp_ms`` since the epoch."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    """Of a batch: the ids joined by commas."""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    """The broker's address, ``host:port``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace(_ProducerTrace):
    """A message was sent."""

    body_bytes: int = 0
    """As it travelled, so compressed if it was."""
    cost_ms: int = 0
    message_type: MessageType = MessageType.NORMAL
    offset_message_id: str = ""
    is_success: bool = True
    client_host: str = ""
    """Only older clients write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A listener is about to get a message."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    """The same in the record of the listener's end."""
    message_id: str
    retry_times: int = 0
    keys: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A listener is through with a message."""

    request_id: str
    message_id: str
    cost_ms: int
    """The listener's time, divided by the number of its messages."""
    is_success: bool
    keys: str = ""
    return_type: ConsumeReturnType = ConsumeReturnType.SUCCESS
    timestamp_ms: int = 0
    """0 in records of older clients, as is an empty group."""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionTrace(_ProducerTrace):
    """A transaction ended."""

    message_type: MessageType = MessageType.TRANSACTION_COMMIT
    transaction_id: str = ""
    state: TransactionState = TransactionState.UNKNOWN
    is_from_check: bool = False


TraceRecord = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace
_ORDER_OF_KINDS = (PubTrace, EndTransactionTrace, SubBeforeTrace, SubAfterTrace)


def _written(trace: TraceRecord) -> tuple[object, ...]:
    """The fields in the order of the wire."""
    if isinstance(trace, SubBeforeTrace):
        return (
            *("SubBefore", trace.timestamp_ms, trace.region or None, trace.group),
            *(trace.request_id, trace.message_id, trace.retry_times, trace.keys or None),
        )
    if isinstance(trace, SubAfterTrace):
        return (
            *("SubAfter", trace.request_id, trace.message_id, trace.cost_ms, trace.is_success),
            *(trace.keys or None, trace.return_type.value, trace.timestamp_ms, trace.group),
        )
    about = (
        *(trace.timestamp_ms, trace.region, trace.group, trace.topic, trace.message_id),
        *(trace.tags or None, trace.keys or None, trace.store_host),
    )
    if isinstance(trace, PubTrace):
        return (
            *("Pub", *about, trace.body_bytes, trace.cost_ms, trace.message_type.value),
            *(trace.offset_message_id, trace.is_success),
        )
    return (
        *("EndTransaction", *about, trace.message_type.value, trace.transaction_id or None),
        *(_STATE_NAMES[trace.state], trace.is_from_check),
    )


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    # Messages of other clients may have anything in their keys, which must end no field here.
    return text.replace(FIELD, " ").replace(END, " ") if FIELD in text or END in text else text


def encode_trace(trace: TraceRecord) -> str:
    """One record, its end included."""
    return FIELD.join(map(_text, _written(trace))) + END


def trace_keys(trace: TraceRecord) -> list[str]:
    """What a trace message with this record is found by: the message's id and its keys.

    The joined ids of a batch are one key, as RocketMQ has it, unless they are very long; each id
    is a key too, as many as there is capacity for. A key of another client's message that no
    producer of ours would send is none here.
    """
    keys = [trace.message_id, *trace.keys.split(" ")]
    if "," in trace.message_id:
        if len(trace.message_id) > JOINED_KEY_CHARACTERS_MAX:
            del keys[0]
        ids = trace.message_id.split(",")
        keys += ids[: TRACE_KEYS_BYTES_FULL // (len(ids[0]) + 1)]
    return [
        key
        for key in dict.fromkeys(keys)
        if key and len(key) < TRACE_KEYS_BYTES_FULL and FIELD not in key and END not in key
    ]


def decode_traces(text: str) -> list[TraceRecord]:
    """All records of a trace message's body; types that are not known are left out.
    RemoteProtocolError: a record of a known type lacks a field or has a wrong one.
    """
    traces: list[TraceRecord] = []
    for record in text.split(END):
        fields = ["" if field == "null" else field for field in record.split(FIELD)]
        read = _READERS.get(fields[0])
        if read is None:
            continue
        try:
            traces.append(read(fields))
        except (IndexError, KeyError, ValueError) as error:
            raise RemoteProtocolError(f"trace {record!r} is unreadable: {error!r}") from None
    return traces


def _read_producer(fields: list[str]) -> dict[str, Any]:
    names = ("region", "group", "topic", "message_id", "tags", "keys", "store_host")
    return {"timestamp_ms": int(fields[1]), **dict(zip(names, fields[2:9], strict=True))}


def _read_pub(fields: list[str]) -> PubTrace:
    last = len(fields)
    return PubTrace(
        **_read_producer(fields),
        body_bytes=int(fields[9]),
        cost_ms=int(fields[10]),
        message_type=MessageType(int(fields[11])),
        offset_message_id=fields[12] if last >= 14 else "",
        # The oldest form, of 12 fields, says nothing: what was not sent was not traced then.
        is_success=fields[12 if last == 13 else 13] == "true" if last > 12 else True,
        client_host=fields[14] if last >= 15 else "",
    )


def _read_sub_before(fields: list[str]) -> SubBeforeTrace:
    return SubBeforeTrace(
        timestamp_ms=int(fields[1]),
        region=fields[2],
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=int(fields[6]),
        keys=fields[7],
    )


def _read_sub_after(fields: list[str]) -> SubAfterTrace:
    last = len(fields)
    code = int(fields[6]) if last >= 7 and fields[6] else 0
    return SubAfterTrace(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=int(fields[3]),
        is_success=fields[4] == "true",
        keys=fields[5],
        return_type=ConsumeReturnType(code),
        timestamp_ms=int(fields[7]) if last >= 9 else 0,
        group=fields[8] if last >= 9 else "",
    )


def _read_end_transaction(fields: list[str]) -> EndTransactionTrace:
    return EndTransactionTrace(
        **_read_producer(fields),
        message_type=MessageType(int(fields[9])),
        transaction_id=fields[10],
        state=_STATES[fields[11]],
        is_from_check=fields[12] == "true",
    )


_READERS: dict[str, Callable[[list[str]], TraceRecord]] = {
    "Pub": _read_pub,
    "SubBefore": _read_sub_before,
    "SubAfter": _read_sub_after,
    "EndTransaction": _read_end_transaction,
}


class TraceView(NamedTuple):
    """A trace, and the address of the client that told of it."""

    trace: TraceRecord
    client_host: str


def trace_views(message_id: str, messages: Iterable[MessageExt]) -> list[TraceView]:
    """What trace messages tell of one message id, in the order of their times; of one time, in the
    order in which a message lives.

    A trace message that can't be read is left out with a warning.
    """
    views: list[TraceView] = []
    for message in messages:
        try:
            traces = decode_traces(message.body.decode("utf-8", "replace"))
        except RemoteProtocolError as error:
            _log.warning("trace message %s is left out: %s", message.message_id, error)
            continue
        host = message.born_host[0]
        views += [
            TraceView(trace, getattr(trace, "client_host", "") or host)
            for trace in traces
            # A batch has one record for all its messages.
            if message_id in trace.message_id.split(",")
        ]
    # A send and its consuming may start in the same millisecond.
    return sorted(
        views, key=lambda view: (view.trace.timestamp_ms, _ORDER_OF_KINDS.index(type(view.trace)))
    )


class TraceBatch(NamedTuple):
    """The body and the keys of one trace message."""

    body: bytes
    keys: str
    records: int


class TraceSegment:
    """Records that will travel in one message (``TraceDataSegment``)."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._keys: dict[str, None] = {}
        self._bytes = self._keys_bytes = 0
        self._first_ms = 0

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def due_ms(self) -> int:
        """When what is there has waited long enough."""
        return self._first_ms + TRACE_WAIT_MS

    def add(self, trace: TraceRecord, now_ms: int) -> TraceBatch | None:
        """Take a record; gives a batch when there is enough for a message."""
        text = encode_trace(trace).encode("utf-8", "replace")
        keys = trace_keys(trace)
        full = None
        if self._texts and (
            self._bytes + len(text) > TRACE_MESSAGE_BYTES_MAX
            or self._keys_bytes + _size(keys) > TRACE_KEYS_BYTES_MAX
        ):
            full = self.drain()
        if not self._texts:
            self._first_ms = now_ms
        self._texts.append(text)
        self._bytes += len(text)
        new = [key for key in keys if key not in self._keys]
        self._keys.update(dict.fromkeys(new))
        self._keys_bytes += _size(new)
        if full is None and (
            self._bytes >= TRACE_MESSAGE_BYTES_FULL or self._keys_bytes >= TRACE_KEYS_BYTES_FULL
        ):
            return self.drain()
        return full

    def drain(self) -> TraceBatch | None:
        """All that is there; None when that is nothing."""
        if not self._texts:
            return None
        batch = TraceBatch(b"".join(self._texts), " ".join(self._keys), len(self._texts))
        self._texts, self._keys = [], {}
        self._bytes = self._keys_bytes = 0
        return batch


def _size(keys: Iterable[str]) -> int:
    return sum(len(key.encode("utf-8", "replace")) + 1 for key in keys)
