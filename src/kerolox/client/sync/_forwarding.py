"""How a declared method of a blocking client reaches the method of its asyncio client.

The declaration has the signature, for readers and type checkers, and no body. Its decorator passes
all arguments to the asyncio method of that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Protocol, TypeVar, cast

from kerolox.client.sync._portal import Portal

_Class = TypeVar("_Class")
_Method = TypeVar("_Method", bound=Callable[..., object])

METHOD_WORDS = (("an async function", "a plain function"), ("async with ", "with "), ("await ", ""))
"""Replacements in docstrings of methods."""


class _Blocking(Protocol):
    _client: Any
    _portal: Portal


def runs(method: _Method) -> _Method:
    """Run the coroutine of the asyncio method, and wait for its result."""
    name = method.__name__

    def forward(self: _Blocking, *args: object, **named: object) -> object:
        return self._portal.run(getattr(self._client, name)(*args, **named))

    return cast(_Method, wraps(method)(forward))


def calls(method: _Method) -> _Method:
    """Call a plain method in the loop, while that runs."""
    name = method.__name__

    def forward(self: _Blocking, *args: object, **named: object) -> object:
        return self._portal.call(getattr(self._client, name), *args, **named)

    return cast(_Method, wraps(method)(forward))


def iterates(method: _Method) -> _Method:
    """Wait for the items of the asyncio iterator, one by one."""
    name = method.__name__

    def forward(self: _Blocking, *args: object, **named: object) -> object:
        return self._portal.iterate(partial(getattr(self._client, name), *args, **named))

    return cast(_Method, wraps(method)(forward))


def submits(method: _Method) -> _Method:
    """Give the future of what the asyncio method begins."""
    name = method.__name__

    def forward(self: _Blocking, *args: object, **named: object) -> object:
        return self._portal.submit(partial(getattr(self._client, name), *args, **named))

    return cast(_Method, wraps(method)(forward))


def settles(method: _Method) -> _Method:
    """Wait for what ``submit`` begins, which costs less than a task. When that takes no more, run
    the asyncio method."""
    name = method.__name__

    def forward(self: _Blocking, *args: object, **named: object) -> object:
        client = self._client
        begin = partial(client.submit, *args, **named)
        return self._portal.settle(begin, partial(getattr(client, name), *args, **named))

    return cast(_Method, wraps(method)(forward))


def documented(blocking: type, source: type) -> None:
    """Give the methods of a blocking class the whole docstrings of the asyncio ones, of which
    their declarations have the first paragraphs."""
    for name, member in vars(blocking).items():
        is_declared = inspect.isfunction(member) if name == "__init__" else name[0] != "_"
        text = getattr(source, name).__doc__ if is_declared else None
        if text is not None:
            for old, new in METHOD_WORDS:
                text = text.replace(old, new)
            member.__doc__ = text


def forwarded(source: type) -> Callable[[type[_Class]], type[_Class]]:
    """A class decorator for methods that are all declarations: each is passed on to the method of
    ``source``, whose docstring it gets."""

    def decorate(blocking: type[_Class]) -> type[_Class]:
        for name, method in list(vars(blocking).items()):
            if inspect.isfunction(method):
                is_iterator = inspect.isasyncgenfunction(inspect.unwrap(getattr(source, name)))
                setattr(blocking, name, iterates(method) if is_iterator else runs(method))
        documented(blocking, source)
        return blocking

    return decorate
