"""The target that options name."""

from __future__ import annotations

from typing import assert_never

from kerolox.spark.jobs.archive.options import ArchiveOptions, Format
from kerolox.spark.jobs.archive.targets.delta import DeltaTarget
from kerolox.spark.jobs.archive.targets.iceberg import IcebergTarget
from kerolox.spark.jobs.archive.targets.parquet import ParquetTarget
from kerolox.spark.jobs.archive.targets.target import Target


def target_of(options: ArchiveOptions) -> Target:
    """It is opened when it is used."""
    kind = Format(options.format)
    match kind:
        case Format.PARQUET:
            return ParquetTarget(options.to, options.state_folder)
        case Format.DELTA:
            return DeltaTarget(options.to)
        case Format.ICEBERG:
            return IcebergTarget(options.to, options.catalog)
    assert_never(kind)
