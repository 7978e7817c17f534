"""Fast-path sends: a future each, no task, no coroutine but the caller's own.

A send is for the fast path when its topic has a plan, its broker has a connection, and it needs
nothing but encoding. So no hook sees it, no namespace is added, and it is neither delayed nor
compressed. The codec begins it in one call and completes its future (``codec/sending.py``).
Whatever else happens is for ``Delivery`` (``delivery.py``), which goes on with the tries.

Automatic batching: fast-path messages wait for others of their kind, an iteration of the event
loop by default. A batch is sealed when its time is over, when it is full, or when a message of its
topic takes the slow path, so that order is kept. It is sent as other fast-path sends are; when that
fails, ``Delivery`` goes on with the tries of the whole batch in a task of its own.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from kerolox import clock
from kerolox.client.aio.producers.plans import TimeLimit
from kerolox.client.core.sending.send import (
    BATCH_COUNT_MAX,
    BatchKey,
    SendResult,
    SendStatus,
    batch_message,
    shares,
)
from kerolox.codec.sending import NO_OPAQUE, OpenSend, SendFuture
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.remoting.client_connection import ONEWAY_PER_ITERATION_MAX
from kerolox.remoting.core.client_requests import SlowPathNeededError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.producers.delivery import Delivery
    from kerolox.client.aio.producers.plans import Plan, Plans
    from kerolox.client.aio.settings import ProducerSettings
    from kerolox.client.core.sending.send import SendHeader
    from kerolox.client.core.sending.unique_id import UniqueIdFactory
    from kerolox.codec.sending import SendBatch, SendCodec, Sender, TopicSender
    from kerolox.message import MessageQueue
    from kerolox.remoting.client_connection import ClientConnection


@dataclass(slots=True, eq=False)
class _About:
    """What is known of a batch beside its messages."""

    key: BatchKey
    path: TopicPath
    deadline: float
    seal: Callable[[SendBatch], None]
    is_shared: bool = False
    """The codec lets messages join it."""
    timer: asyncio.Handle | None = None

    def full(self, batch: SendBatch, /) -> None:
        """No further message is worth waiting for."""
        self.seal(batch)


class Batches:
    """The batches of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        delivery: Delivery,
        choose: Callable[[TopicPath, MessageQueue | None], QueueTarget | None],
        wait_for_capacity: Callable[[QueueTarget, Callable[[], bool], OpenSend, int], None],
    ) -> None:
        """Nothing waits yet. ``delivery``: sends on the slow path. ``choose``: where a batch goes,
        and the connection there; None: there is none yet. ``wait_for_capacity`` lets a batch wait
        for it on its connection.
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


TOPICS_MAX = 10_000
"""Topics whose encoder is kept; sends to others take the slow path."""

_CREATE_FUTURE = asyncio.BaseEventLoop.create_future


@dataclass(slots=True, eq=False)
class QueueTarget:
    """A queue, and the connection to its broker."""

    index: int
    queue: MessageQueue
    address: str
    connection: ClientConnection | None = None


class TopicPath:
    """The way of the fast-path sends of one topic, made anew with its plan."""

    __slots__ = ("by_queue", "chooser", "cluster", "loop", "plan", "sends", "targets")

    def __init__(self, cluster: Cluster, plan: Plan, sends: TopicSender) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.plan = plan
        self.chooser = plan.chooser
        self.sends = sends
        """The codec's part."""
        self.targets = [
            QueueTarget(index, queue, cluster.master_address(queue.broker_name) or "")
            for index, queue in enumerate(plan.chooser.queues)
        ]
        self.by_queue = {target.queue: target for target in self.targets}

    def connect(self, target: QueueTarget) -> bool:
        """Find the connection to a queue's broker; False: there is none."""
        connection = target.connection
        if connection is None or connection.closed:
            connection = self.cluster.remoting.fast_connection(target.address)
            target.connection = connection
            self.sends.aim(target.index, None if connection is None else connection.sends)
        return connection is not None


class TopicPaths:
    """The ways of one producer's fast-path sends."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        plans: Plans,
        delivery: Delivery,
        codec: SendCodec,
        sender: Sender,
        check_loop: Callable[[], object],
    ) -> None:
        """None is known yet; arguments as those of ``FastSends``."""
        self._check_loop = check_loop
        self._header = header
        self._plan_of = plans.get
        self._delivery = delivery
        self._codec = codec
        self._sender = sender
        self._avoids = settings.latency_fault_enable
        self._paths: dict[str, TopicPath] = {}
        self.hot: dict[str, TopicSender] = {}
        """Those whose sends need nothing but the codec to begin, by topic."""
        self.cluster: Cluster
        """That of the paths."""
        plans.on_change = self.drop

    def of(self, cluster: Cluster, topic: str) -> TopicPath | None:
        """The way of a topic's fast-path messages, if there is one."""
        path = self._paths.get(topic)
        if path is None or path.plan is not self._plan_of(topic) or path.cluster is not cluster:
            path = self._make(cluster, topic)
        return path

    def choose(self, path: TopicPath, queue: MessageQueue | None) -> QueueTarget | None:
        """The given queue, or the next one, with a connection; None: the slow path chooses. The
        next one is for whoever lets the chooser advance, unless brokers are avoided."""
        if queue is not None or self._avoids:
            target = path.by_queue.get(queue or self._delivery.choose(path.plan, ()))
        else:
            target = path.targets[path.chooser.upcoming]
        return target if target is not None and path.connect(target) else None

    def drop(self, topic: str) -> None:
        """The plan of a topic has changed."""
        self.hot.pop(topic, None)

    def close(self) -> None:
        """None is of use any more."""
        self.hot.clear()
        self._paths.clear()

    def _make(self, cluster: Cluster, topic: str) -> TopicPath | None:
        self.drop(topic)
        plan = self._plan_of(topic)
        if plan is None or (topic not in self._paths and len(self._paths) >= TOPICS_MAX):
            self._paths.pop(topic, None)
            return None
        self._check_loop()  # its sends' futures are of this one
        self.cluster = cluster
        header = self._header
        sends = self._codec.TopicSender(
            self._sender,
            future_maker(asyncio.get_running_loop()),
            plan.chooser,
            plan.chooser.queues,
            header.group,
            topic,
            header.create_topic_key,
            header.default_topic_queue_nums,
            header.unit_mode,
        )
        path = self._paths[topic] = TopicPath(cluster, plan, sends)
        if not self._avoids:
            self.hot[topic] = sends
        return path


def future_maker(loop: asyncio.AbstractEventLoop) -> Callable[[], SendFuture]:
    """What makes a loop's futures: where they are asyncio's own, without a frame in between.

    A codec may take such a ``partial`` apart.
    """
    uvloop = sys.modules.get("uvloop")
    is_known = uvloop is not None and type(loop) is uvloop.Loop
    if is_known or getattr(type(loop), "create_future", None) is _CREATE_FUTURE:
        return partial(asyncio.Future, loop=loop)
    return loop.create_future


class StartedSend(NamedTuple):
    """A send on its way."""

    future: SendFuture
    withdraw: Callable[[int], None]
    opaque: int
    """Whoever waits for the future calls ``withdraw`` with this when it gives up."""
    target: QueueTarget | None


class FastSends:
    """Begins the fast-path sends of one producer."""

    def __init__(
        self,
        header: SendHeader,
        settings: ProducerSettings,
        ids: UniqueIdFactory,
        codec: SendCodec,
        plans: Plans,
        delivery: Delivery,
        check_loop: Callable[[], object],
        go_on: Callable[[OpenSend], object],
    ) -> None:
        """Nothing is sent yet.

        Args:
            header: what is the same in all sends.
            settings: the producer's.
            ids: makes the messages' ids; those of the codec.
            codec: makes and reads frames.
            plans: where messages go.
            delivery: chooses among queues, and sends on the slow path.
            check_loop: raises when this is not the producer's loop. It is called once an iteration:
                the running loop is found by a system call on Python 3.11.
            go_on: called with submitted sends that are not stored.
        """
        self._timeout_ms = settings.send_timeout_ms
        self._is_batching = settings.batching
        self._avoids = settings.latency_fault_enable
        self._body_bytes_max = max(
            min(settings.message_bytes_max, settings.compress_bytes_min - 1), 0
        )
        self._delivery = delivery
        self._submitted = go_on
        self._sender = codec.Sender(
            ids.ids,
            _now_ms,
            check_loop,
            self._go_on,
            Message,
            SendResult,
            SendStatus.SEND_OK,
            self._body_bytes_max,
            settings.send_timeout_ms,
            settings.batching,
        )
        self._paths = TopicPaths(header, settings, plans, delivery, codec, self._sender, check_loop)
        self._batches = Batches(settings, delivery, self._paths.choose, self._wait_for_capacity)
        self.hot = self._paths.hot
        """What begins the sends of each topic, where nothing stands against it."""

    @property
    def cluster(self) -> Cluster:
        """That of the sends that have begun."""
        return self._paths.cluster

    @property
    def open_count(self) -> int:
        """Messages on their way."""
        return self._sender.open_count

    def begin(
        self,
        cluster: Cluster,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        *,
        is_submitted: bool = False,
    ) -> StartedSend | None:
        """Write a message, or let it wait for capacity or for others; None: it is not for the fast
        path."""
        path = self._paths.of(cluster, message.topic)
        body = message.body
        if (
            type(message) is not Message
            or type(body) is not bytes
            or not 0 < len(body) <= self._body_bytes_max
            or message.delay_level
        ):
            path = None  # the codec would decline it, but maybe only when there is capacity
        ms = self._timeout_ms if timeout_ms is None else timeout_ms
        if self._is_batching:
            future = None
            if path is not None and ms > 0:
                future = self._batches.add(path, message, queue, ms)
            if path is not None and future is not None:
                return StartedSend(future, path.sends.withdraw, NO_OPAQUE, None)
            self._batches.seal_all(message.topic)
            return None
        target = None if path is None or ms <= 0 else self._paths.choose(path, queue)
        if path is None or target is None or (connection := target.connection) is None:
            return None
        if not connection.has_capacity():
            is_given = queue is not None
            if not is_given and not self._avoids:
                path.chooser.advance()
            return self._queued(
                path, target, message, ms, is_given=is_given, is_submitted=is_submitted
            )
        if self._avoids:
            queue = target.queue
        start = path.sends.submit if is_submitted else path.sends.begin
        started = start(message, queue, ms)
        if started is None:
            return None
        future, opaque = started
        return StartedSend(future, path.sends.withdraw, opaque, target)

    async def write_oneway(
        self, cluster: Cluster, message: Message, queue: MessageQueue | None
    ) -> bool:
        """Write a message that nobody answers; False: it is not for the fast path, or there is no
        capacity.

        The event loop runs after ``ONEWAY_PER_ITERATION_MAX`` of them.
        """
        hot = self.hot.get(message.topic)
        frames = 0 if hot is None else hot.write_oneway(message, queue)
        path = None if frames else self._paths.of(cluster, message.topic)
        if path is not None and not self._is_batching:
            target = self._paths.choose(path, queue)
            if target is not None:
                frames = path.sends.write_oneway(message, target.queue if self._avoids else queue)
        if frames >= ONEWAY_PER_ITERATION_MAX:
            await asyncio.sleep(0)
        return frames > 0

    def waiting(self, cluster: Cluster) -> list[SendFuture]:
        """The futures of those that are on their way."""
        return cluster.remoting.sends_of(self._sender)

    def seal(self) -> None:
        """Send what waits for others: there will be none."""
        self._paths.close()
        self._batches.seal_all()

    # -- those that wait for capacity --------------------------------------------------------------
    def _queued(
        self,
        path: TopicPath,
        target: QueueTarget,
        message: Message,
        ms: int,
        *,
        is_given: bool,
        is_submitted: bool,
    ) -> StartedSend:
        connection = cast("ClientConnection", target.connection)
        now = path.loop.time()
        future: asyncio.Future[object] = path.loop.create_future()
        send = OpenSend(
            cast("SendFuture", future),
            self._go_on if is_submitted else None,
            message if is_submitted else None,
            None,
            "",
            target.queue,
            is_given,
            now,
            now + ms / 1000,
            ms,
        )
        opaque = connection.sends.new_opaque()
        write = partial(path.sends.admit, message, target.index, opaque, send)
        self._wait_for_capacity(target, write, send, opaque)

        def withdraw(opaque: int) -> None:
            path.sends.withdraw(opaque)
            connection.withdraw(opaque)

        if is_submitted:
            future.add_done_callback(lambda _: connection.withdraw(opaque))
        return StartedSend(cast("SendFuture", future), withdraw, opaque, target)

    def _wait_for_capacity(
        self, target: QueueTarget, write: Callable[[], bool], send: OpenSend, opaque: int
    ) -> None:
        """Let a send, or a batch, wait until its connection has capacity for it."""
        connection = cast("ClientConnection", target.connection)
        what = f"request {RequestCode.SEND_MESSAGE_V2} to {target.address}"
        waiting = connection.post_later(write, opaque, send.deadline, what)
        count = 1 if send.batch is None else len(send.batch)
        self._delivery.begin(count)

        def over(waiting: asyncio.Future[None]) -> None:
            self._delivery.end(count)
            if waiting.cancelled():
                return
            error = waiting.exception()
            if error is not None:
                send.end(cast("Exception", error))

        waiting.add_done_callback(over)

    def _go_on(self, send: OpenSend) -> None:
        if send.batch is not None:
            self._batches.go_on(send)
        else:
            self._submitted(send)


def _now_ms() -> int:
    return clock.now_ms()
