"""What clients asked for and got, of a list that they append to and read; is it linearizable?

Each value is appended once, so the final order of the list is the one order in which all appends
took place. Then a history is linearizable if and only if each read gives a beginning of that list
which has all appends that ended before the read began, nothing that began after it ended, and no
less than an earlier read gave; and appends that did not overlap stand in their order.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Operation:
    """An append, or a read (``value`` None)."""

    value: int | None
    invoked: int
    completed: int | None = None
    result: tuple[int, ...] | None = None
    is_refused: bool = False


class LinearizabilityError(AssertionError):
    """No order of the operations explains what clients got."""


class History:
    """Operations with the times at which they began and ended."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def invoke(self, now: int, value: int | None) -> Operation:
        self.operations.append(Operation(value, now))
        return self.operations[-1]

    def complete(self, operation: Operation, now: int, result: list[int] | None) -> None:
        operation.completed = now
        operation.result = None if result is None else tuple(result)

    def refuse(self, operation: Operation) -> None:
        """It was not taken: it must not happen."""
        operation.is_refused = True

    def completed_after(self, time: int) -> int:
        """How many operations began after a time and ended."""
        return sum(1 for o in self.operations if o.invoked > time and o.completed is not None)

    def check(self) -> None:
        """LinearizabilityError names what does not fit."""
        reads = [o for o in self.operations if o.result is not None and o.completed is not None]
        longest = max((o.result or () for o in reads), key=len, default=())
        position = {value: at for at, value in enumerate(longest)}
        if len(position) < len(longest):
            raise LinearizabilityError("a value is there twice")
        for read in reads:
            self._check_read(read, longest)
        ordered = sorted(reads, key=lambda o: o.invoked)
        for read in ordered:
            before = [o for o in ordered if (o.completed or 0) < read.invoked]
            if any(len(o.result or ()) > len(read.result or ()) for o in before):
                raise LinearizabilityError(f"a read at {read.invoked} gives less than one before")
        self._check_order(position)

    def _check_read(self, read: Operation, longest: tuple[int, ...]) -> None:
        result = read.result or ()
        if result != longest[: len(result)]:
            raise LinearizabilityError("two reads have different orders")
        have = set(result)
        for each in self.operations:
            if each.value is None:
                continue
            if each.is_refused and each.value in have:
                raise LinearizabilityError(f"{each.value} was refused, and is there")
            if each.completed is not None and each.completed < read.invoked:
                if each.value not in have:
                    raise LinearizabilityError(f"{each.value} was acknowledged, and is not there")
            elif each.value in have and each.invoked > (read.completed or 0):
                raise LinearizabilityError(f"{each.value} was read before it was appended")

    def _check_order(self, position: dict[int, int]) -> None:
        appends = [
            (o, position[o.value])
            for o in self.operations
            if o.value is not None and o.value in position
        ]
        for one, first in appends:
            for two, second in appends:
                if one.completed is not None and one.completed < two.invoked and first > second:
                    raise LinearizabilityError(f"{one.value} came before {two.value}")
