"""Automatic batching: plain messages wait for others of their kind, a turn of the loop by default.

A batch is sealed when its time is over, when it is full, or when a message of its topic takes the
general way, so that order is kept. It is sent as plain sends are; when that fails, ``Delivery``
goes on with the tries of the whole batch in a task of its own.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.producers.time_limit import TimeLimit
from kerolox.client.core.sending.batching import Batch, BatchKey, shares
from kerolox.client.core.sending.send import SendResult, SendStatus
from kerolox.errors import KeroloxError, RequestTimeoutError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.remoting.client_connection import NotPlainError

if TYPE_CHECKING:
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plain.lanes import Lane, Target
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.codec.sending import SendAnswer
    from kerolox.message import Message, MessageQueue
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client_connection import Answer, ClientConnection


class _OpenBatch(Batch):
    """A batch and those who wait for it."""

    __slots__ = ("deadline", "futures", "lane", "timer")

    def __init__(self, key: BatchKey, bytes_max: int, lane: Lane, deadline: float) -> None:
        super().__init__(key, bytes_max)
        self.lane = lane
        self.deadline = deadline
        self.futures: list[asyncio.Future[SendResult]] = []
        self.timer: asyncio.Handle | None = None

    def without_cancelled(self) -> None:
        """Leave out the messages whose senders went away."""
        futures = self.futures
        if any(future.cancelled() for future in futures):
            kept = [index for index, future in enumerate(futures) if not future.cancelled()]
            self.items = [self.items[index] for index in kept]
            self.message_ids = [self.message_ids[index] for index in kept]
            self.futures = [futures[index] for index in kept]


class Batches:
    """The batches of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        delivery: Delivery,
        next_id: Callable[[int], str],
        choose: Callable[[Lane, MessageQueue | None], Target | None],
        check_loop: Callable[[], object],
    ) -> None:
        """Nothing waits yet.

        Args:
            settings: the producer's.
            delivery: sends in the general way.
            next_id: makes the messages' ids.
            choose: where a batch goes, and the connection there; None: there is none yet.
            check_loop: raises when this is not the producer's loop.
        """
        self._check_loop = check_loop
        self._bytes_max = min(settings.batch_bytes_max, settings.message_bytes_max)
        self._linger_seconds = settings.linger_ms / 1000
        self._delivery = delivery
        self._next_id = next_id
        self._choose = choose
        self._open: dict[BatchKey, _OpenBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self, lane: Lane, message: Message, queue: MessageQueue | None, timeout_ms: int
    ) -> asyncio.Future[SendResult] | None:
        """Let a plain message wait for others; None: it takes the general way."""
        if message.topic.startswith(RETRY_PREFIX):
            return None
        now_ms, keys, wait = clock.now_ms(), message.keys, message.wait_store_ok
        message_id = self._next_id(now_ms)
        item = lane.item(
            message_id,
            message.body,
            keys if isinstance(keys, str) else " ".join(keys),
            message.tags,
            wait,
            message.flag,
            message.properties,
        )
        if item is None:
            return None
        key = BatchKey(message.topic, queue, wait, timeout_ms)
        batch = self._open.get(key)
        if batch is not None and (not batch.has_room(item) or batch.lane is not lane):
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._begin(key, lane)
        batch.add(item, message_id)
        future: asyncio.Future[SendResult] = lane.loop.create_future()
        batch.futures.append(future)
        if batch.is_full:
            self._seal(batch)
        return future

    def seal_all(self, topic: str | None = None) -> None:
        """Send what waits, of one topic: a message follows that goes alone; or of all."""
        for batch in list(self._open.values()):
            if topic is None or batch.key.topic == topic:
                self._seal(batch)

    def _begin(self, key: BatchKey, lane: Lane) -> _OpenBatch:
        self._check_loop()
        loop = lane.loop
        deadline = loop.time() + key.timeout_ms / 1000
        batch = self._open[key] = _OpenBatch(key, self._bytes_max, lane, deadline)
        if self._linger_seconds:
            batch.timer = loop.call_later(self._linger_seconds, self._seal, batch)
        else:
            batch.timer = loop.call_soon(self._seal, batch)
        return batch

    def _seal(self, batch: _OpenBatch) -> None:
        """No further message comes into it: send it."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
        if batch.timer is not None:
            batch.timer.cancel()
        batch.without_cancelled()
        if not batch.items:
            return
        target = self._choose(batch.lane, batch.key.queue)
        connection = None if target is None else target.connection
        future = None
        if target is not None and connection is not None:
            future = self._post(batch, target, connection)
        if target is None or connection is None or future is None:
            self._run(self._deliver(batch, None, None))
            return
        now = batch.lane.loop.time()
        future.add_done_callback(partial(self._settled, batch, target, connection, now))

    def _post(
        self, batch: _OpenBatch, target: Target, connection: ClientConnection
    ) -> asyncio.Future[Answer] | None:
        lane, key = batch.lane, batch.key
        what = f"request {RequestCode.SEND_BATCH_MESSAGE} to {target.address}"
        opaque = lane.cluster.remoting.opaque_for(connection)
        make, now_ms, queue_id = lane.batch, clock.now_ms(), target.queue_id
        if not connection.has_room():
            return connection.post_later(
                lambda opaque: make(queue_id, opaque, now_ms, key.wait_store_ok, batch.items),
                opaque,
                batch.deadline,
                what,
            )
        frame = make(queue_id, opaque, now_ms, key.wait_store_ok, batch.items)
        if frame is None:
            return None
        return connection.post(frame, opaque, batch.deadline, what)

    # -- outcomes -----------------------------------------------------------------------------
    def _settled(
        self,
        batch: _OpenBatch,
        target: Target,
        connection: ClientConnection,
        asked_at: float,
        future: asyncio.Future[Answer],
    ) -> None:
        answer: Answer | KeroloxError
        try:
            answer = future.result()
        except KeroloxError as error:
            answer = error
        if isinstance(answer, tuple):
            self._stored(batch, target, asked_at, answer)
            return
        if isinstance(answer, RequestTimeoutError):
            connection.timed_out(asked_at)
        self._run(self._deliver(batch, target, answer))

    def _stored(
        self, batch: _OpenBatch, target: Target, asked_at: float, answer: SendAnswer
    ) -> None:
        _, queue_id, offset, offset_ids, region, is_traced = answer
        queue = target.queue
        if queue_id != target.queue_id:
            queue = queue._replace(queue_id=queue_id)
        if batch.key.queue is None:
            self._delivery.note(queue, batch.lane.loop.time() - asked_at)
        whole = SendResult(SendStatus.SEND_OK, "", offset_ids, queue, offset, region, is_traced)
        try:
            _give(batch, shares(whole, batch.message_ids))
        except KeroloxError as error:
            _fail(batch, error)

    def _run(self, coroutine: Coroutine[object, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(
        self,
        batch: _OpenBatch,
        target: Target | None,
        answer: RemotingCommand | KeroloxError | None,
    ) -> None:
        """What follows on a first answer that is anything but that the batch is stored; or all."""
        delivery, key, lane = self._delivery, batch.key, batch.lane
        outgoing, cluster, tries = batch.outgoing(), lane.cluster, None
        try:
            if target is not None and answer is not None and not isinstance(answer, NotPlainError):
                tries = delivery.first_try(
                    cluster, key.queue, target.queue, outgoing.message_id, answer
                )
            limit = TimeLimit(key.timeout_ms, batch.deadline)
            whole = await delivery.deliver(cluster, lane.plan, outgoing, key.queue, limit, tries)
            _give(batch, shares(whole, batch.message_ids))
        except Exception as error:
            _fail(batch, error)
        except BaseException:  # the loop ends
            for future in batch.futures:
                future.cancel()
            raise


def _give(batch: _OpenBatch, results: list[SendResult]) -> None:
    for future, result in zip(batch.futures, results, strict=True):
        if not future.done():
            future.set_result(result)


def _fail(batch: _OpenBatch, error: Exception) -> None:
    """The error of a batch is each one's: a copy, since whoever raises it adds to its traceback."""
    for future in batch.futures:
        if not future.done():
            future.set_exception(_copied(error))


def _copied(error: Exception) -> Exception:
    try:
        return copy.copy(error)
    except Exception:  # its class takes other arguments than it keeps
        return error
