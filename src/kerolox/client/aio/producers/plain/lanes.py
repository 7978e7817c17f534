"""The ways of plain sends, by topic: what their frames have in common, where they may go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.message import Message
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plan, Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.codec.sending import SendEncoder
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import ClientConnection

TOPICS_MAX = 10_000
"""Topics whose encoder is kept; sends to others take the general way."""


class Target:
    """A queue, and the connection to its broker."""

    __slots__ = ("address", "connection", "queue", "queue_id", "what")

    def __init__(self, queue: MessageQueue, address: str) -> None:
        self.queue = queue
        self.queue_id = queue.queue_id
        self.address = address
        self.what = f"request {RequestCode.SEND_MESSAGE_V2} to {address}"
        self.connection: ClientConnection | None = None


class Lane:
    """The way of the plain sends of one topic, made anew with its plan."""

    __slots__ = (
        "batch",
        "by_queue",
        "chooser",
        "cluster",
        "encode",
        "item",
        "loop",
        "plan",
        "targets",
    )

    def __init__(self, cluster: Cluster, plan: Plan, encoder: SendEncoder) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.plan = plan
        self.chooser = plan.chooser
        self.encode, self.item, self.batch = encoder.encode, encoder.item, encoder.batch
        self.targets = [
            Target(queue, cluster.master_address(queue.broker_name) or "")
            for queue in plan.chooser.queues
        ]
        self.by_queue = {target.queue: target for target in self.targets}


class Lanes:
    """The ways of one producer's plain sends."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        plans: Plans,
        delivery: Delivery,
        check_loop: Callable[[], object],
    ) -> None:
        """None is known yet; arguments as those of ``PlainSends``."""
        self._check_loop = check_loop
        self._header = header
        self._body_bytes_max = min(settings.message_bytes_max, settings.compress_bytes_min - 1)
        self._plan_of = plans.get
        self._delivery = delivery
        self._avoids = settings.latency_fault_enable
        self._lanes: dict[str, Lane] = {}

    def of(self, cluster: Cluster, message: Message, ms: int) -> Lane | None:
        """The way of a message that is plain as such."""
        topic, body = message.topic, message.body
        lane = self._lanes.get(topic)
        if lane is None or lane.plan is not self._plan_of(topic) or lane.cluster is not cluster:
            lane = self._make(cluster, topic)
        if (
            type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
            or ms <= 0
        ):
            return None
        return lane

    def choose(self, lane: Lane, queue: MessageQueue | None) -> Target | None:
        """The given queue, or the next one, with a connection; None: the general way chooses."""
        if queue is not None or self._avoids:
            target = lane.by_queue.get(queue or self._delivery.choose(lane.plan, ()))
        else:
            target = lane.targets[lane.chooser.next_index()]
        if target is None:
            return None
        connection = target.connection
        if connection is None or connection.closed:
            target.connection = lane.cluster.remoting.plain_connection(target.address)
            if target.connection is None:
                if queue is None:
                    lane.chooser.step_back()
                return None
        return target

    def _make(self, cluster: Cluster, topic: str) -> Lane | None:
        plan = self._plan_of(topic)
        if plan is None or (topic not in self._lanes and len(self._lanes) >= TOPICS_MAX):
            self._lanes.pop(topic, None)
            return None
        self._check_loop()  # its sends' futures are of this one
        header = self._header
        encoder = cluster.remoting.codec.SendEncoder(
            header.group,
            topic,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        lane = self._lanes[topic] = Lane(cluster, plan, encoder)
        return lane
