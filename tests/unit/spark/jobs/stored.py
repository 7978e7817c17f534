"""Parquet files as ``stage`` writes them, without a Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow
from pyarrow import parquet

__all__ = ["write_staged"]


def write_staged(
    folder: Path, kind: str, topic: str, date: str, rows: int, name: str = "a"
) -> None:
    path = folder / f"k={kind}" / f"t={topic}" / f"d={date}"
    path.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"body": [str(number).encode() for number in range(rows)]})
    parquet.write_table(table, path / f"part-{name}.parquet")
