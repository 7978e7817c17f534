"""Decoding in Spark's Python workers, batch by batch of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType, StructField, StructType

REASON_CHARACTERS_MAX = 300


def decode_in_workers(
    frame: DataFrame, value_type: DataType, make: Callable[[], Callable[[bytes], object]]
) -> DataFrame:
    """The rows, which have a column ``body``, with ``value`` and ``reason``. ``make`` gives a
    function from a body to its value, which raises for a body that is none; it is called once in
    each task.
    """
    fields = [*frame.schema.fields, StructField("value", value_type)]
    schema = StructType([*fields, StructField("reason", StringType())])

    def decode(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from kerolox.spark.jobs.archive.bodies.in_workers import with_values
        from kerolox.spark.rows.schema import arrow_schema

        of_value = arrow_schema(StructType([StructField("value", value_type)])).field(0)
        decode_body = make()
        for batch in batches:
            yield with_values(batch, of_value.type, decode_body)

    return frame.mapInArrow(decode, schema)


def with_values(
    batch: pyarrow.RecordBatch, value_type: pyarrow.DataType, decode: Callable[[bytes], object]
) -> pyarrow.RecordBatch:
    """A batch with its values and reasons."""
    values: list[object] = []
    reasons: list[str | None] = []
    for body in batch.column("body"):
        value, reason = _decoded(body.as_py(), decode)
        values.append(value)
        reasons.append(reason)
    try:
        column = pyarrow.array(values, value_type)
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        column = _one_by_one(values, reasons, value_type)
    arrays = [*batch.columns, column, pyarrow.array(reasons, pyarrow.string())]
    names = [*batch.schema.names, "value", "reason"]
    return pyarrow.RecordBatch.from_arrays(arrays, names)


def _decoded(body: bytes | None, decode: Callable[[bytes], object]) -> tuple[object, str | None]:
    if body is None:
        return None, "there is no body"
    try:
        return decode(body), None
    except Exception as error:  # what a body of strangers makes a library raise
        text = f"{type(error).__name__}: {error}"
        return None, text[:REASON_CHARACTERS_MAX]


def _one_by_one(
    values: list[object], reasons: list[str | None], value_type: pyarrow.DataType
) -> pyarrow.Array:
    """Some value has no place in the column, such as a number that is too large."""
    for index, value in enumerate(values):
        try:
            pyarrow.array([value], value_type)
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            values[index] = None
            reasons[index] = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
    return pyarrow.array(values, value_type)
