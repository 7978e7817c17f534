"""Lists of pages: which column they are ordered by, and the links that order them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kerolox.console.visit import Visit

__all__ = ["Order", "order_of"]

Value = float | str | None
"""What rows are ordered by; all of a column are of one type."""


@dataclass(frozen=True, slots=True)
class Order:
    """By which column a list is ordered."""

    column: str
    is_descending: bool
    descending_first: Mapping[str, bool]
    """Column → whether the first click on it puts the largest first."""

    @property
    def asked(self) -> dict[str, str]:
        """What asks for this order in an address."""
        return _asked(self.column, self.is_descending)

    def parameters(self, column: str) -> dict[str, str]:
        """What the link of a column's head adds to the address; a second click turns the order."""
        if column == self.column:
            return _asked(column, not self.is_descending)
        return _asked(column, self.descending_first[column])

    def sorted(self, names: Iterable[str], value: Callable[[str], Value]) -> list[str]:
        """The names in that order, those of the same value by name; without a value last."""
        by_name = sorted(names)
        values = {name: value(name) for name in by_name}
        # Texts and numbers are not compared: one of both is the same for all rows.
        found = sorted(
            (name for name in by_name if values[name] is not None),
            key=lambda name: _key(values[name]),
            reverse=self.is_descending,
        )
        return found + [name for name in by_name if values[name] is None]


def order_of(visit: Visit, columns: Mapping[str, bool]) -> Order:
    """What the address asks for, else the first column; ``columns``: name → whether the largest
    comes first unless the address says otherwise.
    """
    column = visit.asked("sort")
    if column not in columns:
        column = next(iter(columns))
    asked = visit.asked("order")
    is_descending = asked == "desc" if asked in ("asc", "desc") else columns[column]
    return Order(column, is_descending, columns)


def _asked(column: str, is_descending: bool) -> dict[str, str]:
    return {"sort": column, "order": "desc" if is_descending else "asc"}


def _key(value: Value) -> tuple[float, str]:
    return (0.0, value) if isinstance(value, str) else (value or 0.0, "")
