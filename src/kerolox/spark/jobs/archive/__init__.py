"""``archive``: topics to Parquet, Delta or Iceberg, each message once."""

from kerolox.spark.jobs.archive.job import JOB, ArchiveSummary, archive
from kerolox.spark.jobs.archive.options import ArchiveOptions

__all__ = ["JOB", "ArchiveOptions", "ArchiveSummary", "archive"]
