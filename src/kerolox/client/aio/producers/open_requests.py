"""The requests of a producer that wait for a reply (``RequestFutureTable``).

A check each second finds those that come due before the next check, and only they get a timer. So a
request with a quick answer costs no timer, and one without ends at its own time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kerolox import clock
from kerolox.client.core.failures import note_failure
from kerolox.client.core.sending.request_reply import pushed_reply
from kerolox.errors import ClientError, RemoteProtocolError, RequestTimeoutError
from kerolox.message import PropertyKey
from kerolox.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from kerolox.client.core.failures import FailureCallback
    from kerolox.errors import KeroloxError
    from kerolox.message import MessageExt
    from kerolox.protocol.command import RemotingCommand

CHECK_INTERVAL_MS = 1_000
"""How often overdue requests are looked for."""

REQUESTS_OPEN_MAX = 10_000
"""Requests of one producer that may wait for a reply at the same time; more are refused."""


_log = logging.getLogger("kerolox.client.aio.producers.producer")


class _Open(NamedTuple):
    future: asyncio.Future[MessageExt]
    deadline: float
    what: str


class OpenRequests:
    """Requests by correlation id, each with a future for its reply. Use it in one event loop."""

    def __init__(self, on_failure: FailureCallback | None = None) -> None:
        """``on_failure``: told of replies that can't be read."""
        self._on_failure = on_failure
        self._open: dict[str, _Open] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._next_check = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def has(self, correlation_id: str) -> bool:
        """A request with this id waits, or its caller does not know yet that it ended."""
        return correlation_id in self._open

    def open(self, correlation_id: str, deadline: float, what: str) -> asyncio.Future[MessageExt]:
        """A future for the reply; :meth:`drop` it whatever comes. At ``deadline``, a
        ``loop.time()``, it fails with RequestTimeoutError, which names the request by ``what``.
        ClientError: ``REQUESTS_OPEN_MAX`` requests wait already.
        """
        if len(self._open) >= REQUESTS_OPEN_MAX:
            raise ClientError(
                f"{len(self._open)} requests of this producer wait for a reply; wait for some of "
                "them before more are sent"
            )
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._open[correlation_id] = _Open(future, deadline, what)
        if deadline <= self._next_check:
            self._arm(correlation_id, deadline)
        return future

    def complete(self, correlation_id: str, reply: MessageExt) -> bool:
        """Hand a reply to its request. False: nobody waits for it, any more."""
        entry = self._open.get(correlation_id)
        if entry is None or entry.future.done():
            return False
        entry.future.set_result(reply)
        return True

    def drop(self, correlation_id: str) -> None:
        """Forget a request, answered or not."""
        entry = self._open.pop(correlation_id, None)
        timer = self._timers.pop(correlation_id, None)
        if timer is not None:
            timer.cancel()
        if entry is not None:
            # One that failed while its caller was busy otherwise has no one to tell.
            entry.future.cancel()

    async def check_deadlines(self) -> None:
        """Have those end in time that come due before the next check."""
        self._next_check = asyncio.get_running_loop().time() + CHECK_INTERVAL_MS / 1000
        for correlation_id, entry in self._open.items():
            if entry.deadline <= self._next_check and correlation_id not in self._timers:
                self._arm(correlation_id, entry.deadline)

    def fail(self, error: KeroloxError) -> None:
        """End all of them with an error."""
        for entry in self._open.values():
            if not entry.future.done():
                entry.future.set_exception(error)

    def _arm(self, correlation_id: str, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[correlation_id] = loop.call_at(deadline, self._overdue, correlation_id)

    def _overdue(self, correlation_id: str) -> None:
        entry = self._open.get(correlation_id)
        if entry is not None and not entry.future.done():
            entry.future.set_exception(RequestTimeoutError(f"no reply in time to {entry.what}"))

    def take_reply(self, command: RemotingCommand, address: str) -> RemotingCommand:
        """A broker brings a reply; what it is answered."""
        try:
            reply = pushed_reply(command, now_ms=clock.now_ms())
        except RemoteProtocolError as error:
            note_failure(self._on_failure, _log, f"from {address}", error)
            return command.response(
                ResponseCode.SYSTEM_ERROR, f"process reply message fail: {error}"
            )
        correlation_id = reply.properties.get(PropertyKey.CORRELATION_ID, "")
        if not self.complete(correlation_id, reply):
            _log.warning(
                "a reply from %s comes too late, or to no request of ours: %s",
                reply.born_host,
                correlation_id,
            )
        return command.response()
