"""What works while a push consumer runs, and how it is put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.aio.consumers.offset_store import BrokerOffsets, LocalOffsets
from kerolox.client.aio.consumers.push.consuming import Consuming
from kerolox.client.aio.consumers.push.orderly import Orderly
from kerolox.client.aio.consumers.push.owning.own_offsets import OwnOffsets
from kerolox.client.aio.consumers.push.owning.ownership import Ownership
from kerolox.client.aio.consumers.push.owning.queue_locks import QueueLocks
from kerolox.client.aio.consumers.push.owning.rebalancing import Rebalancing
from kerolox.client.aio.consumers.push.pulling import Pulling
from kerolox.client.aio.consumers.push.send_back import SendBacks
from kerolox.client.core.consuming.rebalance import strategy_of
from kerolox.message import MessageModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.client.aio.consumers.offset_store import OffsetStore
    from kerolox.client.aio.consumers.push.assignment import Assignment
    from kerolox.client.aio.consumers.push.listening import Listeners
    from kerolox.client.aio.consumers.push.owning.subscriptions import Subscriptions
    from kerolox.client.aio.consumers.push.stream import MessageStream
    from kerolox.client.aio.consumers.queue_events import QueueEvents
    from kerolox.client.aio.network.background import PeriodicTasks
    from kerolox.client.aio.network.cluster import Cluster
    from kerolox.client.aio.query import ClusterQueries
    from kerolox.client.aio.settings import PushConsumerSettings
    from kerolox.message import MessageQueue

__all__ = ["Calls", "Own", "Parts", "make_parts"]


class Parts(NamedTuple):
    """What works while a consumer runs."""

    consuming: Consuming
    orderly: Orderly
    offsets: OffsetStore
    pulling: Pulling
    ownership: Ownership
    rebalancing: Rebalancing


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a consumer has before it runs."""

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
class Calls:
    """What the parts ask of their consumer."""

    is_suspended: Callable[[], bool]
    greet: Callable[..., Awaitable[None]]
    greet_again: Callable[[], Awaitable[None]]
    start_anew: Callable[[Assignment], Awaitable[None]]
    leave_topics: Callable[[set[str]], Awaitable[None]]


def make_parts(own: Own, calls: Calls, cluster: Cluster, queries: ClusterQueries) -> Parts:
    """Put the parts together; nothing runs yet. ``queries``: the consumer's."""
    group, settings, subscriptions = own.group, own.settings, own.subscriptions
    offsets = _offsets(own, cluster)
    send_backs = SendBacks(group, own.namespace, settings, cluster)
    consuming = Consuming(settings, own.listeners, send_backs, offsets, own.stream)
    orderly = Orderly(settings, consuming, send_backs)
    pulling = Pulling(
        group,
        settings,
        cluster,
        offsets,
        subscriptions.table,
        consuming,
        orderly,
        is_suspended=calls.is_suspended,
        greet_again=calls.greet_again,
        start_anew=calls.start_anew,
    )
    ownership = Ownership(
        own.assignments,
        queries,
        settings,
        offsets,
        pulling=pulling,
        orderly=orderly,
        locks=None if own.is_broadcasting else QueueLocks(group, cluster),
        events=own.events,
        background=own.background,
        is_ordered=subscriptions.is_ordered,
        start_ms=own.start_ms,
    )
    rebalancing = Rebalancing(
        group,
        cluster,
        subscriptions,
        own.assignments,
        ownership,
        own.events,
        strategy=None if own.is_broadcasting else strategy_of(settings.allocation),
        greet=calls.greet,
        leave_topics=calls.leave_topics,
        is_suspended=calls.is_suspended,
    )
    return Parts(consuming, orderly, offsets, pulling, ownership, rebalancing)


def _offsets(own: Own, cluster: Cluster) -> OffsetStore:
    settings = own.settings
    if settings.offset_store is not None:
        return OwnOffsets(settings.offset_store, own.namespace)
    if own.is_broadcasting:
        return LocalOffsets(settings.local_offset_folder, own.client_id, own.group)
    return BrokerOffsets(cluster, own.group)
