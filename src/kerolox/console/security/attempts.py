"""How often somebody may try to log in: by user and address, by address, by user, all together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from kerolox.addresses import network_of
from kerolox.remoting.limits.rates import Rates

__all__ = ["RETRY_SECONDS", "Attempts"]

OF_USER_AND_ADDRESS = (1 / 12, 10.0)
"""Tries for one user's name from one address, or IPv6 network: a second, and at once."""
OF_ADDRESS = (1 / 4, 30.0)
"""The same of one address for all names."""
OF_USER = (1 / 30, 10.0)
"""The same for one user's name, from wherever they come: further ones wait."""
OF_ALL = (5.0, 50.0)
DELAY_SECONDS = 3.0
DELAYED_OF_USER_MAX, DELAYED_MAX = 4, 12
"""Tries that wait at a time; requests of others need room, too."""
RETRY_SECONDS = 30
NAMES_MAX = 10_000
"""Addresses, names, and pairs of both that are remembered, of each."""
KNOWN_SECONDS_MAX = 14 * 86_400.0
"""So long an address is known that a user has logged in from."""


class Attempts:
    """Counts tries, so that nobody guesses for long, and nobody is shut out by the guesses of
    others: an address that the user has logged in from lately knows no limit but its own, and from
    other ones a user who is guessed at has to wait. One try that succeeds gives back what it took.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``clock``: seconds; ``sleep``: waits so many; tests have their own."""
        self._clock, self._sleep = clock, sleep
        self._pair = Rates(*OF_USER_AND_ADDRESS, names_max=NAMES_MAX, clock=clock)
        self._address = Rates(*OF_ADDRESS, names_max=NAMES_MAX, clock=clock)
        self._user = Rates(*OF_USER, names_max=NAMES_MAX, clock=clock)
        self._all = Rates(*OF_ALL, clock=clock)
        self._known: dict[tuple[str, str], float] = {}
        self._delayed: Counter[str] = Counter()

    async def may_try(self, address: str, name: str) -> bool:
        """Whether somebody may try now, which may take some seconds; each call is a try."""
        network = network_of(address)
        if not (self._pair.take(f"{network} {name}") and self._address.take(network)):
            return False
        if self._is_known(network, name):
            return True
        if not self._all.take(""):
            return False
        return self._user.take(name) or await self._delay(name)

    def may_sign_in(self, address: str) -> bool:
        """The same where a provider checks who somebody is; each call is a try."""
        return self._address.take(network_of(address)) and self._all.take("")

    def signed_in(self, address: str, tries: int) -> None:
        """So many tries of an address led to somebody."""
        self._address.take(network_of(address), -tries)

    def succeeded(self, address: str, name: str) -> None:
        """The try was right."""
        network = network_of(address)
        self._pair.take(f"{network} {name}", -1)
        self._address.take(network, -1)
        self._user.take(name, -1)
        self._known.pop((network, name), None)
        self._known[network, name] = self._clock()
        if len(self._known) > NAMES_MAX:
            # The one that was used longest ago.
            del self._known[next(iter(self._known))]

    def _is_known(self, network: str, name: str) -> bool:
        since = self._known.get((network, name))
        return since is not None and self._clock() - since <= KNOWN_SECONDS_MAX

    async def _delay(self, name: str) -> bool:
        if self._delayed[name] >= DELAYED_OF_USER_MAX or self._delayed.total() >= DELAYED_MAX:
            return False
        self._delayed[name] += 1
        try:
            await self._sleep(DELAY_SECONDS)
        finally:
            self._delayed[name] -= 1
            if not self._delayed[name]:
                del self._delayed[name]
        return True
