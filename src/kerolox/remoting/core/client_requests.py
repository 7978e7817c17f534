"""The requests of a client on one connection: capacity for them, and what becomes of them.

A connection has capacity while fewer than ``calls_max`` of its sends wait for a response, and the
peer has not left too much unread. Without capacity further requests wait in the order in which they
came, each within its own time limit.

Fast-path sends are the codec's (``SendChannel``), and so is what is buffered to be written. Other
requests wait in tables of their own; a pull's fast-path answer is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from kerolox.errors import (
    ClientClosedError,
    ConnectionLostError,
    KeroloxError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.core.open_calls import Waiter
from kerolox.remoting.core.pulls import PulledFrame, PullRequests, ReadPull
from kerolox.remoting.core.request_queue import (
    Queued,
    QueuedSend,
    RequestQueue,
    SlowPathNeededError,
    WriteSend,
)
from kerolox.remoting.core.requests import MakeError, late
from kerolox.remoting.core.silence import Silence

if TYPE_CHECKING:
    from kerolox.codec.sending import OpenSend, SendChannel
    from kerolox.protocol.command import RemotingCommand

NO_CAPACITY = (
    "no capacity in time for {}: the peer takes no more, or leaves too many requests unanswered; "
    "it is"
    " stopped or overloaded, or more is sent than it can take. The request was not sent"
)

MakeSends = Callable[[Sequence[dict[int, Any]], dict[int, Any]], "SendChannel"]
"""Makes the channel of fast-path sends from the tables of other requests and of those that wait."""


class ClientRequests(PullRequests):
    """The requests of one connection."""

    __slots__ = ("_address", "_suspect", "request_queue", "sends", "silence")

    def __init__(
        self,
        address: str,
        make_sends: MakeSends,
        arm: Callable[[float], object],
        next_iteration: Callable[[], object],
        suspect: Callable[[float], object],
        read_pull: ReadPull | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            address: the peer's, for errors.
            make_sends: makes the channel; its ``arm`` is this one, its ``admit`` calls
                :meth:`admit`.
            arm: as that of :class:`Requests`.
            next_iteration: as that of :class:`Requests`.
            suspect: the peer says nothing since a time: look once more, a little later, whether
                its silence lasts, then give it up.
            read_pull: as that of :class:`PullRequests`.
        """
        super().__init__(arm, next_iteration, read_pull)
        self._address = address
        self._suspect = suspect
        self.request_queue: RequestQueue = RequestQueue(arm)
        """Those that wait for capacity."""
        self.sends: SendChannel = make_sends(
            (self.calls.opaques, self.pulls.opaques), self.request_queue.entries
        )
        """The fast-path sends, and all that is to be written."""
        self.silence: Silence = Silence()
        self._tables = (self.calls, self.pulls, self.request_queue, self.sends)

    # -- what callers ask -----------------------------------------------------------------------
    def queue(
        self, command: RemotingCommand, deadline: float, what: str, waiter: Waiter[RemotingCommand]
    ) -> Queued:
        """Let a request wait until there is capacity; :meth:`forget` it whatever comes."""
        queued = Queued(waiter, deadline, what, command)
        self.request_queue.join(command.opaque, queued)
        return queued

    def post_later(
        self, write: WriteSend, opaque: int, deadline: float, what: str, waiter: Waiter[None]
    ) -> None:
        """Let a send wait until there is capacity.

        Its waiter is notified when it is written or withdrawn, or why it was not:
        SlowPathNeededError, or the end of its time or of the connection.
        """
        self.request_queue.join(opaque, QueuedSend(waiter, deadline, what, write))

    def pull(
        self,
        frame: bytes,
        opaque: int,
        deadline: float,
        what: str,
        waiter: Waiter[PulledFrame | RemotingCommand],
    ) -> None:
        """Write a pull, for which there is capacity; drop it when nobody waits any more.

        Its waiter is handed a fast-path answer as it is read, any other one as a command.
        """
        self.pulls.wait(waiter, opaque, deadline, what)
        self.sends.write(frame)

    def withdraw(self, opaque: int) -> None:
        """The caller of a send that waits for capacity went away; then :meth:`admit` others."""
        queued = self.request_queue.entries.pop(opaque, None)
        if isinstance(queued, QueuedSend) and not queued.waiter.done():
            queued.waiter.set_result(None)

    def forget(self, opaque: int) -> None:
        """A request is answered, or its caller went away; then :meth:`admit` others."""
        self.calls.drop(opaque)
        self.request_queue.entries.pop(opaque, None)

    def complete(self, response: RemotingCommand) -> None:
        """A response has come that is not for the fast path; then :meth:`admit` others."""
        if not self.sends.complete(response.opaque, response):
            super().complete(response)

    def admit(self, now: float) -> None:
        """Write requests that wait, those that came first first, as far as there is capacity."""
        entries = self.request_queue.entries
        overdue: list[Queued | QueuedSend] = []
        while entries and self.sends.takes_more():
            opaque, queued = entries.popitem(last=False)
            if queued.waiter.done():
                continue
            if queued.deadline <= now:
                overdue.append(queued)
            elif isinstance(queued, Queued):
                self._admit_call(opaque, queued, now)
            elif queued.write():
                queued.waiter.set_result(None)
            else:
                queued.waiter.set_exception(SlowPathNeededError())
        self._end_queue(overdue, _no_capacity)

    def _admit_call(self, opaque: int, queued: Queued, now: float) -> None:
        command, waiter = queued.command, queued.waiter
        try:
            data = command.encode()
        except LocalProtocolError as error:
            waiter.set_exception(error)
            return
        queued.written_at = now
        self.sends.write(data)
        if command.is_oneway:
            waiter.set_result(command)
        else:
            self.calls.wait(waiter, opaque, queued.deadline, queued.what)

    # -- what ends them -------------------------------------------------------------------------
    def expire(self, now: float) -> None:
        """The timer has fired: requests whose time is over end, and others have their capacity."""
        self._set_armed(inf)
        calls, first = self.calls.expire(now)
        pulls, second = self.pulls.expire(now)
        sends, third = self.sends.expire(now)
        queued, fourth = self.request_queue.expire(now)
        self._end_calls(calls, late)
        self._end_calls(pulls, late)
        self._end_sends(sends, late)
        self._end_queue(queued, _no_capacity)
        if sends:
            self.timed_out(min(send.asked_at for send in sends), now)
        self.admit(now)
        self._rearm(min(first, second, third, fourth))

    def timed_out(self, asked_at: float, now: float) -> None:
        """A request that was written at ``asked_at`` had no response."""
        since = self.silence.timed_out(asked_at, now)
        if since is not None:
            self._suspect(since)

    def lost(self, remote_address: str, reason: str) -> None:
        """The connection is gone, and so are all that wait."""

        def lost(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {remote_address} closed{reason} during {what}"
            )

        def unsent(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {self._address} closed before {what} was sent"
            )

        self._end_all(lost, unsent)

    def fail(self) -> None:
        """The client is closed: all that wait are told."""

        def unknown(what: str) -> KeroloxError:
            return ClientClosedError(
                f"the client was closed before the response to {what} came;"
                " whether it was done is unknown"
            )

        def unsent(what: str) -> KeroloxError:
            return ClientClosedError(f"the client was closed before {what} was sent")

        self._end_all(unknown, unsent)

    def waiters(self) -> list[object]:
        """The futures of all requests without a response, those that were not yet written too;
        not of pulls."""
        queued = (queued.waiter for queued in self.request_queue.entries.values())
        return [*self.calls.waiters(), *queued, *self.sends.futures()]

    def _end_all(self, written: MakeError, unsent: MakeError) -> None:
        self.sends.closed = True
        queued = self.request_queue.take_open()
        self.end_all(written)
        self._end_sends(self.sends.take_open(), written)
        self._end_queue(queued, unsent)

    def _end_sends(self, sends: list[OpenSend], make_error: MakeError) -> None:
        def end(send: OpenSend) -> None:
            code = RequestCode.SEND_MESSAGE_V2
            if send.batch is not None:
                code = RequestCode.SEND_BATCH_MESSAGE
            send.end(make_error(f"request {code} to {self._address}"))

        self._endings.add(sends, end)

    def _end_queue(self, request_queue: list[Queued | QueuedSend], make_error: MakeError) -> None:
        def end(queued: Queued | QueuedSend) -> None:
            if not queued.waiter.done():
                queued.waiter.set_exception(make_error(queued.what))

        self._endings.add(request_queue, end)


def _no_capacity(what: str) -> KeroloxError:
    return RequestTimeoutError(NO_CAPACITY.format(what))
