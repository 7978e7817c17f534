"""Spark data sources: ``rocketmq`` for topics, ``rocketmq-store`` for the files of a store."""

from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.progress import Figures, ProgressListener, lag
from kerolox.spark.source import RocketMQDataSource, register
from kerolox.spark.store.source import RocketMQStoreDataSource, register_store

__all__ = [
    "DataLossError",
    "Figures",
    "ProgressListener",
    "RocketMQDataSource",
    "RocketMQStoreDataSource",
    "lag",
    "register",
    "register_store",
]
