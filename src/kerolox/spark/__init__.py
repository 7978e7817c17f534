"""A Spark data source for topics: ``spark.read.format("rocketmq")`` and ``spark.readStream``."""

from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.source import RocketMQDataSource, register

__all__ = ["DataLossError", "RocketMQDataSource", "register"]
