"""The columns: RocketMQ's names and their Spark types, and the schemas made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types

from kerolox.config import nearest
from kerolox.errors import ConfigError
from kerolox.spark.option_values import of_option
from kerolox.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow

COLUMNS: dict[str, types.DataType] = {
    "topic": types.StringType(),
    "brokerName": types.StringType(),
    "queueId": types.IntegerType(),
    "queueOffset": types.LongType(),
    "commitLogOffset": types.LongType(),
    "bornTimestamp": types.TimestampType(),
    "storeTimestamp": types.TimestampType(),
    "bornHost": types.StringType(),
    "storeHost": types.StringType(),
    "flag": types.IntegerType(),
    "sysFlag": types.IntegerType(),
    "tags": types.StringType(),
    "keys": types.StringType(),
    "msgId": types.StringType(),
    "uniqKey": types.StringType(),
    "reconsumeTimes": types.IntegerType(),
    "preparedTransactionOffset": types.LongType(),
    "body": types.BinaryType(),
    "properties": types.MapType(types.StringType(), types.StringType()),
}
"""Every column in its order, with its type. tags, keys and uniqKey may be null."""


def full_schema() -> types.StructType:
    """All columns."""
    return schema_of(COLUMNS)


def schema_of(
    names: Iterable[str], *, known: Mapping[str, types.DataType] = COLUMNS, source: str = "rocketmq"
) -> types.StructType:
    """The schema of the columns that option ``columns`` names, in the order given."""
    with of_option("columns"):
        kinds = [(name, known[column_of(name, known, source)]) for name in names]
    return types.StructType([types.StructField(name, kind) for name, kind in kinds])


def check_schema(
    schema: types.StructType,
    columns: Sequence[str] | None,
    *,
    known: Mapping[str, types.DataType] = COLUMNS,
    source: str = "rocketmq",
) -> None:
    """Check a schema that a user gave with ``.schema(...)``: any columns of ours in any order, but
    those of option ``columns``, None: it was not given. ConfigError: an unknown column, another
    type, or others.
    """
    for field in schema.fields:
        expected = known[column_of(field.name, known, source)]
        if field.dataType != expected:
            raise ConfigError(
                f"column {field.name} is {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading"
            )
    names = schema.fieldNames()
    if not names:
        raise ConfigError(f"the schema has no column; there are {', '.join(known)}")
    if len({name.lower() for name in names}) != len(names):
        raise ConfigError(f"the schema names a column twice: {', '.join(names)}")
    if columns is not None and list(columns) != names:
        raise ConfigError(
            f"option columns={','.join(columns)} contradicts the schema "
            f"{','.join(names)}; give only one of them"
        )


def column_of(
    name: str, known: Mapping[str, types.DataType] = COLUMNS, source: str = "rocketmq"
) -> str:
    """A column's own spelling; ConfigError: there is no such column; names the nearest."""
    canonical = {each.lower(): each for each in known}.get(name.lower())
    if canonical is None:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"format {source} has no column {printable(name)!r}; {hint}")
    return canonical


def arrow_schema(schema: types.StructType) -> pyarrow.Schema:
    """What Spark compares a batch's schema with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # PySpark 4.1 spells it otherwise.
        return to_arrow_schema(schema, timestamp_utc=True)
