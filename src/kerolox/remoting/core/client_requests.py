"""The requests of a client on one connection: capacity for them, and what becomes of them.

A connection has capacity while fewer than ``calls_max`` of its sends wait for a response, and the
peer has not left too much unread. Without capacity further requests wait in the order in which they
came, each within its own time limit.

Fast-path sends are the codec's (``SendChannel``), and so is what is buffered to be written. Other
requests wait in tables of their own; a pull's fast-path answer is read in place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from kerolox.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    KeroloxError,
    LocalProtocolError,
    RequestTimeoutError,
)
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.core.requests import MakeError, OpenCalls, Requests, Waiter, late, lost_while

if TYPE_CHECKING:
    from kerolox.codec.python_answers import PullAnswer
    from kerolox.codec.sending import OpenSend, SendChannel
    from kerolox.protocol.command import RemotingCommand


class SlowPathNeededError(ClientError):
    """A send that waited for capacity can't be written by a codec; it takes the slow path."""


WriteSend = Callable[[], bool]
"""Writes a send that waited for capacity; False: it is not for the fast path."""


class Queued:
    """A request that is encoded when it is its turn. Its waiter is handed its response, or, if it
    is one-way, itself when it is written."""

    __slots__ = ("command", "deadline", "waiter", "what", "written_at")

    def __init__(
        self, waiter: Waiter[RemotingCommand], deadline: float, what: str, command: RemotingCommand
    ) -> None:
        self.waiter: Waiter[RemotingCommand] = waiter
        self.deadline: float = deadline
        self.what: str = what
        self.command: RemotingCommand = command
        self.written_at: float | None = None
        """When it was written."""


class QueuedSend:
    """A send of a codec, or a batch. Its waiter is notified when it is written."""

    __slots__ = ("deadline", "waiter", "what", "write")

    def __init__(self, waiter: Waiter[None], deadline: float, what: str, write: WriteSend) -> None:
        self.waiter: Waiter[None] = waiter
        self.deadline: float = deadline
        self.what: str = what
        self.write: WriteSend = write


class RequestQueue:
    """Those that wait, by opaque, in the order in which they came."""

    __slots__ = ("_arm", "armed_at", "entries")

    def __init__(self, arm: Callable[[float], object]) -> None:
        """``arm``: called with a deadline that is earlier than ``armed_at``."""
        self._arm = arm
        self.entries: OrderedDict[int, Queued | QueuedSend] = OrderedDict()
        self.armed_at: float = inf
        """When the timer of the deadlines fires; infinite: there is none."""

    def __len__(self) -> int:
        return len(self.entries)

    def join(self, opaque: int, queued: Queued | QueuedSend) -> None:
        """Wait behind all others."""
        self.entries[opaque] = queued
        if queued.deadline < self.armed_at:
            self._arm(queued.deadline)

    def expire(self, now: float) -> tuple[list[Queued | QueuedSend], float]:
        """Take out those whose time is over; with the earliest deadline of the others."""
        entries = self.entries
        overdue = [opaque for opaque, queued in entries.items() if queued.deadline <= now]
        taken = [entries.pop(opaque) for opaque in overdue]
        return taken, min((queued.deadline for queued in entries.values()), default=inf)

    def take_open(self) -> list[Queued | QueuedSend]:
        """Take out all of them."""
        taken = list(self.entries.values())
        self.entries.clear()
        return taken


SILENT_SECONDS_MAX = 2.5
"""A peer that says nothing for so long, while requests to it time out, is given up."""


class Silence:
    """What one connection knows of its peer's silence.

    A request whose time is over says little: its peer may be slow, or its own limit short. A peer
    of which nothing at all arrives while requests, one after the other, wait for
    ``SILENT_SECONDS_MAX`` is stopped or out of reach, or a firewall has forgotten the connection.
    It is closed then (``clientCloseSocketIfTimeout``), so that the next request opens another.
    """

    __slots__ = ("_since", "received_at")

    def __init__(self) -> None:
        self.received_at: float = 0.0
        """When bytes arrived last; 0: never. The connection sets it with each read."""
        self._since = 0.0
        """When the first request after that was written whose time is over."""

    def timed_out(self, asked_at: float, now: float) -> float | None:
        """A request that was written at ``asked_at`` had no response: since when the peer is
        silent, if that is for too long: look once more (:meth:`lasts`), then give it up. None: it
        is not, or not yet.
        """
        if self.received_at > asked_at:
            return None
        if self._since <= self.received_at:
            self._since = asked_at
        return self._since if now - self._since >= SILENT_SECONDS_MAX else None

    def lasts(self, since: float) -> bool:
        """Nothing came after that either."""
        return self.received_at <= since


PulledFrame = tuple[int, int, int, tuple[str, str], bytes, int]
"""A fast-path answer to a pull: response code, the offset to go on at, the id of the node to ask
next, the queue's bounds as they are written, the frame, and where in it the records begin."""

ReadPull = Callable[[bytes], "PullAnswer | None"]
"""Reads a fast-path answer; None: the frame is anything else."""


class PullRequests(Requests):
    """The requests of one connection, pulls among them."""

    __slots__ = ("_read_pull", "pulls")

    def __init__(
        self,
        arm: Callable[[float], object],
        next_iteration: Callable[[], object],
        read_pull: ReadPull | None,
    ) -> None:
        """As that of :class:`Requests`. ``read_pull``: that of a codec; None: nobody pulls."""
        super().__init__(arm, next_iteration)
        self._read_pull = read_pull
        self.pulls: OpenCalls[PulledFrame | RemotingCommand] = OpenCalls(arm)
        """Those of the calls whose fast-path answers are read in place."""
        self._tables = (self.calls, self.pulls)

    def take_pull_answers(self, frames: list[bytes]) -> list[bytes]:
        """Hand fast-path answers of pulls to who waits for them; the other frames."""
        read, pulls = self._read_pull, self.pulls
        if read is None or not pulls:
            return frames
        others: list[bytes] = []
        for frame in frames:
            answer = read(frame)
            if answer is None or answer[0] not in pulls:
                others.append(frame)
            else:
                opaque, code, next_offset, broker_id, least, most, start = answer
                pulls.complete(opaque, (code, next_offset, broker_id, (least, most), frame, start))
        return others

    def complete(self, response: RemotingCommand) -> None:
        """A response has come that is not for the fast path."""
        if response.opaque in self.pulls:
            self.pulls.complete(response.opaque, response)
        else:
            super().complete(response)

    def end_all(self, make_error: MakeError) -> None:
        """All that wait end with such an error."""
        super().end_all(make_error)
        self._end_calls(self.pulls.take_open(), make_error)


NO_CAPACITY = (
    "no capacity in time for {}: the peer takes no more, or leaves too many requests unanswered; "
    "it is stopped or overloaded, or more is sent than it can take. The request was not sent"
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

        def unsent(what: str) -> KeroloxError:
            return ConnectionLostError(
                f"connection to {self._address} closed before {what} was sent"
            )

        self._end_all(lost_while(remote_address, reason), unsent)

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
