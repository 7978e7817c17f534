"""The data source itself: ``spark.read.format("rocketmq-store")`` and ``spark.readStream``.

As :mod:`kerolox.spark.source` does, it imports little, and its class is pickled by value.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from kerolox.spark.worker import (
    STORE_READING_MODULE,
    LateStreamReader,
    packed,
    require_kerolox,
    short_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from kerolox.spark.store.plan import StoreBatchReader
    from kerolox.spark.worker import Packed, StreamPlanning

STORE_FORMAT = "rocketmq-store"


class RocketMQStoreDataSource(DataSource):  # type: ignore[misc]
    """The commit log of a store as a table, read from its files without a broker.

    ``spark.read.format("rocketmq-store").load("/data/store")``. Options:
    :data:`kerolox.spark.store.options.OPTIONS`; columns:
    :data:`kerolox.spark.store.columns.STORE_COLUMNS`. Errors are
    :class:`~kerolox.errors.ConfigError` for a wrong option, schema or topic and
    :class:`~kerolox.errors.StoreError` for a folder that is no store, when the query is planned.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return STORE_FORMAT

    @short_errors
    def schema(self) -> StructType:
        """All columns of ``rocketmq``, or those of option ``columns``."""
        require_kerolox()
        from kerolox.spark.store.columns import store_schema
        from kerolox.spark.store.options import StoreOptions

        return store_schema(StoreOptions.parse(self.options).columns)

    @short_errors
    def reader(self, schema: StructType) -> StoreBatchReader:
        """A reader for a batch query."""
        require_kerolox()
        from kerolox.spark.store.options import StoreOptions
        from kerolox.spark.store.plan import StoreBatchReader

        return StoreBatchReader(StoreOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader for a stream query."""

        def make() -> StreamPlanning:
            require_kerolox()
            from kerolox.spark.store.options import StoreOptions
            from kerolox.spark.store.stream import StoreStreamPlanner

            return StoreStreamPlanner(StoreOptions.parse(self.options), schema)

        def carry() -> Packed:
            from kerolox.spark.store.options import StoreOptions

            return packed(StoreOptions.parse(self.options), schema, STORE_READING_MODULE)

        return LateStreamReader(make, carry)


def register_store(spark: SparkSession) -> None:
    """Make the format known to a session that did not find it by itself."""
    spark.dataSource.register(RocketMQStoreDataSource)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
