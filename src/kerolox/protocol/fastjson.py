"""The JSON that fastjson 1.x writes, which is not always JSON.

A map whose keys are numbers is written with bare keys (``{0:"ip:port"}``), and a map whose keys
are message queues with objects as keys (``{{"brokerName":"b","queueId":0,"topic":"T"}:1}``).
Strict parsers refuse both. ``loads`` reads them beside ordinary JSON; ``dumps`` writes them, since
Java and Go clients expect them; ``dumps_strict`` quotes every key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Protocol, TypeGuard

import msgspec

from kerolox.message import MessageQueue

DEPTH_MAX = 64
"""Deepest nesting that ``loads`` follows."""

KEYS_KEPT = 1_024
"""Member names whose text is kept."""

_SCALARS = frozenset((str, int, float, bool, type(None)))
_TEXT = frozenset((str,))

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_BARE = re.compile(r"[^\s,:\]\[{}\"]+")
_SPACE = re.compile(r"\s*")
_BARE_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([{,]\s*+)(-?\d++)\s*+:', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class _Texts(Protocol):
    """Takes the pieces of a text, in order."""

    def append(self, text: str, /) -> None: ...


class FastjsonError(ValueError):
    """The text is neither JSON nor what fastjson writes; says at which character."""


def dumps(value: object) -> bytes:
    """Write as fastjson does: no spaces, bare number keys, queues as object keys."""
    parts: list[str] = []
    _write(value, parts, bare_keys=True)
    return "".join(parts).encode()


def dumps_strict(value: object) -> bytes:
    """Write standard JSON: keys quoted and sorted."""
    parts: list[str] = []
    _write(value, parts, bare_keys=False)
    return "".join(parts).encode()


def dumps_pretty(value: object) -> bytes:
    """Write as fastjson's PrettyFormat does: tab-indented, bare number keys."""
    parts: list[str] = []
    _write_pretty(value, parts, 0)
    return "".join(parts).encode()


def write_pretty(value: object, texts: _Texts) -> None:
    """Write as :func:`dumps_pretty`, piece by piece: no copy of a large table is made. Structs are
    written without their None members."""
    _write_pretty(value, texts, 0)


def quoted_numbers(data: bytes) -> bytes:
    """The same text with its bare number keys in quotes: what fastjson writes of a map whose keys
    are numbers, as the decoder in C reads it."""
    return _BARE_NUMBER.sub(_quote_number, data)


def _quote_number(found: re.Match[bytes]) -> bytes:
    number = found[2]
    return found[0] if number is None else b'%b"%b":' % (found[1], number)


def loads(
    data: bytes | bytearray | memoryview | str, *, lenient_bytes_max: int | None = None
) -> object:
    """Read JSON or what fastjson writes. Bare keys become int where they are numbers, object keys
    :class:`MessageQueue` where they have its members, else a tuple of items.

    FastjsonError: it is neither, or no ordinary JSON and longer than ``lenient_bytes_max`` (None:
    any length): that takes half a second a MiB.
    """
    try:
        return _decode(data)
    except RecursionError:
        raise FastjsonError(f"nested deeper than {DEPTH_MAX}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if lenient_bytes_max is not None and len(data) > lenient_bytes_max:
            raise FastjsonError(
                f"{error}; what is no ordinary JSON is read up to {lenient_bytes_max} bytes"
            ) from None
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FastjsonError(f"not UTF-8: {error}") from None
    reader = _Reader(text)
    value = reader.value(0)
    reader.skip_space()
    if reader.position != len(text):
        raise FastjsonError(f"text after the value at character {reader.position}")
    return value


def members_of(value: object) -> dict[object, object]:
    """The members of an object that :func:`loads` read; FastjsonError where it is none."""
    if isinstance(value, dict):
        return value
    raise FastjsonError(f"{value!r:.100} where an object is expected")


def items_of(value: object) -> list[object]:
    """The items of a list that :func:`loads` read; FastjsonError where it is none."""
    if isinstance(value, list):
        return value
    raise FastjsonError(f"{value!r:.100} where a list is expected")


def _key(key: object, bare_keys: bool) -> str:
    if isinstance(key, MessageQueue):
        return str(_encode(_queue_members(key)), "utf-8")
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return str(key) if bare_keys else f'"{key}"'
    return str(_encode(str(key)), "utf-8")


@functools.lru_cache(KEYS_KEPT)
def _text_key(key: str) -> str:
    return str(_encode(key), "utf-8")


def _queue_members(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _is_flat(value: object) -> TypeGuard[dict[str, object]]:
    """A map that standard JSON writes as fastjson does: no number keys, nothing nested. Most of a
    large table is such maps, and the encoder in C writes them many times faster."""
    return (
        type(value) is dict
        and _SCALARS.issuperset(map(type, value.values()))
        and _TEXT.issuperset(map(type, value))
    )


def _write(value: object, parts: _Texts, *, bare_keys: bool) -> None:
    if bare_keys and _is_flat(value):
        parts.append(str(_encode(value), "utf-8"))
        return
    if isinstance(value, MessageQueue):
        value = _queue_members(value)
    if isinstance(value, Mapping):
        parts.append("{")
        items = value.items() if bare_keys else sorted(value.items(), key=lambda kv: str(kv[0]))
        for index, (key, member) in enumerate(items):
            if index:
                parts.append(",")
            parts.append(_key(key, bare_keys))
            parts.append(":")
            _write(member, parts, bare_keys=bare_keys)
        parts.append("}")
    elif bare_keys and type(value) is list and all(map(_is_flat, value)):
        parts.append(str(_encode(value), "utf-8"))
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts.append("[")
        for index, member in enumerate(value):
            if index:
                parts.append(",")
            _write(member, parts, bare_keys=bare_keys)
        parts.append("]")
    else:
        parts.append(str(_encode(value), "utf-8"))


def _write_pretty(value: object, parts: _Texts, depth: int) -> None:
    if isinstance(value, msgspec.Struct):
        value = _members(value)
    elif isinstance(value, MessageQueue):
        value = _queue_members(value)
    indent = "\t" * (depth + 1)
    if value and _is_flat(value):
        lines = [f"{indent}{_text_key(key)}:{str(_encode(value[key]), 'utf-8')}" for key in value]
        parts.append("{\n" + ",\n".join(lines) + "\n" + "\t" * depth + "}")
        return
    if isinstance(value, Mapping) and value:
        parts.append("{")
        for index, (key, member) in enumerate(value.items()):
            if index:
                parts.append(",")
            # fastjson begins a line for each key that is a text, and for no other one.
            start = f"\n{indent}" if isinstance(key, str) else ""
            parts.append(f"{start}{_key(key, True)}:")
            _write_pretty(member, parts, depth + 1)
        parts.append("\n" + "\t" * depth + "}")
    elif isinstance(value, (list, tuple, set, frozenset)) and value:
        parts.append("[\n")
        for index, member in enumerate(value):
            if index:
                parts.append(",\n")
            parts.append(indent)
            _write_pretty(member, parts, depth + 1)
        parts.append("\n" + "\t" * depth + "]")
    else:
        _write(value, parts, bare_keys=True)


def _members(struct: msgspec.Struct) -> dict[str, object]:
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    members = ((wire, getattr(struct, name)) for wire, name in names)
    return {wire: member for wire, member in members if member is not None}


class _Reader:
    """A small recursive reader for the text that the strict decoder refused."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def _peek(self) -> str:
        self.skip_space()
        if self.position >= len(self.text):
            raise FastjsonError("the text ends in the middle of a value")
        return self.text[self.position]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise FastjsonError(f"expected {character!r} at character {self.position}")
        self.position += 1

    def value(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise FastjsonError(f"nested deeper than {DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._map(depth)
        if first == "[":
            return self._list(depth)
        return self._scalar(bare_text=False)

    def _map(self, depth: int) -> dict[object, object]:
        self._expect("{")
        result: dict[object, object] = {}
        if self._peek() == "}":
            self.position += 1
            return result
        while True:
            key = self._map(depth + 1) if self._peek() == "{" else self._scalar(bare_text=True)
            self._expect(":")
            try:
                hashable = _hashable(key)
                hash(hashable)
            except TypeError as error:
                raise FastjsonError(f"a key is {error} before character {self.position}") from None
            result[hashable] = self.value(depth + 1)
            if self._peek() == ",":
                self.position += 1
                continue
            self._expect("}")
            return result

    def _list(self, depth: int) -> list[object]:
        self._expect("[")
        result: list[object] = []
        if self._peek() == "]":
            self.position += 1
            return result
        while True:
            result.append(self.value(depth + 1))
            if self._peek() == ",":
                self.position += 1
                continue
            self._expect("]")
            return result

    def _scalar(self, *, bare_text: bool) -> object:
        pattern = _STRING if self._peek() == '"' else _BARE
        match = pattern.match(self.text, self.position)
        if match is None:
            raise FastjsonError(f"no value at character {self.position}")
        self.position = match.end()
        try:
            return _decode(match.group())
        except msgspec.DecodeError as error:
            if bare_text:
                return match.group()
            raise FastjsonError(f"{error} at character {match.start()}") from None


def _hashable(key: object) -> object:
    if isinstance(key, dict):
        if key.keys() >= {"topic", "brokerName", "queueId"}:
            return MessageQueue(key["topic"], key["brokerName"], key["queueId"])
        return tuple(sorted(key.items()))
    return key
