"""Listeners of the queues that topics have."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kerolox.client.aio.user_code import call_user
from kerolox.client.core.namespaces import queue_without_namespace
from kerolox.client.core.routes import subscribe_queues
from kerolox.errors import KeroloxError
from kerolox.message import MessageQueue

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster

QueuesListener = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""Takes queues, sorted. What it raises is logged and changes nothing."""

_log = logging.getLogger(__name__)


async def tell_queues(
    listener: QueuesListener, queues: list[MessageQueue], namespace: str, what: str
) -> None:
    """Call a listener.

    Args:
        listener: the user's.
        queues: as brokers know them.
        namespace: of the client.
        what: which listener it is, for the log.
    """
    try:
        await call_user(listener, sorted(queue_without_namespace(namespace, q) for q in queues))
    except Exception:
        _log.exception("the listener of %s failed", what)


class TopicWatch:
    """Topics whose listeners want to know when their queues change."""

    def __init__(self, namespace: str) -> None:
        self.listeners: dict[str, QueuesListener] = {}
        """By the topic's name on the wire."""
        self._namespace = namespace
        self._known: dict[str, list[MessageQueue]] = {}

    async def look(self, cluster: Cluster) -> None:
        """Look at all topics."""
        for topic in list(self.listeners):
            await self.look_at(cluster, topic)

    async def look_at(self, cluster: Cluster, topic: str) -> None:
        """Tell the listener of a topic when its queues are others than the last time."""
        try:
            route = await cluster.refresh(topic)
        except KeroloxError as error:
            _log.warning("queues of topic %s are unknown: %s", topic, error)
            return
        if route is None:
            return
        queues = sorted(subscribe_queues(topic, route))
        known, self._known[topic] = self._known.get(topic), queues
        listener = self.listeners.get(topic)
        if listener is not None and known not in (None, queues):
            await tell_queues(listener, queues, self._namespace, f"the queues of {topic}")
