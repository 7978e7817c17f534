"""How brokers hear of a consumer: as a member of its group, and when it leaves."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kerolox.client.aio.network.cluster import FAREWELL_SECONDS_MAX
from kerolox.client.core.consuming.subscribing import TAG
from kerolox.client.core.heartbeat import check_client_body, heartbeat_body
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.heartbeat import ConsumerFacts
    from kerolox.filter.tags import Subscription


async def greet(cluster: Cluster, facts: ConsumerFacts, topics: Iterable[str]) -> None:
    """Send a heartbeat to all nodes of the brokers of these topics."""
    body = heartbeat_body(cluster.client_id, consumers=[facts])
    await cluster.tell_all(RequestCode.HEART_BEAT, body=body, topics=topics, masters_only=False)


async def say_farewell(
    cluster: Cluster, group: str, topics: Iterable[str], *, but_not: Iterable[str] = ()
) -> None:
    """Tell the brokers of these topics, but for those that have one of the others too, that the
    member leaves: the rest of the group takes over at once."""
    await cluster.tell_all(
        RequestCode.UNREGISTER_CLIENT,
        {"clientID": cluster.client_id, "consumerGroup": group},
        topics=topics,
        but_not=but_not,
        masters_only=False,
        timeout_seconds=FAREWELL_SECONDS_MAX,
    )


async def check_subscription(cluster: Cluster, group: str, subscription: Subscription) -> None:
    """Ask a broker of the topic whether it serves a condition (``checkClientInBroker``).

    Raises:
        BrokerError: it does not, or can't read the expression.
        RemotingError: it does not answer.
    """
    addresses = cluster.broker_addresses([subscription.topic], masters_only=False)
    if subscription.expression_type == TAG or not addresses:
        return
    body = check_client_body(cluster.client_id, group, subscription)
    await cluster.ask(random.choice(addresses), RequestCode.CHECK_CLIENT_CONFIG, body=body)
