"""Who may use what is open: the process, and the event loop, in which it was opened.

A forked child has the parent's sockets, but none of its threads: whatever it wrote there would go
into the middle of the parent's conversations, and whoever waited for an answer would wait for ever.
So each thing that must not be used in a child is told, there, before anything else runs.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """A thing that a child must not use."""

    def _inherited(self) -> None:
        """Called in the child: be of no use, and do nothing to what the parent still has."""


_watched: weakref.WeakSet[Inheritable] = weakref.WeakSet()
_kept: list[Inheritable] = []
"""In a child: what it inherited. Nothing of it is ever freed, since to free is to close."""


_generation = 0


def generation() -> int:
    """How many forks lie between the first process and this one."""
    return _generation


def in_child(what: str) -> str:
    """What a thing of the parent says in a forked child."""
    return (
        f"{what} belongs to the parent of this process and can't be used in a forked child;"
        " make one of your own after the fork"
    )


def in_other_loop(what: str) -> str:
    """What a thing says in another event loop than its own."""
    return (
        f"{what} belongs to another event loop, the one in which it was started;"
        " make one of your own in this loop"
    )


def not_pickled(what: str) -> str:
    """What a thing with connections says to whoever pickles it, to send it to another process."""
    return (
        f"{what} can't be pickled: it has connections and an event loop of this process;"
        " make one in the process that needs it"
    )


def watch(thing: Inheritable) -> None:
    """Have a thing told in children that are forked from now on; ends with the thing itself."""
    _watched.add(thing)


def _in_child() -> None:
    global _generation
    _generation += 1
    things = list(_watched)
    _kept.extend(things)
    _watched.clear()  # no child of the child has anything to do with them
    for thing in things:
        thing._inherited()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
