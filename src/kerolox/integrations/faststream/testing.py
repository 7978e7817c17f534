"""A broker in memory, for tests of handlers: ``TestKeroloxBroker``."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, overload

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from kerolox.client.core.consuming.subscribing import wanted
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.filter.sql92 import compile_sql92
from kerolox.filter.sql92_error import SQL92
from kerolox.integrations.faststream.broker import KeroloxBroker
from kerolox.integrations.faststream.producer import KeroloxProducer
from kerolox.message import MessageExt, MessageQueue, PropertyKey

if TYPE_CHECKING:
    from types import TracebackType

    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream.response import Response

    from kerolox.integrations.faststream.publisher import KeroloxPublisher
    from kerolox.integrations.faststream.response import KeroloxPublishCommand
    from kerolox.integrations.faststream.subscriber import KeroloxSubscriber
    from kerolox.message import Message

__all__ = ["TestKeroloxBroker"]

BROKER_NAME = "in-memory"
"""Where messages of tests say that they are stored."""


class TestKeroloxBroker(TestBroker[KeroloxBroker, EnterType], broker=KeroloxBroker):
    """Brings what is published to the subscribers at once, without a server::

        async with TestKeroloxBroker(broker) as tested:
            await tested.publish({"id": 1}, "Orders")
            on_order.mock.assert_called_once_with({"id": 1})

    Each group gets a message once, if its expression wants it. Delays count for nothing, and what
    a handler refuses does not come again. ``with_real=True`` takes a real server.
    """

    @overload
    def __init__(
        self: TestKeroloxBroker[KeroloxBroker],
        broker: KeroloxBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestKeroloxBroker[tuple[KeroloxBroker, ...]],
        *brokers: KeroloxBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self,
        *brokers: KeroloxBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            *brokers: which ones; several see each other's messages.
            with_real: only watch handlers, and connect as ever.
            connect_only: start no subscribers; None: so within a ``TestApp``, which starts them.
        """
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    @contextmanager
    def _patch_producer(self, broker: KeroloxBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, MemoryProducer(broker, self.brokers)):
            yield

    async def _fake_connect(  # type: ignore[override]
        self, broker: KeroloxBroker, *args: Any, **kwargs: Any
    ) -> MemoryConnection:
        connection = MemoryConnection()
        broker.config.broker_config.connection = cast("Any", connection)
        return connection

    def create_publisher_fake_subscriber(
        self, broker: KeroloxBroker, publisher: KeroloxPublisher
    ) -> tuple[KeroloxSubscriber, bool]:
        """The subscriber that a publisher's messages come to; one is made when there is none."""
        for found in subscribers_of(self.brokers):
            if publisher.topic in found.topics:
                return found, True
        return broker.subscriber(publisher.topic, batch=publisher.batch, persistent=False), False


def subscribers_of(brokers: Sequence[KeroloxBroker]) -> Iterator[KeroloxSubscriber]:
    """All subscribers of some brokers."""
    for broker in brokers:
        yield from cast("list[KeroloxSubscriber]", broker.subscribers)


class MemoryConsumer:
    """A consumer that nothing comes to: messages are brought past it."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    def subscribe(self, *args: Any, **kwargs: Any) -> None:
        """Any topic."""

    async def start(self) -> None:
        """At once."""

    async def close(self) -> None:
        """At once."""
        self._closed.set()

    async def __anext__(self) -> MessageExt:
        await self._closed.wait()
        raise StopAsyncIteration

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """Nothing came."""


class MemoryConnection:
    """A connection to nothing."""

    def push_consumer(self, group: str, *, settings: object) -> MemoryConsumer:
        """For the modes ``push`` and ``ordered``."""
        return MemoryConsumer()

    simple_consumer = push_consumer


@dataclass
class MemoryTransaction:
    """A transaction: at its end the message is brought, or nothing is."""

    commit_now: Any
    result: SendResult
    is_wanted: bool | None = field(default=None, init=False)

    @property
    def transaction_id(self) -> str:
        """The message's id."""
        return self.result.message_id

    def commit(self) -> None:
        """Whatever the block does."""
        self.is_wanted = True

    def rollback(self) -> None:
        """Whatever the block does."""
        self.is_wanted = False

    leave_open = rollback

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None if self.is_wanted is None else self.is_wanted:
            await self.commit_now()


class MemoryProducer(KeroloxProducer):
    """Brings messages to subscribers."""

    def __init__(self, broker: KeroloxBroker, brokers: Sequence[KeroloxBroker]) -> None:
        """For one broker, to the subscribers of several."""
        config = broker.config.broker_config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.serializer: SerializerProto | None = config.serializer
        self.codec: CodecProto = config.broker_codec or self.codec
        self._brokers = brokers
        self._count = 0

    async def unknown_topics(self, topics: Iterable[str], *, create: bool) -> list[str]:
        """Every topic is there."""
        return []

    async def publish(self, cmd: KeroloxPublishCommand) -> Any:
        """Bring a message to each group; of a transaction, when it ends."""
        if cmd.request is not None:
            return None  # what the handler returns is the reply
        stored = self._stored(await self.message(cmd))
        if cmd.is_half:
            return MemoryTransaction(lambda: self._bring([stored]), _result(stored))
        await self._bring([stored])
        return _result(stored)

    async def publish_batch(self, cmd: KeroloxPublishCommand) -> list[SendResult]:
        """Bring messages to each group."""
        stored = [self._stored(message) for message in await self.batch(cmd)]
        if stored:
            await self._bring(stored)
        return [_result(message) for message in stored]

    async def request(self, cmd: KeroloxPublishCommand) -> MessageExt:
        """Bring a request to the first subscriber that wants it; what its handler returns."""
        message = self._stored(await self.message(cmd))
        for subscriber in self._wanting(message):
            async with asyncio.timeout(cmd.timeout):
                response = await self._handled(subscriber, [message])
            answer = response.as_publish_command()
            body, content_type = await self.codec.encode(answer.body, self.serializer)
            reply = type(cmd)(
                answer.body,
                topic=cmd.destination,
                headers=answer.headers,
                correlation_id=answer.correlation_id,
                _publish_type=cmd.publish_type,
            )
            return self._stored(self._made(reply, body, content_type))
        raise SubscriberNotFound

    async def _bring(self, messages: list[MessageExt]) -> None:
        for subscriber in self._wanting(messages[0]):
            if subscriber.config.batch:
                await self._handled(subscriber, messages)
            else:
                for message in messages:
                    await self._handled(subscriber, [message])

    def _wanting(self, message: MessageExt) -> Iterator[KeroloxSubscriber]:
        """One subscriber of each group that reads the message's topic and wants it."""
        groups: set[str] = set()
        for subscriber in subscribers_of(self._brokers):
            is_new = subscriber.group not in groups and message.topic in subscriber.topics
            if is_new and _wants(subscriber.config.expression, message):
                groups.add(subscriber.group)
                yield subscriber

    async def _handled(self, subscriber: KeroloxSubscriber, messages: list[MessageExt]) -> Response:
        raw = tuple(messages) if subscriber.config.batch else messages[0]
        return await subscriber.process_message(raw)

    def _stored(self, message: Message) -> MessageExt:
        self._count += 1
        unique = {PropertyKey.UNIQUE_KEY: f"{id(self):X}-{self._count}"}
        return MessageExt(
            topic=message.topic,
            body=bytes(message.body),
            queue_id=0,
            queue_offset=self._count,
            commit_log_offset=self._count,
            properties=message.wire_properties() | unique,
            broker_name=BROKER_NAME,
        )


def _wants(expression: str, message: MessageExt) -> bool:
    subscription = wanted(message.topic, expression)
    if subscription.expression_type == SQL92:
        return compile_sql92(expression).matches(message.properties)
    return subscription.matches(message.tags)


def _result(message: MessageExt) -> SendResult:
    queue = MessageQueue(message.topic, BROKER_NAME, 0)
    return SendResult(
        SendStatus.SEND_OK, message.message_id, message.message_id, queue, message.queue_offset
    )
