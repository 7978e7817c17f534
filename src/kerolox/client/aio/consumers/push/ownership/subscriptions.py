"""What a push consumer reads, and how: the topics with their expressions, listeners, order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.subscribing import Versions, wanted
from kerolox.client.core.namespaces import with_namespace, without_namespace
from kerolox.client.core.validate import check_topic
from kerolox.message import ALL_TAGS

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.push.listening import Listeners, MessageListener
    from kerolox.client.aio.consumers.push.stream import MessageStream
    from kerolox.filter.filter_class import FilterClass
    from kerolox.filter.tags import Subscription


class Subscriptions:
    """The subscriptions of one consumer, by topic as brokers know it."""

    def __init__(
        self, namespace: str, retry_topic: str, listeners: Listeners, stream: MessageStream
    ) -> None:
        self.table: dict[str, Subscription] = {}
        self._versions = Versions()
        self.changed: set[str] = set()
        """Topics that were subscribed to since the last rebalance."""
        self.retaken: set[str] = set()
        """Those of them whose queues are to be taken anew: they are read in another way now."""
        self.left: set[str] = set()
        """Topics that were unsubscribed since then; their brokers do not know yet."""
        self._ordered: set[str] = set()
        self._namespace = namespace
        self._retry_topic = retry_topic
        self._listeners = listeners
        self._stream = stream

    def add(
        self,
        topic: str,
        expression: str | FilterClass,
        expression_type: str | None,
        listener: MessageListener | None,
        *,
        ordered: bool,
    ) -> None:
        """Read a topic; errors as those of ``PushConsumer.subscribe``."""
        wire_topic = with_namespace(self._namespace, topic)
        check_topic(wire_topic)
        subscription = self._versions.later(wanted(wire_topic, expression, expression_type))
        shown = without_namespace(self._namespace, topic)
        known = wire_topic in self.table
        was = wire_topic in self._ordered, wire_topic in self._stream.topics
        self._forget(wire_topic, shown)
        self.table[wire_topic] = subscription
        if ordered:
            self._ordered.add(wire_topic)
        if listener is None:
            self._stream.topics.update((wire_topic, shown))
            listener = self._stream.listen
        self._listeners.by_topic[shown] = listener
        if known and was != (ordered, wire_topic in self._stream.topics):
            self.retaken.add(wire_topic)
        self.changed.add(wire_topic)

    def remove(self, topic: str) -> None:
        """Read a topic no longer."""
        wire_topic = with_namespace(self._namespace, topic)
        if self.table.pop(wire_topic, None) is not None:
            self.left.add(wire_topic)
        self._forget(wire_topic, without_namespace(self._namespace, topic))

    def _forget(self, wire_topic: str, shown: str) -> None:
        """How a topic is read."""
        self._ordered.discard(wire_topic)
        self._stream.topics -= {wire_topic, shown}
        self._listeners.by_topic.pop(shown, None)

    def add_retries(self) -> None:
        """Read the group's retry topic."""
        subscription = wanted(self._retry_topic, ALL_TAGS)
        self.table[self._retry_topic] = self._versions.later(subscription)

    def is_ordered(self, topic: str) -> bool:
        """Whether a topic is read in order. Retried messages are so by who reads all in order."""
        if topic == self._retry_topic:
            return self._ordered >= self.table.keys() - {topic}
        return topic in self._ordered

    def touch(self, topic: str) -> bool:
        """Give a subscription a newer version; False: it has gone."""
        subscription = self.table.get(topic)
        if subscription is None:
            return False
        now = dataclasses.replace(subscription, version=clock.now_ms())
        self.table[topic] = self._versions.later(now)
        return True
