"""The data source itself: ``spark.read.format("rocketmq")`` and ``spark.readStream``.

Spark imports this module in each session through ``pyspark_rocketmq``, also in those that never
read a topic. So it imports little: what reads (Arrow, the protocol, the kernel) is imported by the
methods that need it. The class is pickled by value (:mod:`kerolox.spark.worker`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from kerolox.spark.worker import LateStreamReader, packed, require_kerolox, short_errors
from kerolox.spark.writer import BatchWriter, CarriedOptions, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from kerolox.spark.reader import BatchReader
    from kerolox.spark.sink.options import SinkOptions
    from kerolox.spark.worker import Packed, StreamPlanning

FORMAT = "rocketmq"


class RocketMQDataSource(DataSource):  # type: ignore[misc]
    """Topics as tables.

    ``spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe",
    "flights").load()``. Options: :data:`kerolox.spark.options.OPTIONS`; columns:
    :data:`kerolox.spark.rows.schema.COLUMNS`. Errors are :class:`~kerolox.errors.ConfigError` for a
    wrong option or schema (when the query is planned, before anything is read).
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    @short_errors
    def schema(self) -> StructType:
        """All columns, or those of option ``columns``."""
        require_kerolox()
        from kerolox.spark.options import SourceOptions
        from kerolox.spark.rows.schema import full_schema, schema_of

        columns = SourceOptions.parse(self.options).columns
        return full_schema() if columns is None else schema_of(columns)

    @short_errors
    def reader(self, schema: StructType) -> BatchReader:
        """A reader for a batch query."""
        require_kerolox()
        from kerolox.spark.options import SourceOptions
        from kerolox.spark.reader import BatchReader, PushingReader

        options = SourceOptions.parse(self.options)
        return (PushingReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader for a stream query."""

        def make() -> StreamPlanning:
            require_kerolox()
            from kerolox.spark.options import SourceOptions
            from kerolox.spark.stream import StreamPlanner

            return StreamPlanner(SourceOptions.parse(self.options), schema)

        def carry() -> Packed:
            from kerolox.spark.options import SourceOptions

            return packed(SourceOptions.parse(self.options), schema)

        return LateStreamReader(make, carry)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for a batch (``mode("append")``)."""
        options = _checked_write(self.options, schema, overwrite, is_stream=False)
        return BatchWriter(CarriedOptions(options))

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer for a stream (``outputMode("append")`` or ``update``)."""
        options = _checked_write(self.options, schema, overwrite, is_stream=True)
        return StreamWriter(CarriedOptions(options))


def _checked_write(
    given: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> SinkOptions:
    """The options of a write, checked with the columns."""
    require_kerolox()
    from kerolox.errors import ConfigError
    from kerolox.spark.sink.options import SinkOptions
    from kerolox.spark.sink.rows import check_schema

    if overwrite:
        instead = 'outputMode("append")' if is_stream else 'mode("append")'
        raise ConfigError(f"messages of a topic can't be overwritten; write with {instead}")
    options = SinkOptions.parse(given, is_stream=is_stream)
    check_schema(schema, options)
    if options.transactional:
        from kerolox.spark.sink.transactions.decisions import check_location

        check_location(options.folder_of(options.transaction_id or "query"))
    return options


def register(spark: SparkSession) -> None:
    """Make the format known to a session that did not find it by itself.

    A session finds it when ``kerolox`` is installed where its Python workers run; this is for
    sources on a path that Spark does not search.
    """
    spark.dataSource.register(RocketMQDataSource)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
