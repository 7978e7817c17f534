"""Messages of dramatiq through topics (``pip install 'kerolox[dramatiq]'``).

::

    broker = KeroloxBroker("127.0.0.1:9876")
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def welcome(user: str) -> None: ...

    welcome.send("ann")
    welcome.send_with_options(args=("bob",), delay=90_000)  # in 90 seconds

Each queue of dramatiq is a topic and a group of workers, who share it message by message (POP). A
message is acknowledged by itself; while somebody works on it nobody else gets it. When its worker
dies it comes again. Delays, those between retries too, are kept by the broker's timer, and in no
worker's memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kerolox import owners
from kerolox.admin import sync as admin
from kerolox.client import ClientSettings, SimpleConsumerSettings
from kerolox.client.core.delays import Duration, seconds_of
from kerolox.client.core.routes import MASTER_ID
from kerolox.client.sync import Connection, Producer, SimpleConsumer, connect
from kerolox.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    KeroloxError,
    RemotingError,
    TopicRouteNotFoundError,
)
from kerolox.integrations.common import delayed_message, further_delay, is_passing, no_topic
from kerolox.message import MessageExt
from kerolox.protocol.pop_names import POP_MESSAGES_MAX, pop_retry_topic

try:
    from dramatiq import Broker, Consumer, Message, MessageProxy
    from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
except ImportError as error:
    raise ConfigError(f"dramatiq can't be imported ({error}); install kerolox[dramatiq]") from error

if TYPE_CHECKING:
    from dramatiq import Middleware

    from kerolox.admin import TimedMessages, TopicDescription

__all__ = ["KeroloxBroker"]

AGAIN_SECONDS = 1.0
"""A receive that failed is tried again after so long, or after the time of a worker if shorter."""

TIMER_SECONDS = 1.0
"""So long after its send a delayed message counts as waiting, whatever the broker says: its timer
may not have read it yet."""

FLUSHED_MAX = 10_000
"""Delayed messages that one flush takes back."""

_log = logging.getLogger(__name__)


class KeroloxBroker(Broker):
    """Sends messages to topics, and gives them to workers."""

    def __init__(
        self,
        name_server: str | Iterable[str] = "",
        *,
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        invisible_ms: int = 60_000,
        message_time_max: Duration = 86_400,
        settings: ClientSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            middleware: as of every broker of dramatiq; None: its usual ones.
            namespace: begins the names of topics and groups: the queue ``default`` is the topic
                ``dramatiq-default``, and its workers the group of that name.
            invisible_ms: so long after the death of a worker its messages come again.
            message_time_max: seconds or a ``timedelta``: a message that is worked on for longer
                comes again, though its worker lives.
            settings: of the connection: account, TLS, namespace.

        Raises:
            ConfigError: one of them is out of range.
        """
        super().__init__(middleware=middleware)
        self.queues: dict[str, str] = {}
        """By the name of a queue: its topic, and its group."""
        self.namespace: str = namespace
        self.message_seconds_max: float = seconds_of(message_time_max)
        self._name_server = name_server
        self._settings = settings
        self._consumer_settings = SimpleConsumerSettings(invisible_ms=invisible_ms, from_first=True)
        self._lock = threading.Lock()
        self._clients: _Clients | None = None
        self._delayed_at: dict[str, float] = {}
        """By queue: when a message with a delay was sent last, by the monotonic clock."""

    def close(self) -> None:
        """Close the connection. What workers have and did not finish comes again."""
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None and clients.generation == owners.generation():
            clients.connection.close()

    # -- queues ---------------------------------------------------------------------------------
    def declare_queue(self, queue_name: str) -> None:
        """Know a queue from now on. Its topic is made by the first send or worker."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = f"{self.namespace}-{queue_name.replace('.', '%2E')}"
            self.emit_after("declare_queue", queue_name)

    def _topic(self, queue_name: str) -> str:
        try:
            return self.queues[queue_name]
        except KeyError:
            raise QueueNotFound(queue_name) from None

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Send a message; its id is the key of ours.

        Args:
            message: to a queue that was declared.
            delay: so many milliseconds later.

        Raises:
            QueueNotFound: its queue was not declared.
            ConnectionClosed: no broker answers; it may be stored.
            KeroloxError: a broker refused it.
        """
        queue_name = message.queue_name
        topic = self._topic(queue_name)
        self.emit_before("enqueue", message, delay)
        seconds = max(delay or 0, 0) / 1000
        sent, part = delayed_message(topic, message.encode(), message.message_id, seconds)
        if part:
            self._delayed_at[queue_name] = time.monotonic()
        try:
            self._connected().producer.send(sent, deliver_after=part or None)
        except RemotingError as error:
            raise ConnectionClosed(error) from error
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Messages of a queue for a worker.

        Args:
            queue_name: one that was declared. Its topic is made when it does not exist.
            prefetch: most messages that are received and not done.
            timeout: milliseconds to wait for one.

        Raises:
            QueueNotFound: the queue was not declared.
            ConnectionClosed: no name server answers.
            KeroloxError: the topic does not exist, and can't be made.
        """
        topic = self._topic(queue_name)
        try:
            consumer = self._connected().consumer(topic, self._consumer_settings)
        except RemotingError as error:
            raise ConnectionClosed(error) from error
        return _Consumer(self, topic, consumer, prefetch, timeout)

    def _connected(self) -> _Clients:
        """The clients of this process; a forked one makes its own."""
        with self._lock:
            clients = self._clients
            if clients is None or clients.generation != owners.generation():
                clients = self._clients = _Clients(
                    self._name_server, self._settings, self.namespace
                )
            return clients

    # -- for tests ------------------------------------------------------------------------------
    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue: its group skips them. Of those with a delay up to 10,000
        are taken back. With access control it takes an administrator's account."""
        with self._asked(queue_name) as asked:
            asked.drop()

    def flush_all(self) -> None:
        """Drop all messages of all queues that were declared."""
        for queue_name in list(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are done, those with a delay too.

        Args:
            queue_name: one that was declared.
            interval: milliseconds between two looks.
            timeout: milliseconds; None: for ever.

        Raises:
            QueueNotFound: it was not declared.
            QueueJoinTimeout: the time is over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        with self._asked(queue_name) as asked:
            while asked.is_left() or self._is_fresh(queue_name):
                if deadline is not None and time.monotonic() >= deadline:
                    raise QueueJoinTimeout(queue_name)
                time.sleep(interval / 1000)

    def _is_fresh(self, queue_name: str) -> bool:
        sent_at = self._delayed_at.get(queue_name)
        return sent_at is not None and time.monotonic() - sent_at < TIMER_SECONDS

    def _asked(self, queue_name: str) -> _Asked:
        topic = self._topic(queue_name)
        # The producer's group begins with the clients' namespace, where they have one.
        namespace = self._connected().producer.group.removesuffix(self.namespace)
        return _Asked(namespace + topic, self._name_server, self._settings)


class _Clients:
    """The clients of one process."""

    def __init__(
        self, name_server: str | Iterable[str], settings: ClientSettings | None, group: str
    ) -> None:
        self.generation = owners.generation()
        self.connection: Connection = connect(name_server, settings=settings)
        self.producer: Producer = self.connection.producer(group)
        self.producer.start()
        self._consumers: dict[str, SimpleConsumer] = {}
        self._lock = threading.Lock()

    def consumer(self, topic: str, settings: SimpleConsumerSettings) -> SimpleConsumer:
        """That of a topic. It stays open until the broker closes: a worker that pauses closes its
        consumer, and is to keep what it works on."""
        with self._lock:
            consumer = self._consumers.get(topic)
            if consumer is None:
                self._ensure(topic)
                consumer = self.connection.simple_consumer(topic, settings=settings)
                consumer.subscribe(topic)
                consumer.start()
                self._consumers[topic] = consumer
            return consumer

    def _ensure(self, topic: str) -> None:
        try:
            self.producer.queues(topic)
        except TopicRouteNotFoundError:
            try:
                self.producer.create_topic(topic)
            except (BrokerError, ClientError) as error:
                raise no_topic(topic, error) from error


class _Asked:
    """What is asked of brokers about the messages of one queue."""

    def __init__(
        self, topic: str, name_server: str | Iterable[str], settings: ClientSettings | None
    ) -> None:
        """``topic``: as brokers know it."""
        self._admin = admin.Admin(name_server, settings=settings)
        self._group = topic
        self._topics = (topic, pop_retry_topic(topic, topic))

    def __enter__(self) -> _Asked:
        self._admin.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def _found(self) -> list[TopicDescription]:
        """The topics that exist."""
        found = []
        for topic in self._topics:
            with contextlib.suppress(TopicRouteNotFoundError):
                found.append(self._admin.describe_topic(topic))
        return found

    def _waiting(self, found: list[TopicDescription], most: int) -> list[TimedMessages]:
        masters = {each.addresses.get(MASTER_ID) for one in found for each in one.route.brokers}
        return [self._admin.timed_messages(each, max_messages=most) for each in masters if each]

    def is_left(self) -> bool:
        """Whether messages wait, or are worked on. What is sent again with a delay, or delivered
        after it, between two of these questions, is seen by the next."""
        found = self._found()
        return (
            self._is_behind(found)
            or any(each.waiting.get(self._group) for each in self._waiting(found, 1))
            or self._is_behind(self._found())
        )

    def _is_behind(self, found: list[TopicDescription]) -> bool:
        return any(
            queue.max_offset > max(self._admin.get_offset(self._group, queue.queue), 0)
            for one in found
            for queue in one.queues
        )

    def drop(self) -> None:
        """Take back what waits, and skip what came."""
        found = self._found()
        for timed in self._waiting(found, FLUSHED_MAX):
            for each in timed.messages:
                if each.topic == self._group and each.handle:
                    with contextlib.suppress(BrokerError):  # it was delivered meanwhile
                        self._admin.recall_message(each.handle)
        for one in found:
            self._admin.skip_backlog(self._group, one.topic)


class _Delivered(MessageProxy):
    """A message of dramatiq, and ours that brought it."""

    def __init__(self, message: Message[Any], delivered: MessageExt) -> None:
        super().__init__(message)
        self.delivered = delivered
        self.reason = ""
        """Why it failed, as a text: an exception would keep its frames."""

    def stuff_exception(self, exception: BaseException) -> None:
        super().stuff_exception(exception)
        self.reason = "".join(traceback.format_exception_only(exception)).strip()


class _Consumer(Consumer):
    """What one worker receives of a queue."""

    def __init__(
        self,
        broker: KeroloxBroker,
        topic: str,
        consumer: SimpleConsumer,
        prefetch: int,
        timeout: int,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._consumer = consumer
        self._prefetch = prefetch
        self._seconds = timeout / 1000
        self._ready: deque[MessageExt] = deque()
        self._out: set[int] = set()
        """Identities of messages that were given out and are not done."""
        self._settled = threading.Condition()

    # -- messages -------------------------------------------------------------------------------
    def __next__(self) -> MessageProxy | None:
        if not self._ready:
            self._receive()
        while self._ready:
            delivered = self._ready.popleft()
            message = self._message(delivered)
            if message is not None:
                with self._settled:
                    self._out.add(id(delivered))
                return message
        return None

    def _receive(self) -> None:
        with self._settled:
            if len(self._out) >= self._prefetch:
                self._settled.wait(self._seconds)
            count = min(self._prefetch - len(self._out), POP_MESSAGES_MAX)
        if count < 1:
            return
        try:
            messages = self._consumer.receive(count, wait=self._seconds)
            if messages:
                self._consumer.keep(messages, up_to=self._broker.message_seconds_max)
        except KeroloxError as error:
            if not is_passing(error):
                raise
            _log.warning("no messages from %s, trying again: %s", self._topic, error)
            time.sleep(min(self._seconds, AGAIN_SECONDS))
            return
        self._ready.extend(messages)

    def _message(self, delivered: MessageExt) -> _Delivered | None:
        """What dramatiq is to have; None: nothing."""
        later = further_delay(delivered)
        try:
            if later is not None:
                sent, seconds = later
                self._broker._connected().producer.send(sent, deliver_after=seconds)
                self._consumer.ack(delivered)
                return None
            try:
                return _Delivered(Message.decode(delivered.body), delivered)
            except Exception as error:
                self._consumer.dead_letter(delivered, f"it can't be read: {error}")
        except KeroloxError as error:
            _log.warning("a message of %s comes again later: %s", self._topic, error)
        return None

    # -- what becomes of them -------------------------------------------------------------------
    def ack(self, message: MessageProxy) -> None:
        """A message is done."""
        if isinstance(message, _Delivered):
            self._settle(message, lambda: self._consumer.ack(message.delivered))

    def nack(self, message: MessageProxy) -> None:
        """A message goes to the dead letters, with its exception as the reason."""
        if isinstance(message, _Delivered):
            settle = self._consumer.dead_letter
            self._settle(message, lambda: settle(message.delivered, message.reason))

    def _settle(self, message: _Delivered, settle: Callable[[], None]) -> None:
        try:
            settle()
        except RemotingError as error:
            raise ConnectionClosed(error) from error
        finally:
            with self._settled:
                self._out.discard(id(message.delivered))
                self._settled.notify()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Messages that nobody has begun come again at once."""
        self._give_back([each.delivered for each in messages if isinstance(each, _Delivered)])

    def close(self) -> None:
        """Give back what was not given out."""
        ready, self._ready = list(self._ready), deque()
        self._give_back(ready)

    def _give_back(self, messages: list[MessageExt]) -> None:
        for message in messages:
            try:
                self._consumer.nack(message)
            except KeroloxError as error:
                _log.info("a message comes again as soon as its time is over: %s", error)
            with self._settled:
                self._out.discard(id(message))
                self._settled.notify()
