"""Raw records to Arrow buffers, column by column: what Spark and the clients read in bulk.

The native kernel does the same many times faster; this one states what the result is. Buffers are
little-endian ``bytes`` in Arrow's layout, so that ``pyarrow.Array.from_buffers`` takes them as
they are, and this package needs no pyarrow.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import RemoteProtocolError
from kerolox.kernel import ColumnBuffers, OddBody
from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.codes import (
    COMPRESSED,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZLIB,
)
from kerolox.protocol.compression import INFLATED_BYTES_MAX, BodyTooLargeError, inflate_body
from kerolox.protocol.records import RecordView, parse_record, record_fault

if TYPE_CHECKING:
    from typing_extensions import Buffer


COLUMN_BYTES_MAX = 2**31 - 1
"""Most bytes of one column: Arrow's 32-bit offsets can't say more."""

_PORT = struct.Struct(">I")

_ZLIB_FLAGS = (0, COMPRESSION_ZLIB)
_INT64_MAX = 2**63 - 1


class _Record(NamedTuple):
    record: RecordView
    topic: str
    born_host: bytes
    store_host: bytes
    body: bytes | None
    """As it is stored; once inflated, as its producer gave it."""


_Records = list[_Record]
_Properties = list[dict[str, str]]


def decode_columns(
    data: Buffer,
    columns: Sequence[str],
    *,
    start: int = 0,
    body_bytes_max: int = COLUMN_BYTES_MAX,
    odd_body: OddBody | None = None,
) -> tuple[int, dict[str, ColumnBuffers], int]:
    """Raw records to Arrow buffers: (row count, {column: buffers}, where the next call goes on).

    Numbers and timestamps (microseconds) are one ``bytes``; texts and bodies are (validity bitmap
    or None, int32 offsets, data); properties are (map offsets, name offsets, names, value
    offsets, values).

    Args:
        data: records that follow each other.
        columns: of :data:`COLUMNS`.
        start: where the first record to decode begins.
        body_bytes_max: the call ends before the record that would bring column body beyond so many
            bytes; the first record is always decoded. Where body is not asked for, nothing is cut.
        odd_body: asked what stands for a compressed body that is not zlib's, not whole, or inflates
            to more than ``INFLATED_BYTES_MAX``; what it raises is passed on. None: such a body is
            an error.

    Raises:
        ValueError: an unknown column, a torn or malformed record (with its byte position), a body
            that can't be inflated (with its physical offset).
    """
    for column in columns:
        if column not in _COLUMNS:
            known = ", ".join(COLUMNS)
            raise ValueError(f"there is no column {column!r}; the columns are {known}")
    whole = bytes(data)
    records: _Records = []
    position, body_bytes = start, 0
    while position < len(whole):
        record = _parse_one(whole, position)
        if "body" in columns:
            room = max(body_bytes_max - body_bytes, 0) if records else None
            body, is_taken = _body(record, room, odd_body)
            if not is_taken:
                break
            if body is not record.body:
                record = record._replace(body=body)
            body_bytes += len(body or b"")
        records.append(record)
        position += record.record.size
    texts: _Properties = []
    if not _FROM_PROPERTIES.isdisjoint(columns):
        texts = [
            decode_properties(record.properties.decode("utf-8", "replace"))
            for record, *_ in records
        ]
    buffers = {column: _COLUMNS[column](records, texts) for column in columns}
    return len(records), buffers, position


def _parse_one(data: bytes, position: int) -> _Record:
    record = parse_record(data, position, len(data))
    if record is None:
        raise ValueError(record_fault(data, position))
    return _Record(
        record,
        _topic(record.topic, position),
        data[record.born_host_start : record.store_time_start],
        data[record.store_time_start + 8 : record.store_host_end],
        data[record.body_start : record.body_end],
    )


def _topic(topic: bytes, position: int) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        raise ValueError(f"malformed record at byte {position}: its topic is not UTF-8") from None


def _int32(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _int64(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _microseconds(values: list[int]) -> bytes:
    return _int64([max(-_INT64_MAX - 1, min(value * 1_000, _INT64_MAX)) for value in values])


def _binary(values: Sequence[bytes | None]) -> tuple[bytes | None, bytes, bytes]:
    offsets = list(accumulate((len(value or b"") for value in values), initial=0))
    if offsets[-1] > COLUMN_BYTES_MAX:
        raise ValueError(f"a column of {offsets[-1]} bytes; decode fewer records at a time")
    validity = None
    if None in values:
        bits = sum(1 << index for index, value in enumerate(values) if value is not None)
        validity = bits.to_bytes((len(values) + 7) // 8, "little")
    return validity, _int32(offsets), b"".join(value or b"" for value in values)


def _text(values: Sequence[str | None]) -> tuple[bytes | None, bytes, bytes]:
    return _binary([None if value is None else value.encode() for value in values])


@lru_cache(maxsize=1_024)
def _host_text(host: bytes) -> str:
    address = ipaddress.ip_address(host[:-4])
    (port,) = _PORT.unpack(host[-4:])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        # Python 3.13 began to write these with dots; the text must not depend on that.
        low = int(address.ipv4_mapped)
        return f"::ffff:{low >> 16:x}:{low & 0xFFFF:x}:{port}"
    return f"{address}:{port}"


def _body(record: _Record, room: int | None, odd_body: OddBody | None) -> tuple[bytes | None, bool]:
    """(the body as its producer gave it, whether it has at most ``room`` bytes); room None: any."""
    stored, flags = record.body or b"", record.record.sys_flag
    body: bytes | None = stored
    if flags & COMPRESSED:
        try:
            if flags & COMPRESSION_TYPE_MASK not in _ZLIB_FLAGS:
                raise RemoteProtocolError(
                    f"compressed with type {(flags & COMPRESSION_TYPE_MASK) >> 8}, "
                    "which the kernel does not know"
                )
            limit = INFLATED_BYTES_MAX if room is None else min(room, INFLATED_BYTES_MAX)
            body = inflate_body(stored, flags, bytes_max=limit)
        except RemoteProtocolError as error:
            is_too_large = isinstance(error, BodyTooLargeError)
            if is_too_large and room is not None and room < INFLATED_BYTES_MAX:
                return None, False
            if odd_body is None:
                where = f"body of the record at commit log offset {record.record.physical_offset}"
                raise ValueError(f"{where}: {error}") from None
            body = odd_body(stored, flags, record.record.queue_offset)
    return body, room is None or len(body or b"") <= room


def _properties(records: _Records, texts: _Properties) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    _, names, name_data = _text([name for text in texts for name in text])
    _, values, value_data = _text([value for text in texts for value in text.values()])
    counts = _int32(list(accumulate(map(len, texts), initial=0)))
    return counts, names, name_data, values, value_data


def _property(name: str) -> Callable[[_Records, _Properties], ColumnBuffers]:
    return lambda _records, texts: _text([text.get(name) for text in texts])


_COLUMNS: dict[str, Callable[[_Records, _Properties], ColumnBuffers]] = {
    "topic": lambda records, _: _text([r.topic for r in records]),
    "queueId": lambda records, _: _int32([r.record.queue_id for r in records]),
    "queueOffset": lambda records, _: _int64([r.record.queue_offset for r in records]),
    "commitLogOffset": lambda records, _: _int64([r.record.physical_offset for r in records]),
    "bornTimestamp": lambda records, _: _microseconds([r.record.born_timestamp for r in records]),
    "storeTimestamp": lambda records, _: _microseconds([r.record.store_timestamp for r in records]),
    "bornHost": lambda records, _: _text([_host_text(r.born_host) for r in records]),
    "storeHost": lambda records, _: _text([_host_text(r.store_host) for r in records]),
    "flag": lambda records, _: _int32([r.record.flag for r in records]),
    "sysFlag": lambda records, _: _int32([r.record.sys_flag for r in records]),
    "tags": _property(PropertyKey.TAGS),
    "keys": _property(PropertyKey.KEYS),
    "msgId": lambda records, _: _text(
        [
            f"{r.store_host.hex().upper()}{r.record.physical_offset & 2**64 - 1:016X}"
            for r in records
        ]
    ),
    "uniqKey": _property(PropertyKey.UNIQUE_KEY),
    "reconsumeTimes": lambda records, _: _int32([r.record.reconsume_times for r in records]),
    "preparedTransactionOffset": lambda records, _: _int64(
        [r.record.prepared_transaction_offset for r in records]
    ),
    "body": lambda records, _: _binary([r.body for r in records]),
    "properties": _properties,
}
_FROM_PROPERTIES = frozenset(("tags", "keys", "uniqKey", "properties"))

COLUMNS = tuple(_COLUMNS)
"""The columns that can be asked for."""
