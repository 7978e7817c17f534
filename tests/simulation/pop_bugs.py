"""Deliberate bugs in pops, as :mod:`tests.simulation.bugs` has them for the rest.

Some are those of RocketMQ's own history, such as an offset that counts while messages are out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerolox.broker.pop.leases import PopQueue
from kerolox.broker.pop.table import PopTable
from kerolox.broker.services.pop_reader import PopReader
from kerolox.broker.services.pop_revival import PopRevival
from kerolox.broker.tables import pops
from tests.simulation.patches import Patches

Install = Callable[[Patches], None]

POP_BUGS: dict[str, Install] = {}


def _bug(install: Install) -> Install:
    POP_BUGS[install.__name__.replace("_", "-")] = install
    return install


@_bug
def offset_counts_what_is_out(patches: Patches) -> None:
    """A group's offset goes on with the pop, as in RocketMQ, with nothing that remembers."""
    patches.set(PopQueue, "low", property(lambda self: self.next_offset))


@_bug
def one_message_for_two(patches: Patches) -> None:
    """A pop begins at the committed offset, whatever is out."""

    def start(self: Any, key: Any, committed: int, min_offset: int = 0) -> int:
        self._queues.pop(key, None)
        return max(committed, min_offset)

    patches.set(PopTable, "start", start)


@_bug
def copy_is_not_made(patches: Patches) -> None:
    """What nobody acknowledged is done when its time is over."""

    async def copied(self: Any, revival: Any) -> list[Any]:
        self._tables.pops.state.queues.revived(revival)
        return []

    patches.set(PopRevival, "_copied", copied)


@_bug
def failed_copy_counts(patches: Patches) -> None:
    """A copy that could not be stored counts."""
    patches.set(PopTable, "failed", lambda self, revival, now: self.revived(revival))


@_bug
def deletion_leaves_what_is_out(patches: Patches) -> None:
    """A topic is deleted, and what was out of it stays out."""

    async def forget(self: Any, is_gone: Any) -> None:
        return None

    patches.set(pops.PopTables, "forget", forget)
    patches.set(pops.PopTables, "forget_now", lambda self, is_gone: None)


@_bug
def retries_are_not_read(patches: Patches) -> None:
    """A pop reads the topic alone."""
    patches.set(PopReader, "_retry_kinds", lambda self, group, topic: ())
