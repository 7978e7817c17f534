"""Tasks of taskiq through a topic (``pip install 'kerolox[taskiq]'``).

::

    broker = KeroloxBroker("127.0.0.1:9876", topic="mails")

    @broker.task
    async def welcome(user: str) -> None: ...

    await welcome.kiq("ann")
    await welcome.kicker().with_labels(delay=90).kiq("bob")  # in 90 seconds

Workers share the topic message by message (POP), so there may be more of them than queues. A task
is acknowledged by itself; while somebody works on it nobody else gets it. When its worker dies it
comes again. A delay is kept by the broker's timer. Results and schedules belong to other packages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from kerolox.client import (
    ClientSettings,
    Connection,
    Producer,
    SimpleConsumer,
    SimpleConsumerSettings,
    connect,
)
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.consuming.popping import retry_seconds
from kerolox.client.core.delays import Duration, seconds_of
from kerolox.errors import ConfigError, KeroloxError, MessageRejectedError, RemotingError
from kerolox.integrations.common import (
    delayed_message,
    ensured_topic,
    further_delay,
    is_passing,
)
from kerolox.message import MessageExt

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as error:
    raise ConfigError(f"taskiq can't be imported ({error}); install kerolox[taskiq]") from error

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.popping.keeping import Keeping

__all__ = ["KeroloxBroker"]

DELAY = "delay"
"""The label of a task that says after how many seconds it is to run."""

AGAIN_SECONDS = 1.0
"""Between two tries of a request that got no answer."""

_log = logging.getLogger(__name__)


class KeroloxBroker(AsyncBroker):
    """Sends tasks to a topic, and gives them to workers, each message by itself."""

    def __init__(
        self,
        name_server: str | Iterable[str] = "",
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        prefetch: int = 8,
        invisible_ms: int = 60_000,
        task_time_max: Duration = 86_400,
        settings: ClientSettings | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            name_server: ``host:port``, several joined by ``;`` or in a list; empty:
                ``$NAMESRV_ADDR``.
            topic: of the tasks; a worker makes it when it does not exist.
            group: of the workers, and of those that send. All workers of a topic must have the
                same one.
            prefetch: most tasks that a worker gets at once, 1 to 32. With 1 none waits for another
                one of its worker.
            invisible_ms: so long after the death of a worker its tasks come again.
            task_time_max: seconds or a ``timedelta``: a task that runs for longer comes again,
                though its worker lives.
            settings: of the connection: account, TLS, namespace.

        Raises:
            ConfigError: one of them is out of range.
        """
        super().__init__()
        self.topic: str = topic
        self.group: str = group
        self._prefetch = prefetch
        self._task_seconds_max = seconds_of(task_time_max)
        self._name_server = name_server
        self._settings = settings
        self._consumer_settings = SimpleConsumerSettings(
            receive_batch_size=prefetch, invisible_ms=invisible_ms, from_first=True
        )
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._consumer: SimpleConsumer | None = None
        self._ready: deque[_Delivery] = deque()
        """What was received and nobody works on."""
        self._returning: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------------
    async def startup(self) -> None:
        """Connect; a worker joins the group.

        Raises:
            KeroloxError: no name server answers, or the topic does not exist and can't be made.
        """
        await super().startup()
        if self._connection is None:
            self._connection = await connect(self._name_server, settings=self._settings)
            self._producer = self._connection.producer(self.group)
            await self._producer.start()
        if self.is_worker_process:
            await self._joined()

    async def _joined(self) -> SimpleConsumer:
        if self._consumer is None:
            if self._connection is None:
                raise ConfigError("the broker is not started; await broker.startup() first")
            consumer = self._connection.simple_consumer(
                self.group, settings=self._consumer_settings
            )
            consumer.subscribe(self.topic)
            await consumer.start()
            await ensured_topic(consumer, self.topic)
            self._consumer = consumer
        return self._consumer

    async def shutdown(self) -> None:
        """Give back what nobody works on, and close the connection."""
        try:
            await super().shutdown()
        finally:
            while self._ready:
                self._ready.popleft().give_back(0)
            if self._returning:
                await asyncio.wait(self._returning, timeout=AGAIN_SECONDS)
            connection, self._connection = self._connection, None
            self._producer = self._consumer = None
            if connection is not None:
                await connection.close()

    # -- tasks ----------------------------------------------------------------------------------
    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; one with the label ``delay`` runs so many seconds later. Its id is the
        message's key.

        Raises:
            ConfigError: the broker is not started.
            KeroloxError: the task is not stored, or the delay is none.
        """
        if self._producer is None:
            raise ConfigError("the broker is not started; await broker.startup() first")
        seconds = _delay_of(message)
        sent, delay = delayed_message(self.topic, message.message, message.task_id, seconds)
        await self._producer.send(sent, deliver_after=delay or None)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks for this worker, each until it is acknowledged. One that no function is known for
        comes again later, to any worker, and at the group's maximum becomes a dead letter."""
        consumer = await self._joined()
        while True:
            while self._ready:
                delivery = self._ready.popleft()
                if await self._is_sent_on(delivery):
                    continue
                if reason := self._fault(delivery.message):
                    _log.warning("task %s comes again later: %s", delivery.message.keys, reason)
                    delivery.give_back()
                else:
                    yield AckableMessage(data=delivery.message.body, ack=delivery.ack)
            try:
                messages = await consumer.receive()
            except KeroloxError as error:
                if not is_passing(error):
                    raise
                _log.warning("no tasks from %s, trying again: %s", self.topic, error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            for message in messages:
                keeping = consumer.keep(message, up_to=self._task_seconds_max)
                self._ready.append(_Delivery(consumer, message, keeping, self._returning))

    async def _is_sent_on(self, delivery: _Delivery) -> bool:
        """Whether the delay of a task goes on."""
        later = further_delay(delivery.message)
        if later is None or self._producer is None:
            return False
        sent, seconds = later
        try:
            await self._producer.send(sent, deliver_after=seconds)
            await delivery.ack()
        except KeroloxError as error:
            _log.warning("the delay of a task goes on a little later: %s", error)
            delivery.give_back()
        return True

    def _fault(self, message: MessageExt) -> str:
        """Why this worker can't run a task; taskiq would forget it without a word to the broker."""
        try:
            name = self.formatter.loads(message.body).task_name
        except Exception as error:
            return f"it can't be read: {error}"
        return "" if self.find_task(name) else f"this worker does not know {name}"


def _delay_of(message: BrokerMessage) -> float:
    given = message.labels.get(DELAY, 0)
    try:
        return seconds_of(float(given))
    except (TypeError, ValueError, ConfigError):
        raise MessageRejectedError(
            f"label {DELAY} of task {message.task_name} is {given!r}; it must be seconds, not"
            " negative"
        ) from None


class _Delivery:
    """A task that a worker has: kept until it is acknowledged, or nothing refers to it any more.

    taskiq says nothing of a message that it gives up: when a middleware raises, or a task that is
    to acknowledge itself ends without doing so.
    """

    __slots__ = ("_consumer", "_is_settled", "_keeping", "_loop", "_returning", "message")

    def __init__(
        self,
        consumer: SimpleConsumer,
        message: MessageExt,
        keeping: Keeping,
        returning: set[asyncio.Task[None]],
    ) -> None:
        self.message = message
        self._consumer = consumer
        self._keeping = keeping
        self._returning = returning
        self._loop = asyncio.get_running_loop()
        self._is_settled = False

    async def ack(self) -> None:
        """The task is done. Tried again while no broker answers, and nobody else can have it."""
        self._is_settled = True
        until = self._loop.time() + self._consumer.settings.invisible_ms / 1000
        while True:
            try:
                await self._consumer.ack(self.message)
            except RemotingError:
                if self._loop.time() + AGAIN_SECONDS > until:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    def give_back(self, seconds: float | None = None) -> None:
        """The task comes again then; None: later with each try."""
        self._is_settled = True
        if seconds is None:
            seconds = retry_seconds(self.message.reconsume_times, Outcome.nack(), 0)
        task = self._loop.create_task(self._given_back(seconds))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _given_back(self, seconds: float) -> None:
        self._keeping.stop()
        try:
            await self._consumer.nack(self.message, after=seconds)
        except KeroloxError as error:
            _log.info("a task comes again as soon as its time is over: %s", error)

    def __del__(self) -> None:
        if not self._is_settled and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.give_back)
