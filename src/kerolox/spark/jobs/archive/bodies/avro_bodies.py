"""Avro bodies: one value of the schema each, without a header (fastavro)."""

from __future__ import annotations

from typing import cast

from pyspark.sql import DataFrame, types

from kerolox.spark.jobs.archive.bodies.in_workers import decode_in_workers
from kerolox.text.avro_values import parsed_schema, reader_of

_SIMPLE: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "string": types.StringType(),
    "enum": types.StringType(),
    "fixed": types.BinaryType(),
}
_LOGICAL: dict[str, types.DataType] = {
    "date": types.DateType(),
    "timestamp-millis": types.TimestampType(),
    "timestamp-micros": types.TimestampType(),
}
_OTHER_LOGICAL = ("time-millis", "time-micros", "duration", "local-timestamp-millis")


class AvroDecoder:
    """Decodes bodies of one schema, the text of an ``.avsc``; ValueError: it is none, or has what
    no column can be.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._type = _type_of(parsed_schema(text), ())

    def value_type(self) -> types.DataType:
        """Of the schema's values."""
        return self._type

    def decode(self, frame: DataFrame) -> DataFrame:
        """The rows with ``value`` and ``reason``."""
        text = self._text
        return decode_in_workers(frame, self._type, lambda: reader_of(text))


def _type_of(schema: object, inside: tuple[str, ...]) -> types.DataType:
    if isinstance(schema, str):
        if schema in _SIMPLE:
            return _SIMPLE[schema]
        raise ValueError(
            f"refers to {schema} within itself; a column can't"
            if schema in inside
            else f"has type {schema}, which no column can be"
        )
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise ValueError("has a union of several types; only one of null and another can be")
        return _type_of(kinds[0], inside)
    known = cast("dict[str, object]", schema)
    kind = known.get("type")
    logical = str(known.get("logicalType", ""))
    if logical == "decimal":
        return types.DecimalType(
            cast("int", known["precision"]), cast("int", known.get("scale", 0))
        )
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical in _OTHER_LOGICAL:
        raise ValueError(f"has logical type {logical}, which no column can be")
    if kind == "record":
        name = str(known["name"])
        fields = cast("list[dict[str, object]]", known["fields"])
        if not fields:
            # An array of such items could be billions of them in a few bytes.
            raise ValueError(f"has record {name} without fields, which no column can be")
        inner = (*inside, name)
        return types.StructType(
            [types.StructField(str(each["name"]), _type_of(each["type"], inner)) for each in fields]
        )
    if kind == "array":
        return types.ArrayType(_type_of(known["items"], inside))
    if kind == "map":
        return types.MapType(types.StringType(), _type_of(known["values"], inside))
    if kind == "fixed" and not known.get("size"):
        raise ValueError("has a fixed of no bytes")
    return _type_of(kind, inside)
