"""How Spark bounds a micro-batch, and what stands in where PySpark can't (4.1)."""

from __future__ import annotations

from kerolox.errors import ConfigError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # PySpark 4.1
    HAS_READ_LIMITS = False
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None
    # Spark then reads everything in one batch. It is no class of ours: workers unpickle it.
    SupportsTriggerAvailableNow = object

__all__ = [
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "check_limit",
    "limited",
]


def limited(**options: str) -> dict[str, str]:
    """Options that bound micro-batches, none of them where PySpark can't: for queries of ours that
    are as right in one batch."""
    return options if HAS_READ_LIMITS else {}


def check_limit(option: str, value: int | None, *, has_limits: bool = HAS_READ_LIMITS) -> None:
    """Refuse by a ConfigError a bound of micro-batches that Spark would not keep; None or 0: there
    is none.

    A run with ``availableNow`` has one batch in PySpark 4.1. A bound would end it too soon.
    """
    if value and not has_limits:
        raise ConfigError(f"option {option} needs PySpark 4.2 or newer; leave it out or upgrade")
