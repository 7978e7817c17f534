"""Raw records to Arrow buffers, column by column: what Spark and the clients read in bulk.

The native kernel does the same many times faster; this one states what the result is. Buffers are
little-endian ``bytes`` in Arrow's layout, so that ``pyarrow.Array.from_buffers`` takes them as
they are, and this package needs no pyarrow.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import RemoteProtocolError
from kerolox.kernel.choice import ColumnBuffers, OddBody, TopicChoice
from kerolox.kernel.read import COLUMN_MS_MAX, COLUMN_MS_MIN
from kerolox.message import PropertyKey, decode_properties
from kerolox.protocol.codes import (
    COMPRESSED,
    COMPRESSION_TYPE_MASK,
    COMPRESSION_ZLIB,
)
from kerolox.protocol.compression import INFLATED_BYTES_MAX, BodyTooLargeError, inflate_body
from kerolox.protocol.records import RecordView, is_body_right, parse_record, record_fault

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
    stored: bytes
    """The body as it is stored."""
    body: bytes | None
    """The same; once inflated, as its producer gave it."""


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

    Numbers and timestamps (microseconds) are one ``bytes``, and so are truths, a bit each; texts
    and bodies are (validity bitmap or None, int32 offsets, data); properties are (map offsets, name
    offsets, names, value offsets, values).

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
    _check_columns(columns)
    whole = bytes(data)
    records: _Records = []
    position, body_bytes = start, 0
    while position < len(whole):
        record = _parse_one(whole, position)
        if "body" in columns:
            free = max(body_bytes_max - body_bytes, 0) if records else None
            body, is_taken = _body(record, free, odd_body, record.record.queue_offset)
            if not is_taken:
                break
            record = record._replace(body=body)
            body_bytes += len(body or b"")
        records.append(record)
        position += record.record.size
    return len(records), _buffers(records, columns), position


def scan_columns(
    data: Buffer,
    columns: Sequence[str],
    *,
    start: int,
    stop: int,
    log_offset: int | None,
    rows_max: int,
    body_bytes_max: int = COLUMN_BYTES_MAX,
    stored_from: int = -_INT64_MAX - 1,
    stored_before: int = _INT64_MAX,
    topics: TopicChoice | None = None,
    checks_crc: bool = True,
    odd_body: OddBody | None = None,
) -> tuple[int, dict[str, ColumnBuffers], int, int, bool]:
    """A piece of a log to Arrow buffers, as far as whole records follow each other: (row count,
    {column: buffers}, where the next call goes on, records examined, whether something else than a
    whole record stands there).

    Args:
        data: the piece; ``columns`` and ``body_bytes_max`` are as for :func:`decode_columns`.
        start: where the first record begins.
        stop: no record that begins here or later is examined.
        log_offset: the physical offset of the first byte of ``data``: a record that says that it
            stands elsewhere, or has no topic, is none. None: records of anywhere.
        rows_max: most rows.
        stored_from: of what was stored before this time (ms) no row is made, nor of what was stored
            at ``stored_before`` or later.
        topics: asked once in a call for each topic whether its records make rows; None: all do.
        checks_crc: a record of a row with a wrong CRC ends the call as if it were not whole.
        odd_body: as for :func:`decode_columns`, but it is given the physical offset.

    Raises:
        ValueError: an unknown column, or a body that can't be inflated.
    """
    _check_columns(columns)
    whole, records = bytes(data), _Records()
    chooses = None if topics is None else cache(topics)
    position, body_bytes, looked_at = start, 0, 0
    while position < stop and len(records) < rows_max:
        record = _whole_record(whole, position, log_offset)
        if record is None:
            break
        view = record.record
        is_wanted = stored_from <= view.store_timestamp < stored_before
        if is_wanted and (chooses is None or chooses(view.topic)):
            if checks_crc and not _has_right_crc(record):
                break
            if "body" in columns:
                free = max(body_bytes_max - body_bytes, 0) if records else None
                body, is_taken = _body(record, free, odd_body, view.physical_offset)
                if not is_taken:
                    return len(records), _buffers(records, columns), position, looked_at, False
                body_bytes += len(body or b"")
                record = record._replace(body=body)
            records.append(record)
        looked_at += 1
        position += view.size
    is_broken = position < stop and len(records) < rows_max
    return len(records), _buffers(records, columns), position, looked_at, is_broken


def _whole_record(data: bytes, position: int, log_offset: int | None) -> _Record | None:
    offset = None if log_offset is None else log_offset + position
    view = parse_record(data, position, len(data), offset)
    topic = None if view is None else _topic_or_none(view.topic)
    return None if view is None or topic is None else _in_parts(data, view, topic)


def _check_columns(columns: Sequence[str]) -> None:
    for column in columns:
        if column not in _COLUMNS:
            known = ", ".join(COLUMNS)
            raise ValueError(f"there is no column {column!r}; the columns are {known}")


def _buffers(records: _Records, columns: Sequence[str]) -> dict[str, ColumnBuffers]:
    texts: _Properties = []
    if not _FROM_PROPERTIES.isdisjoint(columns):
        texts = [
            decode_properties(record.properties.decode("utf-8", "replace"))
            for record, *_ in records
        ]
    return {column: _COLUMNS[column](records, texts) for column in columns}


def _parse_one(data: bytes, position: int) -> _Record:
    record = parse_record(data, position, len(data))
    if record is None:
        raise ValueError(record_fault(data, position))
    topic = _topic_or_none(record.topic)
    if topic is None:
        raise ValueError(f"malformed record at byte {position}: its topic is not UTF-8")
    return _in_parts(data, record, topic)


def _in_parts(data: bytes, record: RecordView, topic: str) -> _Record:
    stored = data[record.body_start : record.body_end]
    return _Record(
        record,
        topic,
        data[record.born_host_start : record.store_time_start],
        data[record.store_time_start + 8 : record.store_host_end],
        stored,
        stored,
    )


def _topic_or_none(topic: bytes) -> str | None:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return None


def _has_right_crc(record: _Record) -> bool:
    return is_body_right(record.stored, record.record.body_crc)


def _bits(values: list[bool]) -> bytes:
    bits = sum(1 << index for index, value in enumerate(values) if value)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _int32(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _int64(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _microseconds(values: list[int]) -> bytes:
    return _int64([max(COLUMN_MS_MIN, min(value, COLUMN_MS_MAX)) * 1_000 for value in values])


def _binary(values: Sequence[bytes | None]) -> tuple[bytes | None, bytes, bytes]:
    offsets = list(accumulate((len(value or b"") for value in values), initial=0))
    if offsets[-1] > COLUMN_BYTES_MAX:
        raise ValueError(f"a column of {offsets[-1]} bytes; decode fewer records at a time")
    validity = None
    if None in values:
        validity = _bits([value is not None for value in values])
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


def _body(
    record: _Record, free: int | None, odd_body: OddBody | None, place: int
) -> tuple[bytes | None, bool]:
    """(the body as its producer gave it, whether it has at most ``free`` bytes); None: any.
    ``place`` is the offset that ``odd_body`` is given."""
    stored, flags = record.stored, record.record.sys_flag
    body: bytes | None = stored
    if flags & COMPRESSED:
        try:
            if flags & COMPRESSION_TYPE_MASK not in _ZLIB_FLAGS:
                raise RemoteProtocolError(
                    f"compressed with type {(flags & COMPRESSION_TYPE_MASK) >> 8}, "
                    "which the kernel does not know"
                )
            limit = INFLATED_BYTES_MAX if free is None else min(free, INFLATED_BYTES_MAX)
            body = inflate_body(stored, flags, bytes_max=limit)
        except RemoteProtocolError as error:
            is_too_large = isinstance(error, BodyTooLargeError)
            if is_too_large and free is not None and free < INFLATED_BYTES_MAX:
                return None, False
            if odd_body is None:
                where = f"body of the record at commit log offset {record.record.physical_offset}"
                raise ValueError(f"{where}: {error}") from None
            body = odd_body(stored, flags, place)
    return body, free is None or len(body or b"") <= free


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
    "size": lambda records, _: _int32([r.record.size for r in records]),
    "crcOk": lambda records, _: _bits([_has_right_crc(r) for r in records]),
    "body": lambda records, _: _binary([r.body for r in records]),
    "properties": _properties,
}
_FROM_PROPERTIES = frozenset(("tags", "keys", "uniqKey", "properties"))

COLUMNS = tuple(_COLUMNS)
"""The columns that can be asked for."""
