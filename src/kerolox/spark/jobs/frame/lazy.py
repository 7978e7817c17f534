"""Libraries of sessions and workers, imported when something of them is first used.

So the command line lists jobs and their options without Spark, and soon.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _LazyModule:
    """Stands for a module, and keeps what was used of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - none of them has types
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value


sql = _LazyModule("pyspark.sql.functions")
arrow = _LazyModule("pyarrow")
compute = _LazyModule("pyarrow.compute")
