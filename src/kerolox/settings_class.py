"""Dataclasses of many settings, that take little time to make.

``dataclass`` writes the code of ``__init__``, ``__repr__`` and ``__eq__`` for each class, with a
line for each field, and compiles it at each start: 10 ms for the 200 settings of a broker. Here one
function does for all classes what that code does. Few are made, so that it may go from field to
field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["settings_dataclass"]

_Class = TypeVar("_Class")

if TYPE_CHECKING:
    import inspect
    from dataclasses import dataclass as settings_dataclass

    from _typeshed import DataclassInstance
else:

    def settings_dataclass(**given: bool) -> Callable[[type[_Class]], type[_Class]]:
        """As ``dataclass``, of which it takes ``frozen``, ``slots``, ``kw_only`` and ``repr``."""
        has_repr = given.pop("repr", True)

        def decorate(cls: type[_Class]) -> type[_Class]:
            made = dataclasses.dataclass(init=False, repr=False, eq=False, **given)(cls)
            made.__init__ = _init
            made.__signature__ = _Signature()
            if "__eq__" not in vars(cls):
                made.__eq__, made.__hash__ = _eq, _hash
            if has_repr and "__repr__" not in vars(cls):
                made.__repr__ = _repr
            return made

        return decorate


class _Signature:
    """What ``inspect.signature`` and ``help`` show: a keyword for each field."""

    def __get__(self, instance: object, owner: type[DataclassInstance]) -> inspect.Signature:
        import inspect

        parameters = []
        for each in dataclasses.fields(owner):
            default: object = inspect.Parameter.empty
            if each.default is not dataclasses.MISSING:
                default = each.default
            elif each.default_factory is not dataclasses.MISSING:
                default = "<factory>"
            parameters.append(
                inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=each.type,
                )
            )
        return inspect.Signature(parameters)


def _init(self: DataclassInstance, /, **given: object) -> None:
    for each in dataclasses.fields(self):
        if each.name in given:
            value = given.pop(each.name)
        elif each.default is not dataclasses.MISSING:
            value = each.default
        elif each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
        else:
            raise TypeError(f"{type(self).__name__}() lacks the argument {each.name!r}")
        object.__setattr__(self, each.name, value)
    for name in given:
        raise TypeError(f"{type(self).__name__}() has no argument {name!r}")
    check = getattr(self, "__post_init__", None)
    if check is not None:
        check()


def _values(self: DataclassInstance) -> tuple[object, ...]:
    return tuple(getattr(self, each.name) for each in dataclasses.fields(self) if each.compare)


def _eq(self: DataclassInstance, other: object) -> object:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: DataclassInstance) -> int:
    return hash(_values(self))


def _repr(self: DataclassInstance) -> str:
    shown = (
        f"{each.name}={getattr(self, each.name)!r}"
        for each in dataclasses.fields(self)
        if each.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"
