"""Pull after pull of one queue, without a step of its task in between.

A pull is for the fast path when its connection is open and nothing of its request changes but
numbers. The connection hands its answer over on arrival, which begins the next pull at once.
Requests of all queues that are answered together leave in one write. What is not for the fast path
ends the row. The pull loop of the queue (:mod:`kerolox.client.aio.consumers.push.pulling`) then
continues on the slow path.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kerolox import clock
from kerolox.client.core.consuming.pull import pull_flags
from kerolox.codec.pulling import Pulled, decode_pulled, message_codec
from kerolox.errors import RequestTimeoutError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.codec.pulling import PullFrames
    from kerolox.filter.tags import Subscription
    from kerolox.remoting.client_connection import ClientConnection
    from kerolox.remoting.core.client_requests import PulledFrame


class PullLoop(Protocol):
    """The owner of fast pulls: it decides about each next one and takes the messages."""

    def may_pull(self, assignment: Assignment, subscription: Subscription, address: str) -> bool:
        """Another pull with this subscription may go to this address now."""

    def commit_offset(self, assignment: Assignment, address: str) -> int:
        """What the pull brings along to be stored; -1: nothing."""

    def take(
        self,
        assignment: Assignment,
        next_offset: int,
        suggested_broker_id: int,
        pulled: Pulled | None,
        elapsed_ms: int,
    ) -> None:
        """A pull was answered."""


class FastPulls:
    """A row of fast-path pulls of one queue."""

    def __init__(
        self,
        pull_loop: PullLoop,
        assignment: Assignment,
        subscription: Subscription,
        *,
        connection: ClientConnection,
        frames: PullFrames,
        suspend_timeout_ms: int,
        timeout_seconds: float,
    ) -> None:
        """Nothing is asked yet. ``pull_loop`` decides before each further pull. ``connection``: to
        the broker, with capacity for a request. ``suspend_timeout_ms``: how long the broker may
        hold a pull.
        """
        self._pull_loop = pull_loop
        self._assignment = assignment
        self._subscription = subscription
        self._connection = connection
        self._frames = frames
        self._flags = pull_flags(suspend_timeout_ms=suspend_timeout_ms)
        self._flags_to_commit = pull_flags(suspend_timeout_ms=suspend_timeout_ms, commits=True)
        self._timeout_seconds = timeout_seconds
        self._what = f"request {int(RequestCode.PULL_MESSAGE)} to {connection.address}"
        self._codec = message_codec()
        self._loop = connection.loop
        self._over: asyncio.Future[RemotingCommand | None] = self._loop.create_future()
        self._error: Exception | None = None
        self._opaque = 0
        self._asked_at = 0.0
        self.asked_ms = 0
        """When the last pull began (``clock.steady_ms``)."""
        self.is_stuck = False
        """The last answer has the same pull repeated at once: see ``Pulling``."""

    async def run(self) -> RemotingCommand | None:
        """Pull until an answer comes that is not for the fast path, which is given back, or another
        check is due (None). Errors as those of ``RemotingClient.invoke``, and those of torn
        records."""
        self._pull(clock.steady_ms())
        try:
            answer = await self._over
        finally:
            self._connection.give_up(self._opaque)
        error, self._error = self._error, None
        if error is None:
            return answer
        if isinstance(error, RequestTimeoutError):
            self._connection.timed_out(self._asked_at)
        raise error

    def _pull(self, now_ms: int) -> None:
        assignment, connection = self._assignment, self._connection
        assignment.process_queue.last_pull_ms = self.asked_ms = now_ms
        commit = self._pull_loop.commit_offset(assignment, connection.address)
        flags = self._flags if commit < 0 else self._flags_to_commit
        self._opaque = opaque = connection.sends.new_opaque()
        frame = self._frames.frame(opaque, assignment.next_offset, flags, max(commit, 0))
        self._asked_at = now = self._loop.time()
        connection.requests.pull(frame, opaque, now + self._timeout_seconds, self._what, self)

    # -- what the connection calls --------------------------------------------------------------
    def done(self) -> bool:
        """Nobody waits for an answer."""
        return self._over.done()

    def set_result(self, result: PulledFrame | RemotingCommand) -> None:
        """The last pull was answered."""
        try:
            if isinstance(result, RemotingCommand):
                self._end(result)
            else:
                self._take(*result)
        except Exception as error:
            self.set_exception(error)

    def set_exception(self, error: Exception) -> None:
        """The last pull has failed."""
        if not self._over.done():
            self._error = error
            self._over.set_result(None)

    def _take(
        self,
        code: int,
        next_offset: int,
        suggested_broker_id: int,
        bounds: tuple[str, str],
        frame: bytes,
        start: int,
    ) -> None:
        assignment, subscription = self._assignment, self._subscription
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._end(RemotingCommand.decode(frame))
            return
        if assignment.process_queue.is_dropped:
            self._end(None)
            return
        pulled = None
        if code == ResponseCode.SUCCESS:
            broker_name, tags = assignment.queue.broker_name, subscription.tags
            pulled = decode_pulled(frame, start, broker_name, tags, bounds, self._codec)
        asked = assignment.next_offset
        self.is_stuck = code == ResponseCode.PULL_RETRY_IMMEDIATELY and next_offset == asked
        now_ms = clock.steady_ms()
        pull_loop, connection = self._pull_loop, self._connection
        elapsed_ms = now_ms - self.asked_ms
        pull_loop.take(assignment, next_offset, suggested_broker_id, pulled, elapsed_ms)
        if (
            not self.is_stuck
            and not connection.closed
            and connection.has_capacity()
            and pull_loop.may_pull(assignment, subscription, connection.address)
        ):
            self._pull(now_ms)
        else:
            self._end(None)

    def _end(self, answer: RemotingCommand | None) -> None:
        if not self._over.done():
            self._over.set_result(answer)
