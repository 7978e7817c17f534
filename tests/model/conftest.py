"""A folder in memory where there is one: a scenario waits for the disk a hundred times."""

from __future__ import annotations

from tests.support.stores.memory import tmp_path

__all__ = ["tmp_path"]
