"""Jobs on Spark: each is options, a function, and a command of ``kerolox spark``.

The registry is :mod:`kerolox.spark.jobs.registry`; what jobs share is in ``frame`` and ``report``.
"""

from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.job import Job, Progress, Step, Summary, silent
from kerolox.spark.jobs.frame.options import JobOptions, option
from kerolox.spark.jobs.registry import JOBS, load_job

__all__ = [
    "JOBS",
    "Job",
    "JobError",
    "JobOptions",
    "Progress",
    "Step",
    "Summary",
    "load_job",
    "option",
    "silent",
]
