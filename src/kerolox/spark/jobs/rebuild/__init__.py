"""``kerolox spark rebuild``: makes queues and index from a log (``ReputMessageService``)."""

from kerolox.spark.jobs.rebuild.job import JOB, rebuild
from kerolox.spark.jobs.rebuild.options import RebuildOptions

__all__ = ["JOB", "RebuildOptions", "rebuild"]
