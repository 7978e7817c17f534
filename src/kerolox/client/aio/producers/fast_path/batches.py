"""Automatic batching: fast-path messages wait for others of their kind, an iteration of the event
loop by default.

A batch is sealed when its time is over or when it is full. A message of its topic on the slow path
seals it, too, which keeps the order. It leaves as fast-path sends do. When that fails, ``Delivery``
goes on with the tries of the whole batch in a task of its own.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, cast

from kerolox.client.aio.producers.time_limit import TimeLimit
from kerolox.client.core.sending.batching import (
    BATCH_COUNT_MAX,
    BatchKey,
    batch_message,
    shares,
)
from kerolox.codec.sending import OpenSend
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.remoting.core.request_queue import SlowPathNeededError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.fast_path.topic_paths import QueueTarget, TopicPath
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendResult
    from kerolox.codec.sending import SendBatch, SendFuture
    from kerolox.message import Message, MessageQueue
    from kerolox.remoting.client_connection import ClientConnection


class _About:
    """What is known of a batch beside its messages."""

    __slots__ = ("_seal", "deadline", "is_shared", "key", "path", "timer")

    def __init__(
        self, key: BatchKey, path: TopicPath, deadline: float, seal: Callable[[SendBatch], None]
    ) -> None:
        self.key = key
        self.path = path
        self.deadline = deadline
        self.is_shared = False
        """The codec lets messages join it."""
        self.timer: asyncio.Handle | None = None
        self._seal = seal

    def full(self, batch: SendBatch, /) -> None:
        """No further message is worth waiting for."""
        self._seal(batch)


class Batches:
    """The batches of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        delivery: Delivery,
        choose: Callable[[TopicPath, MessageQueue | None], QueueTarget | None],
        wait_for_capacity: Callable[[QueueTarget, Callable[[], bool], OpenSend, int], None],
    ) -> None:
        """Nothing waits yet.

        Args:
            settings: the producer's.
            delivery: sends on the slow path.
            choose: where a batch goes, and the connection there; None: there is none yet.
            wait_for_capacity: lets a batch wait for capacity on its connection.
        """
        self._bytes_max = min(settings.batch_bytes_max, settings.message_bytes_max)
        self._linger_seconds = settings.linger_ms / 1000
        self._timeout_ms = settings.send_timeout_ms
        self._delivery = delivery
        self._is_noted = settings.latency_fault_enable
        self._choose = choose
        self._wait_for_capacity = wait_for_capacity
        self._open: dict[BatchKey, SendBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self, path: TopicPath, message: Message, queue: MessageQueue | None, timeout_ms: int
    ) -> SendFuture | None:
        """Let a fast-path message wait for others; None: it takes the slow path."""
        if message.topic.startswith(RETRY_PREFIX):
            return None
        key = BatchKey(message.topic, queue, bool(message.wait_store_ok), timeout_ms)
        batch = self._open.get(key)
        if batch is not None and _about(batch).path is path:
            future = batch.add(message)
            if future is not None or not batch.refused:
                return future
        if batch is not None:
            self._seal(batch)
        batch = self._begin(key, path)
        future = batch.add(message)
        if future is None:
            self._seal(batch)
        return future

    def seal_all(self, topic: str | None = None) -> None:
        """Send what waits, of one topic: a message follows that goes alone; or of all."""
        for key, batch in list(self._open.items()):
            if topic is None or key.topic == topic:
                self._seal(batch)

    def _begin(self, key: BatchKey, path: TopicPath) -> SendBatch:
        loop = path.loop
        about = _About(key, path, loop.time() + key.timeout_ms / 1000, self._seal)
        bounds = (self._bytes_max, BATCH_COUNT_MAX)
        batch = path.sends.new_batch(key.wait_store_ok, key.queue is not None, *bounds, about)
        if self._linger_seconds:
            about.timer = loop.call_later(self._linger_seconds, self._seal, batch)
        else:
            about.timer = loop.call_soon(self._seal, batch)
        self._open[key] = batch
        if key.queue is None and key.timeout_ms == self._timeout_ms:
            about.is_shared = True
            path.sends.batch = batch
        return batch

    def _seal(self, batch: SendBatch) -> None:
        """No further message comes into it: send it."""
        about = _about(batch)
        key, path = about.key, about.path
        if self._open.get(key) is batch:
            del self._open[key]
        if about.is_shared and path.sends.batch is batch:
            path.sends.batch = None
        if about.timer is None:
            return
        about.timer.cancel()
        about.timer = None
        if not batch.seal():
            return
        target = self._choose(path, key.queue)
        if target is not None and key.queue is None and not self._is_noted:
            path.chooser.advance()
        if target is None or target.connection is None:
            self._run(self._deliver(batch, None))
        elif path.sends.post_batch(batch, target.index, key.timeout_ms, about.deadline):
            if self._is_noted and key.queue is None:
                self._note(batch, target)
        elif target.connection.has_capacity():  # no frame holds it
            self._run(self._deliver(batch, None))
        else:
            self._queue(batch, target, target.connection)

    def _queue(self, batch: SendBatch, target: QueueTarget, connection: ClientConnection) -> None:
        about = _about(batch)
        key, path, deadline = about.key, about.path, about.deadline
        opaque = connection.sends.new_opaque()
        ends = (about.path.loop.time(), deadline, key.timeout_ms)
        is_given = key.queue is not None
        send = OpenSend(None, self.go_on, None, batch, "", target.queue, is_given, *ends)

        def write() -> bool:
            ends = (key.timeout_ms, deadline, opaque)
            return not batch.seal() or path.sends.admit_batch(batch, target.index, *ends)

        self._wait_for_capacity(target, write, send, opaque)

    def _note(self, batch: SendBatch, target: QueueTarget) -> None:
        """How long the broker takes is of interest, if it stores the batch."""
        loop = _about(batch).path.loop
        asked_at = loop.time()

        def stored(future: asyncio.Future[object]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._delivery.note(target.queue, loop.time() - asked_at)

        cast("asyncio.Future[object]", batch.futures[0]).add_done_callback(stored)

    # -- outcomes -----------------------------------------------------------------------------
    def go_on(self, send: OpenSend) -> None:
        """A batch is not stored, or nobody knows."""
        if send.batch is not None:
            self._run(self._deliver(send.batch, send))

    def _run(self, coroutine: Coroutine[object, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, batch: SendBatch, send: OpenSend | None) -> None:
        """What follows on a first answer that is anything but that the batch is stored; or all."""
        about = _about(batch)
        delivery, key, path = self._delivery, about.key, about.path
        cluster, tries = path.cluster, None
        message_ids = batch.message_ids
        outgoing = batch_message(key, batch.body, message_ids)
        delivery.begin(len(message_ids))
        try:
            if send is not None and not isinstance(send.answer, SlowPathNeededError):
                tries = delivery.first_try(cluster, send, key.queue, outgoing.message_id)
            limit = TimeLimit(key.timeout_ms, about.deadline)
            whole = await delivery.deliver(cluster, path.plan, outgoing, key.queue, limit, tries)
            _give(batch, shares(whole, message_ids))
        except Exception as error:
            _fail(batch, error)
        except BaseException:  # the loop ends
            for future in batch.futures:
                if isinstance(future, asyncio.Future):
                    future.cancel()
            raise
        finally:
            delivery.end(len(message_ids))


def _about(batch: SendBatch) -> _About:
    return cast("_About", batch.owner)


def _give(messages: SendBatch, results: list[SendResult]) -> None:
    for future, result in zip(messages.futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def _fail(messages: SendBatch, error: Exception) -> None:
    """The error of a batch is each one's: a copy, since whoever raises it adds to its traceback."""
    for future in messages.futures:
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_exception(_copied(error))


def _copied(error: Exception) -> Exception:
    try:
        return copy.copy(error)
    except Exception:  # its class takes other arguments than it keeps
        return error
