"""Spark data sources: ``rocketmq`` for topics, ``rocketmq-store`` for the files of a store."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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
    "DataLossError": "positions.offsets",
    "Figures": "progress",
    "ProgressListener": "progress",
    "RocketMQDataSource": "source",
    "RocketMQStoreDataSource": "store.source",
    "lag": "progress",
    "register": "source",
    "register_store": "store.source",
}


def __getattr__(name: str) -> object:
    """A public name, imported now: each Python process of Spark imports this package."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
