"""Where Spark finds the ``rocketmq-store`` format: in ``DefaultSource`` of ``pyspark_*``."""

from kerolox.spark.store.source import RocketMQStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
