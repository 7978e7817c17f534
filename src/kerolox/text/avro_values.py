"""Avro values by a schema that is known: one value each, without a header (fastavro)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import fastavro

__all__ = ["parsed_schema", "plain_schema", "reader_of"]


def parsed_schema(text: str) -> object:
    """The schema of an ``.avsc``, its names put in place; ValueError: it is none, or too deep."""
    try:
        return fastavro.parse_schema(plain_schema(json.loads(text)), expand=True)
    except (ValueError, fastavro.schema.SchemaParseException, KeyError, TypeError) as error:
        raise ValueError(f"is no Avro schema: {error}") from None
    except RecursionError:
        raise ValueError("is too deep") from None


def reader_of(text: str) -> Callable[[bytes], object]:
    """A function from a body to its value; it raises for bytes that are none, or too many."""
    schema = fastavro.parse_schema(plain_schema(json.loads(text)))

    def decode(body: bytes) -> object:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, schema, None)
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left behind the value")
        return value

    return decode


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
