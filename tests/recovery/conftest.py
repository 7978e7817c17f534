"""A folder in memory for stores that crash within the test or a fork of it: a kill leaves what the
system has, wherever it keeps it, and what a loss of power leaves is worked out."""

from __future__ import annotations

from tests.support.stores.memory import tmp_path as memory_path

__all__ = ["memory_path"]
