"""Arguments of public methods, held against their annotations.

Python takes an argument of any type in silence; what comes of it is an error of someone else later,
or a message in the wrong place. So each public method says at once which argument is of which type,
and what it must be. Texts are checked as well. Half of a surrogate pair has no encoding, so no
frame can hold it: a cut emoji out of JSON, or a byte of the command line that is no UTF-8.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kerolox.errors import ConfigError
from kerolox.text import wrong_type

__all__ = ["check_encodable", "check_type", "checked", "not_callable", "not_whole", "unencodable"]

READ_GENEROUSLY = ("name_server",)
"""Arguments whose reader says more of what is wrong (``arguments.name_server_text``)."""

_Class = TypeVar("_Class")
_Check = Callable[[object], str | None]
"""What is wrong with a value, behind the argument's name; None: nothing."""


def unencodable(text: str) -> str | None:
    """What is wrong with a text that has no encoding, behind its name; None: nothing."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"has half of a surrogate pair (U+{ord(text[error.start]):04X}) at position"
            f" {error.start}, which no encoding has; remove it, or decode the text rightly"
        )
    return None


def check_encodable(text: str, what: str, error: type[Exception] = ConfigError) -> None:
    """Refuse a text that has no encoding, with an error that begins with ``what``."""
    fault = unencodable(text)
    if fault is not None:
        raise error(f"{what} {fault}")


def not_callable(function: object, arguments: int = 1) -> str | None:
    """What is wrong with a function that is called with so many arguments, behind its name; None:
    nothing."""
    if not callable(function):
        return wrong_type(function, "function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one in C may tell nothing
        return None
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        count = "one argument" if arguments == 1 else f"{arguments} arguments"
        what = getattr(function, "__qualname__", repr(function))
        return f"is called with {count}, but {what} takes {signature}; change its parameters"
    return None


# -- what a type's values are ---------------------------------------------------------------------
def _text(value: object) -> str | None:
    return unencodable(value) if isinstance(value, str) else wrong_type(value, "str")


def not_whole(value: object) -> str | None:
    """What is wrong with a whole number, behind its name; None: nothing."""
    if type(value) is int or (hasattr(type(value), "__index__") and not isinstance(value, bool)):
        return None
    return wrong_type(value, "int")


def _number(value: object) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return None
    if hasattr(type(value), "__float__") and not isinstance(value, bool):
        return None
    return wrong_type(value, "float")


def _called_with(parameters: object) -> _Check:
    arguments = len(parameters) if isinstance(parameters, list) else 1
    return functools.partial(not_callable, arguments=arguments)


def _anything(value: object) -> str | None:
    return None


def _nothing(value: object) -> str | None:
    return None if value is None else wrong_type(value, "None")


_SIMPLE: dict[object, _Check] = {
    str: _text,
    int: not_whole,
    float: _number,
    None: _nothing,
    types.NoneType: _nothing,
    object: _anything,
    Any: _anything,
}


def _instance_of(kind: type) -> _Check:
    def check_value(value: object) -> str | None:
        return None if isinstance(value, kind) else wrong_type(value, kind.__name__)

    return check_value


def _like(kind: type) -> _Check:
    """Instances of any class that has the methods of a protocol."""
    methods = [name for name in vars(kind) if inspect.isfunction(getattr(kind, name))]
    methods = [name for name in methods if not name.startswith("_")]

    def check_value(value: object) -> str | None:
        lacks = [name for name in methods if not callable(getattr(value, name, None))]
        if isinstance(value, type) or not lacks:
            return wrong_type(value, kind.__name__) if isinstance(value, type) else None
        return f"{wrong_type(value, kind.__name__)}: it has no {lacks[0]}()"

    return check_value


def _one_of(checks: list[_Check]) -> _Check:
    wanted = next((check for check in checks if check is not _nothing), _nothing)

    def check_value(value: object) -> str | None:
        for check in checks:
            if check(value) is None:
                return None
        return _text(value) if isinstance(value, str) and _text in checks else wanted(value)

    return check_value


def _many(check: _Check, name: str) -> _Check:
    def check_value(value: object) -> str | None:
        if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(
            value, Iterable
        ):
            return f"is of type {type(value).__name__}, not a list of {name}; write [...]"
        if isinstance(value, Collection):  # what can be gone through once is left alone
            for index, item in enumerate(value):
                fault = check(item)
                if fault is not None:
                    return f"item {index} {fault}"
        return None

    return check_value


def _pairs(key: _Check, item: _Check) -> _Check:
    def check_value(value: object) -> str | None:
        if not isinstance(value, Mapping):
            return f"is of type {type(value).__name__}, not a dict; write {{...}}"
        for name, each in value.items():
            fault = key(name)
            if fault is not None:
                return f"key {name!r} {fault}"
            fault = item(each)
            if fault is not None:
                return f"value of {name!r} {fault}"
        return None

    return check_value


_MANY = ("Iterable", "Collection", "Sequence", "list", "set", "frozenset", "tuple")
_MAPPINGS = ("Mapping", "dict")


def _check_of(annotation: object, names: Mapping[str, object]) -> _Check | None:
    """The check of an annotation; None: it can't be told what it means."""
    if isinstance(annotation, str):
        return _parsed(ast.parse(annotation, mode="eval").body, names)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union([_check_of(part, names) for part in parts])
    if origin is not None:
        annotation = origin
    if annotation is Callable:
        return _called_with(parts[0] if parts else None)
    if isinstance(annotation, type):
        is_protocol = getattr(annotation, "_is_protocol", False)
        return _like(annotation) if is_protocol else _instance_of(annotation)
    return None


def _union(checks: list[_Check | None]) -> _Check | None:
    known = [check for check in checks if check is not None]
    return _one_of(known) if len(known) == len(checks) else None


def _parsed(node: ast.expr, names: Mapping[str, object]) -> _Check | None:
    if isinstance(node, ast.Constant):
        return _check_of(node.value, names)
    if isinstance(node, ast.BinOp):
        return _union([_parsed(node.left, names), _parsed(node.right, names)])
    if isinstance(node, ast.Subscript):
        kind = ast.unparse(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind == "Callable":
            return _called_with(parts[0].elts if isinstance(parts[0], ast.List) else None)
        if kind in _MANY:
            return _many(_parsed(parts[0], names) or _anything, ast.unparse(parts[0]))
        if kind in _MAPPINGS:
            key, item = (_parsed(part, names) or _anything for part in parts)
            return _pairs(key, item)
        return _parsed(node.value, names)
    name = ast.unparse(node)
    found = names.get(name, getattr(builtins, name, None))
    return None if found is None else _check_of(found, names)


@functools.lru_cache(maxsize=1_024)
def _known(annotation: str, module: str) -> _Check | None:
    return _check_of(annotation, vars(sys.modules[module]))


def check_type(value: object, name: str, annotation: str, module: str) -> None:
    """Refuse a value that an annotation does not allow by a ConfigError: what it is, what it must
    be, what to do. ``module``: where the annotation is written, whose names it has.
    """
    check = _known(annotation, module)
    if check is not None and (fault := check(value)) is not None:
        raise ConfigError(f"{name} {fault}")


# -- methods --------------------------------------------------------------------------------------
def checked(*but: str) -> Callable[[type[_Class]], type[_Class]]:
    """A class decorator: each public method, and the making of an instance, first examines its
    arguments; a wrong one is a :class:`ConfigError`. The methods ``but`` do so themselves, since
    they are called for each message.
    """

    def decorate(cls: type[_Class]) -> type[_Class]:
        for name, function in list(vars(cls).items()):
            is_public = not name.startswith("_") or name == "__init__"
            if is_public and name not in but and inspect.isfunction(function):
                setattr(cls, name, _checking(function))
        return cls

    return decorate


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = names[1 : code.co_argcount]
    module = function.__module__
    annotations = function.__annotations__
    if not any(name in annotations for name in names):
        return function
    checks: dict[str, _Check] = {}

    def learn() -> None:
        """Names that an annotation has may be defined behind the class."""
        for name in names:
            is_ours = name in annotations and name not in READ_GENEROUSLY
            checks[name] = (_known(annotations[name], module) if is_ours else None) or _anything

    def check_value(args: tuple[object, ...], named: dict[str, object]) -> None:
        if not checks:
            learn()
        for name, value in zip(positional, args, strict=False):
            fault = checks[name](value)
            if fault is not None:
                raise ConfigError(f"{name} {fault}")
        for name, value in named.items():
            check = checks.get(name)
            if check is not None and (fault := check(value)) is not None:
                raise ConfigError(f"{name} {fault}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(self: object, *args: object, **named: object) -> object:
            check_value(args, named)
            return await function(self, *args, **named)

        return wait

    @functools.wraps(function)
    def call(self: object, *args: object, **named: object) -> object:
        check_value(args, named)
        return function(self, *args, **named)

    return call
