"""Work that a job gives to tasks by numbers, and the rows that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kerolox.spark.jobs.frame.lazy import arrow

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

    Work = Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def by_number(spark: SparkSession, count: int, work: Work, schema: str) -> DataFrame:
    """What ``work`` makes of the numbers below ``count``, a task for each."""
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(work, schema)


def numbers_of(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[int]:
    """In a worker: the numbers that its task was given, the first column."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def arrow_schema(schema: str) -> pyarrow.Schema:
    """A schema that is written as Spark's: ``name kind, ...``."""
    kinds = {
        "string": arrow.string(),
        "int": arrow.int32(),
        "long": arrow.int64(),
        "boolean": arrow.bool_(),
    }
    pairs = [pair.split() for pair in schema.split(", ")]
    return arrow.schema([(name, kinds[kind]) for name, kind in pairs])


def batch_of(rows: Sequence[Mapping[str, object]], schema: str) -> pyarrow.RecordBatch:
    """Rows of such a schema; what one lacks is null."""
    return arrow.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
