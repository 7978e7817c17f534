"""The public names of ``kerolox``, ``kerolox.client``, ``kerolox.client.sync`` and
``kerolox.admin``: the one list.

The packages import a name when it is first asked for. Type checkers read the stubs beside
them (``__init__.pyi``), which ``tools/generate_names.py`` makes of this list.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

_BLOCKING = "kerolox.client.sync._generated"

_CLIENTS = {
    "kerolox.client.aio.connection": ("Connection", "connect"),
    "kerolox.client.aio.consumers.lite_pull_consumer": ("LitePullConsumer",),
    "kerolox.client.aio.consumers.pull_consumer": ("PullConsumer",),
    "kerolox.client.aio.consumers.push.listening": ("MessageListener", "OneMessageListener"),
    "kerolox.client.aio.consumers.push_consumer": ("PushConsumer",),
    "kerolox.client.aio.consumers.simple_consumer": ("SimpleConsumer",),
    "kerolox.client.aio.consumers.queue_events": ("QueueChangeCallback", "QueuesCallback"),
    "kerolox.client.aio.producers.open_transaction": ("Transaction",),
    "kerolox.client.aio.producers.producer": ("Producer",),
    "kerolox.client.aio.producers.transaction": (
        "LocalTransaction",
        "TransactionCheck",
        "TransactionProducer",
    ),
}
"""By module: what ``kerolox.client.sync`` has a blocking counterpart of."""

_OF_BOTH = {
    "kerolox.client.aio.producers.preparing": ("QueueSelector",),
    "kerolox.client.aio.consumer_settings": (
        "LitePullConsumerSettings",
        "PullConsumerSettings",
        "PushConsumerSettings",
        "SimpleConsumerSettings",
    ),
    "kerolox.client.aio.settings": ("ClientSettings", "ProducerSettings"),
    "kerolox.client.core.consuming.offsets": ("OffsetStorage",),
    "kerolox.client.core.consuming.outcome": ("AckIndex", "ConsumeStatus", "Outcome"),
    "kerolox.client.core.consuming.pull": ("PullResult", "PullStatus"),
    "kerolox.client.core.consuming.rebalance": (
        "AllocationStrategy",
        "QueueChange",
        "allocate_by_consistent_hash",
    ),
    "kerolox.client.core.consuming.strategies": (
        "allocate_by_config",
        "allocate_by_machine_room",
        "allocate_nearby",
    ),
    "kerolox.client.core.failures": ("FailureCallback",),
    "kerolox.client.core.hooks": (
        "ConsumeContext",
        "ConsumeHook",
        "EndTransactionContext",
        "EndTransactionHook",
        "RpcHook",
        "SendContext",
        "SendHook",
    ),
    "kerolox.client.core.sending.request_reply": ("ReplyMessage", "create_reply"),
    "kerolox.client.core.sending.queue_choice": (
        "select_by_hash",
        "select_by_machine_room",
        "select_by_random",
    ),
    "kerolox.client.core.sending.send": ("SendResult", "SendStatus", "split_batches"),
    "kerolox.client.core.sending.transaction": ("TransactionResult", "TransactionState"),
    "kerolox.client.core.serializers": ("Serializer", "serializer_of"),
    "kerolox.client.core.tracing.trace": ("TraceView",),
    "kerolox.filter.filter_class": ("FilterClass",),
    "kerolox.message": ("ConsumeFromWhere", "MessageModel"),
    "kerolox.protocol.compression": ("CompressionType",),
    "kerolox.security.credentials": ("Credentials",),
    "kerolox.security.tls": ("Tls", "TlsSettings"),
}
"""By module: what both kinds of clients use."""

_MORE = {
    "kerolox.message": ("Message", "MessageExt", "MessageId", "MessageQueue"),
    "kerolox.release": ("__version__",),
}
"""What ``kerolox`` alone has, beside the errors, which ``kerolox.errors`` lists."""

_ADMIN = {
    "kerolox.admin.acl": ("Account", "AclConfig", "AclVersion"),
    "kerolox.admin.admin": ("Admin",),
    "kerolox.admin.brokers": (
        "BrokerRuntime",
        "DayTotals",
        "PoolQueue",
        "QueueEntries",
        "QueueEntry",
        "Rates",
        "ReplicaStatus",
        "ReplicationStatus",
    ),
    "kerolox.admin.cluster": ("ClusterInfo",),
    "kerolox.admin.consumers.groups": ("GroupChange", "GroupState"),
    "kerolox.admin.consumers.members": (
        "ClientConnection",
        "ConsumerConnections",
        "ConsumerStatus",
        "ProcessQueueInfo",
        "ProducerInfo",
        "RunningInfo",
        "TopicConsumption",
    ),
    "kerolox.admin.consumers.offsets": ("END", "OffsetReset"),
    "kerolox.admin.consumers.popped": (
        "PoppedMessage",
        "PoppedMessages",
        "PoppedOwner",
        "PoppedQueue",
    ),
    "kerolox.admin.consumers.progress": (
        "BrokerProgress",
        "GroupProgress",
        "GroupSummary",
        "QueueProgress",
        "QueueTimeSpan",
    ),
    "kerolox.admin.controllers": (
        "ControllerState",
        "ElectedMaster",
        "ReplicaOfSet",
        "SyncStateSetInfo",
    ),
    "kerolox.admin.messages.dead_letters": (
        "DeadLetterQueue",
        "DeadLetterSummary",
        "PurgedQueue",
        "ResentLetter",
    ),
    "kerolox.admin.messages.finding": ("ConsumeDirectlyResult", "MessageTrack", "TrackType"),
    "kerolox.admin.messages.halves": ("TO_THE_END", "HalfMessageSupport"),
    "kerolox.admin.messages.resending": ("copy_of",),
    "kerolox.admin.messages.sending": ("SendTiming", "SendTimings"),
    "kerolox.admin.messages.timed": ("TimedMessage", "TimedMessages"),
    "kerolox.admin.messages.waiting": ("DelayLevel", "OpenHalves"),
    "kerolox.admin.offset_moves": ("OffsetMove",),
    "kerolox.admin.positions": (
        "FIRST",
        "LAST",
        "Position",
        "PositionKind",
        "duration_ms",
        "position_of",
    ),
    "kerolox.admin.reports.export": ("BrokerMetrics", "ConfigsExport", "Metadata", "MetricsExport"),
    "kerolox.admin.reports.monitor": ("MonitorRound", "OffsetMoved", "UndoneMessages"),
    "kerolox.admin.reports.traffic": (
        "BrokerStats",
        "BrokerStatus",
        "StatsItem",
        "TopicTraffic",
        "TopicUsage",
    ),
    "kerolox.admin.roles.changing": ("BrokerRole", "PromotionPlan", "RoleChanged"),
    "kerolox.admin.roles.retiring": ("BrokerDrain",),
    "kerolox.admin.topic_changes.update": ("TopicChange",),
    "kerolox.admin.topic_lists": ("TopicGroups", "TopicSummary", "UnitTopics"),
    "kerolox.admin.topics": ("QueueStatus", "TopicDescription", "TopicKind", "is_internal_topic"),
    "kerolox.client.aio.network.access": ("Access",),
    "kerolox.client.core.routes": ("BrokerAddresses", "QueueData", "TopicRoute"),
    "kerolox.protocol.bodies": (
        "DataVersion",
        "SubscriptionData",
        "SubscriptionGroupConfig",
        "TopicConfig",
    ),
    "kerolox.protocol.extensions.half_messages": ("EndedHalves",),
}
"""By module: what operators use."""


def _origins(*tables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Name → module, of tables by module."""
    return {name: module for table in tables for module, names in table.items() for name in names}


CLIENT = _origins(_CLIENTS, _OF_BOTH)
"""Name → module."""

SYNC = dict.fromkeys(_origins(_CLIENTS), _BLOCKING) | _origins(_OF_BOTH)

ADMIN = _origins(_ADMIN)

KEROLOX = CLIENT | _origins(_MORE)


def importer(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The ``__getattr__`` of a package: a public name, imported now, and kept there. And its
    ``__dir__``.
    """

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *places})
