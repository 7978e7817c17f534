"""From pulled messages to listeners and back: the inner part of the push consumer.

Per queue that we own there is one pull loop; all of them fill one list of ready work, from which
``consume_concurrency`` workers take. A worker runs the listener, sends back what failed, and moves
the queue's offset. Bounds: a pull loop pauses when its queue has too many unfinished messages,
bytes, or too wide a span. So the ready list is bounded by their sum.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.assignment import Assignment, Work
from kerolox.client.aio.consumers.push.running import RunningListeners
from kerolox.client.core.consuming.outcome import Outcome, Unheard
from kerolox.client.core.consuming.stats import TopicStats
from kerolox.errors import BrokerError
from kerolox.message import MessageExt, consume_start_ms
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.listening import Listeners
    from kerolox.client.aio.consumers.push.send_back import SendBacks
    from kerolox.client.aio.settings import PushConsumerSettings

RECONSUME_LOCALLY_SECONDS = 5.0
"""When not even a send-back works, the message waits so long and is tried again here."""

EXPIRED_PER_QUEUE_MAX = 16
"""Messages per queue that one look for overdue listeners sends back."""

EXPIRED_DELAY_LEVEL = 3

WORKER_BACK_SECONDS = 1.0
"""A worker that was cancelled, but not by us, is replaced so much later."""

CANCELLED_SECONDS_MAX = 0.5
"""How long a close waits for listeners that it has cancelled."""

TURN_SECONDS_MAX = 0.005
"""A worker whose listeners never wait lets others run after so long."""

_log = logging.getLogger(__name__)


class Consuming:
    """Workers of one consumer: they run listeners, and settle what these say."""

    def __init__(
        self,
        settings: PushConsumerSettings,
        listeners: Listeners,
        send_backs: SendBacks,
        offsets: OffsetStore,
    ) -> None:
        self.listeners = listeners
        self._settings = settings
        self._send_backs = send_backs
        self._offsets = offsets
        self.stats: dict[str, TopicStats] = {}
        self.running = RunningListeners()
        self._ready: asyncio.Queue[Work] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._later: set[asyncio.TimerHandle] = set()
        self._closing = False

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
            self._ready.put_nowait(Work(assignment, readable[start : start + size]))
        if len(readable) < len(fresh):
            for message in fresh:
                if message.body_error:
                    self._ready.put_nowait(Work(assignment, [message]))

    async def close(self, timeout_seconds: float) -> None:
        """Start no further listener and wait for those that run, except for one that waits for
        the close. Those that take longer are cancelled."""
        self._closing = True
        for timer in self._later:
            timer.cancel()
        try:
            await self.running.wait(timeout_seconds)
        finally:
            kept = self.running.waiting_for_close()
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
            listening = self.running.begin(worker)
            try:
                await self._consume(work)
            except asyncio.CancelledError:
                if not self._closing:
                    self._replace_worker(work)
                raise
            except Exception:
                _log.exception("consuming of %s failed", work.assignment.queue)
            finally:
                self.running.end(listening)
            if clock() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = clock() + TURN_SECONDS_MAX

    def _replace_worker(self, work: Work) -> None:
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

    async def _consume(self, work: Work) -> None:
        assignment, messages = work
        process_queue = assignment.process_queue
        if not self.listeners.prepare(assignment.queue, messages):
            await self._unheard_messages(work)
            return
        start_ms = clock.now_ms()
        failed = await self.listeners.call(assignment.queue, messages)
        now_ms = clock.now_ms()
        process_queue.last_consume_ms = now_ms
        stats = self.stats_of(assignment.queue.topic)
        if process_queue.is_dropped:
            return
        if len(failed) < len(messages):
            stats.consumed.add(now_ms, len(messages) - len(failed), now_ms - start_ms)
        if failed:
            stats.failed.add(now_ms, len(failed), now_ms - start_ms)
            lost = [(messages[position], outcome) for position, outcome in failed.items()]
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

    async def _unheard_messages(self, work: Work) -> None:
        """Messages of a topic that has no listener here."""
        assignment, messages = work
        if self.listeners.unheard(assignment.queue, messages[0]) is Unheard.KEEP:
            self._consume_later(work)
            return
        broker_name = assignment.queue.broker_name
        passed = [m for m in messages if await self._send_backs.pass_on(m, broker_name)]
        if len(passed) < len(messages):
            self._consume_later(Work(assignment, [m for m in messages if m not in passed]))
        self._finish(assignment, passed)

    # -- failures -----------------------------------------------------------------------------
    async def _give_back(
        self, assignment: Assignment, failed: list[tuple[MessageExt, Outcome]]
    ) -> list[MessageExt]:
        """Have failed messages retried; gives those that are done with here."""
        done: list[MessageExt] = []
        kept: list[MessageExt] = []
        for message, outcome in failed:
            if await self._send_backs.settle(message, outcome, assignment.queue.broker_name):
                done.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._consume_later(Work(assignment, kept))
        return done

    def _consume_later(self, work: Work) -> None:
        def ready() -> None:
            self._later.discard(timer)
            self._ready.put_nowait(work)

        loop = asyncio.get_running_loop()
        timer = loop.call_later(RECONSUME_LOCALLY_SECONDS, ready)
        self._later.add(timer)

    async def clean_expired(self, assignments: list[Assignment]) -> None:
        """Send back the oldest messages whose listeners have run for too long."""
        limit_ms = self._settings.consume_timeout_minutes * 60_000
        for assignment in assignments:
            for _ in range(EXPIRED_PER_QUEUE_MAX):
                message = assignment.process_queue.first
                if message is None:
                    break
                started_ms = consume_start_ms(message)
                if not started_ms or clock.now_ms() - started_ms <= limit_ms:
                    break
                broker_name = assignment.queue.broker_name
                if not await self._send_backs.send_back(message, EXPIRED_DELAY_LEVEL, broker_name):
                    break
                _log.warning("listener of message %s is overdue", message.message_id)
                if assignment.process_queue.first is message:
                    assignment.process_queue.remove([message])
                    assignment.room.set()


def is_flow_control(error: Exception) -> bool:
    """The broker asks to pull more slowly (code 215)."""
    return isinstance(error, BrokerError) and error.code == 215
