"""The ways of fast-path sends, by topic: what their frames have in common, where they may go."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plan, Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.codec.sending import SendCodec, Sender, SendFuture, TopicSender
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import ClientConnection

TOPICS_MAX = 10_000
"""Topics whose encoder is kept; sends to others take the slow path."""

_CREATE_FUTURE = asyncio.BaseEventLoop.create_future


class QueueTarget:
    """A queue, and the connection to its broker."""

    __slots__ = ("address", "connection", "index", "queue", "what")

    def __init__(self, index: int, queue: MessageQueue, address: str) -> None:
        self.index = index
        self.queue = queue
        self.address = address
        self.what = f"request {RequestCode.SEND_MESSAGE_V2} to {address}"
        self.connection: ClientConnection | None = None


class TopicPath:
    """The way of the fast-path sends of one topic, made anew with its plan."""

    __slots__ = ("by_queue", "chooser", "cluster", "loop", "plan", "sends", "targets")

    def __init__(self, cluster: Cluster, plan: Plan, sends: TopicSender) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.plan = plan
        self.chooser = plan.chooser
        self.sends = sends
        """The codec's part."""
        self.targets = [
            QueueTarget(index, queue, cluster.master_address(queue.broker_name) or "")
            for index, queue in enumerate(plan.chooser.queues)
        ]
        self.by_queue = {target.queue: target for target in self.targets}

    def connect(self, target: QueueTarget) -> bool:
        """Find the connection to a queue's broker; False: there is none."""
        connection = target.connection
        if connection is None or connection.closed:
            connection = self.cluster.remoting.fast_connection(target.address)
            target.connection = connection
            self.sends.aim(target.index, None if connection is None else connection.sends)
        return connection is not None


class TopicPaths:
    """The ways of one producer's fast-path sends."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        plans: Plans,
        delivery: Delivery,
        codec: SendCodec,
        sender: Sender,
        check_loop: Callable[[], object],
    ) -> None:
        """None is known yet; arguments as those of ``FastSends``."""
        self._check_loop = check_loop
        self._header = header
        self._plan_of = plans.get
        self._delivery = delivery
        self._codec = codec
        self._sender = sender
        self._avoids = settings.latency_fault_enable
        self._paths: dict[str, TopicPath] = {}
        self.hot: dict[str, TopicSender] = {}
        """Those whose sends need nothing but the codec to begin, by topic."""
        self.cluster: Cluster
        """That of the paths."""
        plans.on_change = self.drop

    def of(self, cluster: Cluster, topic: str) -> TopicPath | None:
        """The way of a topic's fast-path messages, if there is one."""
        path = self._paths.get(topic)
        if path is None or path.plan is not self._plan_of(topic) or path.cluster is not cluster:
            path = self._make(cluster, topic)
        return path

    def choose(self, path: TopicPath, queue: MessageQueue | None) -> QueueTarget | None:
        """The given queue, or the next one, with a connection; None: the slow path chooses. The
        next one is for whoever lets the chooser advance, unless brokers are avoided."""
        if queue is not None or self._avoids:
            target = path.by_queue.get(queue or self._delivery.choose(path.plan, ()))
        else:
            target = path.targets[path.chooser.upcoming]
        return target if target is not None and path.connect(target) else None

    def drop(self, topic: str) -> None:
        """The plan of a topic has changed."""
        self.hot.pop(topic, None)

    def close(self) -> None:
        """None is of use any more."""
        self.hot.clear()
        self._paths.clear()

    def _make(self, cluster: Cluster, topic: str) -> TopicPath | None:
        self.drop(topic)
        plan = self._plan_of(topic)
        if plan is None or (topic not in self._paths and len(self._paths) >= TOPICS_MAX):
            self._paths.pop(topic, None)
            return None
        self._check_loop()  # its sends' futures are of this one
        self.cluster = cluster
        header = self._header
        sends = self._codec.TopicSender(
            self._sender,
            future_maker(asyncio.get_running_loop()),
            plan.chooser,
            plan.chooser.queues,
            header.group,
            topic,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        path = self._paths[topic] = TopicPath(cluster, plan, sends)
        if not self._avoids:
            self.hot[topic] = sends
        return path


def future_maker(loop: asyncio.AbstractEventLoop) -> Callable[[], SendFuture]:
    """What makes a loop's futures: where they are asyncio's own, without a frame in between.

    A codec may take such a ``partial`` apart.
    """
    uvloop = sys.modules.get("uvloop")
    is_known = uvloop is not None and type(loop) is uvloop.Loop
    if is_known or getattr(type(loop), "create_future", None) is _CREATE_FUTURE:
        return partial(asyncio.Future, loop=loop)
    return loop.create_future
