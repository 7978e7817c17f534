"""Topics that are examined now and then, since their queues may change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox.client.aio.consumers.queue_events import QueuesCallback, call_all
from kerolox.client.core.failures import note_failure
from kerolox.client.core.namespaces import queue_without_namespace
from kerolox.client.core.routes import subscribe_queues
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.message import MessageQueue

_log = logging.getLogger(__name__)


class TopicWatch:
    """Topics of whose queues users want to hear."""

    def __init__(self, namespace: str) -> None:
        self.callbacks: dict[str, QueuesCallback] = {}
        """By the topic's name on the wire."""
        self._namespace = namespace
        self._known: dict[str, list[MessageQueue]] = {}

    async def poll_all(self, cluster: Cluster) -> None:
        """Examine all topics."""
        for topic in list(self.callbacks):
            await self.poll_topic(cluster, topic)

    async def poll_topic(self, cluster: Cluster, topic: str) -> None:
        """Call the callback of a topic when its queues are others than the last time."""
        try:
            route = await cluster.refresh(topic)
        except KeroloxError as error:
            what = f"queues of topic {topic} are unknown"
            note_failure(cluster.on_failure, _log, what, error)
            return
        if route is None:
            return
        queues = sorted(subscribe_queues(topic, route))
        known, self._known[topic] = self._known.get(topic), queues
        callback = self.callbacks.get(topic)
        if callback is not None and known not in (None, queues):
            shown = [queue_without_namespace(self._namespace, queue) for queue in queues]
            await call_all([callback], shown, on_failure=cluster.on_failure)
