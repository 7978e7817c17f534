"""Lists of pages: which column they are ordered by, and the links that order them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kerolox.console.visit import Visit

__all__ = ["Order", "order_of"]

_Item = TypeVar("_Item")
Value = float | str | None
"""What rows are ordered by; all of a column are of one type."""


@dataclass(frozen=True, slots=True)
class Order:
    """By which column a list is ordered."""

    column: str
    is_descending: bool
    descending_first: Mapping[str, bool]
    """Column → whether the first click on it puts the largest first."""

    def is_descending_next(self, column: str) -> bool:
        """Which way a click on the head of a column orders."""
        if column == self.column:
            return not self.is_descending
        return self.descending_first[column]

    def parameters(self, column: str) -> dict[str, str]:
        """What the link of a column's head adds to the address."""
        return {"sort": column, "order": "desc" if self.is_descending_next(column) else "asc"}

    def sorted(
        self, items: Iterable[_Item], value: Callable[[_Item], Value], name: Callable[[_Item], str]
    ) -> list[_Item]:
        """The items in that order, those of the same value by name; without a value last."""
        by_name = sorted(items, key=name)
        values = {name(each): value(each) for each in by_name}
        # Texts and numbers are not compared: one of both is the same for all rows.
        found = sorted(
            (each for each in by_name if values[name(each)] is not None),
            key=lambda each: _key(values[name(each)]),
            reverse=self.is_descending,
        )
        return found + [each for each in by_name if values[name(each)] is None]


def order_of(visit: Visit, columns: Mapping[str, bool]) -> Order:
    """What the address asks for, else the first column.

    Args:
        visit: the request.
        columns: name → whether the largest comes first unless the address says otherwise.
    """
    column = visit.asked("sort")
    if column not in columns:
        column = next(iter(columns))
    asked = visit.asked("order")
    is_descending = asked == "desc" if asked in ("asc", "desc") else columns[column]
    return Order(column, is_descending, columns)


def _key(value: Value) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (value or 0.0, "")
