"""Routes, as clients know them: see :mod:`kerolox.protocol.routing.routes`."""

from kerolox.protocol.codes import Perm
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
    "why_not_writable",
]


def why_not_writable(topic: str, route: TopicRoute) -> str:
    """Why a producer may send to no queue of a topic that is there, and what to do."""
    if route.order_topic_conf:
        return f"its ordered-topic setting is {route.order_topic_conf!r}, which names no queue"
    writable = [queue for queue in route.queues if queue.perm & Perm.WRITE]
    if writable:
        names = ", ".join(sorted({queue.broker_name for queue in writable}))
        if any(queue.write_queues for queue in writable):
            return f"the master of {names} is away; start it, or wait until it is back"
        return f"it has no queue to write to on {names}; give it some (kerolox topic update)"
    perms = {f"{_permission(queue.perm)} on {queue.broker_name}" for queue in route.queues}
    return (
        f"its permission is {', '.join(sorted(perms))}, without W: make it RW (kerolox topic"
        f" permission {topic} RW), unless the broker is retired (brokerPermission)"
    )


def _permission(perm: int) -> str:
    letters = (("R", Perm.READ), ("W", Perm.WRITE))
    return "".join(letter for letter, bit in letters if perm & bit) or "none"
