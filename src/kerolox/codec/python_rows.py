"""Rows of a table as messages of batches, in Python: the counterpart of the native functions.

Rows come as columns in Arrow's layout and go out as the items of ``SEND_BATCH_MESSAGE``, one behind
the other. What an item is, and which rows are legal, stands here.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import MessageRejectedError
from kerolox.message import ITEM_END, NAME_END, PropertyKey, java_hash
from kerolox.protocol.names import PROPERTIES_BYTES_MAX
from kerolox.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

PROPERTIES_RESERVE_BYTES = 1024
"""Of a message's properties so many bytes are left to marks of half messages, and the cluster."""

_ITEM_END, _NAME_END = ITEM_END.encode(), NAME_END.encode()
_WAIT = f"{PropertyKey.WAIT}{NAME_END}true".encode()
_KEYS, _TAGS, _ID = (
    f"{name}{NAME_END}".encode()
    for name in (PropertyKey.KEYS, PropertyKey.TAGS, PropertyKey.UNIQUE_KEY)
)
_INT = struct.Struct("<i")
_TWO_INTS = struct.Struct("<ii")


class TextColumn(NamedTuple):
    """Texts or bytes: validity bits (None: no row is null), offsets (int32), data."""

    validity: Buffer | None
    offsets: Buffer
    data: Buffer

    def value(self, row: int) -> bytes | None:
        """Of one row; None: null."""
        if not _is_valid(self.validity, row):
            return None
        start, end = _TWO_INTS.unpack_from(self.offsets, 4 * row)
        return bytes(memoryview(self.data)[start:end])


class MapColumn(NamedTuple):
    """Maps of texts: validity bits, offsets into the names and values of all rows (int32)."""

    validity: Buffer | None
    offsets: Buffer
    names: TextColumn
    values: TextColumn

    def items(self, row: int) -> Iterator[tuple[bytes | None, bytes | None]] | None:
        """Of one row; None: null."""
        if not _is_valid(self.validity, row):
            return None
        start, end = _TWO_INTS.unpack_from(self.offsets, 4 * row)
        return ((self.names.value(at), self.values.value(at)) for at in range(start, end))


class RowColumns(NamedTuple):
    """What messages are made of; a column that is None has nothing to say of any row."""

    body: TextColumn
    tags: TextColumn | None = None
    keys: TextColumn | None = None
    flags: Buffer | None = None
    """int32, without nulls."""
    properties: MapColumn | None = None


class RowRules(NamedTuple):
    """What is the same for all rows of a write."""

    body_bytes_max: int
    reserved: frozenset[bytes]
    """Names that no property of a row may have."""
    drops_reserved: bool = False
    """They are left out; else they make a row illegal."""
    default_properties: bytes = b""
    """Property text of rows without properties."""
    tail: bytes = b""
    """Property text behind that of each row."""


class RowIds(NamedTuple):
    """The UNIQ_KEYs of rows that follow each other: a head, and a number of 16 bits that counts."""

    head: str
    first: int


def first_fault(columns: RowColumns, start: int, stop: int, rules: RowRules) -> int:
    """The first illegal row among ``[start, stop)``; -1: none. :func:`check_row` says why."""
    for row in range(start, stop):
        try:
            check_row(columns, row, rules)
        except MessageRejectedError:
            return row
    return -1


def check_row(columns: RowColumns, row: int, rules: RowRules) -> None:
    """Refuse a row that no broker takes.

    Raises:
        MessageRejectedError: body null, empty or too large; a text that is no UTF-8 or would be
            read as further properties; a property with a blank or reserved name or a blank value;
            too many bytes of properties.
    """
    body = columns.body.value(row)
    if body is None:
        raise MessageRejectedError("the body is null; a message needs at least one byte")
    if not body:
        raise MessageRejectedError("the body is empty; a message needs at least one byte")
    if len(body) > rules.body_bytes_max:
        raise MessageRejectedError(
            f"the body has {len(body)} bytes; the limit is {rules.body_bytes_max}"
            " (option maxMessageBytes)"
        )
    for what, column in (("tags", columns.tags), ("keys", columns.keys)):
        _check_text(what, (column and column.value(row)) or b"")
    for name, value in (columns.properties and columns.properties.items(row)) or ():
        _check_property(name, value, rules)
    size = len(property_text(columns, row, rules, b"0" * 56))
    if size > PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE_BYTES:
        raise MessageRejectedError(
            f"the properties have {size} bytes; the limit is "
            f"{PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE_BYTES}"
        )


def _check_text(what: str, text: bytes) -> str:
    try:
        found = str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise MessageRejectedError(f"{what} is no UTF-8: {error}") from None
    for end in (NAME_END, ITEM_END):
        if end in found:
            raise MessageRejectedError(
                f"{what} has U+{ord(end):04X}, which ends a name or a value where properties "
                "travel as one text; remove it, or encode what has it"
            )
    return found


def _check_property(name: bytes | None, value: bytes | None, rules: RowRules) -> None:
    shown = repr(str(name or b"", "utf-8", "replace"))[:80]
    if name is None or value is None:
        raise MessageRejectedError(f"property {shown} has no value")
    if name in rules.reserved:
        if rules.drops_reserved:
            return
        raise MessageRejectedError(
            f"property {shown} is reserved by RocketMQ; choose another name, or set option "
            "reservedProperties=drop to leave such ones out"
        )
    if not _check_text(f"the name of property {shown}", name).strip():
        raise MessageRejectedError(f"property {shown} has a blank name")
    if not _check_text(f"property {shown}", value).strip():
        raise MessageRejectedError(f"property {shown} has a blank value")


def property_text(columns: RowColumns, row: int, rules: RowRules, message_id: bytes) -> bytes:
    """The property text of a legal row, with this UNIQ_KEY."""
    parts: list[bytes] = []
    items = columns.properties.items(row) if columns.properties else None
    if items is None:
        parts += [rules.default_properties] * bool(rules.default_properties)
    else:
        for name, value in items:
            if name is not None and value is not None and name not in rules.reserved:
                parts.append(name + _NAME_END + value)
    for start, column in ((_KEYS, columns.keys), (_TAGS, columns.tags)):
        text = column.value(row) if column else None
        if text:
            parts.append(start + text)
    parts += _WAIT, _ID + message_id
    if rules.tail:
        parts.append(rules.tail)
    return _ITEM_END.join(parts)


def flag_of(columns: RowColumns, row: int) -> int:
    """The flag of a row."""
    return 0 if columns.flags is None else int(_INT.unpack_from(columns.flags, 4 * row)[0])


def encode_rows(
    columns: RowColumns, start: int, stop: int, rules: RowRules, ids: RowIds
) -> tuple[bytes, bytes]:
    """Legal rows as items of a batch: all of them one behind the other, and where each ends (uint32
    in the machine's order, counted from the first)."""
    items: list[bytes] = []
    ends = array("I")
    size = 0
    for row in range(start, stop):
        text = property_text(columns, row, rules, id_of(ids, row - start))
        items.append(encode_batch([(flag_of(columns, row), columns.body.value(row) or b"", text)]))
        size += len(items[-1])
        ends.append(size)
    return b"".join(items), ends.tobytes()


def id_of(ids: RowIds, index: int) -> bytes:
    """The UNIQ_KEY of a row, counted from the first."""
    return f"{ids.head}{(ids.first + index) & 0xFFFF:04X}".encode()


def hash_texts(texts: TextColumn, count: int) -> bytes:
    """``String.hashCode`` of each text, as int32; of null it is 0."""
    values = (java_hash(str(texts.value(row) or b"", "utf-8", "replace")) for row in range(count))
    return array("i", values).tobytes()


def _is_valid(validity: Buffer | None, row: int) -> bool:
    return validity is None or bool(memoryview(validity)[row >> 3] & 1 << (row & 7))
