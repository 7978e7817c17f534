"""Batches over stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kerolox.spark.store.columns import check_store_schema
from kerolox.spark.store.plan import batch_range, plan_batch
from kerolox.spark.worker import STORE_READING_MODULE, packed, short_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow
    from pyspark.sql.types import StructType

    from kerolox.spark.store.options import StoreOptions


class StoreBatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads what the stores hold when the query is planned."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        check_store_schema(schema, options.columns)
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        return packed(self._options, self._schema, STORE_READING_MODULE)

    @short_errors
    def partitions(self) -> list[InputPartition]:
        """List the stores, find where their logs end, and cut them."""
        options = self._options
        return [
            partition
            for number in range(len(options.paths))
            for partition in plan_batch(batch_range(options, number), options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Read one partition, in a worker."""
        from kerolox.spark.store.partition import read_partition

        return read_partition(partition, self._options, self._schema)
