"""Acknowledgements of popped messages, gathered: one request for a broker and an iteration of the
event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.popping import ack_request, batch_ack_request
from kerolox.errors import RequestCodeNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.core.consuming.leases import Lease
    from kerolox.client.core.consuming.popping import Done
    from kerolox.protocol.command import RemotingCommand

ACKS_OF_REQUEST_MAX = 1_024
"""Messages that one request acknowledges."""

NO_BATCHES_SECONDS = 60.0
"""So long a broker that refused a batch gets one request for each message: it is of before RocketMQ
5.1."""

AckFuture = asyncio.Future[None]


class _Request:
    """Messages of one broker that are acknowledged together, and who waits for that."""

    __slots__ = ("count", "futures", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[Lease, list[int]] = {}
        self.count = 0
        self.futures: list[AckFuture] = []


class Acks:
    """Acknowledges messages of one group."""

    def __init__(
        self,
        group: str,
        ask: Callable[[str, str, RemotingCommand], Awaitable[RemotingCommand]],
    ) -> None:
        """``ask`` sends a request to the master of a broker: name of the broker, topic, request;
        an answer with another code than SUCCESS is an error."""
        self._group = group
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[str, _Request] = {}
        """By broker name; of this iteration of the event loop."""
        self._requests: set[asyncio.Task[None]] = set()
        self._without_batches: dict[str, float] = {}
        """Brokers that refused a batch, and until when they get none."""

    def add(self, done: Done) -> AckFuture:
        """Messages are done. The future ends when their brokers know; nobody has to wait for it.
        One that is cancelled changes nothing."""
        touched: dict[_Request, None] = {}
        for lease, offsets in done.items():
            for start in range(0, len(offsets), ACKS_OF_REQUEST_MAX):
                some = offsets[start : start + ACKS_OF_REQUEST_MAX]
                touched[self._gather(lease, some)] = None
        futures: list[AckFuture] = []
        for request in touched:
            future: AckFuture = self._loop.create_future()
            request.futures.append(future)
            futures.append(future)
        return futures[0] if len(futures) == 1 else _joined(self._loop, futures)

    def _gather(self, lease: Lease, offsets: list[int]) -> _Request:
        """The request that acknowledges these."""
        broker_name = lease.broker_name
        request = self._gathered.get(broker_name)
        if request is None or request.count + len(offsets) > ACKS_OF_REQUEST_MAX:
            if not self._gathered:
                self._loop.call_soon(self._send)
            if request is not None:
                self._loop.call_soon(self._begin, broker_name, request)
            request = self._gathered[broker_name] = _Request()
        request.count += len(offsets)
        known = request.offsets.get(lease)
        # A new list: that of the caller stays as it is.
        request.offsets[lease] = offsets if known is None else known + offsets
        return request

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for broker_name, request in gathered.items():
            self._begin(broker_name, request)

    def _begin(self, broker_name: str, request: _Request) -> None:
        task = self._loop.create_task(self._acknowledge(broker_name, request))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _acknowledge(self, broker_name: str, request: _Request) -> None:
        error: Exception | None = None
        try:
            await self._ask_all(broker_name, request.offsets)
        except asyncio.CancelledError:
            for future in request.futures:
                future.cancel()
            raise
        except Exception as raised:
            error = raised
        for future in request.futures:
            if not future.done():
                _settle(future, error)

    async def _ask_all(self, broker_name: str, done: Done) -> None:
        together, alone = done, []
        if not all(lease.can_batch(offsets) for lease, offsets in done.items()):
            together = {}
            for lease, offsets in done.items():
                near = [offset for offset in offsets if lease.can_batch([offset])]
                alone += [(lease, offset) for offset in offsets if not lease.can_batch([offset])]
                if near:
                    together[lease] = near
        is_one = len(together) == 1 and len(next(iter(together.values()))) == 1
        if together and not is_one and not self._is_without(broker_name):
            request = batch_ack_request(self._group, together)
            try:
                await self._ask(broker_name, next(iter(together)).topic, request)
                together = {}
            except RequestCodeNotSupportedError:
                until = self._loop.time() + NO_BATCHES_SECONDS
                self._without_batches[broker_name] = until
        alone += [(lease, offset) for lease, offsets in together.items() for offset in offsets]
        if len(alone) == 1:
            await self._ask_one(broker_name, *alone[0])
        elif alone:
            # All are asked, whatever becomes of the others.
            asked = (self._ask_one(broker_name, *each) for each in alone)
            for result in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    def _is_without(self, broker_name: str) -> bool:
        return self._without_batches.get(broker_name, 0.0) > self._loop.time()

    async def _ask_one(self, broker_name: str, lease: Lease, offset: int) -> None:
        await self._ask(broker_name, lease.topic, ack_request(self._group, lease, offset))

    async def close(self, seconds: float) -> None:
        """Send what was gathered, and wait for the answers; no longer than that."""
        self._send()
        if self._requests:
            await asyncio.wait(self._requests, timeout=seconds)

    def abort(self) -> None:
        """Nobody waits for the answers any more."""
        for task in self._requests:
            task.cancel()


def _settle(future: AckFuture, error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # nobody has to wait for it, so it counts as retrieved


def _joined(loop: asyncio.AbstractEventLoop, futures: list[AckFuture]) -> AckFuture:
    """The future of all; an error of one is its own when all have ended."""
    joined: AckFuture = loop.create_future()
    left = len(futures)
    if not left:
        joined.set_result(None)

    def one_ended(_: AckFuture) -> None:
        nonlocal left
        left -= 1
        if left or joined.done():
            return
        if any(each.cancelled() for each in futures):
            joined.cancel()
        else:
            _settle(joined, next((e for each in futures if (e := each.exception())), None))

    for future in futures:
        future.add_done_callback(one_ended)
    return joined
