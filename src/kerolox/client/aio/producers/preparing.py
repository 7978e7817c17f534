"""What is done to a message before it is sent: checks, delay, encoding, the choice of a queue."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.delays import Timing, delay_level
from kerolox.client.core.namespaces import queue_without_namespace, with_namespace
from kerolox.client.core.sending.queue_choice import OrderingKey, select_by_hash
from kerolox.client.core.sending.send import OutgoingMessage, in_namespace, outgoing_message
from kerolox.client.core.validate import (
    check_batch,
    check_body,
    check_delay_level,
    check_message,
    check_send_topic,
)
from kerolox.client.threads import to_thread
from kerolox.errors import MessageRejectedError
from kerolox.message import TIMERS, Message, MessageQueue

if TYPE_CHECKING:
    from kerolox.client.aio.producers.plans import Plan
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.unique_id import UniqueIdFactory

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message among those of its topic."""

COMPRESS_IN_THREAD_BYTES_MIN = 256 * 1024
"""Bodies of this size or more are compressed outside the event loop."""

TOPICS_CHECKED_MAX = 10_000
"""Topic names that are remembered as legal."""


def _check_undelayed(message: Message) -> None:
    given = [name for name in TIMERS if name in message.properties]
    if message.delay_level:
        given.append(f"delay_level {message.delay_level}")
    if given:
        raise MessageRejectedError(
            f"the message has {given[0]}, and deliver_after or deliver_at is given, too; leave one"
            " of them out"
        )


class Preparation:
    """Prepares the messages of one producer."""

    def __init__(self, settings: ProducerSettings, namespace: str, ids: UniqueIdFactory) -> None:
        """No topic is checked yet. ``namespace``: the producer's; empty: none. ``ids`` makes the
        messages' ids.
        """
        self._settings = settings
        self._namespace = namespace
        self._ids = ids
        self._compress_type = settings.compression
        self._legal_topics: set[str] = set()

    def check(self, message: Message) -> None:
        """Raise MessageRejectedError for a message that no broker would take."""
        check_message(message)
        self._check_limits(message)

    def check_batch(self, messages: list[Message]) -> None:
        """The same for messages that are to travel together."""
        check_batch(messages)
        for message in messages:
            self._check_limits(message)

    def _check_limits(self, message: Message) -> None:
        topic = message.topic
        if topic not in self._legal_topics:
            check_send_topic(with_namespace(self._namespace, topic))
            if len(self._legal_topics) < TOPICS_CHECKED_MAX:
                self._legal_topics.add(topic)
        check_body(message.body, bytes_max=self._settings.message_bytes_max)
        if message.delay_level:
            check_delay_level(message.delay_level, level_max=self._settings.delay_level_max)

    async def outgoing(self, message: Message, message_id: str = "") -> OutgoingMessage:
        """The message as it travels, under a new id or the one that it has."""
        settings = self._settings
        make = functools.partial(
            outgoing_message,
            message,
            message_id or self._ids.next(clock.now_ms()),
            compress_bytes_min=settings.compress_bytes_min,
            compress_level=settings.compress_level,
            compress_type=self._compress_type,
        )
        if COMPRESS_IN_THREAD_BYTES_MIN <= len(message.body) >= settings.compress_bytes_min:
            outgoing = await to_thread(make)
        else:
            outgoing = make()
        return in_namespace(outgoing, self._namespace) if self._namespace else outgoing

    def timed(self, message: Message, timing: Timing) -> Message:
        """The message with the moment of its delivery, for brokers with a timer;
        MessageRejectedError: it has another one, or a delay level.
        """
        _check_undelayed(message)
        properties = {**message.properties, timing.name: str(timing.ms)}
        return dataclasses.replace(message, properties=properties)

    def delayed(self, message: Message, timing: Timing, *, round_up: bool = False) -> Message:
        """The message with the delay level of a moment, for brokers without a timer;
        MessageRejectedError: no level has it, or the message has one already.
        """
        _check_undelayed(message)
        seconds = max(0.0, timing.seconds_left(clock.now_ms()))
        level = delay_level(seconds, self._settings.delays_ms, round_up=round_up)
        return dataclasses.replace(message, delay_level=level)

    def chosen(
        self,
        message: Message,
        plan: Plan | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: OrderingKey | None,
    ) -> tuple[MessageQueue | None, QueueSelector | None]:
        """The queue, where it can be told by a plan already; else what will choose it.
        MessageRejectedError: more than one of them is given, or the key can't be one.
        """
        if key is not None:
            if queue is not None or selector is not None:
                raise MessageRejectedError("give one of queue, selector and ordering_key only")
            selector = select_by_hash(key)
        if selector is None or plan is None:
            return queue, selector
        return self.selected(selector, plan, message), None

    def selected(self, selector: QueueSelector, plan: Plan, message: Message) -> MessageQueue:
        """The user's choice among the queues as the user knows them."""
        queues: Sequence[MessageQueue] = plan.chooser.queues
        if self._namespace:
            queues = [queue_without_namespace(self._namespace, queue) for queue in queues]
        return selector(queues, message)
