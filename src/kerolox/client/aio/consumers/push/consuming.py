"""From pulled messages to listeners and back: the inner part of the push consumer.

Per queue that we own there is one pull loop; all of them fill one list of ready messages, from
which ``consume_concurrency`` workers take (:mod:`kerolox.client.aio.consumers.push.workers`). A
worker runs the listener and sends back what failed; what went well moves the queue's offset at the
iteration's end. Bounds: a pull loop pauses when its queue has too many unfinished messages, bytes,
or too wide a span. So the ready list is bounded by their sum.
"""

from __future__ import annotations

import asyncio
import logging
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.listening import EachMessage, Listeners
from kerolox.client.aio.consumers.push.running import RunningListeners, note_call
from kerolox.client.aio.consumers.push.threaded import ThreadCall, ThreadedCalls, in_thread
from kerolox.client.aio.consumers.push.workers import Workers
from kerolox.client.core.consuming.outcome import Outcome, WithoutListener
from kerolox.client.core.consuming.stats import TopicStats
from kerolox.message import MessageExt, consume_start_ms, note_consume_start
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.send_back import SendBacks
    from kerolox.client.aio.consumers.push.stream import MessageStream
    from kerolox.client.core.consuming.ready import Ready
    from kerolox.codec.pulling import Pulled

RECONSUME_LOCALLY_SECONDS = 5.0
"""When not even a send-back works, the message waits so long and is tried again here."""

EXPIRED_PER_QUEUE_MAX = 16
"""Messages per queue that one look for overdue listeners sends back."""

EXPIRED_DELAY_LEVEL = 3

_WITHOUT_LISTENER = Outcome.nack(delay=1)
"""Of popped messages of a topic that was unsubscribed: any other member may get them."""

_log = logging.getLogger(__name__)


class Consuming:
    """Workers of one consumer: they run listeners, and settle what these say."""

    def __init__(
        self,
        settings: PushConsumerSettings,
        listeners: Listeners,
        send_backs: SendBacks,
        offsets: OffsetStore,
        stream: MessageStream,
    ) -> None:
        self.listeners = listeners
        self._stream = stream
        self._settings = settings
        self._send_backs = send_backs
        self._offsets = offsets
        self.stats: dict[str, TopicStats] = {}
        self._workers = Workers(
            settings.consume_concurrency, self._consume, self._settle, settings.on_failure
        )
        self._threaded = ThreadedCalls(self.running, self._ended_in_thread, settings.on_failure)
        self._unsettled: list[Assignment] = []
        """Queues of which messages went well since the offsets were moved last."""

    @property
    def running(self) -> RunningListeners:
        """The listeners that run."""
        return self._workers.running

    def stats_of(self, topic: str) -> TopicStats:
        """The counters of a topic."""
        stats = self.stats.get(topic)
        if stats is None:
            stats = self.stats[topic] = TopicStats()
        return stats

    def start(self) -> None:
        """Start the workers."""
        self._workers.start()

    def submit(self, assignment: Assignment, pulled: Pulled) -> None:
        """Take pulled messages; they are cached and become ready."""
        topic, workers = assignment.queue.topic, self._workers
        fresh = assignment.process_queue.put_pulled(pulled)
        # Retried messages may be of several topics, each with its own listener.
        size = 1 if topic.startswith(RETRY_PREFIX) else self._settings.consume_batch_max
        if not pulled.is_readable:
            workers.add(assignment, [message for message in fresh if message.body_error], 1)
            fresh = [message for message in fresh if not message.body_error]
        if topic in self._stream.topics and fresh:
            self.listeners.prepare(assignment.queue, fresh)
            self._stream.put(assignment, fresh)
        else:
            workers.add(assignment, fresh, size)

    async def close(self, timeout_seconds: float) -> None:
        """Start no further listener and wait for those that run, except for one that waits for
        the close. Those that take longer are cancelled."""
        self._threaded.stop()
        try:
            await self._workers.close(timeout_seconds)
        finally:
            for task in self._threaded.abandon():
                task.cancel()

    # -- one call -----------------------------------------------------------------------------
    async def _consume(
        self, worker: asyncio.Task[None], entry: Ready[Assignment], slice_ends_ms: int
    ) -> None:
        """Call after call for messages of one pull, here with nothing in between that costs as much
        as a listener does."""
        workers, running, assignment = self._workers, self.running, entry.queue
        by_call, process_queue = running.by_call, assignment.process_queue
        direct, now_ms = self.listeners.direct(assignment.queue), clock.steady_ms()
        threads = in_thread(direct.get(assignment.queue.topic), entry.size)
        if threads is not None and not entry.messages[entry.next].body_error:
            await self._threaded.hand_over(threads, entry)
            return
        while messages := entry.take():
            if not workers.check_is_scheduled:
                workers.schedule_check()
            if assignment.pops is not None:
                messages = assignment.pops.in_time(assignment, messages)
                if not messages:
                    continue
            call, first, start_ms, cancels = object(), messages[0], now_ms, worker.cancelling()
            note_call(call)
            by_call[call] = worker
            try:
                if first.body_error or (listener := direct.get(first.topic)) is None:
                    await self._consume_odd(assignment, messages)
                    return  # such are rare, and what follows may be done by another worker
                note_consume_start(messages, start_ms)
                failed: dict[int, Outcome] | None = None
                try:
                    if type(listener) is EachMessage and len(messages) == 1:
                        result: object = listener.listener(first)
                    else:
                        result = listener(messages.copy())  # which may take some out of its list
                    if type(result) is CoroutineType or (
                        result is not None and isawaitable(result)
                    ):
                        result = await result
                    if result is not None:
                        failed = self.listeners.outcome(messages, result)[0]
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and worker.cancelling() > cancels:
                        raise
                    failed = self.listeners.failure(listener, messages, error)
                now_ms = clock.steady_ms()
                if failed:
                    await self._failed(assignment, messages, failed, now_ms - start_ms)
                    now_ms = clock.steady_ms()
                else:
                    self.went_well(assignment, messages, now_ms - start_ms)
            except asyncio.CancelledError:
                if not workers.is_closing:
                    self._consume_later(assignment, messages)
                raise
            finally:
                del by_call[call]
                if running.is_awaited:
                    running.note_end()
            if workers.is_closing or process_queue.is_dropped or now_ms > slice_ends_ms:
                return

    def _ended_in_thread(self, call: ThreadCall) -> Coroutine[object, object, None] | None:
        """A listener has ended in its thread; what is still to be done, if that takes time."""
        messages, failed = call.messages, None
        if call.error is not None:
            failed = self.listeners.failure(call.function, messages, call.error)
        elif call.result is not None:
            failed = self.listeners.outcome(messages, call.result)[0]
        if failed:
            return self._failed(call.assignment, messages, failed, call.elapsed_ms)
        self.went_well(call.assignment, messages, call.elapsed_ms)
        return None

    async def _consume_odd(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages with hooks, of a namespace, retried, unreadable, streamed, without listener."""
        if not self.listeners.prepare(assignment.queue, messages):
            await self._unhandled_messages(assignment, messages)
            return
        if messages[0].topic in self._stream.topics and not messages[0].body_error:
            self._stream.put(assignment, messages)
            return
        start_ms = clock.steady_ms()
        failed = await self.listeners.call(assignment.queue, messages)
        elapsed_ms = clock.steady_ms() - start_ms
        if failed:
            await self._failed(assignment, messages, failed, elapsed_ms)
        else:
            self.went_well(assignment, messages, elapsed_ms)

    def went_well(
        self, assignment: Assignment, messages: list[MessageExt], elapsed_ms: int
    ) -> None:
        """Messages are done with, after so many milliseconds in all: the queue's offset may move
        when this iteration of the event loop ends."""
        if not assignment.finished:
            self._unsettled.append(assignment)
        assignment.finished += messages
        assignment.finished_ms += elapsed_ms
        if not self._workers.check_is_scheduled:
            self._workers.schedule_check()

    async def _failed(
        self,
        assignment: Assignment,
        messages: list[MessageExt],
        failed: dict[int, Outcome],
        elapsed_ms: int,
    ) -> None:
        """Messages of one call, of which some are not done with."""
        if assignment.process_queue.is_dropped:
            return
        now_ms = assignment.process_queue.last_consume_ms = clock.steady_ms()
        stats = self.stats_of(assignment.queue.topic)
        stats.failed.add(now_ms, len(failed), elapsed_ms)
        done = [m for position, m in enumerate(messages) if position not in failed]
        if done:
            stats.consumed.add(now_ms, len(done), elapsed_ms)
        # What went well counts at once: a broker may be slow to take back the rest.
        self.finish(assignment, done)
        lost = [(messages[position], outcome) for position, outcome in failed.items()]
        await self.give_back(assignment, lost)

    def _settle(self) -> None:
        """Move the offsets of what went well."""
        if not self._unsettled:
            return
        now_ms = clock.steady_ms()
        for assignment in self._unsettled:
            messages, assignment.finished = assignment.finished, []
            elapsed_ms, assignment.finished_ms = assignment.finished_ms, 0
            if not assignment.process_queue.is_dropped:
                assignment.process_queue.last_consume_ms = now_ms
                stats = self.stats_of(assignment.queue.topic)
                stats.consumed.add(now_ms, len(messages), elapsed_ms)
            self.finish(assignment, messages)
        self._unsettled.clear()

    def finish(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages are done with: the queue's offset may move."""
        process_queue = assignment.process_queue
        offset = process_queue.remove(messages)
        assignment.capacity.set()
        if assignment.pops is not None:
            assignment.pops.done(messages)
        elif offset >= 0 and not process_queue.is_dropped:
            self._offsets.table.update(assignment.queue, offset, increase_only=True)

    async def _unhandled_messages(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages of a topic that has no listener here."""
        if assignment.pops is not None:
            self.listeners.without_listener(assignment.queue, messages[0])
            await self.give_back(assignment, [(each, _WITHOUT_LISTENER) for each in messages])
            return
        if self.listeners.without_listener(assignment.queue, messages[0]) is WithoutListener.KEEP:
            self._consume_later(assignment, messages)
            return
        broker_name = assignment.queue.broker_name
        passed = [m for m in messages if await self._send_backs.pass_on(m, broker_name)]
        if len(passed) < len(messages):
            self._consume_later(assignment, [m for m in messages if m not in passed])
        self.finish(assignment, passed)

    # -- failures -----------------------------------------------------------------------------
    async def give_back(
        self, assignment: Assignment, failed: list[tuple[MessageExt, Outcome]]
    ) -> None:
        """Have failed messages retried; those that can't go back now are tried again here."""
        if assignment.pops is not None:
            assignment.process_queue.remove([message for message, _ in failed])
            assignment.capacity.set()
            await assignment.pops.give_back(failed)
            return
        done: list[MessageExt] = []
        kept: list[MessageExt] = []
        for message, outcome in failed:
            if await self._send_backs.settle(message, outcome, assignment.queue.broker_name):
                done.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._consume_later(assignment, kept)
        self.finish(assignment, done)

    def _consume_later(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        self._workers.add_later(assignment, messages, RECONSUME_LOCALLY_SECONDS)

    async def clean_expired(self, assignments: list[Assignment]) -> None:
        """Send back the oldest messages whose listeners have run for too long."""
        self._settle()
        limit_ms = self._settings.consume_timeout_minutes * 60_000
        for assignment in assignments:
            if assignment.orderly is not None:
                continue  # what is read in order may take its time, and nothing overtakes it
            for _ in range(EXPIRED_PER_QUEUE_MAX):
                message = assignment.process_queue.first
                if message is None:
                    break
                started_ms = consume_start_ms(message)
                if not started_ms or clock.steady_ms() - started_ms <= limit_ms:
                    break
                broker_name = assignment.queue.broker_name
                if not await self._send_backs.send_back(message, EXPIRED_DELAY_LEVEL, broker_name):
                    break
                _log.warning("listener of message %s is overdue", message.message_id)
                if assignment.process_queue.first is message:
                    assignment.process_queue.remove([message])
                    self._stream.forget(message)
                    assignment.capacity.set()
