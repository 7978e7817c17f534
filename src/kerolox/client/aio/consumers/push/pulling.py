"""Pull loops: one for each queue that a push consumer owns.

A loop pauses while the consumer has too much (``core/consuming/flow.py``), while it is suspended,
and after errors. It also pauses after an answer that asks for the same pull again at once. A slave
gives that for what it lacks, and while the master is away no other node can serve the pull. It asks
the node that the broker suggested last; when that one does not answer, the master is next.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.aio.consumers.push.fast_pulls import FastPulls
from kerolox.client.aio.network.filter_classes import filter_server
from kerolox.client.core.consuming.flow import FlowControl, FlowLimits, is_flow_control
from kerolox.client.core.consuming.pull import (
    PullStatus,
    from_the_start,
    pull_frames,
    pull_request,
    pull_result,
)
from kerolox.client.core.failures import note_failure
from kerolox.client.core.routes import MASTER_ID
from kerolox.codec.pulling import pulled_of
from kerolox.errors import (
    BrokerError,
    KeroloxError,
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
    TopicNotFoundError,
)
from kerolox.message import MessageModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kerolox.client.aio.consumer_settings import PushConsumerSettings
    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.consuming import Consuming
    from kerolox.client.aio.consumers.push.orderly import Orderly
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.codec.pulling import Pulled
    from kerolox.filter.tags import Subscription
    from kerolox.protocol.command import RemotingCommand

CAPACITY_SECONDS_MAX = 0.05
"""A pull loop that waits for capacity checks again after so long (flow control of RocketMQ)."""

TOTAL_CAPACITY_SECONDS_MAX = 0.5
"""The same when other queues have to free capacity: there may be thousands that wait so."""

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
        resend_heartbeat: Callable[[], Awaitable[None]],
        start_anew: Callable[[Assignment], Awaitable[None]],
    ) -> None:
        """Nothing is pulled yet. ``group``: as brokers know it. ``consuming`` and ``orderly`` take
        what was pulled. ``is_suspended``: whether nothing is pulled for now. ``resend_heartbeat``:
        a broker does not know us. ``start_anew``: the broker refused an offset; ``next_offset`` is
        the right one.
        """
        self._group = group
        self._is_suspended = is_suspended
        self._resend_heartbeat = resend_heartbeat
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
                self._note_failure(assignment, error)
                delay = settings.pull_error_delay_ms / 1000
                if is_flow_control(error):
                    delay = FLOW_CONTROL_SECONDS
                elif isinstance(error, (SubscriptionNotFoundError, SubscriptionNotLatestError)):
                    await self._resend_heartbeat()
                elif isinstance(error, TopicNotFoundError):
                    # A slave may hear of a topic later than its clients.
                    assignment.was_gone = assignment.broker_id == MASTER_ID
                elif not isinstance(error, BrokerError) and assignment.broker_id != MASTER_ID:
                    assignment.broker_id, delay = MASTER_ID, 0.0
            except Exception as error:
                self._note_failure(assignment, error)
                delay = settings.pull_error_delay_ms / 1000
            if delay:
                await asyncio.sleep(delay)

    def _note_failure(self, assignment: Assignment, error: Exception) -> None:
        what = f"pull of {assignment.queue} failed"
        note_failure(self._settings.on_failure, _log, what, error)

    async def pull_once(self, assignment: Assignment) -> float:
        """One pull, or a wait for capacity; how many seconds to pause after it."""
        settings, queue, orderly = self._settings, assignment.queue, assignment.orderly
        subscription = self._subscriptions.get(queue.topic)
        if self._is_suspended() or subscription is None:
            return SUSPENDED_SECONDS
        if orderly is not None and not orderly.is_locked(clock.steady_ms()):
            return settings.pull_error_delay_ms / 1000
        hold = self.flow.hold(queue.topic, assignment.process_queue, is_ordered=orderly is not None)
        if hold is not None:
            await assignment.wait_for_capacity(
                CAPACITY_SECONDS_MAX if hold.is_own else TOTAL_CAPACITY_SECONDS_MAX
            )
            return 0.0
        address = await self._cluster.read_address_of(
            queue.topic, queue.broker_name, assignment.broker_id
        )
        if subscription.class_filter_mode:
            return await self._pull_slow_path(assignment, subscription, address)
        connection = self._cluster.remoting.fast_connection(address)
        if connection is None or not connection.has_capacity() or settings.pull_interval_ms:
            return await self._pull_slow_path(assignment, subscription, address)
        pulls = FastPulls(
            self,
            assignment,
            subscription,
            connection=connection,
            frames=pull_frames(
                self._group,
                queue,
                subscription,
                settings.pull_batch_size,
                settings.suspend_timeout_ms,
            ),
            suspend_timeout_ms=settings.suspend_timeout_ms,
            timeout_seconds=settings.pull_timeout_ms / 1000,
        )
        response = await pulls.run()
        if response is None:
            return settings.pull_error_delay_ms / 1000 if pulls.is_stuck else 0.0
        return await self._answered(assignment, subscription, address, response, pulls.asked_ms)

    async def _pull_slow_path(
        self, assignment: Assignment, subscription: Subscription, address: str
    ) -> float:
        settings = self._settings
        request = pull_request(
            self._group,
            assignment.queue,
            assignment.next_offset,
            subscription,
            max_messages=settings.pull_batch_size,
            suspend_timeout_ms=settings.suspend_timeout_ms,
            commit_offset=self.commit_offset(assignment, address),
        )
        if subscription.class_filter_mode:
            address = filter_server(self._cluster, subscription, address)
        asked_ms = clock.steady_ms()
        response = await self._cluster.remoting.invoke(
            address, request, timeout_seconds=settings.pull_timeout_ms / 1000
        )
        return await self._answered(assignment, subscription, address, response, asked_ms)

    def commit_offset(self, assignment: Assignment, address: str) -> int:
        """What the pull brings along to be stored; -1: nothing. Only masters store offsets.

        Nothing for a queue that is read in order. A Java broker has threads of its own for pulls,
        so a pull could set the offset back after the queue was given up. Then a message would come
        twice.
        """
        if self._settings.message_model is MessageModel.BROADCASTING or assignment.orderly:
            return -1
        if address != self._cluster.master_address(assignment.queue.broker_name):
            return -1
        offset = self._offsets.table.read(assignment.queue)
        return offset if offset > 0 else -1

    def may_pull(self, assignment: Assignment, subscription: Subscription, address: str) -> bool:
        """Another pull with this subscription may go to this address now."""
        queue, orderly = assignment.queue, assignment.orderly
        return (
            self._subscriptions.get(queue.topic) is subscription
            and self._cluster.read_address(queue.broker_name, assignment.broker_id) == address
            and not self._is_suspended()
            and (orderly is None or orderly.is_locked(clock.steady_ms()))
            and not self.flow.hold(
                queue.topic, assignment.process_queue, is_ordered=orderly is not None
            )
        )

    async def _answered(
        self,
        assignment: Assignment,
        subscription: Subscription,
        address: str,
        response: RemotingCommand,
        asked_ms: int,
    ) -> float:
        """What an answer on the slow path says; how many seconds to pause after it."""
        result = pull_result(response, assignment.queue, subscription, address)
        if assignment.process_queue.is_dropped:
            return 0.0
        elapsed_ms = clock.steady_ms() - asked_ms
        if assignment.was_gone:
            result = from_the_start(result, assignment.next_offset)
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning(
                "offset %d of %s is illegal; going on at %d",
                assignment.next_offset,
                assignment.queue,
                result.next_offset,
            )
            if result.next_offset > assignment.next_offset:
                # The broker deleted what we did not pull; what we did is as good as before.
                self.take(
                    assignment, result.next_offset, result.suggested_broker_id, None, elapsed_ms
                )
                return self._settings.pull_error_delay_ms / 1000
            assignment.broker_id = result.suggested_broker_id
            assignment.next_offset = result.next_offset
            await self._start_anew(assignment)
            return 0.0
        pulled = pulled_of(result.messages)
        is_stuck = (
            result.status is PullStatus.NO_MATCHED_MSG
            and result.next_offset == assignment.next_offset
        )
        self.take(assignment, result.next_offset, result.suggested_broker_id, pulled, elapsed_ms)
        if is_stuck:
            return self._settings.pull_error_delay_ms / 1000
        return self._settings.pull_interval_ms / 1000

    def take(
        self,
        assignment: Assignment,
        next_offset: int,
        suggested_broker_id: int,
        pulled: Pulled | None,
        elapsed_ms: int,
    ) -> None:
        """A pull was answered."""
        assignment.broker_id = suggested_broker_id
        assignment.next_offset = next_offset
        assignment.was_gone = False
        if pulled is not None and pulled.messages:
            now_ms = clock.steady_ms()
            stats = self._consuming.stats_of(assignment.queue.topic)
            stats.pulls.add(now_ms, 1, elapsed_ms)
            stats.pulled.add(now_ms, len(pulled.messages))
            consumer = self._consuming if assignment.orderly is None else self._orderly
            consumer.submit(assignment, pulled)
        elif not len(assignment.process_queue):
            self._offsets.table.update(assignment.queue, next_offset, increase_only=True)
