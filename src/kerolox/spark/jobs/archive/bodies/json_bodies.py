"""JSON bodies, by a JSON Schema or by a schema of Spark: its DDL, or its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, types

from kerolox.spark.jobs.frame.lazy import sql

_CORRUPT = "__corrupt"
DEPTH_MAX = 32
REASON_NO_UTF8 = "the body is no UTF-8"
REASON_NO_JSON = "the body is no JSON of the schema"

_SIMPLE: dict[str, types.DataType] = {
    "string": types.StringType(),
    "integer": types.LongType(),
    "number": types.DoubleType(),
    "boolean": types.BooleanType(),
}
_FORMATS: dict[str, types.DataType] = {"date-time": types.TimestampType(), "date": types.DateType()}


class JsonDecoder:
    """Decodes by ``from_json``, in the JVM; ValueError: the schema is none, or not one of an
    object.
    """

    def __init__(self, text: str) -> None:
        self._required: tuple[str, ...] = ()
        parsed = _json_or_none(text)
        if parsed is None:
            schema: types.DataType = _of_ddl(text)
        elif parsed.get("type") == "struct" and "fields" in parsed:
            schema = types.StructType.fromJson(parsed)
        else:
            schema = _of_json_schema(parsed, 0)
            required = parsed.get("required", [])
            self._required = tuple(map(str, required)) if isinstance(required, list) else ()
        if not isinstance(schema, types.StructType) or not schema.fields:
            raise ValueError("is no schema of an object with fields")
        self._schema = types.StructType(schema.fields)
        missing = set(self._required).difference(schema.fieldNames())
        if missing:
            raise ValueError(f"requires {', '.join(sorted(missing))}, which it does not describe")

    def value_type(self) -> types.DataType:
        """The struct of its fields, all of them nullable."""
        return types.StructType(
            [types.StructField(each.name, each.dataType) for each in self._schema]
        )

    def decode(self, frame: DataFrame) -> DataFrame:
        """The rows with ``value`` and ``reason``."""
        wide = types.StructType(
            [*self._schema.fields, types.StructField(_CORRUPT, types.StringType())]
        )
        text = sql.col("body").cast("string")
        parsed = sql.from_json(text, wide, {"columnNameOfCorruptRecord": _CORRUPT})
        frame = frame.withColumn("__parsed", parsed)
        found = sql.col("__parsed")
        reason = (
            sql.when(sql.col("body").isNull(), "there is no body")
            .when(~sql.expr("is_valid_utf8(cast(body AS string))"), REASON_NO_UTF8)
            .when(found.isNull() | found[_CORRUPT].isNotNull(), REASON_NO_JSON)
        )
        for name in self._required:
            reason = reason.when(found[name].isNull(), f"the body lacks {name}")
        fields = [found[each.name].alias(each.name) for each in self._schema]
        frame = frame.withColumn("reason", reason)
        value = sql.when(sql.col("reason").isNull(), sql.struct(*fields))
        return frame.withColumn("value", value.cast(self.value_type())).drop("__parsed")


def _json_or_none(text: str) -> dict[str, object] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    return value if isinstance(value, dict) else None


def _of_ddl(text: str) -> types.DataType:
    try:
        return types.DataType.fromDDL(text.strip())
    except Exception as error:
        raise ValueError(f"is neither JSON nor a schema of Spark: {error}") from None


def _of_json_schema(schema: object, depth: int) -> types.DataType:
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        raise ValueError(f"has {schema!r} where a schema must be, or is too deep")
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and "properties" in schema:
        kind = "object"
    if kind == "object":
        return _of_object(schema, depth)
    if kind == "array":
        return types.ArrayType(_of_json_schema(schema.get("items"), depth + 1))
    if kind == "string":
        return _FORMATS.get(str(schema.get("format")), types.StringType())
    if kind in _SIMPLE:
        return _SIMPLE[str(kind)]
    raise ValueError(
        f"has type {schema.get('type')!r}; write object, array, string, integer, number or boolean"
    )


def _of_object(schema: Mapping[str, object], depth: int) -> types.DataType:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        return types.StructType(
            [
                types.StructField(str(name), _of_json_schema(each, depth + 1))
                for name, each in properties.items()
            ]
        )
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        return types.MapType(types.StringType(), _of_json_schema(values, depth + 1))
    raise ValueError("has an object without properties")
