"""Pull loops: one for each queue that a push consumer owns.

A loop pauses while the consumer has too much (``core/consuming/flow.py``), while it is suspended,
and after errors. It asks the node that the broker suggested last; when that one does not answer,
the master is next.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.flow import FlowControl, FlowLimits, is_flow_control
from kerolox.client.core.consuming.pull import PullResult, PullStatus, pull_request, pull_result
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import (
    BrokerError,
    KeroloxError,
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
)
from kerolox.message import MessageModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.consuming import Consuming
    from kerolox.client.aio.consumers.push.orderly import Orderly
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.settings import PushConsumerSettings
    from kerolox.filter.tags import Subscription

ROOM_SECONDS_MAX = 0.05
"""A pull loop that waits for room looks again after so long (flow control of RocketMQ)."""

ROOM_IN_ALL_SECONDS_MAX = 0.5
"""The same when other queues have to make room: there may be thousands that wait so."""

SUSPENDED_SECONDS = 1.0
FLOW_CONTROL_SECONDS = 0.02

_log = logging.getLogger(__name__)


def flow_control(settings: PushConsumerSettings) -> FlowControl:
    """The flow control that the settings ask for."""
    return FlowControl(
        FlowLimits(
            queue_count=settings.cached_messages_max,
            queue_mib=settings.cached_mib_max,
            queue_span=settings.cached_span_max,
            topic_count=settings.cached_messages_per_topic_max,
            topic_mib=settings.cached_mib_per_topic_max,
            all_count=settings.cached_messages_in_all_max,
            all_mib=settings.cached_mib_in_all_max,
        )
    )


class Pulling:
    """The pull loops of one consumer."""

    def __init__(
        self,
        group: str,
        settings: PushConsumerSettings,
        cluster: Cluster,
        offsets: OffsetStore,
        subscriptions: Mapping[str, Subscription],
        consuming: Consuming,
        orderly: Orderly,
        *,
        is_suspended: Callable[[], bool],
        greet_again: Callable[[], Awaitable[None]],
        start_anew: Callable[[Assignment], Awaitable[None]],
    ) -> None:
        """Nothing is pulled yet.

        Args:
            group: as brokers know it.
            settings: those of the consumer.
            cluster: whom to ask.
            offsets: where the group is.
            subscriptions: what is read.
            consuming: takes what was pulled.
            orderly: takes what was pulled of ordered queues.
            is_suspended: whether nothing is pulled for now.
            greet_again: a broker does not know us.
            start_anew: the broker refused an offset; ``next_offset`` is the right one.
        """
        self._group = group
        self._is_suspended = is_suspended
        self._greet_again = greet_again
        self._start_anew = start_anew
        self._settings = settings
        self._cluster = cluster
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._consuming = consuming
        self._orderly = orderly
        self.flow = flow_control(settings)

    async def run(self, assignment: Assignment) -> None:
        """Pull a queue as long as it is ours."""
        settings, process_queue = self._settings, assignment.process_queue
        while not process_queue.is_dropped:
            process_queue.last_pull_ms = clock.steady_ms()
            try:
                delay = await self.pull_once(assignment)
            except KeroloxError as error:
                _log.warning("pull of %s failed: %s", assignment.queue, error)
                delay = settings.pull_error_delay_ms / 1000
                if is_flow_control(error):
                    delay = FLOW_CONTROL_SECONDS
                elif isinstance(error, (SubscriptionNotFoundError, SubscriptionNotLatestError)):
                    await self._greet_again()
                elif not isinstance(error, BrokerError) and assignment.broker_id != MASTER_ID:
                    assignment.broker_id, delay = MASTER_ID, 0.0
            except Exception:
                _log.exception("pull of %s failed", assignment.queue)
                delay = settings.pull_error_delay_ms / 1000
            if delay:
                await asyncio.sleep(delay)

    async def pull_once(self, assignment: Assignment) -> float:
        """One pull, or a wait for room; how many seconds to pause after it."""
        settings, queue, orderly = self._settings, assignment.queue, assignment.orderly
        subscription = self._subscriptions.get(queue.topic)
        if self._is_suspended() or subscription is None:
            return SUSPENDED_SECONDS
        if orderly is not None and not orderly.is_locked(clock.steady_ms()):
            return settings.pull_error_delay_ms / 1000
        hold = self.flow.hold(queue.topic, assignment.process_queue, is_ordered=orderly is not None)
        if hold is not None:
            await _wait_for_room(
                assignment, ROOM_SECONDS_MAX if hold.is_own else ROOM_IN_ALL_SECONDS_MAX
            )
            return 0.0
        address = await self._cluster.read_address_of(
            queue.topic, queue.broker_name, assignment.broker_id
        )
        request = pull_request(
            self._group,
            queue,
            assignment.next_offset,
            subscription,
            max_messages=settings.pull_batch_size,
            suspend_timeout_ms=settings.suspend_timeout_ms,
            commit_offset=self._commit_offset(assignment, address),
        )
        start_ms = clock.now_ms()
        response = await self._cluster.remoting.invoke(
            address, request, timeout_seconds=settings.pull_timeout_ms / 1000
        )
        result = pull_result(response, queue, subscription, address)
        return await self._pulled(assignment, result, clock.now_ms() - start_ms)

    def _commit_offset(self, assignment: Assignment, address: str) -> int:
        """What the pull brings along to be stored; -1: nothing. Only masters store offsets."""
        if self._settings.message_model is MessageModel.BROADCASTING:
            return -1
        if address != self._cluster.master_address(assignment.queue.broker_name):
            return -1
        offset = self._offsets.table.read(assignment.queue)
        return offset if offset > 0 else -1

    async def _pulled(self, assignment: Assignment, result: PullResult, elapsed_ms: int) -> float:
        process_queue, queue = assignment.process_queue, assignment.queue
        if process_queue.is_dropped:
            return 0.0
        assignment.broker_id = result.suggested_broker_id
        assignment.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._start_anew(assignment)
            return 0.0
        if result.messages:
            now_ms = clock.now_ms()
            stats = self._consuming.stats_of(queue.topic)
            stats.pulls.add(now_ms, 1, elapsed_ms)
            stats.pulled.add(now_ms, len(result.messages))
            consumer = self._consuming if assignment.orderly is None else self._orderly
            consumer.submit(assignment, result.messages)
        elif not len(process_queue):
            self._offsets.table.update(queue, result.next_offset, increase_only=True)
        return self._settings.pull_interval_ms / 1000


async def _wait_for_room(assignment: Assignment, seconds: float) -> None:
    assignment.room.clear()
    try:
        async with asyncio.timeout(seconds):
            await assignment.room.wait()
    except TimeoutError:
        pass
