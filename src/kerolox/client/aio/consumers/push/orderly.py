"""Listeners of queues that are read in order: one task for each queue.

``core/consuming/ordered/orderly_queue.py`` decides. At most ``consume_concurrency`` of these
listeners run at the same time, beside as many of topics that are not read in order.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.ordered.locks import QueueLock
from kerolox.client.core.consuming.ordered.orderly_queue import (
    ORDERLY_RECONSUME_TIMES_MAX,
    OrderlyQueue,
)
from kerolox.client.core.consuming.outcome import Outcome, WithoutListener
from kerolox.client.core.failures import note_failure
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.tasks import end_tasks

if TYPE_CHECKING:
    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.consuming import Consuming
    from kerolox.client.aio.consumers.push.send_back import SendBacks
    from kerolox.codec.pulling import Pulled
    from kerolox.message import MessageExt

LEAVE_SECONDS_MAX = 1.0
"""So long a queue that goes waits for its listener (``tryLock`` of the consume lock)."""

RESTART_SECONDS = 1.0
"""Turns that ended by a cancellation that was not ours begin again so much later."""

CANCELLED_SECONDS_MAX = 0.5
"""How long a close waits for listeners that it has cancelled."""

_log = logging.getLogger(__name__)


class Orderly:
    """Runs the turns of all ordered queues of one consumer."""

    def __init__(
        self, settings: PushConsumerSettings, consuming: Consuming, send_backs: SendBacks
    ) -> None:
        self._settings = settings
        self._consuming = consuming
        self._send_backs = send_backs
        self._slots = asyncio.Semaphore(settings.consume_concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.TimerHandle] = set()
        self._is_closing = False

    def begin(self, assignment: Assignment, lock: QueueLock | None) -> None:
        """Read a queue in order from now on; ``lock``: None when it needs none."""
        given = self._settings.max_reconsume_times
        # Retried messages may be of several topics, each with its own listener.
        is_retry = assignment.queue.topic.startswith(RETRY_PREFIX)
        assignment.orderly = OrderlyQueue(
            assignment.process_queue,
            lock,
            batch_max=1 if is_retry else self._settings.consume_batch_max,
            reconsume_times_max=ORDERLY_RECONSUME_TIMES_MAX if given < 0 else given,
            suspend_ms=self._settings.suspend_current_queue_ms,
        )
        self._start(assignment, assignment.orderly)

    def _start(self, assignment: Assignment, queue: OrderlyQueue) -> None:
        task = asyncio.ensure_future(self._run(assignment, queue))
        assignment.ordered_task = task
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._has_ended(assignment, queue, task))

    def _has_ended(
        self, assignment: Assignment, queue: OrderlyQueue, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if not task.cancelled() or self._is_closing or queue.is_leaving:
            return

        # A listener had its own task cancelled, or the whole loop is about to end: only time tells.
        def again() -> None:
            self._later.discard(timer)
            if not self._is_closing and assignment.ordered_task is task:
                _log.warning("a listener of %s had its task cancelled", assignment.queue)
                queue.put_back()
                self._start(assignment, queue)

        timer = task.get_loop().call_later(RESTART_SECONDS, again)
        self._later.add(timer)

    def submit(self, assignment: Assignment, pulled: Pulled) -> None:
        """Take pulled messages."""
        assignment.process_queue.put_pulled(pulled)
        assignment.news.set()

    async def leave(self, assignments: list[Assignment]) -> list[Assignment]:
        """Begin no further call for these queues and wait a little for those that run.

        Gives those whose listener still runs; the caller is to call again.
        """
        for assignment in assignments:
            if assignment.orderly is not None:
                assignment.orderly.is_leaving = True
                assignment.news.set()
        # Who calls this may be the listener itself, by way of a callback: it is not waited for.
        tasks = {each.ordered_task for each in assignments if each.ordered_task is not None}
        tasks.discard(asyncio.current_task())
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS_MAX)
        return [
            each
            for each in assignments
            if each.ordered_task is not None and not each.ordered_task.done()
        ]

    def stop(self) -> None:
        """The consumer closes: begin no further call."""
        self._is_closing = True
        for timer in self._later:
            timer.cancel()

    async def close(self) -> None:
        """After :meth:`stop`, and a wait for listeners: end what is left."""
        kept = self._consuming.running.waiting_for_close()
        others = [task for task in self._tasks if task not in kept]
        await end_tasks(*others, seconds_max=CANCELLED_SECONDS_MAX)

    # -- turns --------------------------------------------------------------------------------
    async def _run(self, assignment: Assignment, queue: OrderlyQueue) -> None:
        while not self._is_closing:
            async with self._slots:
                assignment.news.clear()
                step = queue.next(clock.steady_ms())
                while step.messages and not self._is_closing:
                    await self._consume(assignment, queue, step.messages)
                    step = queue.next(clock.steady_ms())
            if step.is_over or self._is_closing:
                return
            await _wait(assignment.news, step.wait_ms)

    async def _consume(
        self, assignment: Assignment, queue: OrderlyQueue, messages: list[MessageExt]
    ) -> None:
        listeners = self._consuming.listeners
        try:
            if not listeners.prepare(assignment.queue, messages):
                await self._unhandled(assignment, queue, messages)
            elif messages[0].body_error:
                # It will not be read the next time either, and nothing may overtake it meanwhile.
                outcome = Outcome.dead_letter(messages[0].body_error)
                await self._settle(assignment, queue, messages[:1], {0: outcome})
            else:
                await self._listen(assignment, queue, messages)
        except Exception as error:
            what = f"consuming of {assignment.queue} failed"
            note_failure(self._settings.on_failure, _log, what, error)
            queue.put_back()
            queue.suspend(clock.steady_ms())

    async def _listen(
        self, assignment: Assignment, queue: OrderlyQueue, messages: list[MessageExt]
    ) -> None:
        consuming, worker = self._consuming, asyncio.current_task()
        assert worker is not None
        listening = consuming.running.begin(worker)
        start_ms = clock.steady_ms()
        try:
            failed = await consuming.listeners.call(assignment.queue, messages)
            now_ms = clock.steady_ms()
            assignment.process_queue.last_consume_ms = now_ms
            stats = consuming.stats_of(assignment.queue.topic)
            if len(failed) < len(messages):
                stats.consumed.add(now_ms, len(messages) - len(failed), now_ms - start_ms)
            if failed:
                stats.failed.add(now_ms, len(failed), now_ms - start_ms)
            await self._settle(assignment, queue, messages, failed)
        finally:
            consuming.running.end(listening)

    async def _settle(
        self,
        assignment: Assignment,
        queue: OrderlyQueue,
        messages: list[MessageExt],
        failed: dict[int, Outcome],
    ) -> None:
        settled = queue.settle(messages, failed, clock.steady_ms())
        if assignment.process_queue.is_dropped:
            return
        self._consuming.finish(assignment, settled.done)
        for message, reason in settled.dead:
            if await self._send_backs.bury_ordered(message, reason, assignment.queue.broker_name):
                self._consuming.finish(assignment, [message])
            else:
                message.reconsume_times += 1
                queue.suspend(clock.steady_ms())
                break

    async def _unhandled(
        self, assignment: Assignment, queue: OrderlyQueue, messages: list[MessageExt]
    ) -> None:
        """Messages of a topic that has no listener here."""
        queue.put_back()
        message = messages[0]
        if self._consuming.listeners.without_listener(
            assignment.queue, message
        ) is WithoutListener.PASS_ON and (
            await self._send_backs.pass_on(message, assignment.queue.broker_name)
        ):
            self._consuming.finish(assignment, [message])
        else:
            queue.suspend(clock.steady_ms())


async def _wait(news: asyncio.Event, wait_ms: int | None) -> None:
    try:
        async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
            await news.wait()
    except TimeoutError:
        pass
