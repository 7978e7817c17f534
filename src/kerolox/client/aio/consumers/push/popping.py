"""Pop loops: one for each queue, or each broker's queues, that the broker has a push consumer pop.

What listeners say becomes an acknowledgement, a later time, or a dead letter. The leases of what
was received are kept until it is settled, up to ``consume_timeout_minutes``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.popping.keeping import Keeper, Keeping
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.core.consuming.flow import is_flow_control
from kerolox.client.core.consuming.leases import Held, Lease
from kerolox.client.core.consuming.outcome import DEAD_LETTER_LEVEL, Action, Outcome
from kerolox.client.core.consuming.popping import PopTerms, retry_seconds
from kerolox.client.core.failures import note_failure
from kerolox.client.core.life import OFFSETS_SECONDS_MAX
from kerolox.errors import KeroloxError, RemotingError
from kerolox.message import ConsumeFromWhere, parts_of
from kerolox.protocol.pop_names import INVISIBLE_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.consumers.popping.pops import Pops
    from kerolox.client.aio.consumers.push.consuming import Consuming
    from kerolox.client.aio.consumers.push.send_back import SendBacks
    from kerolox.client.core.consuming.flow import FlowControl
    from kerolox.client.core.consuming.popping import Done, PoppedMessages
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageExt, MessageQueue

CAPACITY_SECONDS_MAX = 0.5
"""A loop that waits for capacity checks again after so long."""

SUSPENDED_SECONDS = 1.0
FLOW_CONTROL_SECONDS = 0.02

AGAIN_SECONDS = 1.0
"""An acknowledgement that got no answer is tried again so much later, while its lease lasts."""

NO_LIMIT = 1 << 60

TRIED_TOO_OFTEN = "it was tried as often as it may be"

_log = logging.getLogger(__name__)


class Popping:
    """The pop loops of one consumer."""

    def __init__(
        self,
        settings: PushConsumerSettings,
        pops: Pops,
        subscriptions: Mapping[str, Subscription],
        consuming: Consuming,
        send_backs: SendBacks,
        flow: FlowControl,
        is_suspended: Callable[[], bool],
    ) -> None:
        """Nothing is popped yet. ``consuming`` takes what was popped. ``is_suspended``: whether
        nothing is popped for now.
        """
        self._settings = settings
        self._pops = pops
        self._subscriptions = subscriptions
        self._consuming = consuming
        self._send_backs = send_backs
        self._flow = flow
        self._is_suspended = is_suspended
        self._loop = asyncio.get_running_loop()
        self.assignments: dict[MessageQueue, Assignment] = {}
        """What is popped now."""
        self._left: list[Assignment] = []
        """What is popped no more, and is not settled."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = Held(NO_LIMIT, NO_LIMIT)
        self._keeper = Keeper(self._renew, settings.on_failure)
        self._keeping = Keeping()
        self._is_closing = False

    # -- what is popped -------------------------------------------------------------------------
    def share(self, topic: str, queues: Collection[MessageQueue]) -> bool:
        """Pop these queues of a topic from now on, and no others; whether that is a change. What
        was popped is consumed here, since nobody else gets it.
        """
        known = {queue for queue in self.assignments if queue.topic == topic}
        for queue in known - set(queues):
            # Its loop ends when its last pop is answered.
            left = self.assignments.pop(queue)
            left.is_left = True
            self._left.append(left)
        for queue in set(queues) - known:
            assignment = Assignment(queue, 0, self._flow.pop_queue(topic), pops=self)
            assignment.process_queue.last_consume_ms = clock.steady_ms()
            self.assignments[queue] = assignment
            assignment.task = self._start(self._run(assignment))
        return known != set(queues)

    def is_leaving(self, topic: str) -> bool:
        """A pop of a topic is on its way that is not wanted any more, or its messages are not
        settled: who pulled now would get them a second time."""
        self._left = [
            each
            for each in self._left
            if len(each.process_queue) or (each.task is not None and not each.task.done())
        ]
        return any(each.queue.topic == topic for each in self._left)

    def share_only(self, topics: Collection[str]) -> None:
        """Pop no other topics any more."""
        for topic in {queue.topic for queue in self.assignments} - set(topics):
            self.share(topic, ())

    async def _run(self, assignment: Assignment) -> None:
        """Pop as long as it is ours to do. Not cancelled by a close: a broker may hold the last pop
        on, and what it brings goes back."""
        settings = self._settings
        while not assignment.is_left and not self._is_closing:
            assignment.process_queue.last_pull_ms = clock.steady_ms()
            try:
                delay = await self._pop(assignment)
            except Exception as error:
                if self._is_closing:
                    return
                what = f"pop of {assignment.queue} failed"
                note_failure(settings.on_failure, _log, what, error)
                delay = settings.pull_error_delay_ms / 1000
                if is_flow_control(error):
                    delay = FLOW_CONTROL_SECONDS
            if delay:
                await asyncio.sleep(delay)

    async def _pop(self, assignment: Assignment) -> float:
        """One pop, or a wait for capacity; how many seconds to pause after it."""
        settings, queue = self._settings, assignment.queue
        subscription = self._subscriptions.get(queue.topic)
        if self._is_suspended() or subscription is None:
            return SUSPENDED_SECONDS
        process_queue = assignment.process_queue
        is_full = len(process_queue) > settings.popped_messages_max
        if is_full or self._flow.hold(queue.topic, process_queue) is not None:
            await assignment.wait_for_capacity(CAPACITY_SECONDS_MAX)
            return 0.0
        asked_ms = clock.steady_ms()
        from_first = settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        popped = await self._pops.pop(
            subscription,
            queue.broker_name,
            PopTerms(settings.pop_batch_size, settings.pop_invisible_ms, from_first),
            settings.suspend_timeout_ms / 1000,
            queue.queue_id,
        )
        if popped.pulled.messages:
            await self._take(assignment, popped, clock.steady_ms() - asked_ms)
        elif clock.steady_ms() - asked_ms < FLOW_CONTROL_SECONDS * 1000:
            # A broker that is busy, or that holds no pops, answers at once.
            return settings.pull_error_delay_ms / 1000
        return settings.pull_interval_ms / 1000

    async def _take(self, assignment: Assignment, popped: PoppedMessages, elapsed_ms: int) -> None:
        messages, now = popped.pulled.messages, self._loop.time()
        if self._is_closing:
            await self._give_back_unread(messages)
            return
        self._held.add(popped.leases, now)
        until = now + self._settings.consume_timeout_minutes * 60
        self._keeper.keep(((lease, None) for lease in popped.leases), until, self._keeping)
        stats, now_ms = self._consuming.stats_of(assignment.queue.topic), clock.steady_ms()
        stats.pulls.add(now_ms, 1, elapsed_ms)
        stats.pulled.add(now_ms, len(messages))
        self._consuming.submit(assignment, popped.pulled)

    async def _renew(
        self, message: MessageExt, lease: Lease, offset: int, milliseconds: int
    ) -> Lease:
        new = await self._pops.change(message, lease, offset, milliseconds)
        self._held.renewed(message, lease, offset, new, self._loop.time())
        return new

    # -- what becomes of messages ---------------------------------------------------------------
    def in_time(self, assignment: Assignment, messages: list[MessageExt]) -> list[MessageExt]:
        """Those that nobody else may have got, of messages that a listener is about to get."""
        now = self._loop.time()
        late = [m for m in messages if type(p := parts_of(m)) is Lease and p.times.ends_at <= now]
        if not late:
            return messages
        _log.warning(
            "%d messages of %s wait too long, others get them", len(late), assignment.queue
        )
        assignment.process_queue.remove(late)
        assignment.capacity.set()
        return [message for message in messages if message not in late]

    def done(self, messages: list[MessageExt]) -> None:
        """Messages are done with."""
        done = self._pops.done(messages)
        for lease, offsets in done.items():
            self._held.remove_all(lease, offsets)
        if self._keeper.is_renewing(messages):
            self._start(self._done_renewed(messages))
        elif done:
            self._acknowledge(done)

    async def _done_renewed(self, messages: list[MessageExt]) -> None:
        await self._keeper.settled(*messages)
        self._acknowledge(self._pops.done(messages))

    def _acknowledge(self, done: Done) -> None:
        def ended(future: asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None:
                return
            ends_at = max(lease.times.ends_at for lease in done)
            is_again = isinstance(error, RemotingError) and self._loop.time() < ends_at
            if is_again and not self._is_closing:
                self._loop.call_later(AGAIN_SECONDS, self._acknowledge, done)
                return
            count = sum(map(len, done.values()))
            what = f"{count} messages that are done come again: no acknowledgement"
            note_failure(self._settings.on_failure, _log, what, error)

        self._pops.acks.add(done).add_done_callback(ended)

    async def give_back(self, failed: list[tuple[MessageExt, Outcome]]) -> None:
        """Messages that listeners failed for come again later, or go to the dead letters."""
        await asyncio.gather(*(self._give_back(*each) for each in failed))

    async def _give_back(self, message: MessageExt, outcome: Outcome) -> None:
        settings, level = self._settings, self._settings.delay_level_when_next_consume
        await self._keeper.settled(message)
        lease, offset = self._pops.leased(message)
        reason = None
        if outcome.action is Action.DEAD_LETTER:
            reason = outcome.reason
        elif outcome.delay_level is None and level == DEAD_LETTER_LEVEL:
            reason = ""
        elif message.reconsume_times >= self._send_backs.max_reconsume_times:
            reason = TRIED_TOO_OFTEN
        if reason is not None and await self._send_backs.bury(message, reason, lease.broker_name):
            self.done([message])
            return
        self._held.remove(lease, offset)
        seconds = retry_seconds(message.reconsume_times, outcome, max(level, 0))
        milliseconds = min(round(seconds * 1000), INVISIBLE_MS_MAX)
        try:
            await self._pops.change(message, lease, offset, milliseconds)
        except KeroloxError as error:
            what = f"message {message.message_id} comes again as soon as its time is over"
            note_failure(settings.on_failure, _log, what, error)

    async def _give_back_unread(self, messages: list[MessageExt]) -> None:
        for error in await self._pops.give_back(messages):
            what = "a message that nobody consumed comes again later"
            note_failure(self._settings.on_failure, _log, what, error)

    def _start(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Listeners have ended: send what they said, and give back the rest, in bounded time."""
        self._is_closing = True
        await self._keeper.close()
        try:
            async with asyncio.timeout(OFFSETS_SECONDS_MAX):
                await self._pops.acks.close(OFFSETS_SECONDS_MAX)
                await self._give_back_unread(self._held.in_time(self._loop.time()))
        except TimeoutError as error:
            what = "not all messages were settled in time, they come again later"
            note_failure(self._settings.on_failure, _log, what, error)
        self._pops.acks.abort()
