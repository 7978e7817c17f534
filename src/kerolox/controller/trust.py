"""Whose messages of Raft are believed: those that are signed, or else those from members.

With a ``controllerSecret`` the signature decides. Without one, a message has to come from the
address of a member, as the settings and the log name them. That keeps out everybody but the
machines of the controllers; whoever can send from one of those can forge.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from kerolox.addresses import split_address
from kerolox.tasks import end_tasks
from kerolox.text import printable

CHECK_SECONDS = 5.0
"""At most so often names are looked up for an address that is not known."""

_log = logging.getLogger(__name__)


class MemberHosts:
    """The addresses of members, of which some may have names that change what they mean."""

    def __init__(
        self,
        members: Callable[[], Iterable[Mapping[str, str]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``members``: tables of ``host:port`` by id."""
        self._members, self._clock = members, clock
        self._hosts: frozenset[str] = frozenset()
        self._looked_up: float | None = None
        self._looking: asyncio.Task[None] | None = None

    def has(self, host: str) -> bool:
        """Whether a peer is at a member's address. An unknown one has names looked up again, for
        its next message."""
        if host in self._hosts:
            return True
        now = self._clock()
        is_due = self._looked_up is None or now - self._looked_up >= CHECK_SECONDS
        if is_due and (self._looking is None or self._looking.done()):
            self._looked_up = now
            self._looking = asyncio.get_running_loop().create_task(self.look_up())
        return False

    async def look_up(self) -> None:
        """Find all addresses out. A name that has none now keeps nothing; errors are logged."""
        names = {
            split_address(address)[0] for table in self._members() for address in table.values()
        }
        found = await asyncio.gather(*map(_addresses_of, sorted(names)))
        self._hosts = frozenset().union(*found)

    async def stop(self) -> None:
        """End a look-up that is under way."""
        await end_tasks(self._looking)


async def _addresses_of(name: str) -> frozenset[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None)
    except OSError as error:
        _log.warning("controller %s has no address now: %s", printable(name), error)
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)
