"""Messages of protobuf from bytes that nobody has checked (no I/O).

A message of two bytes becomes an object of some eighty, so bytes alone are no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

FIELDS_MAX = 32_768
"""Of one message, with those of the messages in it. A send of 1,024 messages has some 20,000."""

UNCOUNTED_BYTES_MAX = 16 * 1024
"""A message of so few bytes has not too many; nobody counts."""

FIELDS_OF_STEP = 1_024

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4, _START: 0, _END: 0}


class TooManyFieldsError(Exception):
    """A message has more fields than FIELDS_MAX."""


def count_fields(data: bytes, kind: Descriptor) -> Iterator[None]:
    """Count the fields of a message of that kind, a step each FIELDS_OF_STEP.

    TooManyFieldsError: there are too many. DecodeError: it is no message.
    """
    if len(data) <= UNCOUNTED_BYTES_MAX:
        return
    count = 0
    todo = [(0, len(data), kind)]
    while todo:
        at, end, of_kind = todo.pop()
        inner = _messages_of(of_kind)
        while at < end:
            count += 1
            if count > FIELDS_MAX:
                raise TooManyFieldsError(f"a message of more than {FIELDS_MAX} fields")
            if not count % FIELDS_OF_STEP:
                yield
            tag, at = _varint(data, at, end)
            wire = tag & 7
            if wire == _VARINT:
                _, at = _varint(data, at, end)
            elif wire == _LENGTH:
                size, at = _varint(data, at, end)
                if at + size > end:
                    raise DecodeError("a field is longer than its message")
                found = inner.get(tag >> 3)
                if found is not None:
                    todo.append((at, at + size, found))
                at += size
            elif wire in _FIXED_BYTES:
                at += _FIXED_BYTES[wire]
            else:
                raise DecodeError(f"a field of wire type {wire}")


@cache
def _messages_of(kind: Descriptor) -> dict[int, Any]:
    """The fields that are messages themselves, by number."""
    return {each.number: each.message_type for each in kind.fields if each.message_type}


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        more = byte & 0x80
        value |= (byte - more) << shift
        if not more:
            return value, at
        shift += 7
    raise DecodeError("a number has no end")
