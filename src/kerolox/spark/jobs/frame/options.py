"""Options of jobs: a frozen dataclass whose fields say what a value may be, and what it means.

One declaration serves the function, which takes the dataclass, and the command, which makes an
option ``--name-of-field`` of each field::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class CountOptions(JobOptions):
        topics: tuple[str, ...] = option("a topic to count", flag="topic")
        limit: int | None = option("most rows", default=None, minimum=1)

Types: ``str``, ``int``, ``float``, ``bool``, ``tuple[str, ...]`` (repeated), ``Mapping[str, str]``
(repeated ``NAME=VALUE``), and each of the first three ``| None``.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerolox.errors import ConfigError
from kerolox.text import printable

_KEY = "kerolox.option"

TEXT_CHARACTERS_MAX = 64 * 1024
"""A longer text is no value of an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a field's declaration says of it."""

    text: str
    flag: str = ""
    """The option of the command, without dashes; empty: the field's name."""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_time: bool = False
    """An ``int`` of milliseconds since 1970, which the command takes as a time of day too."""
    is_given: bool = False
    """The command has it from elsewhere, so it gets no option of its own."""


def option(
    text: str,
    *,
    default: object = dataclasses.MISSING,
    flag: str = "",
    metavar: str = "",
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    is_time: bool = False,
    is_given: bool = False,
) -> Any:  # noqa: ANN401 - as ``dataclasses.field``
    """A field of options; see :class:`Meaning`. One without a default is required; a required list
    or mapping has at least one item."""
    meaning = Meaning(
        text=text,
        flag=flag,
        metavar=metavar,
        # Members of an enumeration become the texts that they are.
        choices=tuple(str(each) for each in choices),
        minimum=minimum,
        maximum=maximum,
        is_time=is_time,
        is_given=is_given,
    )
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata={_KEY: meaning})
    return dataclasses.field(default=default, metadata={_KEY: meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a job; checked when they are made: a ConfigError names the option."""

    def __post_init__(self) -> None:
        for each in fields_of(type(self)):
            _check(each, getattr(self, each.name))
        self.check()

    def check(self) -> None:
        """What a subclass says about several options together; ConfigError: they don't fit."""

    @classmethod
    def error(cls, name: str, text: str) -> ConfigError:
        """An error that names an option as people write it: what is wrong with it, and what would
        be right.
        """
        (field,) = [each for each in fields_of(cls) if each.name == name]
        return _error(field, text)


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field with its meaning.

    Args:
        kind: ``str``, ``int``, ``float``, ``bool``, ``tuple`` or ``dict``.
        is_optional: whether None is a value.
        default: ``dataclasses.MISSING`` where it is required.
    """

    name: str
    meaning: Meaning
    kind: type[object]
    is_optional: bool
    default: object

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def flag(self) -> str:
        """As the command has it and as errors name it: ``--name-server``."""
        return f"--{self.meaning.flag or self.name.replace('_', '-')}"


def fields_of(options: type[JobOptions]) -> tuple[OptionField, ...]:
    """The fields that :func:`option` declared, in their order."""
    hints = typing.get_type_hints(options)
    found = []
    for each in dataclasses.fields(options):
        meaning = each.metadata.get(_KEY)
        if meaning is not None:
            kind, is_optional = _kind_of(hints[each.name])
            default = each.default
            if each.default_factory is not dataclasses.MISSING:
                default = each.default_factory()
            found.append(OptionField(each.name, meaning, kind, is_optional, default))
    return tuple(found)


def _kind_of(hint: object) -> tuple[type[object], bool]:
    is_optional = False
    if isinstance(hint, types.UnionType):
        rest = [each for each in typing.get_args(hint) if each is not types.NoneType]
        is_optional = len(rest) < len(typing.get_args(hint))
        if len(rest) > 1:
            return object, is_optional
        (hint,) = rest
    origin = typing.get_origin(hint) or hint
    if origin is Mapping:
        return dict, is_optional
    return typing.cast("type[object]", origin), is_optional


_NAMES: dict[type[object], str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a tuple of texts",
    dict: "a mapping of texts",
}


def _check(field: OptionField, value: object) -> None:
    meaning = field.meaning
    if meaning.is_given or (value is None and field.is_optional):
        return
    if field.kind is float and type(value) is int:
        value = float(value)
    is_whole = not (field.kind is int and isinstance(value, bool))
    if not is_whole or not isinstance(value, Mapping if field.kind is dict else field.kind):
        raise _error(field, f"{_shown(value)} must be {_NAMES[field.kind]}")
    if isinstance(value, int | float):
        _check_number(field, value)
    elif isinstance(value, str):
        _check_text(field, value)
    elif isinstance(value, tuple | Mapping):
        texts = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
        if not texts and field.is_required:
            raise _error(field, f"give at least one: {meaning.text}")
        for each in value:
            _check_text(field, each)
        if not all(isinstance(each, str) for each in texts):
            raise _error(field, f"{_shown(value)} must be {_NAMES[field.kind]}")


def _check_text(field: OptionField, text: object) -> None:
    if not isinstance(text, str) or len(text) > TEXT_CHARACTERS_MAX:
        raise _error(field, f"{_shown(text)} must be a text")
    choices = field.meaning.choices
    if choices and text not in choices:
        raise _error(field, f"{_shown(text)} must be one of {', '.join(choices)}")
    if not text.strip() and (field.is_required or field.kind is not str):
        raise _error(field, f"is blank; write {field.meaning.text}")


def _check_number(field: OptionField, number: float) -> None:
    minimum, maximum = field.meaning.minimum, field.meaning.maximum
    if number != number or (minimum is not None and number < minimum):
        raise _error(field, f"{number} must be {minimum} or more")
    if maximum is not None and number > maximum:
        raise _error(field, f"{number} must be {maximum} or less")


def _error(field: OptionField, text: str) -> ConfigError:
    return ConfigError(f"option {field.flag}: {text}")


def _shown(value: object) -> str:
    return printable(repr(value))
