"""Avro values by a schema that is known: one value each, without a header (fastavro)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import fastavro

__all__ = ["named_schema", "parsed_schema", "plain_schema", "reader_of", "writer_of"]

FREE_MAX, FREE_OF_ITEM_MAX = 10_000, 100
"""Values without bytes, such as nulls of records, that one value may have in it; and an item."""


def parsed_schema(text: str) -> object:
    """The schema of an ``.avsc``, its names put in place; ValueError: it is none, or too deep."""
    try:
        return fastavro.parse_schema(plain_schema(json.loads(text)), expand=True)
    except (ValueError, fastavro.schema.SchemaParseException, KeyError, TypeError) as error:
        raise ValueError(f"is no Avro schema: {error}") from None
    except RecursionError:
        raise ValueError("is too deep") from None


def named_schema(text: str, references: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """A schema that can be used, and all types with a name that it knows.

    Args:
        text: of the ``.avsc``.
        references: the texts of schemas whose types it names, those that others need first.

    Raises:
        ValueError: it is none, too deep, or one whose values could be without end in a few bytes of
            a stranger: a type within itself, or an array whose items may have no bytes.
    """
    named: dict[str, Any] = {}
    try:
        for each in (*references, text):
            parsed = fastavro.parse_schema(plain_schema(json.loads(each)), named)
    except (ValueError, fastavro.schema.SchemaParseException, KeyError, TypeError) as error:
        raise ValueError(f"is no Avro schema: {error}") from None
    except RecursionError:
        raise ValueError("is too deep") from None
    _check_free(_Bounds(named).need(parsed).free, FREE_MAX)
    return parsed, named


def reader_of(
    text: str, *, references: Sequence[str] = (), wanted: str = ""
) -> Callable[[bytes], object]:
    """A function from a body to its value; it raises for bytes that are none, or too many.

    Args:
        text: the schema by which bodies were written.
        references: of it, as :func:`named_schema` has them.
        wanted: the schema by which values are wanted, with defaults; empty: the same.

    Raises:
        ValueError: see :func:`named_schema`.
    """
    schema, _ = named_schema(text, references)
    target = named_schema(wanted)[0] if wanted and wanted != text else None

    def decode(body: bytes) -> object:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, schema, target)
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left behind the value")
        return value

    return decode


def writer_of(text: str) -> Callable[[object], bytes]:
    """A function from a value to its body; it raises for values that are none of the schema.
    ValueError: see :func:`named_schema`.
    """
    schema, _ = named_schema(text)

    def encode(value: object) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, value, strict=True)
        return stream.getvalue()

    return encode


class _Need(NamedTuple):
    """What the values of a type need."""

    bytes: int
    """The least."""
    free: int
    """Values within one that need no byte of their own, such as nulls of a record."""


class _Bounds:
    """What values need, by type: each type with a name is gone through once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, _Need] = {}
        self._inside: set[str] = set()

    def need(self, schema: object) -> _Need:
        """Of a type. ValueError: few bytes could be values without end, which fastavro reads until
        the memory or the stack is at its end.
        """
        if isinstance(schema, list):
            branches = [self.need(each) for each in schema]
            # The byte that chooses one stands for that one itself.
            return _Need(1, max([each.free - 1 for each in branches if each.free], default=0))
        if isinstance(schema, str):
            return self._of_name(schema) if schema in self._named else _primitive(schema)
        known = cast("dict[str, Any]", schema)
        name = known.get("name")
        if isinstance(name, str) and name in self._named:
            return self._of_name(name)
        return self._of_kind(known)

    def _of_name(self, name: str) -> _Need:
        if name in self._inside:
            raise ValueError(f"refers to {name} within itself, which is not read here")
        if name not in self._known:
            self._inside.add(name)
            self._known[name] = self._of_kind(self._named[name])
            self._inside.discard(name)
        return self._known[name]

    def _of_kind(self, known: dict[str, Any]) -> _Need:
        kind = known.get("type")
        match kind:
            case "record" | "error":
                fields = cast("list[dict[str, object]]", known["fields"])
                needs = [self.need(each["type"]) for each in fields]
                needed = min(sum(each.bytes for each in needs), 1)
                return _Need(needed, sum(each.free for each in needs) + (1 - needed))
            case "array":
                item = self.need(known["items"])
                if not item.bytes:
                    raise ValueError("has an array of items without bytes, which is not read here")
                _check_free(item.free, FREE_OF_ITEM_MAX)
                return _Need(1, 0)
            case "map":
                _check_free(self.need(known["values"]).free, FREE_OF_ITEM_MAX)
                return _Need(1, 0)
            case "fixed":
                return _Need(1, 0) if known.get("size") else _Need(0, 1)
            case dict() | list():
                return self.need(kind)
        return _primitive(kind)


def _primitive(kind: object) -> _Need:
    return _Need(0, 1) if kind == "null" else _Need(1, 0)


def _check_free(free: int, most: int) -> None:
    if free > most:
        raise ValueError(
            f"has more than {most} values without bytes in one, which is not read here"
        )


def plain_schema(schema: object) -> object:
    """The schema with uuids as the texts that they are written as."""
    if isinstance(schema, list):
        return [plain_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_uuid = schema.get("logicalType") == "uuid"
    return {
        name: plain_schema(each)
        for name, each in schema.items()
        if not (is_uuid and name == "logicalType")
    }
