"""From pulled messages to listeners and back: the inner part of the push consumer.

Per queue that we own there is one pull loop (:class:`Assignment`); all of them fill one list of
ready work, from which ``consume_concurrency`` workers take. A worker runs the listener, sends back
what failed, and moves the queue's offset. Bounds: a pull loop pauses when its queue has too many
unfinished messages, bytes, or too wide a span. So the ready list is bounded by their sum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kerolox import clock
from kerolox.client.aio.user_code import call_user
from kerolox.client.core.consuming.outcome import (
    ConsumeStatus,
    ListenerResult,
    Unheard,
    failed_positions,
    unheard,
)
from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.client.core.consuming.stats import TopicStats
from kerolox.client.core.hooks import ConsumeContext, ConsumeHook, ConsumeReturnType, run_hooks
from kerolox.client.core.namespaces import (
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from kerolox.client.core.sending.send import (
    OutgoingMessage,
    SendHeader,
    passed_on_message,
    retry_message,
    send_result,
)
from kerolox.errors import BrokerError, ClientError, KeroloxError
from kerolox.message import MessageExt, MessageModel, MessageQueue, PropertyKey
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.names import AUTO_CREATE_TOPIC, RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.settings import PushConsumerSettings

MAX_RECONSUME_TIMES = 16
"""Retries of a message when the settings leave it to RocketMQ."""

SEND_BACK_SECONDS_MAX = 5.0
"""Time limit of a send-back."""

RECONSUME_LOCALLY_SECONDS = 5.0
"""When not even a send-back works, the message waits so long and is tried again here."""

EXPIRED_PER_QUEUE_MAX = 16
"""Messages per queue that one look for overdue listeners sends back."""

EXPIRED_DELAY_LEVEL = 3

UNHEARD_DELAY_LEVEL = 14
"""A retried message without listener here comes again so much later (10 minutes by default)."""

REASONS_LOGGED_MAX = 16
"""Different reasons why bodies can't be read that are warned of, each once; and as many topics
without listener."""

WORKER_BACK_SECONDS = 1.0
"""A worker that was cancelled, but not by us, is replaced so much later."""

CANCELLED_SECONDS_MAX = 0.5
"""How long a close waits for listeners that it has cancelled."""

TURN_SECONDS_MAX = 0.005
"""A worker whose listeners never wait lets others run after so long."""

_listening: ContextVar[object] = ContextVar("listening", default=None)
"""The listener that runs; also in tasks and threads that work for it."""

_log = logging.getLogger(__name__)


MessageListener = Callable[[list[MessageExt]], Awaitable[ListenerResult] | ListenerResult]
"""Takes messages of one queue; returning None means success, raising means to try again later. It
may also return a list with a status (or None) for each message: only what failed comes again."""


OneMessageListener = Callable[[MessageExt], Awaitable[ConsumeStatus | None] | ConsumeStatus | None]
"""Takes one message; returning None means success, raising means to try again later."""


def each(listener: OneMessageListener) -> MessageListener:
    """The listener that gives its messages one by one to another; each has its own outcome."""

    async def listen(messages: list[MessageExt]) -> ListenerResult:
        if len(messages) == 1:
            return await call_user(listener, messages[0])
        return [await one(message) for message in messages]

    async def one(message: MessageExt) -> ConsumeStatus | None:
        try:
            status = await call_user(listener, message)
        except Exception:
            _log.warning("listener failed for message %s", message.message_id, exc_info=True)
            return ConsumeStatus.RECONSUME_LATER
        if status is None or isinstance(status, ConsumeStatus):
            return status
        _log.warning("listener returned %.200r; return None or a ConsumeStatus", status)
        return ConsumeStatus.RECONSUME_LATER

    return listen


@dataclass(slots=True, eq=False)
class Assignment:
    """A queue that we own."""

    queue: MessageQueue
    next_offset: int
    process_queue: ProcessQueue = field(default_factory=ProcessQueue)
    broker_id: int = 0
    """The node to pull from, as the broker suggested."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when messages have left, for a pull loop that waits for room."""
    task: asyncio.Task[None] | None = None


class _Work(NamedTuple):
    assignment: Assignment
    messages: list[MessageExt]


class Consuming:
    """Workers, listeners and send-backs of one consumer."""

    def __init__(
        self,
        group: str,
        settings: PushConsumerSettings,
        cluster: Cluster,
        offsets: OffsetStore,
        *,
        namespace: str = "",
        hooks: tuple[ConsumeHook, ...] = (),
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._hooks = hooks
        self._settings = settings
        self._cluster = cluster
        self._offsets = offsets
        self._retry_topic = f"{RETRY_PREFIX}{group}"
        self.listeners: dict[str, MessageListener] = {}
        self.stats: dict[str, TopicStats] = {}
        self._ready: asyncio.Queue[_Work] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._later: set[asyncio.TimerHandle] = set()
        self._listenings: dict[object, asyncio.Task[None]] = {}
        """The listeners that run, each with its worker."""
        self._closers: set[object] = set()
        """Those of them that wait for the close."""
        self._finished = asyncio.Event()
        self._closing = False
        self._unreadable: set[str] = set()
        """Reasons for unreadable bodies that were logged as warnings."""
        self._unheard: set[str] = set()
        """Topics without listener that were logged as warnings."""

    @property
    def max_reconsume_times(self) -> int:
        """Retries before the dead-letter topic."""
        given = self._settings.max_reconsume_times
        return MAX_RECONSUME_TIMES if given < 0 else given

    def stats_of(self, topic: str) -> TopicStats:
        """The counters of a topic."""
        stats = self.stats.get(topic)
        if stats is None:
            stats = self.stats[topic] = TopicStats()
        return stats

    def start(self) -> None:
        """Start the workers."""
        self._workers = [
            asyncio.ensure_future(self._work()) for _ in range(self._settings.consume_concurrency)
        ]

    def submit(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Take pulled messages; they are cached and become ready work."""
        fresh = assignment.process_queue.put(messages)
        # Retried messages may be of several topics, each with its own listener.
        is_retry = assignment.queue.topic.startswith(RETRY_PREFIX)
        size = 1 if is_retry else self._settings.consume_batch_max
        readable = [message for message in fresh if not message.body_error]
        for start in range(0, len(readable), size):
            self._ready.put_nowait(_Work(assignment, readable[start : start + size]))
        if len(readable) < len(fresh):
            for message in fresh:
                if message.body_error:
                    self._ready.put_nowait(_Work(assignment, [message]))

    def caller_waits(self) -> None:
        """Whoever calls this waits for the close; if it is a listener, the close does not wait for
        it in turn."""
        listening = _listening.get()
        if listening in self._listenings:
            self._closers.add(listening)
            self._finished.set()

    async def close(self, timeout_seconds: float) -> None:
        """Start no further listener and wait for those that run, except for one that waits for
        the close. Those that take longer are cancelled."""
        self._closing = True
        for timer in self._later:
            timer.cancel()
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._listenings.keys() - self._closers:
                    self._finished.clear()
                    await self._finished.wait()
        except TimeoutError:
            count = len(self._listenings.keys() - self._closers)
            _log.warning("%d listeners still run after %.1f s", count, timeout_seconds)
        finally:
            kept = [self._listenings.get(each) for each in self._closers]
            others = [worker for worker in self._workers if worker not in kept]
            for worker in others:
                worker.cancel()
        if others:
            # A listener that goes on all the same keeps nobody from leaving the group.
            await asyncio.wait(others, timeout=CANCELLED_SECONDS_MAX)

    # -- workers ------------------------------------------------------------------------------
    async def _work(self) -> None:
        clock = asyncio.get_running_loop().time
        turn_ends = clock() + TURN_SECONDS_MAX
        worker = asyncio.current_task()
        assert worker is not None
        while not self._closing:
            work = await self._ready.get()
            if self._closing or work.assignment.process_queue.is_dropped:
                continue
            listening = object()
            _listening.set(listening)
            self._listenings[listening] = worker
            try:
                await self._consume(work)
            except asyncio.CancelledError:
                if not self._closing:
                    self._replace_worker(work)
                raise
            except Exception:
                _log.exception("consuming of %s failed", work.assignment.queue)
            finally:
                del self._listenings[listening]
                self._finished.set()
            if clock() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = clock() + TURN_SECONDS_MAX

    def _replace_worker(self, work: _Work) -> None:
        """A listener had the very task that runs it cancelled, or the whole loop is about to end:
        nothing tells the two apart but time. Later, so that no task is born into a loop's end."""

        def replace() -> None:
            self._later.discard(timer)
            _log.warning("a listener of %s had its worker cancelled", work.assignment.queue)
            self._workers = [worker for worker in self._workers if not worker.done()]
            self._workers.append(asyncio.ensure_future(self._work()))

        timer = asyncio.get_running_loop().call_later(WORKER_BACK_SECONDS, replace)
        self._later.add(timer)
        self._consume_later(work)

    async def _consume(self, work: _Work) -> None:
        assignment, messages = work
        process_queue = assignment.process_queue
        topic = assignment.queue.topic
        start_ms = clock.now_ms()
        if self._namespace or topic.startswith(RETRY_PREFIX):
            self._restore_topics(messages)
        if messages[0].topic not in self.listeners and not messages[0].body_error:
            await self._unheard_messages(work)
            return
        started = str(start_ms)
        for message in messages:
            message.properties[PropertyKey.CONSUME_START_TIME] = started
        if self._hooks and not messages[0].body_error:
            failed = await self._listen_hooked(work)
        else:
            failed = (await self._listen(messages))[0]
        now_ms = clock.now_ms()
        process_queue.last_consume_ms = now_ms
        stats = self.stats_of(topic)
        if process_queue.is_dropped:
            return
        if len(failed) < len(messages):
            stats.consumed.add(now_ms, len(messages) - len(failed), now_ms - start_ms)
        if failed:
            stats.failed.add(now_ms, len(failed), now_ms - start_ms)
            lost = [messages[position] for position in failed]
            done = [m for position, m in enumerate(messages) if position not in failed]
            # What went well counts at once: a broker may be slow to take back the rest.
            self._finish(assignment, done)
            messages = await self._give_back(assignment, lost)
        self._finish(assignment, messages)

    def _finish(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        process_queue = assignment.process_queue
        offset = process_queue.remove(messages)
        assignment.room.set()
        if offset >= 0 and not process_queue.is_dropped:
            self._offsets.table.update(assignment.queue, offset, increase_only=True)

    async def _listen_hooked(self, work: _Work) -> list[int]:
        """The listener with hooks around it; see :meth:`_listen`."""
        assignment, messages = work
        queue = queue_without_namespace(self._namespace, assignment.queue)
        context = ConsumeContext(self._group, self._namespace, queue, messages)
        run_hooks((hook.before_consume for hook in self._hooks), context)
        start_ms = clock.now_ms()
        failed, return_type = await self._listen(messages)
        answered = return_type not in (ConsumeReturnType.EXCEPTION, ConsumeReturnType.RETURN_NULL)
        limit_ms = self._settings.consume_timeout_minutes * 60_000
        if answered and clock.now_ms() - start_ms >= limit_ms:
            return_type = ConsumeReturnType.TIME_OUT
        context.return_type = return_type
        context.is_success = not failed
        run_hooks((hook.after_consume for hook in self._hooks), context)
        return failed

    async def _listen(self, messages: list[MessageExt]) -> tuple[list[int], ConsumeReturnType]:
        """Positions of the messages to be tried again, and how the listener ended."""
        everything = list(range(len(messages)))
        if messages[0].body_error:
            self._log_unreadable(messages[0])
            return everything, ConsumeReturnType.EXCEPTION
        try:
            result = await call_user(self.listeners[messages[0].topic], messages)
        except Exception:
            _log.warning("listener failed for message %s", messages[0].message_id, exc_info=True)
            return everything, ConsumeReturnType.EXCEPTION
        failed = failed_positions(result, len(messages))
        if failed is None:
            _log.warning(
                "listener returned %.200r for %d messages; return None, a ConsumeStatus or a list"
                " of them, one for each message",
                result,
                len(messages),
            )
            return everything, ConsumeReturnType.RETURN_NULL
        return failed, ConsumeReturnType.FAILED if failed else ConsumeReturnType.SUCCESS

    async def _unheard_messages(self, work: _Work) -> None:
        """Messages of a topic that has no listener here."""
        assignment, messages = work
        topic = messages[0].topic
        what = unheard(assignment.queue.topic)
        is_new = topic not in self._unheard and len(self._unheard) < REASONS_LOGGED_MAX
        if is_new:
            self._unheard.add(topic)
        _log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "no listener for topic %s in this member of group %s: message %s %s; subscribe to the"
            " topic, all members of a group need the same subscriptions",
            topic,
            self._group,
            messages[0].message_id,
            "goes back to the retry topic, this counts as no try"
            if what is Unheard.PASS_ON
            else "stays in its queue",
        )
        if what is Unheard.KEEP:
            self._consume_later(work)
            return
        address = self._cluster.master_address(assignment.queue.broker_name)
        passed = [message for message in messages if await self._pass_on(message, address)]
        if len(passed) < len(messages):
            self._consume_later(_Work(assignment, [m for m in messages if m not in passed]))
        self._finish(assignment, passed)

    def _log_unreadable(self, message: MessageExt) -> None:
        """No listener sees it: another member may read it, else it becomes a dead letter."""
        reason = message.body_error
        is_new = reason not in self._unreadable and len(self._unreadable) < REASONS_LOGGED_MAX
        if is_new:
            self._unreadable.add(reason)
        _log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "message %s of topic %s is given back unread: %s",
            message.message_id,
            message.topic,
            reason,
        )

    async def consume_directly(self, message: MessageExt) -> ConsumeStatus:
        """Run the listener for one message that an operator sent, outside of any queue.

        Raises:
            Exception: whatever the listener raised.
        """
        self._restore_topics([message])
        if message.body_error:
            raise ClientError(message.body_error)
        listener = self.listeners.get(message.topic)
        if listener is None:
            raise ClientError(f"no listener for topic {message.topic!r}")
        failed = failed_positions(await call_user(listener, [message]), 1)
        return ConsumeStatus.CONSUME_SUCCESS if failed == [] else ConsumeStatus.RECONSUME_LATER

    def _restore_topics(self, messages: list[MessageExt]) -> None:
        """A retried message shows the topic that it was first sent to, and each the name that its
        topic has for the user."""
        for message in messages:
            original = message.properties.get(PropertyKey.RETRY_TOPIC)
            if original and message.topic == self._retry_topic:
                message.topic = original
            if self._namespace:
                message.topic = without_namespace(self._namespace, message.topic)

    # -- failures -----------------------------------------------------------------------------
    async def _give_back(
        self, assignment: Assignment, messages: list[MessageExt]
    ) -> list[MessageExt]:
        """Have failed messages retried; gives those that are done with here."""
        if self._settings.message_model is MessageModel.BROADCASTING:
            for message in messages:
                _log.warning("dropped message %s: broadcasting has no retry", message.message_id)
            return messages
        done: list[MessageExt] = []
        kept: list[MessageExt] = []
        for message in messages:
            level = self._settings.delay_level_when_next_consume
            if await self.send_back(message, level, assignment.queue.broker_name):
                done.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._consume_later(_Work(assignment, kept))
        return done

    def _consume_later(self, work: _Work) -> None:
        def ready() -> None:
            self._later.discard(timer)
            self._ready.put_nowait(work)

        loop = asyncio.get_running_loop()
        timer = loop.call_later(RECONSUME_LOCALLY_SECONDS, ready)
        self._later.add(timer)

    async def send_back(self, message: MessageExt, delay_level: int, broker_name: str) -> bool:
        """Have the broker put a message into the group's retry topic; False when nothing worked."""
        fields = {
            "offset": message.commit_log_offset,
            "group": self._group,
            "delayLevel": delay_level,
            "originMsgId": message.message_id,
            "originTopic": with_namespace(self._namespace, message.topic),
            "unitMode": self._settings.unit_mode,
            "maxReconsumeTimes": self.max_reconsume_times,
        }
        address = self._cluster.master_address(broker_name)
        try:
            if address is None:
                raise ClientError(f"broker {broker_name!r} has no known master")
            await self._cluster.ask(
                address,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                fields,
                timeout_seconds=SEND_BACK_SECONDS_MAX,
            )
        except KeroloxError as error:
            _log.warning("send-back of message %s failed: %s", message.message_id, error)
            return await self._send_retry(message, address)
        return True

    async def _send_retry(self, message: MessageExt, address: str | None) -> bool:
        """The second way: send the message to the retry topic as a new one."""
        return await self._send_again(
            message,
            lambda: retry_message(
                message,
                self._group,
                max_reconsume_times=self.max_reconsume_times,
                topic=with_namespace(self._namespace, message.topic),
            ),
            address,
        )

    async def _pass_on(self, message: MessageExt, address: str | None) -> bool:
        """Put a retried message back into the retry topic as it came; False: that failed."""
        return await self._send_again(
            message,
            lambda: passed_on_message(
                message,
                self._group,
                delay_level=UNHEARD_DELAY_LEVEL,
                topic=with_namespace(self._namespace, message.topic),
            ),
            address,
        )

    async def _send_again(
        self, message: MessageExt, make: Callable[[], OutgoingMessage], address: str | None
    ) -> bool:
        if address is None:
            return False
        header = SendHeader("CLIENT_INNER_PRODUCER", AUTO_CREATE_TOPIC, 1, self._settings.unit_mode)
        try:
            outgoing = make()
            queue = MessageQueue(outgoing.topic, message.broker_name, 0)
            response = await self._cluster.remoting.invoke(
                address,
                header.request(outgoing, queue.queue_id, clock.now_ms()),
                timeout_seconds=SEND_BACK_SECONDS_MAX,
            )
            send_result(response, outgoing, queue, address)
        except KeroloxError as error:
            _log.warning("retry of message %s failed: %s", message.message_id, error)
            return False
        return True

    async def clean_expired(self, assignments: list[Assignment]) -> None:
        """Send back the oldest messages whose listeners have run for too long."""
        limit_ms = self._settings.consume_timeout_minutes * 60_000
        for assignment in assignments:
            for _ in range(EXPIRED_PER_QUEUE_MAX):
                message = assignment.process_queue.first
                if message is None:
                    break
                started = message.properties.get(PropertyKey.CONSUME_START_TIME, "")
                if not started or clock.now_ms() - int(started) <= limit_ms:
                    break
                broker_name = assignment.queue.broker_name
                if not await self.send_back(message, EXPIRED_DELAY_LEVEL, broker_name):
                    break
                _log.warning("listener of message %s is overdue", message.message_id)
                if assignment.process_queue.first is message:
                    assignment.process_queue.remove([message])
                    assignment.room.set()


def is_flow_control(error: Exception) -> bool:
    """The broker asks to pull more slowly (code 215)."""
    return isinstance(error, BrokerError) and error.code == 215
