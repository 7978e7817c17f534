"""Messages that a program takes one by one and settles itself, in place of a listener.

A message that was given out stays unfinished until it is settled: its queue's offset does not pass
it. A message that nobody settles in time goes back for a retry, as that of a listener would. When
its queue is lost, or the consumer closes, the group gets it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kerolox import clock
from kerolox.client.core.consuming.outcome import Action, Outcome
from kerolox.client.core.hooks import ConsumeContext, ConsumeReturnType
from kerolox.message import MessageExt, note_consume_start

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.listening import Listeners
    from kerolox.client.core.consuming.stats import TopicStats


_DONE = Outcome.ack()


class Settling(Protocol):
    """The settling of messages: acknowledged, retried, or dead letters."""

    def stats_of(self, topic: str) -> TopicStats:
        """The counters of a topic."""

    def finish(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages are done with."""

    async def give_back(
        self, assignment: Assignment, failed: list[tuple[MessageExt, Outcome]]
    ) -> None:
        """Have messages retried."""


class _Delivery(NamedTuple):
    message: MessageExt
    assignment: Assignment | None
    """None: the message is of an ordered queue, whose turn waits for the outcome."""
    outcome: asyncio.Future[Outcome] | None
    given_ms: int = 0
    context: ConsumeContext | None = None


class MessageStream:
    """The messages of all topics of a consumer that have no listener."""

    def __init__(self, overdue_seconds: float) -> None:
        """Nothing is there yet; ``overdue_seconds``: how long an ordered queue waits for the
        outcome of a message."""
        self.hooks: Listeners | None = None
        """Runs hooks around what is given out, when there are any."""
        self.topics: set[str] = set()
        """Topics without listener, as the user names them."""
        self._overdue_seconds = overdue_seconds
        self._waiting: deque[_Delivery] = deque()
        self._given: dict[int, _Delivery] = {}
        """What was given out and is not settled, by the identity of the message."""
        self._arrived = asyncio.Event()
        self.is_over = False
        """The consumer closes."""

    def put(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages of a queue that is not read in order."""
        self._waiting.extend(_Delivery(message, assignment, None) for message in messages)
        self._arrived.set()

    async def listen(self, messages: list[MessageExt]) -> list[Outcome | None]:
        """The listener of ordered queues: gives each message out when the one before is done."""
        outcomes: list[Outcome | None] = []
        for message in messages:
            outcome = await self._outcome_of(message)
            outcomes.append(outcome)
            if outcome.action is not Action.ACK:
                break
        return outcomes + [Outcome.nack()] * (len(messages) - len(outcomes))

    async def _outcome_of(self, message: MessageExt) -> Outcome:
        delivery = _Delivery(message, None, asyncio.get_running_loop().create_future())
        assert delivery.outcome is not None
        self._waiting.append(delivery)
        self._arrived.set()
        try:
            async with asyncio.timeout(self._overdue_seconds):
                return await delivery.outcome
        except TimeoutError:
            return Outcome.nack()
        finally:
            delivery.outcome.cancel()
            self._given.pop(id(message), None)

    async def next(self) -> MessageExt:
        """The next message, as soon as there is one; StopAsyncIteration: the consumer closes."""
        while not self.is_over:
            while self._waiting:
                delivery = self._waiting.popleft()
                if _is_alive(delivery):
                    message, now_ms = delivery.message, clock.steady_ms()
                    note_consume_start([message], now_ms)
                    context = None
                    if self.hooks is not None and delivery.assignment is not None:
                        context = self.hooks.begin_hooks(delivery.assignment.queue, [message])
                    _, assignment, outcome, _, _ = delivery
                    given = _Delivery(message, assignment, outcome, now_ms, context)
                    self._given[id(message)] = given
                    return message
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    async def settle(self, message: MessageExt, outcome: Outcome, consuming: Settling) -> bool:
        """Say what becomes of a message that was given out; False: it is not ours any more, or
        was settled before."""
        if outcome.action is Action.ACK:
            return self.done((message,), consuming)
        delivery = self._given.pop(id(message), None)
        if delivery is None or not _is_alive(delivery):
            return False
        if delivery.outcome is not None:
            delivery.outcome.set_result(outcome)
            return True
        assert delivery.assignment is not None
        now_ms = clock.steady_ms()
        stats = consuming.stats_of(delivery.assignment.queue.topic)
        stats.failed.add(now_ms, 1, now_ms - delivery.given_ms)
        if self.hooks is not None and delivery.context is not None:
            self.hooks.end_hooks(delivery.context, ConsumeReturnType.FAILED, is_success=False)
        await consuming.give_back(delivery.assignment, [(message, outcome)])
        return True

    def done(self, messages: Iterable[MessageExt], consuming: Settling) -> bool:
        """Messages that were given out are done with; False: one is not ours any more, or was
        settled before. Those of a queue that stand together leave it together."""
        now_ms, is_each = clock.steady_ms(), True
        leaving: list[MessageExt] = []
        assignment: Assignment | None = None
        elapsed_ms = 0
        for message in messages:
            delivery = self._given.pop(id(message), None)
            if delivery is None or not _is_alive(delivery):
                is_each = False
                continue
            _, queue_of, outcome, given_ms, context = delivery
            if outcome is not None:
                outcome.set_result(_DONE)
                continue
            if self.hooks is not None and context is not None:
                self.hooks.end_hooks(context, ConsumeReturnType.SUCCESS, is_success=True)
            if queue_of is not assignment:
                _finish(consuming, assignment, leaving, now_ms, elapsed_ms)
                assignment, leaving, elapsed_ms = queue_of, [], 0
            leaving.append(message)
            elapsed_ms += now_ms - given_ms
        _finish(consuming, assignment, leaving, now_ms, elapsed_ms)
        return is_each

    def forget(self, message: MessageExt) -> None:
        """A message was sent back since it is overdue."""
        self._given.pop(id(message), None)

    def forget_lost(self) -> None:
        """Forget what was given out of queues that are not ours any more."""
        self._given = {key: each for key, each in self._given.items() if _is_alive(each)}

    def end(self) -> None:
        """The consumer closes: whoever waits for a message learns that there will be none."""
        self.is_over = True
        self._arrived.set()


def _finish(
    consuming: Settling,
    assignment: Assignment | None,
    messages: list[MessageExt],
    now_ms: int,
    elapsed_ms: int,
) -> None:
    if assignment is not None:
        stats = consuming.stats_of(assignment.queue.topic)
        stats.consumed.add(now_ms, len(messages), elapsed_ms)
        consuming.finish(assignment, messages)


def _is_alive(delivery: _Delivery) -> bool:
    if delivery.outcome is not None:
        return not delivery.outcome.done()
    return delivery.assignment is not None and not delivery.assignment.process_queue.is_dropped
