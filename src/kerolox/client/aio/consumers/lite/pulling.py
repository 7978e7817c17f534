"""The pulls of a lite pull consumer: a task for each queue, as the core tells it
(:class:`kerolox.client.core.consuming.lite_pull.LitePull`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.flow import is_flow_control
from kerolox.client.core.consuming.lite_pull import Wait
from kerolox.client.core.consuming.pull import PullStatus, pull_request, pull_result
from kerolox.client.core.failures import note_failure
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import KeroloxError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kerolox.client.aio.consumer_settings import LitePullConsumerSettings
    from kerolox.client.aio.network.background import PeriodicTasks
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.core.consuming.lite_pull import LitePull, LiteQueue
    from kerolox.filter.tags import Subscription
    from kerolox.message import MessageQueue

HELD_SECONDS = 0.05
"""A pull that takes longer is held by its broker and leaves its place to another."""

START_RETRY_SECONDS = 3.0
"""Pause when it could not be found out where a queue starts."""

FLOW_CONTROL_SECONDS = 0.02
"""Pause when a broker asks to pull more slowly."""

UNSUBSCRIBED_SECONDS = 1.0
"""Pause of a queue whose topic is wanted no longer; the next rebalance ends it."""

_log = logging.getLogger(__name__)


class PullPlaces:
    """So many pulls at the same time; those that brokers hold do not count."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place, until the block ends or the broker holds the pull."""
        await self._free.acquire()
        is_given_back = False

        def give_back() -> None:
            nonlocal is_given_back
            if not is_given_back:
                is_given_back = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(HELD_SECONDS, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class LitePulling:
    """The tasks that pull."""

    def __init__(
        self,
        group: str,
        settings: LitePullConsumerSettings,
        cluster: Cluster,
        machine: LitePull,
        *,
        wanted_of: Callable[[MessageQueue], Subscription | None],
        start_of: Callable[[MessageQueue], Awaitable[tuple[int, bool]]],
        has_arrived: Callable[[], None],
    ) -> None:
        """No queue is pulled yet. ``group``: as brokers know it. ``machine``: what decides.
        ``wanted_of``: what is wanted of a queue; None: nothing any more. ``start_of``: where a
        queue starts, and whether that is the group's committed offset. ``has_arrived`` is called
        when messages have come.
        """
        self._group = group
        self._settings = settings
        self._cluster = cluster
        self._machine = machine
        self._wanted_of = wanted_of
        self._start_of = start_of
        self._has_arrived = has_arrived
        self._places = PullPlaces(settings.pull_concurrency)
        self._tasks: dict[LiteQueue, asyncio.Task[None]] = {}
        self._woken: dict[LiteQueue, asyncio.Event] = {}

    def begin(self, item: LiteQueue, background: PeriodicTasks) -> None:
        """Pull a queue from now on; anew, if it is pulled already."""
        self.end(item)
        self._woken[item] = asyncio.Event()
        self._tasks[item] = background.start(self._pull_always(item))

    def end(self, item: LiteQueue) -> None:
        """Pull a queue no longer; a pull on its way is given up."""
        task = self._tasks.pop(item, None)
        self._woken.pop(item, None)
        if task is not None:
            task.cancel()

    def is_pulled(self, item: LiteQueue) -> bool:
        """It has begun and not ended."""
        task = self._tasks.get(item)
        return task is not None and not task.done()

    def wake(self, item: LiteQueue) -> None:
        """It may be pulled again."""
        woken = self._woken.get(item)
        if woken is not None:
            woken.set()

    async def _pull_always(self, item: LiteQueue) -> None:
        woken = self._woken[item]
        while (step := self._machine.next_pull(item)) is not Wait.DROPPED:
            woken.clear()
            try:
                pause = await self._step(item, step, woken)
            except KeroloxError as error:
                self._note_failure(f"pull of {item.queue} failed", error)
                pause = self._settings.pull_error_delay_ms / 1000
                if is_flow_control(error):
                    pause = FLOW_CONTROL_SECONDS
                elif isinstance(error, TopicNotFoundError):
                    # A slave may hear of a topic later than its clients.
                    item.was_gone = item.broker_id == MASTER_ID
            except Exception as error:
                self._note_failure(f"pull of {item.queue} failed", error)
                pause = self._settings.pull_error_delay_ms / 1000
            if pause:
                await asyncio.sleep(pause)

    def _note_failure(self, what: str, error: Exception) -> None:
        note_failure(self._settings.on_failure, _log, what, error)

    async def _step(self, item: LiteQueue, step: int | Wait, woken: asyncio.Event) -> float:
        """One pull, or what has to be before it; how many seconds to pause after it."""
        if step is Wait.START_UNKNOWN:
            return await self._locate(item)
        if isinstance(step, Wait):
            await woken.wait()
            return 0.0
        async with self._places.one():
            # Others may have filled the cache while this one waited for its place.
            step = self._machine.next_pull(item)
            return 0.0 if isinstance(step, Wait) else await self._pull(item, step)

    async def _locate(self, item: LiteQueue) -> float:
        epoch = item.epoch
        try:
            offset, is_stored = await self._start_of(item.queue)
        except KeroloxError as error:
            self._note_failure(f"start of {item.queue} is unknown, trying again later", error)
            return START_RETRY_SECONDS
        self._machine.located(item, epoch, offset, is_stored=is_stored)
        return 0.0

    async def _pull(self, item: LiteQueue, offset: int) -> float:
        settings, queue, epoch = self._settings, item.queue, item.epoch
        subscription = self._wanted_of(queue)
        if subscription is None:
            return UNSUBSCRIBED_SECONDS
        address = await self._cluster.read_address_of(
            queue.topic, queue.broker_name, item.broker_id
        )
        request = pull_request(
            self._group,
            queue,
            offset,
            subscription,
            max_messages=settings.pull_batch_size,
            suspend_timeout_ms=settings.suspend_timeout_ms,
            with_subscription=True,
            is_lite=True,
        )
        response = await self._cluster.remoting.invoke(
            address, request, timeout_seconds=settings.suspended_pull_timeout_ms / 1000
        )
        result = pull_result(response, queue, subscription, address)
        if not self._machine.pulled(item, epoch, result):
            return 0.0
        if result.messages:
            self._has_arrived()
        if result.status is PullStatus.NO_MATCHED_MSG and item.next_offset == offset:
            # A slave lacks what is there: to ask again at once would be to ask the same.
            return settings.pull_error_delay_ms / 1000
        if result.status is not PullStatus.OFFSET_ILLEGAL:
            return 0.0
        _log.warning("offset %d of %s is illegal; going on at %d", offset, queue, item.next_offset)
        return settings.pull_error_delay_ms / 1000 if item.next_offset == offset else 0.0
