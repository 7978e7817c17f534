"""Where Spark finds the ``rocketmq`` format: it looks for ``DefaultSource`` in ``pyspark_*``."""

from kerolox.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
