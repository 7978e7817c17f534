"""What works while a push consumer runs, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.aio.consumers.offset_store import BrokerOffsets, LocalOffsets
from kerolox.client.aio.consumers.push.consuming import Consuming
from kerolox.client.aio.consumers.push.orderly import Orderly
from kerolox.client.aio.consumers.push.ownership.custom_offsets import CustomOffsets
from kerolox.client.aio.consumers.push.ownership.ownership import Ownership
from kerolox.client.aio.consumers.push.ownership.queue_locks import QueueLocks
from kerolox.client.aio.consumers.push.ownership.rebalancing import Rebalancing
from kerolox.client.aio.consumers.push.pulling import Pulling
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.core.consuming.rebalance import strategy_of
from kerolox.message import MessageModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.listening import Listeners
    from kerolox.client.aio.consumers.push.ownership.subscriptions import Subscriptions
    from kerolox.client.aio.consumers.push.stream import MessageStream
    from kerolox.client.aio.consumers.queue_events import QueueEvents
    from kerolox.client.aio.network.background import PeriodicTasks
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.query import ClusterQueries
    from kerolox.client.aio.settings import PushConsumerSettings
    from kerolox.message import MessageQueue

__all__ = ["ConsumerCallbacks", "ConsumerParts", "ConsumerState", "make_parts"]


class ConsumerParts(NamedTuple):
    """The parts that work while a consumer runs."""

    consuming: Consuming
    orderly: Orderly
    offsets: OffsetStore
    pulling: Pulling
    ownership: Ownership
    rebalancing: Rebalancing


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """The state of a consumer before it runs."""

    group: str
    """With its namespace."""
    namespace: str
    client_id: str
    settings: PushConsumerSettings
    start_ms: int
    assignments: dict[MessageQueue, Assignment]
    subscriptions: Subscriptions
    listeners: Listeners
    stream: MessageStream
    events: QueueEvents
    background: PeriodicTasks

    @property
    def is_broadcasting(self) -> bool:
        """Each member reads all queues."""
        return self.settings.message_model is MessageModel.BROADCASTING


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCallbacks:
    """The functions of a consumer that its parts call."""

    is_suspended: Callable[[], bool]
    send_heartbeat: Callable[..., Awaitable[None]]
    resend_heartbeat: Callable[[], Awaitable[None]]
    start_anew: Callable[[Assignment], Awaitable[None]]
    leave_topics: Callable[[set[str]], Awaitable[None]]


def make_parts(
    state: ConsumerState, callbacks: ConsumerCallbacks, cluster: Cluster, queries: ClusterQueries
) -> ConsumerParts:
    """Put the parts together; nothing runs yet. ``queries``: the consumer's."""
    group, settings, subscriptions = state.group, state.settings, state.subscriptions
    offsets = _offsets(state, cluster)
    send_backs = SendBacks(group, state.namespace, settings, cluster)
    consuming = Consuming(settings, state.listeners, send_backs, offsets, state.stream)
    orderly = Orderly(settings, consuming, send_backs)
    pulling = Pulling(
        group,
        settings,
        cluster,
        offsets,
        subscriptions.table,
        consuming,
        orderly,
        is_suspended=callbacks.is_suspended,
        resend_heartbeat=callbacks.resend_heartbeat,
        start_anew=callbacks.start_anew,
    )
    ownership = Ownership(
        state.assignments,
        queries,
        settings,
        offsets,
        pulling=pulling,
        orderly=orderly,
        locks=None if state.is_broadcasting else QueueLocks(group, cluster),
        events=state.events,
        background=state.background,
        is_ordered=subscriptions.is_ordered,
        start_ms=state.start_ms,
    )
    rebalancing = Rebalancing(
        group,
        cluster,
        subscriptions,
        state.assignments,
        ownership,
        state.events,
        strategy=None if state.is_broadcasting else strategy_of(settings.allocation),
        send_heartbeat=callbacks.send_heartbeat,
        leave_topics=callbacks.leave_topics,
        is_suspended=callbacks.is_suspended,
    )
    return ConsumerParts(consuming, orderly, offsets, pulling, ownership, rebalancing)


def _offsets(state: ConsumerState, cluster: Cluster) -> OffsetStore:
    settings = state.settings
    if settings.offset_store is not None:
        return CustomOffsets(settings.offset_store, state.namespace)
    if state.is_broadcasting:
        return LocalOffsets(settings.local_offset_folder, state.client_id, state.group)
    return BrokerOffsets(cluster, state.group)
