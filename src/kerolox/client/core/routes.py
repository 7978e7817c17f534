"""Routes, as clients know them: see :mod:`kerolox.protocol.routing.routes`."""

from kerolox.protocol.routing.routes import (
    MASTER_ID,
    QUEUES_MAX,
    ROOM_END,
    BrokerAddresses,
    QueueData,
    TopicRoute,
    publish_queues,
    route_from_template,
    subscribe_queues,
)

__all__ = [
    "MASTER_ID",
    "QUEUES_MAX",
    "ROOM_END",
    "BrokerAddresses",
    "QueueData",
    "TopicRoute",
    "publish_queues",
    "route_from_template",
    "subscribe_queues",
]
