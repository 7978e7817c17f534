"""Leases that are kept: the invisible time of messages begins anew before it ends, while somebody
works on them."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self

from kerolox.client.core.failures import note_failure
from kerolox.errors import KeroloxError, RemotingError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kerolox.client.core.consuming.leases import Lease
    from kerolox.client.core.failures import FailureCallback
    from kerolox.message import MessageExt

RENEWALS_AT_ONCE_MAX = 64
"""Requests of one consumer that renew leases at the same time."""

AGAIN_SECONDS = 0.5
"""A renewal that got no answer is tried again so much later, while the lease lasts."""

YOUNG_SECONDS = 1.0
"""Most messages are settled sooner, so none of them is noted for longer than that before it has a
place among those whose time may end."""

_log = logging.getLogger(__name__)


class Keeping:
    """Messages whose leases are kept, until they are acknowledged or given back, the block ends,
    the consumer closes, or the time is over.

    Use it in a ``with`` statement, or call :meth:`stop`.
    """

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self.is_over: bool = False
        """No lease is renewed any more."""
        self.lost: list[MessageExt] = []
        """Messages whose lease could not be renewed: others may get them, or got them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Renew no more. What is not acknowledged comes again when its time is over. May be called
        in any thread."""
        self.is_over = True


class _Kept(NamedTuple):
    due_at: float
    number: int
    lease: Lease
    offsets: tuple[int, ...] | None
    """Messages of the lease; None: all that are out."""
    until: float
    keeping: Keeping


class Keeper:
    """Renews the leases of one consumer."""

    def __init__(
        self,
        renew: Callable[[MessageExt, Lease, int, int], Awaitable[Lease]],
        on_failure: FailureCallback | None,
    ) -> None:
        """``renew`` has a message's time begin anew: message, lease, offset, milliseconds; it gives
        the new lease, of which the message is out if it still was out of the old one."""
        self._renew = renew
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._kept: list[_Kept] = []
        """A heap."""
        self._numbers = count()
        self._young: list[tuple[Lease, tuple[int, ...] | None, float, Keeping]] = []
        """What is kept since the last sweep."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        """When the timer is due. A handle of uvloop does not tell, when that was at once."""
        self._slots = asyncio.Semaphore(RENEWALS_AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: dict[int, asyncio.Future[None]] = {}
        """By the identity of the message: ends with its renewal."""
        self._is_closed = False

    def keep(
        self,
        leases: Iterable[tuple[Lease, tuple[int, ...] | None]],
        until: float,
        keeping: Keeping,
    ) -> None:
        """Keep leases, of some messages or of all; ``until``: by the event loop's clock."""
        soon = self._loop.time() + 2 * YOUNG_SECONDS
        for lease, offsets in leases:
            if lease.renew_at < soon or self._is_closed:
                self._push(lease, offsets, until, keeping, lease.renew_at)
                continue
            self._young.append((lease, offsets, until, keeping))
            if self._sweep_timer is None:
                self._sweep_timer = self._loop.call_later(YOUNG_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Note when to renew those that are still out."""
        self._sweep_timer = None
        young, self._young = self._young, []
        for lease, offsets, until, keeping in young:
            out = lease.out
            if out and (offsets is None or any(offset in out for offset in offsets)):
                self._push(lease, offsets, until, keeping, lease.renew_at)

    def _push(
        self,
        lease: Lease,
        offsets: tuple[int, ...] | None,
        until: float,
        keeping: Keeping,
        due_at: float,
    ) -> None:
        if self._is_closed or keeping.is_over or lease.times.ends_at >= until:
            return
        due_at = max(due_at, self._loop.time())
        heapq.heappush(
            self._kept, _Kept(due_at, next(self._numbers), lease, offsets, until, keeping)
        )
        if self._wakes_at > due_at:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_at = None, math.inf
        if self._kept:
            self._wakes_at = self._kept[0].due_at
            self._timer = self._loop.call_at(self._wakes_at, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        self._timer, self._wakes_at = None, math.inf
        while self._kept and self._kept[0].due_at <= now:
            kept = heapq.heappop(self._kept)
            if kept.keeping.is_over or now >= kept.until:
                continue
            out = kept.lease.out
            offsets = tuple(out) if kept.offsets is None else kept.offsets
            for offset in offsets:
                if (message := out.get(offset)) is not None:
                    self._begin(kept, offset, message)
        self._arm()

    def _begin(self, kept: _Kept, offset: int, message: MessageExt) -> None:
        if id(message) in self._renewing:
            return
        done = self._renewing[id(message)] = self._loop.create_future()
        task = self._loop.create_task(self._renewed(kept, offset, message))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            del self._renewing[id(message)]
            if not done.done():
                done.set_result(None)

        task.add_done_callback(ended)

    async def _renewed(self, kept: _Kept, offset: int, message: MessageExt) -> None:
        lease, keeping, until = kept.lease, kept.keeping, kept.until
        async with self._slots:
            left_ms = round((until - self._loop.time()) * 1000)
            if left_ms < 1 or offset not in lease.out or keeping.is_over:
                return
            wanted_ms = min(max(lease.times.invisible_ms, 1), left_ms)
            try:
                new = await self._renew(message, lease, offset, wanted_ms)
            except KeroloxError as error:
                if offset not in lease.out:
                    return
                now = self._loop.time()
                if isinstance(error, RemotingError) and now < lease.times.ends_at:
                    self._push(lease, (offset,), until, keeping, now + AGAIN_SECONDS)
                    return
                keeping.lost.append(message)
                what = f"message {message.message_id} is not kept any more, others may get it"
                note_failure(self._on_failure, _log, what, error)
                return
        if offset in new.out:
            self._push(new, (offset,), until, keeping, new.renew_at)

    def is_renewing(self, messages: Iterable[MessageExt]) -> bool:
        """Whether a renewal of one of their leases is on its way. Who is to say what becomes of
        them waits for it: a broker of RocketMQ takes the newest receipt alone."""
        renewing = self._renewing
        return bool(renewing) and any(id(message) in renewing for message in messages)

    async def settled(self, *messages: MessageExt) -> None:
        """Wait until no renewal of the messages' leases is on its way."""
        for message in messages:
            if renewing := self._renewing.get(id(message)):
                await asyncio.wait([renewing])

    async def close(self) -> None:
        """Renew no more."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._young.clear()
        self._kept.clear()
        self._arm()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
