"""Filter classes of consumers: their upload, and pulls from filter servers."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from typing import TYPE_CHECKING

from kerolox.client.core.failures import note_failure
from kerolox.errors import ClientError, KeroloxError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import CONSUME_PASSIVELY
from kerolox.protocol.records import CRC_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.heartbeat import ConsumerFacts
    from kerolox.filter.tags import Subscription

_log = logging.getLogger(__name__)


async def upload_filter_classes(cluster: Cluster, consumers: Iterable[ConsumerFacts]) -> None:
    """Send the classes of push consumers to the filter servers of their topics
    (``uploadFilterClassSource``); failures are logged."""
    uploads = [
        _upload(cluster, address, consumer.group, subscription)
        for consumer in consumers
        if consumer.consume_type == CONSUME_PASSIVELY
        for subscription in consumer.subscriptions
        if subscription.class_filter_mode
        for address in _filter_servers(cluster, subscription)
    ]
    if uploads:
        await asyncio.gather(*uploads)


def filter_server(cluster: Cluster, subscription: Subscription, broker_address: str) -> str:
    """Whom to ask for a broker's messages (``computePullFromWhichFilterServer``); ClientError: the
    broker has no filter server.
    """
    route = cluster.routes.get(subscription.topic)
    found = () if route is None else route.filter_servers.get(broker_address, ())
    if not found:
        raise ClientError(
            f"broker {broker_address} has no filter server for topic {subscription.topic!r}: start"
            " one, or subscribe by tags or by a condition (SQL92)"
        )
    return random.choice(found)


def _filter_servers(cluster: Cluster, subscription: Subscription) -> list[str]:
    route = cluster.routes.get(subscription.topic)
    servers = {} if route is None else route.filter_servers
    if not servers:
        _log.warning(
            "filter class %s of topic %s goes nowhere: its route has no filter server",
            subscription.expression,
            subscription.topic,
        )
    return list(dict.fromkeys(address for each in servers.values() for address in each))


async def _upload(cluster: Cluster, address: str, group: str, subscription: Subscription) -> None:
    source = subscription.class_source.encode()
    fields = {
        "consumerGroup": group,
        "topic": subscription.topic,
        "className": subscription.expression,
        "classCRC": zlib.crc32(source) & CRC_MASK,
    }
    code = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
    try:
        await cluster.ask(address, code, fields, body=source)
    except KeroloxError as error:
        what = f"filter class {subscription.expression} to {address} failed"
        note_failure(cluster.on_failure, _log, what, error)
