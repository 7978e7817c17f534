"""What a task is: how it is prepared, done with each tool, and what has become of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.tasks.case import Case

__all__ = ["Task"]


class Task:
    """A task of operators. The methods that do it also check what the tool shows."""

    name: str
    """As the guide has it."""

    async def prepare(self, case: Case) -> None:
        """Make what the task needs."""

    async def command_line(self, case: Case) -> None:
        """Do it with the command line."""
        raise NotImplementedError

    async def console(self, case: Case) -> None:
        """Do it with the console."""
        raise NotImplementedError

    async def check(self, case: Case) -> None:
        """Ask the cluster whether it is done."""

    async def undo(self, case: Case) -> None:
        """Undo what others would notice, also after a failure."""
