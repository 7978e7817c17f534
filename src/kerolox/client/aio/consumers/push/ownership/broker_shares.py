"""Shares of queues that a broker decides (QUERY_ASSIGNMENT), for members with
``client_rebalance=False``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from kerolox.errors import ClientError, RequestCodeNotSupportedError
from kerolox.message import MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import FastjsonError, dumps, items_of, loads, members_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.aio.network.cluster import Cluster

POP = "POP"

_log = logging.getLogger(__name__)


class Share(NamedTuple):
    """What this member is to read of a topic."""

    pulled: list[MessageQueue]
    popped: list[MessageQueue]


class BrokerShares:
    """Asks brokers for the shares of one consumer."""

    def __init__(
        self,
        group: str,
        cluster: Cluster,
        strategy: str,
        say_hello: Callable[[], Awaitable[None]],
        own_share: Callable[[str], Awaitable[list[MessageQueue] | None]],
    ) -> None:
        """Nobody is asked yet.

        Args:
            group: as brokers know it.
            cluster: who we are, and whom to ask.
            strategy: the name of how the group shares.
            say_hello: makes us known to a broker that has lost us.
            own_share: our share as members decide it, where a broker is too old to be asked.
        """
        self._group = group
        self._cluster = cluster
        self._strategy = strategy
        self._say_hello = say_hello
        self._own_share = own_share
        self._warned = False

    async def of(self, topic: str) -> Share | None:
        """The share of a topic; None: nobody knows it now, so what is read stays.

        Raises:
            KeroloxError: it could not be found out.
        """
        try:
            share = await self._ask(topic)
            if share is None:
                await self._say_hello()
                share = await self._ask(topic)
            return share
        except RequestCodeNotSupportedError:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "a broker of topic %s is of before RocketMQ 5 and shares no queues: group %s "
                    "shares and pulls them itself, as with client_rebalance=True",
                    topic,
                    self._group,
                )
            queues = await self._own_share(topic)
            return None if queues is None else Share(queues, [])

    async def _ask(self, topic: str) -> Share | None:
        route = self._cluster.routes.get(topic) or await self._cluster.refresh(topic)
        if route is None:
            return None
        address = next((a for each in route.brokers if (a := each.any_address())), None)
        if address is None:
            raise ClientError(f"topic {topic!r} has no broker")
        body = {
            "clientId": self._cluster.client_id,
            "consumerGroup": self._group,
            "messageModel": MessageModel.CLUSTERING.value,
            "strategyName": self._strategy,
            "topic": topic,
        }
        response = await self._cluster.ask(address, RequestCode.QUERY_ASSIGNMENT, body=dumps(body))
        return parse_share(response.body, address)


def parse_share(body: bytes, address: str) -> Share | None:
    """The answer to QUERY_ASSIGNMENT; None: the broker knows no share. ClientError: it is
    unreadable.
    """
    try:
        assignments = members_of(loads(body)).get("messageQueueAssignments") if body else None
        if assignments is None:
            return None
        share = Share([], [])
        for item in map(members_of, items_of(assignments)):
            queue = members_of(item["messageQueue"])
            found = MessageQueue(
                str(queue["topic"]), str(queue["brokerName"]), int(str(queue["queueId"]))
            )
            (share.popped if item.get("mode") == POP else share.pulled).append(found)
    except (FastjsonError, KeyError, ValueError) as error:
        raise ClientError(f"the assignment of {address} is unreadable: {error!r}") from None
    return share
