"""Messages that a program takes one by one and settles itself, in place of a listener.

A message that was given out stays unfinished until it is settled: its queue's offset does not pass
it. A message that nobody settles in time goes back for a retry, as that of a listener would. When
its queue is lost, or the consumer closes, the group gets it again.

Messages that are done leave their queue when the event loop's iteration ends, all at once. A loop
over the consumer whose body never waits is made to wait now and then, so that iterations end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from kerolox import clock
from kerolox.client.aio.consumers.push.workers import SLICE_MS_MAX
from kerolox.client.core.consuming.outcome import Action, Outcome
from kerolox.client.core.hooks import ConsumeContext, ConsumeReturnType
from kerolox.message import MessageExt, note_consume_start

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.listening import Listeners
    from kerolox.client.core.consuming.stats import TopicStats

    _Waiting = tuple[MessageExt, Assignment | None, asyncio.Future[Outcome] | None]
    """A message and its queue, or, of an ordered queue, the outcome that its turn waits for."""

    _Given = tuple[
        MessageExt,
        Assignment | None,
        asyncio.Future[Outcome] | None,
        int,
        ConsumeContext | None,
    ]
    """The same, when that was (``steady_ms``), and what hooks made of it."""


_DONE = Outcome.ack()


class Settling(Protocol):
    """The settling of messages: acknowledged, retried, or dead letters."""

    def stats_of(self, topic: str) -> TopicStats:
        """The counters of a topic."""

    def went_well(
        self, assignment: Assignment, messages: list[MessageExt], elapsed_ms: int
    ) -> None:
        """Messages are done with, after so many milliseconds in all."""

    async def give_back(
        self, assignment: Assignment, failed: list[tuple[MessageExt, Outcome]]
    ) -> None:
        """Have messages retried."""


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
        self._waiting: deque[_Waiting] = deque()
        self._given: dict[int, _Given] = {}
        """What was given out and is not settled, by the identity of the message."""
        self._arrived = asyncio.Event()
        self._slice_ends_ms = 0
        """Whoever takes messages waits for the event loop's next iteration after this time."""
        self.is_over = False
        """The consumer closes."""

    def put(self, assignment: Assignment, messages: list[MessageExt]) -> None:
        """Messages of a queue that is not read in order."""
        self._waiting.extend(zip(messages, repeat(assignment), repeat(None)))
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
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, None, outcome))
        self._arrived.set()
        try:
            async with asyncio.timeout(self._overdue_seconds):
                return await outcome
        except TimeoutError:
            return Outcome.nack()
        finally:
            outcome.cancel()
            self._given.pop(id(message), None)

    def take(self) -> MessageExt | None:
        """The next message, if one is here and nobody else has to run first."""
        waiting = self._waiting
        if not waiting or self.is_over:
            return None
        now_ms = clock.steady_ms()
        while waiting and now_ms <= self._slice_ends_ms:
            message, assignment, outcome = waiting.popleft()
            if not _is_alive(assignment, outcome):
                continue
            note_consume_start((message,), now_ms)
            context = None
            if self.hooks is not None and assignment is not None:
                context = self.hooks.begin_hooks(assignment.queue, [message])
            self._given[id(message)] = message, assignment, outcome, now_ms, context
            return message
        return None

    async def next(self) -> MessageExt:
        """The next message, as soon as there is one; StopAsyncIteration: the consumer closes."""
        while not self.is_over:
            message = self.take()
            if message is not None:
                return message
            if self._waiting:
                await asyncio.sleep(0)
            else:
                self._arrived.clear()
                await self._arrived.wait()
            self._slice_ends_ms = clock.steady_ms() + SLICE_MS_MAX
        raise StopAsyncIteration

    async def settle(self, message: MessageExt, outcome: Outcome, consuming: Settling) -> bool:
        """Say what becomes of a message that was given out; False: it is not ours any more, or
        was settled before."""
        if outcome.action is Action.ACK:
            return self.done((message,), consuming)
        given = self._given.pop(id(message), None)
        if given is None:
            return False
        _, assignment, waiting, given_ms, context = given
        if not _is_alive(assignment, waiting):
            return False
        if waiting is not None:
            waiting.set_result(outcome)
            return True
        assert assignment is not None
        now_ms = clock.steady_ms()
        stats = consuming.stats_of(assignment.queue.topic)
        stats.failed.add(now_ms, 1, now_ms - given_ms)
        if self.hooks is not None and context is not None:
            self.hooks.end_hooks(context, ConsumeReturnType.FAILED, is_success=False)
        await consuming.give_back(assignment, [(message, outcome)])
        return True

    def done(self, messages: Iterable[MessageExt], consuming: Settling) -> bool:
        """Messages that were given out are done with; False: one is not ours any more, or was
        settled before. Those of a queue that stand together leave it together."""
        now_ms, is_each = clock.steady_ms(), True
        leaving: list[MessageExt] = []
        leaves: Assignment | None = None
        elapsed_ms = 0
        for message in messages:
            given = self._given.pop(id(message), None)
            if given is None:
                is_each = False
                continue
            _, assignment, waiting, given_ms, context = given
            if not _is_alive(assignment, waiting):
                is_each = False
                continue
            if waiting is not None:
                waiting.set_result(_DONE)
                continue
            if self.hooks is not None and context is not None:
                self.hooks.end_hooks(context, ConsumeReturnType.SUCCESS, is_success=True)
            if assignment is not leaves:
                if leaves is not None:
                    consuming.went_well(leaves, leaving, elapsed_ms)
                leaves, leaving, elapsed_ms = assignment, [], 0
            leaving.append(message)
            elapsed_ms += now_ms - given_ms
        if leaves is not None:
            consuming.went_well(leaves, leaving, elapsed_ms)
        return is_each

    def forget(self, message: MessageExt) -> None:
        """A message was sent back since it is overdue."""
        self._given.pop(id(message), None)

    def forget_lost(self) -> None:
        """Forget what was given out of queues that are not ours any more."""
        self._given = {
            key: given for key, given in self._given.items() if _is_alive(given[1], given[2])
        }

    def end(self) -> None:
        """The consumer closes: whoever waits for a message learns that there will be none."""
        self.is_over = True
        self._arrived.set()


def _is_alive(assignment: Assignment | None, outcome: asyncio.Future[Outcome] | None) -> bool:
    if outcome is not None:
        return not outcome.done()
    return assignment is not None and not assignment.process_queue.is_dropped
