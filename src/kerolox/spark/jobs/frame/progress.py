"""How a job tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Where a job is.

    Args:
        text: what it does, in the present tense: ``archiving``.
        done: how much of it, in ``unit``.
        total: of how much; None: nobody knows.
        unit: what is counted.
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
