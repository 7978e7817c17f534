"""Subscribers: a consumer of ours each, whose messages go through FastStream to handlers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase
from faststream._internal.endpoint.subscriber.utils import MultiLock
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AcknowledgementMiddleware, AckPolicy
from faststream.response import Response, ensure_response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from kerolox.errors import ClientClosedError, ConfigError, KeroloxError
from kerolox.integrations.faststream.configs import KeroloxBrokerConfig
from kerolox.integrations.faststream.message import KeroloxMessage, RawMessage
from kerolox.integrations.faststream.options import Mode, SubscriberOptions
from kerolox.integrations.faststream.parser import REPLY_TO, KeroloxParser, first_of
from kerolox.integrations.faststream.publisher import ReplyPublisher
from kerolox.integrations.faststream.response import refuse_unknown
from kerolox.integrations.faststream.sources import (
    Settings,
    Source,
    check_settings,
    next_batch,
    open_source,
)
from kerolox.message import ALL_TAGS, PropertyKey

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream.message import StreamMessage


AGAIN_SECONDS = 1.0
"""A subscriber waits so long after it could not receive."""


class HandlersLock(MultiLock):
    """Counts the messages that are worked on, as FastStream's lock does with a queue of asyncio's,
    which takes five times as long."""

    __slots__ = ("_count", "_free")

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._free = asyncio.Event()
        self._free.set()

    def acquire(self) -> None:
        """One more."""
        if not self._count:
            self._free.clear()
        self._count += 1

    def release(self) -> None:
        """One less."""
        self._count -= 1
        if not self._count:
            self._free.set()

    @property
    def qsize(self) -> int:
        """How many."""
        return self._count

    @property
    def empty(self) -> bool:
        """None is."""
        return not self._count

    async def wait_release(self, timeout: float | None = None) -> None:
        """Wait until none is, no longer than some seconds; None: not at all."""
        if timeout:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._free.wait()


class _Handled:
    """The message that a handler got, as it was parsed."""

    __slots__ = ("message",)

    def __init__(self) -> None:
        self.message: StreamMessage[Any] | None = None


_handled: ContextVar[_Handled | None] = ContextVar("handled", default=None)


@dataclass(kw_only=True)
class KeroloxSubscriberConfig(SubscriberUsecaseConfig):
    """Of a subscriber."""

    _outer_config: KeroloxBrokerConfig
    topics: tuple[str, ...]
    group: str
    expression: str
    mode: Mode
    settings: Settings | None
    max_workers: int
    batch: bool
    max_records: int
    batch_seconds: float

    def __post_init__(self) -> None:
        check_settings(self.mode, self.settings)
        if not self.topics:
            raise ConfigError("a subscriber needs a topic")
        if self.batch and self.mode == "ordered":
            raise ConfigError(
                "a subscriber of mode 'ordered' gets the next message of a queue when it is done"
                " with the last one; leave batch out"
            )
        for name in ("max_workers", "max_records"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 at least")

    @property
    def auto_ack_disabled(self) -> bool:
        """The subscriber itself settles what is settled behind its handler."""
        return self.ack_policy is not AckPolicy.ACK_FIRST

    @property
    def ack_policy(self) -> AckPolicy:
        """Its own, that of router or broker, or RocketMQ's way."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class KeroloxSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What a subscriber's part of the AsyncAPI document is made of."""

    topics: tuple[str, ...]


class KeroloxSubscriberSpecification(
    SubscriberSpecification[KeroloxBrokerConfig, KeroloxSubscriberSpecificationConfig]
):
    """A subscriber's part of the AsyncAPI document: a channel for each topic."""

    @property
    def channel_labels(self) -> list[str]:
        """The topics, with the prefix of the routers around it."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Its channels, by name. AsyncAPI has no bindings for RocketMQ."""
        payload, topics, channels = resolve_payloads(self.get_payloads()), self.channel_labels, {}
        for topic in topics:
            name = self._channel_key(topic, split=len(topics) > 1)
            message = Message(title=f"{name}:Message", payload=payload)
            channels[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return channels


class KeroloxSubscriber(TasksMixin, SubscriberUsecase[RawMessage]):
    """Reads topics for a group, and has handlers work on the messages."""

    _outer_config: KeroloxBrokerConfig

    def __init__(
        self,
        config: KeroloxSubscriberConfig,
        specification: KeroloxSubscriberSpecification,
        calls: CallsCollection[RawMessage],
    ) -> None:
        """What a registrator makes."""
        self.parser: KeroloxParser = KeroloxParser()
        config.parser = self.parser.parse_batch if config.batch else self.parser.parse_message
        config.decoder = self.parser.decode_batch if config.batch else self.parser.decode_message
        super().__init__(config, specification, calls)
        self.config: KeroloxSubscriberConfig = config
        self._source: Source | None = None
        self._started_group = ""
        """Its group, which does not change while it runs and is asked for with each message."""
        self._settles = config.ack_policy not in (AckPolicy.MANUAL, AckPolicy.ACK_FIRST)

    @property
    def topics(self) -> list[str]:
        """With the prefix of the routers around it."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    @property
    def group(self) -> str:
        """Its consumer group."""
        return self.config.group or "-".join((self._outer_config.group, *self.topics))

    # -- life -----------------------------------------------------------------------------------
    async def start(self) -> None:
        """Begin to read.

        Raises:
            KeroloxError: no name server answers, or the group has another consumer here.
        """
        await super().start()
        self.lock: MultiLock = HandlersLock()
        self._started_group = self.group
        await self._find_topics()
        config = self.config
        source = open_source(
            self._outer_config.connected,
            self.group,
            self.topics,
            config.expression,
            mode=config.mode,
            settings=config.settings,
            is_acked_behind=self.ack_policy is not AckPolicy.ACK_FIRST,
        )
        try:
            await source.start()
        except BaseException:
            await source.close()
            raise
        self._source = self.parser.settler = source
        self._post_start()
        if self.calls:
            for _ in range(config.max_workers):
                self.add_task(self._consume_all, (source,))

    async def _find_topics(self) -> None:
        try:
            config = self._outer_config
            create = config.create_topics
            unknown = await config.producer.unknown_topics(self.topics, create=create)
        except KeroloxError as error:
            self._say(f"topics {self.topics} could not be looked up or created", error)
            return
        if unknown:
            self._say(
                f"no name server knows {', '.join(unknown)}; it is read within a minute of its"
                " creation. Create it, or give the broker create_topics=True"
            )

    async def stop(self) -> None:
        """Take no more messages, wait for handlers that run, leave the group."""
        await SubscriberUsecase.stop(self)
        source, self._source = self._source, None
        if source is not None:
            await source.close()
        for task in self.tasks:
            if task is not asyncio.current_task():  # a handler may stop its own subscriber
                task.cancel()
        self.tasks.clear()

    # -- messages -------------------------------------------------------------------------------
    async def _next(self, source: Source) -> RawMessage:
        config = self.config
        if not config.batch:
            return await source.next()
        return await next_batch(source, config.max_records, config.batch_seconds)

    async def _consume_all(self, source: Source) -> None:
        """What one worker does."""
        receive: Callable[[], Awaitable[RawMessage]] = source.next
        if self.config.batch:
            receive = functools.partial(self._next, source)
        while self.running:
            try:
                raw = await receive()
            except (StopAsyncIteration, ClientClosedError):
                return
            except KeroloxError as error:
                self._say(f"receiving for group {self.group} failed, trying again", error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                await self.consume(raw)

    async def process_message(self, msg: RawMessage) -> Response:
        """Have the handler work on it, then settle it by the policy.

        It is what FastStream's middleware for that does, which parses, copies and awaits more for
        each message. That one still settles what did not end well.
        """
        handled = _Handled() if self._settles else None
        token = _handled.set(handled)
        try:
            with self.lock:  # who stops waits until it is settled
                try:
                    response = await super().process_message(msg)
                except BaseException as error:
                    if handled is not None and await self._settle(msg, handled, error):
                        return ensure_response(None)
                    raise
                if handled is not None:
                    await self._ended_well(msg, handled)
                return response
        finally:
            _handled.reset(token)

    async def _ended_well(self, msg: RawMessage, handled: _Handled) -> None:
        message = handled.message
        if message is None:
            await self._settle(msg, handled, None)
        elif message.committed is None:
            try:
                if isinstance(message, KeroloxMessage):
                    await message.submit_ack()
                else:
                    await message.ack()
            except Exception as error:
                state = self._outer_config.logger
                state.log(repr(error), logging.CRITICAL, exc_info=error)

    async def _settle(
        self, msg: RawMessage, handled: _Handled, error: BaseException | None
    ) -> bool | None:
        """Settle a message as FastStream does; True: the error was no error, but a wish."""
        policy, config = self.ack_policy, self._outer_config
        settling = AcknowledgementMiddleware(config.logger, policy, self._parser)
        middleware = settling(msg, context=config.context)
        middleware.message = handled.message
        trace = None if error is None else error.__traceback__
        return await middleware.__aexit__(None if error is None else type(error), error, trace)

    async def get_one(self, *, timeout: float = 5.0) -> KeroloxMessage | None:
        """The next message, of a subscriber without handlers; settle it by hand.

        Args:
            timeout: seconds to wait for it.

        Returns:
            None when there was none in time.
        """
        source = self._unhandled()
        try:
            async with asyncio.timeout(timeout):
                raw = await self._next(source)
        except (TimeoutError, StopAsyncIteration):
            return None
        return await self._parsed(raw)

    async def __aiter__(self) -> AsyncIterator[KeroloxMessage]:
        """All messages, of a subscriber without handlers; settle each by hand."""
        source = self._unhandled()
        while True:
            try:
                raw = await self._next(source)
            except (StopAsyncIteration, ClientClosedError):
                return
            yield await self._parsed(raw)

    def _unhandled(self) -> Source:
        assert not self.calls, "a subscriber with handlers has its messages brought to these"
        assert self._source is not None, "start the subscriber first"
        return self._source

    async def _parsed(self, raw: RawMessage) -> KeroloxMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        own = cast("KeroloxMessage", message)
        if self.ack_policy is AckPolicy.ACK_FIRST:
            await own.ack()
        return own

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        first = first_of(message.raw_message)
        waits = PropertyKey.REPLY_TO_CLIENT in first.properties and REPLY_TO not in message.headers
        producer = self._outer_config.producer
        return (ReplyPublisher(producer, message.reply_to, first if waits else None),)

    # -- log ------------------------------------------------------------------------------------
    def get_log_context(self, message: StreamMessage[RawMessage] | None) -> dict[str, str]:
        """The columns of a log line. FastStream asks for them when it has parsed a message."""
        if message is None:
            return log_context(None, ",".join(self.topics), self.group)
        if (handled := _handled.get()) is not None:
            handled.message = message
        topic = first_of(message.raw_message).topic
        return log_context(message, topic, self._started_group or self.group)

    def _say(self, text: str, error: Exception | None = None) -> None:
        self._log(logging.WARNING, text, extra=self.get_log_context(None), exc_info=error)


def log_context(
    message: StreamMessage[RawMessage] | None, topic: str = "", group: str = ""
) -> dict[str, str]:
    """The columns of a log line."""
    return {
        "topic": topic,
        "group": group,
        "message_id": "" if message is None else message.message_id,
    }


def create_subscriber(
    config: KeroloxBrokerConfig, topics: tuple[str, ...], options: SubscriberOptions
) -> KeroloxSubscriber:
    """A subscriber with the options of a registrator.

    Raises:
        ConfigError: they don't go together.
    """
    refuse_unknown("subscriber()", options, SubscriberOptions)
    usecase = KeroloxSubscriberConfig(
        _outer_config=config,
        topics=topics,
        group=options.get("group", ""),
        expression=options.get("expression", ALL_TAGS),
        mode=options.get("mode", "push"),
        settings=options.get("settings"),
        max_workers=options.get("max_workers", 1),
        batch=options.get("batch", False),
        max_records=options.get("max_records", 32),
        batch_seconds=options.get("batch_timeout_ms", 200) / 1000,
        no_reply=options.get("no_reply", False),
        _ack_policy=options.get("ack_policy", EMPTY),
    )
    calls = CallsCollection[RawMessage]()
    described = KeroloxSubscriberSpecificationConfig(
        topics=topics,
        title_=options.get("title"),
        description_=options.get("description"),
        include_in_schema=options.get("include_in_schema", True),
    )
    specification = KeroloxSubscriberSpecification(config, described, calls)
    return KeroloxSubscriber(usecase, specification, calls)
