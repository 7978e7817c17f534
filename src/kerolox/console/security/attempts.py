"""How often somebody may try to log in: by address, by user, and all together."""

from __future__ import annotations

import time
from collections.abc import Callable

from kerolox.addresses import network_of
from kerolox.remoting.limits.rates import Rates

__all__ = ["RETRY_SECONDS", "Attempts"]

OF_ADDRESS = (1 / 12, 10.0)
"""Tries of one address, or IPv6 network: a second, and at once."""
OF_USER = (1 / 30, 10.0)
"""The same for one user's name, from wherever they come."""
OF_ALL = (5.0, 50.0)
RETRY_SECONDS = 30
NAMES_MAX = 10_000
"""Addresses and names that are remembered, of each."""


class Attempts:
    """Counts tries. One that succeeds gives back what it took from its user, so that a user who
    logs in often is not shut out; a stranger can shut a user out for half a minute at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds; tests turn one by hand."""
        self._address = Rates(*OF_ADDRESS, names_max=NAMES_MAX, clock=clock)
        self._user = Rates(*OF_USER, names_max=NAMES_MAX, clock=clock)
        self._all = Rates(*OF_ALL, clock=clock)

    def may_try(self, address: str, name: str) -> bool:
        """Whether somebody may try now; each call is a try."""
        return (
            self._address.take(network_of(address)) and self._user.take(name) and self._all.take("")
        )

    def succeeded(self, address: str, name: str) -> None:
        """The try was right."""
        self._user.take(name, -1)
        self._address.take(network_of(address), -1)
