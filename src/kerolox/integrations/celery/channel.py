"""Channels of kombu: queues, exchanges and consumers of one."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from itertools import count
from queue import Empty
from typing import TYPE_CHECKING, Protocol

from kombu.exceptions import ConnectionError as KombuConnectionError
from kombu.transport import virtual

from kerolox.errors import KeroloxError
from kerolox.integrations.celery.envelope import Payload, note_expiry
from kerolox.integrations.celery.intakes import Delivery, Intake, Prefetch
from kerolox.integrations.celery.names import exchange_topic, queue_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.integrations.celery.options import Options
    from kerolox.integrations.celery.session import Session

ANY = re.compile(r".*", re.DOTALL)
"""Matches each routing key."""

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """The transport, as a channel needs it."""

    options: Options

    @property
    def session(self) -> Session:
        """What is open."""
        ...


class TaskMessage(virtual.Message):
    """A message that was received."""

    def __init__(self, payload: Payload, channel: Channel, delivery: Delivery) -> None:
        super().__init__(payload, channel=channel)
        self.delivery = delivery


class QoS(virtual.QoS):
    """The messages of a channel that nobody acknowledged. Any thread may say what becomes of
    one."""

    channel: Channel

    def ack(self, delivery_tag: int) -> None:
        """A message is done."""
        message = self._delivered.pop(delivery_tag, None)
        if message is not None:
            self.channel.session.ack(message.delivery)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """A message comes again, or becomes a dead letter."""
        message = self._delivered.pop(delivery_tag, None)
        if message is None:
            return
        if requeue:
            self.channel.session.requeue(message.delivery)
        else:
            self.channel.session.reject(message.delivery)

    def restore_unacked(self) -> list[tuple[Exception, TaskMessage]]:
        """All that the channel has comes again, those that can't be given back in time later."""
        deliveries = []
        while self._delivered:
            with contextlib.suppress(KeyError):  # another thread acknowledges
                deliveries.append(self._delivered.popitem()[1].delivery)
        try:
            self.channel.session.requeue_all(deliveries)
        except (KeroloxError, KombuConnectionError) as error:
            _log.warning("%d messages come again later: %s", len(deliveries), error)
        return []

    def can_consume(self) -> bool:
        """Whether more may be delivered: feeds ask for no more than that."""
        return True


class Channel(virtual.Channel):
    """A channel.

    A queue is a topic (:mod:`kerolox.integrations.celery.names`). Exchanges and bindings are this
    connection's: whoever sends has declared them, as Celery does.
    """

    Message = TaskMessage
    QoS = QoS
    supports_fanout = False
    do_restore = True

    def __init__(self, connection: Owner, **kwargs: object) -> None:
        super().__init__(connection, **kwargs)
        self._prefetch = Prefetch()
        self._intakes: dict[str, Intake] = {}
        """By consumer tag."""
        self._tags = count(1)

    @property
    def session(self) -> Session:
        """That of the connection. kombu's ConnectionError: there is none any more."""
        if self.connection is None:
            raise KombuConnectionError("the channel is closed")
        session: Session = self.connection.session
        return session

    def _topic(self, queue: str) -> str:
        return queue_topic(self.connection.options.queue_name_prefix + queue)

    # -- queues -----------------------------------------------------------------------------------
    def _new_queue(self, queue: str, **given: object) -> None:
        if not given.get("auto_delete") and not given.get("exclusive"):
            # The others get a topic when they need one: most are bound to what goes to all.
            self.session.declare(self._topic(queue))

    def _has_queue(self, queue: str, **_: object) -> bool:
        return self.session.has_topic(self._topic(queue))

    def _purge(self, queue: str) -> int:
        return self.session.purge(self._topic(queue))

    def _delete(self, queue: str, *_: object, **__: object) -> None:
        if self.session.is_bound(queue):
            self.session.unbind(queue)
        else:
            self._purge(queue)

    def _put(self, queue: str, message: Payload, **_: object) -> None:
        note_expiry(message, time.time())
        self.session.send(self._topic(queue), message)

    # -- exchanges whose messages go to all -------------------------------------------------------
    def _all_topic(self, exchange: str) -> str:
        """The topic of such an exchange; empty: it is another one."""
        options = self.connection.options
        if not exchange or not (
            options.is_broadcast(exchange) or self.typeof(exchange).type == "fanout"
        ):
            return ""
        return exchange_topic(options.queue_name_prefix + exchange)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, object] | None = None,
        **_: object,
    ) -> None:
        """Have a queue get what is sent to an exchange. Where that goes to all it gets what is sent
        from now on, while the connection is open."""
        topic = self._all_topic(exchange or "")
        if not topic:
            super().queue_bind(queue, exchange, routing_key, arguments)
        elif not self.state.has_binding(queue, exchange, routing_key):
            self.state.binding_declare(queue, exchange, routing_key, arguments)
            pattern = self._pattern(exchange, routing_key)
            self.session.bind(queue, topic, "#" if pattern is ANY else routing_key, pattern)

    def _pattern(self, exchange: str | None, routing_key: str) -> re.Pattern[str]:
        kind = self.typeof(exchange)
        if kind.type == "fanout":
            return ANY
        text = kind.key_to_pattern(routing_key) if kind.type == "topic" else re.escape(routing_key)
        return re.compile(text)

    def basic_publish(
        self, message: Payload, exchange: str, routing_key: str, **kwargs: object
    ) -> None:
        """Send a message."""
        topic = self._all_topic(exchange)
        if not topic:
            super().basic_publish(message, exchange, routing_key, **kwargs)
            return
        self._inplace_augment_message(message, exchange, routing_key)
        note_expiry(message, time.time())
        self.session.broadcast(topic, message)

    # -- messages ---------------------------------------------------------------------------------
    def encode_body(self, body: str | bytes, encoding: str | None = None) -> tuple[str, str | None]:
        """Texts stay as they are, so that people can read them; other bytes become base64."""
        if isinstance(body, bytes):
            try:
                body = body.decode()
            except UnicodeDecodeError:
                return super().encode_body(body, encoding)  # type: ignore[no-any-return]
        return body, "utf-8"

    def basic_get(self, queue: str, no_ack: bool = False, **_: object) -> TaskMessage | None:
        """A message that is there now."""
        delivery = self.session.get(self._topic(queue))
        return None if delivery is None else self._received(delivery, no_ack)

    def _get(self, queue: str, timeout: float | None = None) -> Payload:
        delivery = self.session.get(self._topic(queue))
        if delivery is None:
            raise Empty
        self.session.ack(delivery)
        return delivery.payload

    def _received(self, delivery: Delivery, no_ack: bool) -> TaskMessage:
        tag = next(self._tags)
        delivery.payload["properties"]["delivery_tag"] = tag
        message = TaskMessage(delivery.payload, self, delivery)
        if no_ack:
            self.session.ack(delivery)
        else:
            self.qos.append(message, tag)
        return message

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[TaskMessage], object],
        consumer_tag: str,
        **_: object,
    ) -> None:
        """Have the messages of a queue brought to a function, while somebody drains."""

        def deliver(delivery: Delivery) -> None:
            callback(self._received(delivery, no_ack))

        session = self.session
        if session.is_bound(queue):
            intake = session.consume_bound(queue, self._prefetch, deliver)
        else:
            intake = session.consume(self._topic(queue), self._prefetch, deliver)
        self._intakes[consumer_tag] = intake
        self._tag_to_queue[consumer_tag] = queue
        self._consumers.add(consumer_tag)
        self._active_queues.append(queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End that; what was not brought yet goes back."""
        intake = self._intakes.pop(consumer_tag, None)
        if intake is not None:
            self._consumers.remove(consumer_tag)
            self._active_queues.remove(self._tag_to_queue.pop(consumer_tag))
            self.session.cancel(intake)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """How many messages the channel may have that nobody acknowledged; 0: 1,000."""
        self.qos.prefetch_count = prefetch_count
        self.session.set_prefetch(self._prefetch, prefetch_count)
