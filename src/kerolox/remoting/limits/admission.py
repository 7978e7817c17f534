"""Which connections a server takes: bounds of all, and of each address.

Nobody has to say who they are, so one machine could take every connection that there is. By default
an address may have as many as are still free: a single one gets half of all at most, two a third
each, and the next comer always finds room. Clients behind a proxy, or behind NAT, share an address:
where half of all is too few for them, the operator names a number (``maxConnectionsPerAddress``).
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.addresses import network_of

CONNECTIONS_MAX = 65_536
"""Open connections; more are closed at once."""

DESCRIPTORS_KEPT_MAX = 1024
"""File descriptors that connections leave to the rest of the process; never more than half."""

LOG_SECONDS = 5.0
"""Refusals of a kind are told once in so long, with their number."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ConnectionCounts:
    """What was counted since the start."""

    connections: int = 0
    """Open now."""
    connections_refused: int = 0
    """There were too many in all, or too few file descriptors."""
    connections_refused_of_address: int = 0
    """The address had too many."""


class Admission:
    """Counts the connections of one server."""

    def __init__(
        self,
        connections_max: int = CONNECTIONS_MAX,
        per_address_max: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        counts: ConnectionCounts | None = None,
    ) -> None:
        """Args:
        connections_max: of all addresses together.
        per_address_max: of one address; 0: as many as are still free.
        counts: where it is counted, for operators; servers of one role share it.
        clock: seconds; tests turn one by hand.
        """
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._descriptors_max = _descriptors_max()
        self._clock = clock
        self._counts = counts or ConnectionCounts()
        self._count = 0
        self._by_network: dict[str, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        """Reason → when it was told, refusals since."""

    def admit(self, host: str, descriptor: int) -> bool:
        """Whether a new connection is taken; if so, ``release`` it when it is closed. A refusal is
        reported in the log.

        Args:
            host: the address of the peer.
            descriptor: of its socket. The lowest free one is given, so it tells how many are open
                in the whole process.
        """
        network = network_of(host)
        held = self._by_network.get(network, 0)
        free = min(self._connections_max - self._count, self._descriptors_max - descriptor)
        if self._count >= self._connections_max:
            return self._refuse(host, f"there are {self._connections_max} connections already")
        if free <= 0:
            return self._refuse(
                host,
                "the process has nearly all file descriptors that it may open; "
                "raise the limit (ulimit -n)",
            )
        if held >= (self._per_address_max or max(free, 1)):
            bound = "maxConnectionsPerAddress" if self._per_address_max else "as many as are free"
            return self._refuse(
                host,
                f"it has {held} connections already ({bound}); name a greater "
                "maxConnectionsPerAddress where many clients share an address",
                kind="address",
            )
        self._count += 1
        self._counts.connections += 1
        self._by_network[network] = held + 1
        return True

    def release(self, host: str) -> None:
        """A connection that was taken is closed."""
        network = network_of(host)
        self._count -= 1
        self._counts.connections -= 1
        left = self._by_network[network] - 1
        if left:
            self._by_network[network] = left
        else:
            del self._by_network[network]

    def _refuse(self, host: str, reason: str, kind: str = "") -> bool:
        if kind:
            self._counts.connections_refused_of_address += 1
        else:
            self._counts.connections_refused += 1
        now = self._clock()
        logged, left_out = self._logged.get(kind or reason, (-LOG_SECONDS, 0))
        if now - logged < LOG_SECONDS:
            self._logged[kind or reason] = (logged, left_out + 1)
            return False
        self._logged[kind or reason] = (now, 0)
        more = f" ({left_out} more refused since the last such line)" if left_out else ""
        _log.warning("refusing a connection of %s: %s%s", host, reason, more)
        return False


def _descriptors_max() -> int:
    """From this file descriptor on there are too few left."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(DESCRIPTORS_KEPT_MAX, soft // 2)
