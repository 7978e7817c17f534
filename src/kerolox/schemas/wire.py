"""Confluent's wire format: a zero byte, the schema's id in four bytes, then the value.

Of Protobuf the place of the message in its file stands in between: how many indexes, then each, as
zigzag varints. ``[0]``, the first message of a file, is a single zero.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FIRST_MESSAGE", "HEADER_BYTES", "ID_MAX", "header", "split", "split_indexes"]

MAGIC = 0
HEADER_BYTES = 5
ID_MAX = 2**31 - 1
FIRST_MESSAGE = (0,)
INDEXES_MAX = 32
"""How deep a message stands in others."""
INDEX_MAX = 10_000
_VARINT_BYTES_MAX = 5
_BITS = 7
_MORE = 1 << _BITS
"""Of a byte of a varint behind which another one stands."""


def header(schema_id: int, indexes: Sequence[int] | None = None) -> bytes:
    """What stands before a value. ``indexes``: of a message of Protobuf. ValueError: a number is
    out of range.
    """
    if not 0 <= schema_id <= ID_MAX:
        raise ValueError(f"schema id {schema_id} is none; 0 to {ID_MAX} fit")
    begin = bytes([MAGIC]) + schema_id.to_bytes(4, "big")
    if indexes is None:
        return begin
    if not indexes or len(indexes) > INDEXES_MAX or not all(0 <= e <= INDEX_MAX for e in indexes):
        raise ValueError(f"{list(indexes)} is no place of a message in its file")
    if tuple(indexes) == FIRST_MESSAGE:
        return begin + b"\0"
    return begin + b"".join(_varint(each) for each in (len(indexes), *indexes))


def split(body: bytes) -> tuple[int, bytes]:
    """The schema's id, and what stands behind it. ValueError: the body has no such header."""
    if len(body) < HEADER_BYTES:
        raise ValueError(f"it has {len(body)} bytes, and a schema's id needs {HEADER_BYTES}")
    if body[0] != MAGIC:
        raise ValueError(f"it begins with byte {body[0]}, not with the {MAGIC} of a schema's id")
    schema_id = int.from_bytes(body[1:HEADER_BYTES], "big")
    if schema_id > ID_MAX:
        raise ValueError(f"its schema id {schema_id} is none")
    return schema_id, body[HEADER_BYTES:]


def split_indexes(rest: bytes) -> tuple[tuple[int, ...], bytes]:
    """The place of a message in its file, and the message. ValueError: it has none."""
    count, place = _number(rest, 0)
    if count == 0:
        return FIRST_MESSAGE, rest[place:]
    if count > INDEXES_MAX:
        raise ValueError(f"it has {count} indexes; {INDEXES_MAX} are read")
    indexes = []
    for _ in range(count):
        index, place = _number(rest, place)
        if index > INDEX_MAX:
            raise ValueError(f"index {index} is larger than {INDEX_MAX}")
        indexes.append(index)
    return tuple(indexes), rest[place:]


def _varint(number: int) -> bytes:
    """Zigzag: of a number that is not negative the double."""
    left, made = number * 2, bytearray()
    while left >= _MORE:
        made.append(left % _MORE | _MORE)
        left >>= _BITS
    made.append(left)
    return bytes(made)


def _number(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count, byte in enumerate(data[place : place + _VARINT_BYTES_MAX]):
        value |= (byte % _MORE) << (_BITS * count)
        if byte < _MORE:
            if value & 1:
                raise ValueError("an index is negative")
            return value >> 1, place + count + 1
    raise ValueError("its indexes end too early, or are too long")
