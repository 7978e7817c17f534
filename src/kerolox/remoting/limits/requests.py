"""Requests a second: of each address, and of each account. Off by default.

Who may make so many a second has a bucket with as many tokens as come in within a burst's time; a
request without a token is answered with code 2 (SYSTEM_BUSY), as RocketMQ's own flow control does
it. A Java or Go producer raises that at once, without a try at another broker, and a consumer pulls
again after three seconds: the one code that makes nobody ask more often. A one-way request is
dropped. Either is counted.

The tokens of an address are for all its connections to all ports of a role. What the kernel answers
by itself counts, too: it is told before each chunk how many requests it may answer, and leaves
others to the handlers, which are behind this limit. An account is known only once its signature was
checked, so with a limit for accounts nothing takes the fast path.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kerolox.config import camel
from kerolox.kernel.feed import ALLOWANCE_MAX
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.limits.admission import ConnectionCounts
from kerolox.remoting.limits.rates import Rates

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kerolox.kernel.feed import FedMembers

LOG_SECONDS = 5.0
"""Refusals are reported once in so long, with their number."""

_log = logging.getLogger(__name__)


class RequestSettings(Protocol):
    """The settings that say how many."""

    @property
    def max_requests_per_second_per_address(self) -> int:
        """0: any number."""

    @property
    def request_burst_millis(self) -> int:
        """A bucket holds what comes in so long."""


@dataclass(slots=True)
class LimitCounts(ConnectionCounts):
    """What the limits of one role refused, requests too."""

    requests_refused_of_address: int = 0
    requests_refused_of_account: int = 0

    def shown(self) -> dict[str, int]:
        """Name, written as those of settings, → count."""
        return {camel(each.name): getattr(self, each.name) for each in dataclasses.fields(self)}


class RequestLimits:
    """The limits of one role; none before :meth:`use`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds; tests turn one by hand."""
        self._clock = clock
        self._addresses = Rates(0, 0, clock=clock)
        self._accounts = Rates(0, 0, clock=clock)
        self.counts = LimitCounts()
        self._logged = -LOG_SECONDS
        self._left_out = 0
        self._on_switch: list[Callable[[], None]] = []

    def use(self, settings: RequestSettings) -> None:
        """Have the limits of these settings in force, with the next request on each connection. A
        role without ``max_requests_per_second_per_account`` has no accounts."""
        was_on = self.is_on
        per_account = getattr(settings, "max_requests_per_second_per_account", 0)
        for rates, rate in (
            (self._addresses, settings.max_requests_per_second_per_address),
            (self._accounts, per_account),
        ):
            rates.rate = float(rate)
            rates.burst = max(rate * settings.request_burst_millis / 1000, 1.0)
        if was_on != self.is_on:
            for notify in self._on_switch:
                notify()

    def on_switch(self, notify: Callable[[], None]) -> None:
        """Have it called each time limits come in force where there were none, or go."""
        self._on_switch.append(notify)

    @property
    def is_on(self) -> bool:
        """Whether there is any limit."""
        return bool(self._addresses.rate or self._accounts.rate)

    def allowance(self, network: str) -> int:
        """How many requests of an address the kernel may answer now."""
        if self._accounts.rate:
            return 0
        return self._addresses.left(network) if self._addresses.rate else ALLOWANCE_MAX

    def spend(self, network: str, count: int) -> None:
        """The kernel answered so many of them."""
        if self._addresses.rate:
            self._addresses.take(network, count)

    def refuse_address(
        self, command: RemotingCommand, network: str, remote_address: str
    ) -> RemotingCommand | None:
        """The answer to a request that is over the limit of its address; None: it is not."""
        rates = self._addresses
        if not rates.rate or rates.take(network):
            return None
        self.counts.requests_refused_of_address += 1
        return self._busy(
            command,
            f"more than {rates.rate:g} requests a second from {network} "
            "(maxRequestsPerSecondPerAddress)",
            remote_address,
        )

    def refuse_account(
        self, command: RemotingCommand, account: str, remote_address: str
    ) -> RemotingCommand | None:
        """The answer to a request that is over the limit of its account; None: it is not."""
        rates = self._accounts
        if not rates.rate or not account or rates.take(account):
            return None
        self.counts.requests_refused_of_account += 1
        return self._busy(
            command,
            f"more than {rates.rate:g} requests a second by account {account} "
            "(maxRequestsPerSecondPerAccount)",
            remote_address,
        )

    def _busy(self, command: RemotingCommand, why: str, remote_address: str) -> RemotingCommand:
        now = self._clock()
        if now - self._logged < LOG_SECONDS:
            self._left_out += 1
        else:
            more = f" ({self._left_out} more refused since the last such line)"
            _log.warning(
                "request %d of %s is refused as busy: %s%s",
                command.code,
                remote_address,
                why,
                more if self._left_out else "",
            )
            self._logged, self._left_out = now, 0
        return command.response(
            ResponseCode.SYSTEM_BUSY,
            f"[RATE_LIMIT]system busy, start flow control for a while: {why}",
        )


class Feeder(Protocol):
    """A connection's kernel, as far as chunks are fed to it; see
    :class:`~kerolox.kernel.feed.ConnectionKernel`."""

    allowance: int

    def feed(self, data: Buffer, size: int) -> FedMembers:
        """Take a chunk."""

    @property
    def unfinished_bytes(self) -> int:
        """What is kept of it."""

    def close(self) -> None:
        """The connection is closed."""


class LimitedFeeder:
    """A connection's kernel that answers no more requests than its address may make."""

    def __init__(self, kernel: Feeder, limits: RequestLimits, network: str) -> None:
        self.kernel = kernel
        """The kernel itself."""
        self._limits = limits
        self._network = network

    def feed(self, data: Buffer, size: int) -> FedMembers:
        """See :class:`Feeder`."""
        allowance = self._limits.allowance(self._network)
        self.kernel.allowance = allowance
        fed = self.kernel.feed(data, size)
        used = allowance - self.kernel.allowance
        if used:
            self._limits.spend(self._network, used)
        return fed

    @property
    def unfinished_bytes(self) -> int:
        """See :class:`Feeder`."""
        return self.kernel.unfinished_bytes

    def close(self) -> None:
        """See :class:`Feeder`."""
        self.kernel.close()
