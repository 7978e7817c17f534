"""What brokers are asked about a member of a group before it joins."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.subscribing import TAG
from kerolox.client.core.heartbeat import check_client_body
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.filter.tags import Subscription


async def check_subscription(cluster: Cluster, group: str, subscription: Subscription) -> None:
    """Ask a broker of the topic whether it serves a condition (``checkClientInBroker``).
    BrokerError: it does not, or can't read the expression.
    """
    addresses = cluster.broker_addresses([subscription.topic], masters_only=False)
    if subscription.expression_type == TAG or not addresses:
        return
    body = check_client_body(cluster.client_id, group, subscription)
    await cluster.ask(random.choice(addresses), RequestCode.CHECK_CLIENT_CONFIG, body=body)
