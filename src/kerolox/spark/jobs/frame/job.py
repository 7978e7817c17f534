"""A job: its name, its options, its function, and maybe a page for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from kerolox.spark.jobs.frame.options import JobOptions
from kerolox.spark.jobs.frame.progress import Progress
from kerolox.spark.jobs.frame.summary import Summary
from kerolox.spark.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Options = TypeVar("_Options", bound=JobOptions)
_Summary = TypeVar("_Summary", bound=Summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[_Options, _Summary]):
    """One job of the registry.

    Args:
        name: of the command: ``kerolox spark NAME``.
        help: what ``-h`` says; its first line stands in the list of jobs.
        options: the class of its options.
        run: does it; it raises :class:`~kerolox.errors.ConfigError` before anything is done, or
            :class:`~kerolox.spark.jobs.frame.errors.JobError`.
        report: makes the page of a summary; None: the job has none.
        settings: of a session that the command starts, unless the user sets them.
    """

    name: str
    help: str
    options: type[_Options]
    run: Callable[[SparkSession, _Options, Progress], _Summary]
    report: Callable[[_Summary], Report] | None = None
    settings: tuple[tuple[str, str], ...] = ()
