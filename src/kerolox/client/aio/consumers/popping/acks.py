"""Acknowledgements of popped messages, gathered: one request for a broker and an iteration of the
event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.popping import ack_request, batch_ack_request
from kerolox.errors import RequestCodeNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from kerolox.client.core.consuming.leases import Lease
    from kerolox.client.core.consuming.popping import Done
    from kerolox.protocol.command import RemotingCommand

ACKS_OF_REQUEST_MAX = 1_024
"""Messages that one request acknowledges."""

NO_BATCHES_SECONDS = 60.0
"""So long a broker that refused a batch gets one request for each message: it is of before RocketMQ
5.1."""

AckFuture = asyncio.Future[None]


class _Part:
    """Messages of one broker that one caller acknowledges, as many as a request takes."""

    __slots__ = ("count", "future", "offsets")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offsets: dict[Lease, list[int]] = {}
        self.count = 0
        self.future: AckFuture = loop.create_future()
        # Whoever waited may be gone, or nobody did.
        self.future.add_done_callback(_retrieve)


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
        self._gathered: dict[str, list[_Part]] = {}
        """By broker name; of this iteration of the event loop."""
        self._requests: set[asyncio.Task[None]] = set()
        self._without_batches: dict[str, float] = {}
        """Brokers that refused a batch, and until when they get none."""

    def add(self, done: Iterable[tuple[Lease, int]]) -> AckFuture:
        """Messages are done: each with its lease and its offset there. The future ends when their
        brokers know; nobody has to wait for it. One that is cancelled changes nothing."""
        parts: list[_Part] = []
        open_parts: dict[str, _Part] = {}
        for lease, offset in done:
            part = open_parts.get(lease.broker_name)
            if part is None or part.count >= ACKS_OF_REQUEST_MAX:
                part = open_parts[lease.broker_name] = _Part(self._loop)
                parts.append(part)
                self._gather(lease.broker_name, part)
            part.count += 1
            if lease in part.offsets:
                part.offsets[lease].append(offset)
            else:
                part.offsets[lease] = [offset]
        if len(parts) == 1:
            return parts[0].future
        return _joined(self._loop, [part.future for part in parts])

    def _gather(self, broker_name: str, part: _Part) -> None:
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.setdefault(broker_name, []).append(part)

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for broker_name, parts in gathered.items():
            batch: list[_Part] = []
            count = 0
            for part in parts:
                if batch and count + part.count > ACKS_OF_REQUEST_MAX:
                    self._begin(broker_name, batch)
                    batch, count = [], 0
                batch.append(part)
                count += part.count
            self._begin(broker_name, batch)

    def _begin(self, broker_name: str, batch: list[_Part]) -> None:
        task = self._loop.create_task(self._acknowledge(broker_name, batch))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _acknowledge(self, broker_name: str, batch: list[_Part]) -> None:
        error: Exception | None = None
        try:
            await self._ask_all(broker_name, [each for p in batch for each in p.offsets.items()])
        except asyncio.CancelledError:
            for part in batch:
                part.future.cancel()
            raise
        except Exception as raised:
            error = raised
        for part in batch:
            if part.future.done():
                continue
            if error is None:
                part.future.set_result(None)
            else:
                part.future.set_exception(error)

    async def _ask_all(self, broker_name: str, done: list[Done]) -> None:
        together: list[Done] = []
        alone: list[tuple[Lease, int]] = []
        for lease, offsets in done:
            near = [offset for offset in offsets if lease.can_be_batched(offset)]
            if near:
                together.append((lease, near))
            alone += [(lease, offset) for offset in offsets if not lease.can_be_batched(offset)]
        if sum(len(offsets) for _, offsets in together) == 1 or self._is_without(broker_name):
            alone += [(lease, offset) for lease, offsets in together for offset in offsets]
            together = []
        if together:
            request = batch_ack_request(self._group, together)
            try:
                await self._ask(broker_name, together[0][0].topic, request)
            except RequestCodeNotSupportedError:
                until = self._loop.time() + NO_BATCHES_SECONDS
                self._without_batches[broker_name] = until
                alone += [(lease, offset) for lease, offsets in together for offset in offsets]
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


def _retrieve(future: AckFuture) -> None:
    if not future.cancelled():
        future.exception()


def _joined(loop: asyncio.AbstractEventLoop, futures: list[AckFuture]) -> AckFuture:
    """The future of all; an error of one is its own when all have ended."""
    joined: AckFuture = loop.create_future()
    joined.add_done_callback(_retrieve)
    left = len(futures)
    if not left:
        joined.set_result(None)

    def one_ended(_: AckFuture) -> None:
        nonlocal left
        left -= 1
        if left or joined.done():
            return
        errors = [each.exception() for each in futures if not each.cancelled()]
        error = next((each for each in errors if each is not None), None)
        if error is not None:
            joined.set_exception(error)
        elif any(each.cancelled() for each in futures):
            joined.cancel()
        else:
            joined.set_result(None)

    for future in futures:
        future.add_done_callback(one_ended)
    return joined
