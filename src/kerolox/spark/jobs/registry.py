"""Every job by its name: the one place that a new job is added to."""

from __future__ import annotations

import importlib
from typing import Any, cast

from kerolox.config import nearest
from kerolox.errors import ConfigError
from kerolox.spark.jobs.frame.job import Job

JOBS = {
    "archive": "kerolox.spark.jobs.archive:JOB",
    "audit": "kerolox.spark.jobs.audit:JOB",
    "dlq": "kerolox.spark.jobs.dlq:JOB",
    "rebuild": "kerolox.spark.jobs.rebuild:JOB",
    "replay": "kerolox.spark.jobs.replay:JOB",
    "trace": "kerolox.spark.jobs.trace:JOB",
    "traffic": "kerolox.spark.jobs.traffic:JOB",
}
"""Name → ``module:attribute`` of its :class:`~kerolox.spark.jobs.frame.job.Job`, which is imported
when it is used."""


def load_job(name: str) -> Job[Any, Any]:
    """A job by its name; ConfigError: there is none; names the nearest."""
    where = JOBS.get(name)
    if where is None:
        near = nearest(name, JOBS)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(JOBS)}"
        raise ConfigError(f"there is no job {name!r}; {hint}")
    module, _, attribute = where.partition(":")
    return cast("Job[Any, Any]", getattr(importlib.import_module(module), attribute))
