"""A job: its name, its options, its function, and maybe a page for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from kerolox.config import camel
from kerolox.spark.jobs.frame.options import JobOptions
from kerolox.spark.jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Step:
    """Where a job is. ``text``: what it does, in the present tense: ``archiving``. ``done``: how
    much of it, in ``unit``. ``total``: of how much; None: nobody knows.
    """

    text: str
    done: int = 0
    total: int | None = None
    unit: str = "rows"

    def __str__(self) -> str:
        if not self.done and self.total is None:
            return self.text
        if not self.total:
            return f"{self.text}: {self.done} {self.unit}"
        part = 100 * self.done // self.total
        return f"{self.text}: {self.done} of {self.total} {self.unit} ({part} %)"


Progress = Callable[[Step], None]
"""Is called by the driver now and then; it returns at once and raises nothing."""


def silent(_step: Step) -> None:
    """Tells nobody."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a job. A subclass adds fields: numbers, texts, and tuples, mappings and
    dataclasses of them; nothing that grows with the data."""

    job: ClassVar[str] = ""

    seconds: float
    """Of the whole job."""

    @property
    def exit_code(self) -> int:
        """Of the command: 0, or 1 where a job that looks for findings has some."""
        return 0

    def as_json(self) -> dict[str, object]:
        """``job`` and the fields, named as RocketMQ names fields: ``logBytes``."""
        fields = {"job": self.job, **_fields(self)}
        fields["seconds"] = round(self.seconds, 3)
        return fields

    def lines(self) -> Iterator[str]:
        """What the command prints: by default a line for each field."""
        for name, value in self.as_json().items():
            if isinstance(value, dict):
                yield f"{name}:"
                yield from (f"  {key}: {each}" for key, each in value.items())
            elif isinstance(value, list):
                yield f"{name}: {len(value)}"
                yield from (f"  {each}" for each in value)
            else:
                yield f"{name}: {value}"


def _fields(value: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(value)
    return {
        camel(each.name): _json(getattr(value, each.name)) for each in dataclasses.fields(value)
    }


def _json(value: object) -> object:
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_json(each) for each in value]
    return value


_Options = TypeVar("_Options", bound=JobOptions)
_Summary = TypeVar("_Summary", bound=Summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[_Options, _Summary]):
    """One job of the registry.

    Args:
        name: of the command: ``kerolox spark NAME``.
        help: what ``-h`` says; its first line stands in the list of jobs.
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
