"""Spark data sources: ``rocketmq`` for topics, ``rocketmq-store`` for the files of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.public_names import importer

if TYPE_CHECKING:
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

_HOMES = {
    "DataLossError": "kerolox.spark.positions.offsets",
    "Figures": "kerolox.spark.progress",
    "ProgressListener": "kerolox.spark.progress",
    "RocketMQDataSource": "kerolox.spark.source",
    "RocketMQStoreDataSource": "kerolox.spark.store.source",
    "lag": "kerolox.spark.progress",
    "register": "kerolox.spark.source",
    "register_store": "kerolox.spark.store.source",
}

# Each Python process of Spark imports this package.
__getattr__, __dir__ = importer(__name__, _HOMES)
