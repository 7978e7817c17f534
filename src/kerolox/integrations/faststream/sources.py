"""Where a subscriber's messages come from, and who hears what became of them: our consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kerolox.client.aio.consumer_settings import PushConsumerSettings, SimpleConsumerSettings
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.consuming.popping import retry_seconds
from kerolox.errors import ConfigError
from kerolox.integrations.faststream.message import Settler

if TYPE_CHECKING:
    from kerolox.client.aio.connection import Connection
    from kerolox.client.aio.consumers.push_consumer import PushConsumer
    from kerolox.client.aio.consumers.simple_consumer import SimpleConsumer
    from kerolox.client.core.delays import Duration
    from kerolox.integrations.faststream.options import Mode
    from kerolox.message import MessageExt

Settings = PushConsumerSettings | SimpleConsumerSettings

WORK_SECONDS_MAX = 15 * 60
"""A popped message is kept from others so long while nobody settles it, as a pulled one is
(``consume_timeout_minutes``)."""


GATHER_SECONDS = 0.01
"""A broker gets acknowledgements of so long in one request."""

BY_PACE = SimpleConsumerSettings(receive_ahead=None)
"""Of mode ``queue``, where a subscriber has none: quick handlers get many messages at once."""

_log = logging.getLogger(__name__)


class Source(Settler, Protocol):
    """Messages of one subscriber."""

    def start(self) -> Awaitable[None]:
        """Begin to receive."""

    def next(self) -> Awaitable[MessageExt]:
        """The next message; StopAsyncIteration: it is closed. A call may be cancelled."""

    def close(self) -> Awaitable[None]:
        """Receive no more. What is not settled comes again."""


class PushSource:
    """By a push consumer: members share queues."""

    def __init__(self, consumer: PushConsumer) -> None:
        """Takes what has its subscriptions, and is not started."""
        self._consumer = consumer
        self.start: Callable[[], Awaitable[None]] = consumer.start
        self.next: Callable[[], Awaitable[MessageExt]] = consumer.__anext__
        self.close: Callable[[], Awaitable[None]] = consumer.close

    async def ack(self, messages: Sequence[MessageExt], *, waits: bool = True) -> None:
        """They are done: the offset, which the consumer commits now and then, goes past them."""
        await self._consumer.ack(messages)

    async def nack(self, messages: Sequence[MessageExt], delay: Duration | None) -> None:
        """They come again: those of an ordered queue after a second, others after a delay level."""
        for message in messages:
            await self._consumer.nack(message, delay=delay)

    async def reject(self, messages: Sequence[MessageExt], reason: str) -> None:
        """They go to the dead letters."""
        for message in messages:
            await self._consumer.dead_letter(message, reason)


class QueueSource:
    """By a simple consumer: each message is popped and acknowledged by itself."""

    def __init__(self, consumer: SimpleConsumer, gather_seconds: float) -> None:
        """Takes what has its subscriptions, and is not started. Acknowledgements of so many seconds
        leave together; 0: of an iteration of the event loop."""
        self._consumer = consumer
        self._done: list[MessageExt] | None = []
        """What is to be acknowledged; None: it is closed."""
        self._gather_seconds = gather_seconds
        self.start: Callable[[], Awaitable[None]] = consumer.start

    async def close(self) -> None:
        """Acknowledge what is done, and receive no more."""
        self._submit()
        self._done = None
        await self._consumer.close()

    async def next(self) -> MessageExt:
        """The next message, kept from others until it is settled."""
        message = await self._consumer.__anext__()
        self._consumer.keep(message, up_to=WORK_SECONDS_MAX)
        return message

    async def ack(self, messages: Sequence[MessageExt], *, waits: bool = True) -> None:
        """They are done. The broker hears so with others of the same time, or, where somebody
        ``waits``, of the same iteration of the event loop, which the consumer gathers; if not, they
        come again, and who waits gets the error."""
        if waits or self._done is None:
            await self._consumer.ack(messages)
            return
        if not self._done:
            asyncio.get_running_loop().call_later(self._gather_seconds, self._submit)
        self._done += messages

    def _submit(self) -> None:
        if self._done:
            done, self._done = self._done, []
            self._consumer.submit_ack(done).add_done_callback(_note_lost_ack)

    async def nack(self, messages: Sequence[MessageExt], delay: Duration | None) -> None:
        """They come again, after the delays of a push consumer that pops."""
        for message in messages:
            after = retry_seconds(message.reconsume_times, Outcome.nack(), 0)
            await self._consumer.nack(message, after=after if delay is None else delay)

    async def reject(self, messages: Sequence[MessageExt], reason: str) -> None:
        """They go to the dead letters."""
        for message in messages:
            await self._consumer.dead_letter(message, reason)


def _note_lost_ack(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("messages that are done come again: no acknowledgement: %s", error)


def check_settings(mode: Mode, settings: Settings | None) -> None:
    """Refuse settings of the wrong kind by a ConfigError."""
    if mode not in ("push", "ordered", "queue"):
        raise ConfigError(f"mode is {mode!r}; it must be push, ordered or queue")
    kind = SimpleConsumerSettings if mode == "queue" else PushConsumerSettings
    if settings is not None and not isinstance(settings, kind):
        raise ConfigError(f"settings of mode {mode!r} must be {kind.__name__}")


def open_source(
    connection: Connection,
    group: str,
    topics: Sequence[str],
    expression: str,
    *,
    mode: Mode,
    settings: Settings | None,
    is_acked_behind: bool,
) -> Source:
    """What reads topics for a group, not started yet. ``is_acked_behind``: behind the handlers.

    Raises:
        ConfigError: group, expression or settings are wrong.
        ClientError: the connection has a consumer of this group.
    """
    if mode == "queue":
        assert not isinstance(settings, PushConsumerSettings)
        simple = connection.simple_consumer(group, settings=settings or BY_PACE)
        for topic in topics:
            simple.subscribe(topic, expression)
        # Who limits what is on hand wants each place free as soon as it can be.
        gathers = is_acked_behind and settings is None
        return QueueSource(simple, GATHER_SECONDS if gathers else 0.0)
    assert not isinstance(settings, SimpleConsumerSettings)
    push = connection.push_consumer(group, settings=settings)
    for topic in topics:
        push.subscribe(topic, expression, ordered=mode == "ordered")
    return PushSource(push)


async def next_batch(source: Source, most: int, seconds: float) -> tuple[MessageExt, ...]:
    """The next message, and those that come within some seconds behind it, up to ``most``."""
    messages = [await source.next()]
    try:
        async with asyncio.timeout(seconds):
            while len(messages) < most:
                messages.append(await source.next())
    except (TimeoutError, StopAsyncIteration):
        pass
    return tuple(messages)
