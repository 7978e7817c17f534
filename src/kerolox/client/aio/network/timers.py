"""Which brokers keep a message until its moment: RocketMQ 5 and Kerolox do, those of 4.x do not."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import BrokerError
from kerolox.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.routes import TopicRoute

ASKED_AGAIN_SECONDS = 60.0
"""After this time a broker without a timer is asked again: it may be a newer one by then."""

SECONDS_MIN = 0.001
"""A time limit is never shorter."""

CHECKPOINT_BYTES_MIN = 32
"""Of the answer of one that has a timer (``TimerCheckpoint``)."""

_log = logging.getLogger(__name__)


class BrokerTimers:
    """What brokers said, for one producer."""

    def __init__(self) -> None:
        """Nobody was asked yet."""
        self._with: set[str] = set()
        self._without: dict[str, float] = {}
        """Address to the time at which it is asked again."""
        self._is_told = False

    async def are_there(self, cluster: Cluster, route: TopicRoute, deadline: float) -> bool:
        """Whether all masters of a topic, each of which has to answer before ``deadline``, a
        ``loop.time()``, have one; the first that has none is a warning, once.
        """
        masters = [broker.addresses.get(MASTER_ID) for broker in route.brokers]
        addresses = [address for address in masters if address]
        for address in addresses:
            if not await self._is_there(cluster, address, deadline):
                self._report(address)
                return False
        return True

    async def _is_there(self, cluster: Cluster, address: str, deadline: float) -> bool:
        if address in self._with:
            return True
        now = asyncio.get_running_loop().time()
        if now < self._without.get(address, 0.0):
            return False
        try:
            answer = await cluster.ask(
                address,
                RequestCode.GET_TIMER_CHECK_POINT,
                timeout_seconds=max(deadline - now, SECONDS_MIN),
            )
            is_there = len(answer.body) >= CHECKPOINT_BYTES_MIN
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_BUSY:
                raise
            is_there = False
        if is_there:
            self._without.pop(address, None)
            self._with.add(address)
        else:
            self._without[address] = now + ASKED_AGAIN_SECONDS
        return is_there

    def _report(self, address: str) -> None:
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "broker %s has no timer: deliver_after and deliver_at become delay levels there, "
                "and a message can't be taken back",
                address,
            )
