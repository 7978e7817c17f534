"""A value that the parts of a program share: immutable, replaced as a whole, and subscribed to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Observable(Generic[_Value]):
    """Holds one value. A part reads ``current`` each time, or subscribes and keeps what it needs.

    Attributes:
        current: the value in force.
    """

    def __init__(self, current: _Value) -> None:
        """Nobody has subscribed."""
        self.current = current
        self._subscribers: list[Callable[[_Value, _Value], Awaitable[None] | None]] = []

    def subscribe(self, changed: Callable[[_Value, _Value], Awaitable[None] | None]) -> None:
        """Have ``changed(old, new)`` be called with each other value. What it returns goes on
        meanwhile, and is awaited by whoever waits for the change."""
        self._subscribers.append(changed)

    def replace(self, new: _Value) -> list[Awaitable[None]]:
        """Put another value in force. Subscribers hear of it before this returns, in the order in
        which they came; what they go on with is to be awaited."""
        old, self.current = self.current, new
        returned = [changed(old, new) for changed in self._subscribers]
        return [each for each in returned if each is not None]
