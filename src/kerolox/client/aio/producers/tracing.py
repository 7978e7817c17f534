"""Sends message traces in the background (``AsyncTraceDispatcher``).

Records are packed into messages of up to 128,000 bytes, none waiting longer than half a second; a
producer of its own sends those. Nothing here ever makes the client wait: when brokers take traces
more slowly than they come, what exceeds the bounds is dropped and counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from kerolox import clock
from kerolox.client.aio.settings import ClientSettings, ProducerSettings
from kerolox.client.core.failures import note_failure, notify_failure
from kerolox.client.core.tracing.trace import TRACE_MESSAGE_BYTES_MAX, TraceBatch, TraceSegment
from kerolox.client.core.tracing.trace_hook import TraceHook
from kerolox.errors import KeroloxError
from kerolox.message import Message
from kerolox.protocol.names import GROUP_CHARACTERS_MAX, TRACE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.core.failures import FailureCallback
    from kerolox.client.core.sending.unique_id import UniqueIdFactory
    from kerolox.client.core.tracing.trace import TraceRecord

TRACE_BATCHES_MAX = 64
"""Full trace messages that wait to be sent (8 MB in all); more are dropped."""

TRACE_SENDS_MAX = 20
"""Trace messages on their way at the same time."""

TRACE_SEND_TIMEOUT_MS = 5_000
FLUSH_SECONDS_MAX = 1.0
"""How long a client that closes waits for its last traces to be sent."""

OVERFLOWS_PER_WARNING = 100

GROUP_PREFIX = "_INNER_TRACE_PRODUCER"

_numbers = itertools.count(1)
_log = logging.getLogger(__name__)
_Sender = TypeVar("_Sender")


def trace_group(group: str, kind: str) -> str:
    """The producer group of a client's traces; ``kind`` is PRODUCE or CONSUME."""
    number = next(_numbers)
    room = GROUP_CHARACTERS_MAX - len(f"{GROUP_PREFIX}--{kind}-{number}")
    return f"{GROUP_PREFIX}-{group[:room]}-{kind}-{number}"


def trace_settings(settings: ClientSettings) -> ProducerSettings:
    """The settings of the producer that sends the traces of a client with these."""
    return ProducerSettings(
        client_ip=settings.client_ip,
        unit_name=settings.unit_name,
        name_server_domain=settings.name_server_domain,
        name_server_subgroup=settings.name_server_subgroup,
        rpc_hook=settings.rpc_hook,
        on_failure=settings.on_failure,
        credentials=settings.credentials,
        tls=settings.tls,
        serialize_type=settings.serialize_type,
        api_timeout_ms=settings.api_timeout_ms,
        send_timeout_ms=TRACE_SEND_TIMEOUT_MS,
        message_bytes_max=TRACE_MESSAGE_BYTES_MAX,
    )


def trace_producer(
    make: Callable[..., _Sender], group: str, kind: str, name_servers: str, settings: ClientSettings
) -> _Sender:
    """The producer that sends the traces of a client.

    Args:
        make: the class of producers.
        group: the client's group.
        kind: PRODUCE or CONSUME.
        name_servers: as the client's.
        settings: the client's.
    """
    return make(trace_group(group, kind), name_servers, settings=trace_settings(settings))


class TraceSender(Protocol):
    """A producer, as far as it sends traces."""

    async def start(self) -> None:
        """Start to work."""

    async def close(self) -> None:
        """End."""

    async def send(self, message: Message) -> object:
        """Send one message; raises a :class:`~kerolox.errors.KeroloxError`."""


class TraceDispatcher:
    """Takes trace records and has them sent."""

    def __init__(
        self,
        make_producer: Callable[[], TraceSender],
        topic: str = TRACE_TOPIC,
        on_failure: FailureCallback | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            make_producer: makes the producer that sends traces; it must not trace itself.
            topic: where they go.
            on_failure: told of traces that are not sent.
        """
        self._on_failure = on_failure
        self._make_producer = make_producer
        self._topic = topic
        self._producer: TraceSender | None = None
        self._segment = TraceSegment()
        self._ready: deque[TraceBatch] = deque()
        self._wanted = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._is_failing = False
        self._overflows = 0
        self.dropped = 0
        """Records that were not sent since the start."""

    def hook(self, ids: UniqueIdFactory) -> TraceHook:
        """What makes the records and gives them to this dispatcher."""
        return TraceHook(
            self.append,
            now_ms=clock.now_ms,
            next_id=lambda: ids.next(clock.now_ms()),
            trace_topic=self._topic,
        )

    def append(self, trace: TraceRecord) -> None:
        """Take a record. It is packed at once, so a few messages wait, not many records. When too
        many of those wait, all that the new one would hold is dropped."""
        if self._task is None:
            self.dropped += 1
            return
        if not self._segment:
            self._wanted.set()
        batch = self._segment.add(trace, clock.steady_ms())
        if batch is not None:
            self._enqueue(batch)

    def _enqueue(self, batch: TraceBatch) -> None:
        if len(self._ready) >= TRACE_BATCHES_MAX:
            self.dropped += batch.records
            if self._overflows % OVERFLOWS_PER_WARNING == 0:
                _log.warning(
                    "%d trace messages wait; %d traces are dropped so far",
                    len(self._ready),
                    self.dropped,
                )
            self._overflows += 1
            return
        self._ready.append(batch)
        self._wanted.set()

    async def start(self) -> None:
        """Start to send. A producer that can't start is logged: traces are then dropped."""
        self._closing = False
        try:
            producer = self._make_producer()
            await producer.start()
        except KeroloxError as error:
            note_failure(self._on_failure, _log, "traces are not sent", error)
            return
        self._producer = producer
        self._task = asyncio.ensure_future(self._run(producer))

    async def close(self) -> None:
        """Send what waits, for a bounded time, then stop. Idempotent."""
        task, producer = self._task, self._producer
        if task is None or producer is None or self._closing:
            return
        self._closing = True
        self._wanted.set()
        try:
            await asyncio.wait([task], timeout=FLUSH_SECONDS_MAX)
            if not task.done():
                _log.warning("the last traces were not sent within %.1f s", FLUSH_SECONDS_MAX)
        finally:
            self._task = self._producer = None
            for each in (task, *self._sending):
                each.cancel()
            # A task: it ends though this close is cut short.
            closing = asyncio.ensure_future(producer.close())
        await closing

    async def _run(self, producer: TraceSender) -> None:
        while True:
            if self._segment and (self._closing or self._segment.due_ms <= clock.steady_ms()):
                batch = self._segment.drain()
                if batch is not None:
                    self._enqueue(batch)
            while self._ready:
                while len(self._sending) >= TRACE_SENDS_MAX:
                    await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                sending = asyncio.ensure_future(self._send(producer, self._ready.popleft()))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)
            if self._closing and not self._segment:
                if self._sending:
                    await asyncio.wait(self._sending)
                return
            self._wanted.clear()
            seconds = (self._segment.due_ms - clock.steady_ms()) / 1000 if self._segment else None
            try:
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _send(self, producer: TraceSender, batch: TraceBatch) -> None:
        try:
            await producer.send(Message(self._topic, batch.body, keys=batch.keys))
        except KeroloxError as error:
            # The first of a row is worth a warning; a broker that takes none gives two a second.
            level = logging.DEBUG if self._is_failing else logging.WARNING
            self._is_failing = True
            self.dropped += batch.records
            what = f"{batch.records} traces are not sent"
            _log.log(level, "%s: %s", what, error)
            if level == logging.WARNING:
                notify_failure(self._on_failure, what, error)
        else:
            self._is_failing = False
