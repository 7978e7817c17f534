"""The brokers' locks on queues that are read in order (LOCK_BATCH_MQ, UNLOCK_BATCH_MQ)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.ordered.locks import lock_body, locked_queues
from kerolox.client.core.failures import note_failure
from kerolox.errors import ClientError, KeroloxError
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.message import MessageQueue

LOCK_SECONDS_MAX = 1.0
"""Time limit of a request for locks, as RocketMQ has it."""

_log = logging.getLogger(__name__)


class QueueLocks:
    """Asks brokers for the locks of one member of a group."""

    def __init__(self, group: str, cluster: Cluster) -> None:
        self._group = group
        self._cluster = cluster
        self.held: set[MessageQueue] = set()
        """Those that may be ours: asked for and not refused, and not given up."""

    async def lock(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], set[MessageQueue]]:
        """Take or renew locks: those that we have now, with the time at which they were asked
        for (ms), and those that other members have. What is in neither has no answer."""
        held: dict[MessageQueue, int] = {}
        refused: set[MessageQueue] = set()

        async def ask(broker_name: str, wanted: set[MessageQueue]) -> None:
            asked_ms = clock.steady_ms()
            self.held |= wanted  # a broker may have granted what we have no answer to
            try:
                body = await self._ask(broker_name, RequestCode.LOCK_BATCH_MQ, wanted)
                ours = locked_queues(body) & wanted
            except KeroloxError as error:
                what = f"no answer to the locks of broker {broker_name}"
                note_failure(self._cluster.on_failure, _log, what, error)
                return
            held.update(dict.fromkeys(ours, asked_ms))
            refused.update(wanted - ours)
            self.held -= wanted - ours

        await asyncio.gather(*(ask(*each) for each in _by_broker(queues).items()))
        return held, refused

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give up locks; failures are logged: a lock that is not renewed ends by itself."""

        async def send(broker_name: str, ours: set[MessageQueue]) -> None:
            try:
                await self._ask(broker_name, RequestCode.UNLOCK_BATCH_MQ, ours)
                self.held -= ours
            except KeroloxError as error:
                what = f"locks of broker {broker_name} were not given up"
                note_failure(self._cluster.on_failure, _log, what, error)

        await asyncio.gather(*(send(*each) for each in _by_broker(queues).items()))

    async def _ask(self, broker_name: str, code: int, queues: set[MessageQueue]) -> bytes:
        address = self._cluster.master_address(broker_name)
        if address is None:
            raise ClientError(f"broker {broker_name!r} has no known master")
        body = lock_body(self._group, self._cluster.client_id, queues)
        answer = await self._cluster.ask(
            address, code, body=body, timeout_seconds=LOCK_SECONDS_MAX, ahead=True
        )
        return answer.body


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
    brokers: dict[str, set[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, set()).add(queue)
    return brokers
