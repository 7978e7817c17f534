"""Where messages of each topic go: its route, and whose turn it is among its queues; and the time
limit of finding out and sending."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.routes import (
    TopicRoute,
    publish_queues,
    route_from_template,
    why_not_writable,
)
from kerolox.client.core.sending.queue_choice import QueueChooser
from kerolox.errors import RequestTimeoutError, TopicRouteNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.settings import ProducerSettings


class TimeLimit(NamedTuple):
    """When a call has to be over, whatever it waits for."""

    ms: int
    """As it was given."""
    deadline: float
    """A ``loop.time()``."""

    @classmethod
    def of(cls, ms: int) -> TimeLimit:
        """The limit of a call that begins now."""
        return cls(ms, asyncio.get_running_loop().time() + ms / 1000)

    @property
    def seconds_left(self) -> float:
        """0 or less: it is over."""
        return self.deadline - asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def around(self, what: str) -> AsyncIterator[None]:
        """End what is done within at the limit; the text of the RequestTimeoutError begins with
        ``what`` and tells it.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                yield
        except TimeoutError:
            raise RequestTimeoutError(f"{what} within {self.ms} ms; nothing was sent") from None


class Plan(NamedTuple):
    """Where messages of one topic go."""

    route: TopicRoute
    chooser: QueueChooser


class Plans:
    """The plans of one producer, by topic as brokers know it."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._plans: dict[str, Plan] = {}
        self._used: dict[str, None] = {}
        """Topics that have had a plan. One whose master is away has none, and gets one again from
        the poll of its route; its brokers ask idle producers about transactions."""
        self.on_change: Callable[[str], object] = _ignore
        """Called with a topic whose plan has changed."""
        self.get = self._plans.get
        """The plan of a topic, if there is one; a bound method of the table, for each send."""

    def topics(self) -> list[str]:
        """Those that have, or have had, a plan (the keys of ``topicPublishInfoTable``)."""
        return list(self._used)

    def is_used(self, topic: str) -> bool:
        """Whether it is one of :meth:`topics`."""
        return topic in self._used

    async def make(self, cluster: Cluster, topic: str, limit: TimeLimit) -> Plan:
        """Find out where messages of a topic go; of a new topic, where they may go.
        TopicRouteNotFoundError: nowhere. RequestTimeoutError: no name server has said so in time.
        """
        servers = ", ".join(cluster.name_servers)
        async with limit.around(f"no route of topic {topic!r} came from name servers {servers}"):
            return await self._make(cluster, topic)

    async def _make(self, cluster: Cluster, topic: str) -> Plan:
        route = await cluster.refresh(topic)
        is_new = False
        if route is None:
            template = await cluster.refresh(self._settings.create_topic_key)
            if template is not None:
                count = self._settings.default_topic_queue_nums
                route = route_from_template(template, queues=count)
                is_new = True
        plan = self.adopt(topic, route) if route is not None else None
        if plan is None:
            what = "create the topic, or start a broker with autoCreateTopicEnable=true"
            if route is not None and not is_new:
                what = f"the topic is there, but {why_not_writable(topic, route)}"
            raise TopicRouteNotFoundError(
                f"no broker takes messages of topic {topic!r}"
                f" (name servers {', '.join(cluster.name_servers)}); {what}"
            )
        return plan

    def adopt(self, topic: str, route: TopicRoute) -> Plan | None:
        """Use a route from now on; None when it has no queue to write to."""
        known = self._plans.get(topic)
        if known is not None and known.route == route:
            return known
        queues = publish_queues(topic, route)
        if not queues:
            self.drop(topic)
            return None
        plan = Plan(route, QueueChooser(queues, start=random.getrandbits(31)))
        self._plans[topic] = plan
        self._used[topic] = None
        self.on_change(topic)
        return plan

    def drop(self, topic: str) -> None:
        """There is nowhere to send to, for now."""
        self._plans.pop(topic, None)
        self.on_change(topic)


def _ignore(topic: str) -> None:
    """Nobody minds."""
