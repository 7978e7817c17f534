"""What a job says at its end: a frozen dataclass, as JSON and as lines of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import ClassVar

from kerolox.config import camel


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a job. A subclass adds fields: numbers, texts, and tuples, mappings and
    dataclasses of them; nothing that grows with the data."""

    job: ClassVar[str] = ""
    """The job's name."""

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
