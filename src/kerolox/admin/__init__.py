"""What operators ask of a cluster: all that ``mqadmin`` does, typed.

:class:`Admin` has connections of its own and a method for each question::

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=8)
        print(await admin.describe_topic("Orders"))

:meth:`Admin.on` makes one for who has an :class:`Access` already. Every answer is a frozen
dataclass, or a frozen struct where it is RocketMQ's own table of settings. Times are milliseconds
since the epoch where a name ends in ``_ms``, and sizes are bytes unless the name says otherwise. An
address is ``host:port``. Blocking counterparts are in :mod:`kerolox.admin.sync`.
"""

from kerolox.admin.acl import Account, AclConfig, AclVersion
from kerolox.admin.admin import Admin
from kerolox.admin.brokers import (
    BrokerRuntime,
    DayTotals,
    PoolQueue,
    QueueEntries,
    QueueEntry,
    Rates,
    ReplicaStatus,
    ReplicationStatus,
)
from kerolox.admin.cluster import ClusterInfo
from kerolox.admin.consumers.groups import GroupChange, GroupState
from kerolox.admin.consumers.members import (
    ClientConnection,
    ConsumerConnections,
    ConsumerStatus,
    ProcessQueueInfo,
    ProducerInfo,
    RunningInfo,
    TopicConsumption,
)
from kerolox.admin.consumers.offsets import END, OffsetReset
from kerolox.admin.consumers.progress import (
    BrokerProgress,
    GroupProgress,
    GroupSummary,
    QueueProgress,
    QueueTimeSpan,
)
from kerolox.admin.messages.dead_letters import (
    DeadLetterQueue,
    DeadLetterSummary,
    PurgedQueue,
    ResentLetter,
)
from kerolox.admin.messages.finding import ConsumeDirectlyResult, MessageTrack, TrackType
from kerolox.admin.messages.halves import TO_THE_END, HalfMessageSupport
from kerolox.admin.messages.resending import copy_of
from kerolox.admin.messages.sending import SendTiming, SendTimings
from kerolox.admin.messages.waiting import DelayLevel, OpenHalves
from kerolox.admin.offset_moves import OffsetMove
from kerolox.admin.positions import FIRST, LAST, Position, PositionKind, duration_ms, position_of
from kerolox.admin.reports.export import BrokerMetrics, ConfigsExport, Metadata, MetricsExport
from kerolox.admin.reports.monitor import MonitorRound, OffsetMoved, UndoneMessages
from kerolox.admin.reports.traffic import BrokerStats, BrokerStatus, StatsItem, TopicTraffic
from kerolox.admin.roles.changing import BrokerRole, PromotionPlan, RoleChanged
from kerolox.admin.roles.retiring import BrokerDrain
from kerolox.admin.topic_changes.update import TopicChange
from kerolox.admin.topic_lists import TopicGroups, TopicSummary, UnitTopics
from kerolox.admin.topics import QueueStatus, TopicDescription, TopicKind, is_internal_topic
from kerolox.client.aio.network.access import Access
from kerolox.client.core.routes import BrokerAddresses, QueueData, TopicRoute
from kerolox.protocol.bodies import (
    DataVersion,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from kerolox.protocol.extensions.half_messages import EndedHalves

__all__ = [
    "END",
    "FIRST",
    "LAST",
    "TO_THE_END",
    "Access",
    "Account",
    "AclConfig",
    "AclVersion",
    "Admin",
    "BrokerAddresses",
    "BrokerDrain",
    "BrokerMetrics",
    "BrokerProgress",
    "BrokerRole",
    "BrokerRuntime",
    "BrokerStats",
    "BrokerStatus",
    "ClientConnection",
    "ClusterInfo",
    "ConfigsExport",
    "ConsumeDirectlyResult",
    "ConsumerConnections",
    "ConsumerStatus",
    "DataVersion",
    "DayTotals",
    "DeadLetterQueue",
    "DeadLetterSummary",
    "DelayLevel",
    "EndedHalves",
    "GroupChange",
    "GroupProgress",
    "GroupState",
    "GroupSummary",
    "HalfMessageSupport",
    "MessageTrack",
    "Metadata",
    "MetricsExport",
    "MonitorRound",
    "OffsetMove",
    "OffsetMoved",
    "OffsetReset",
    "OpenHalves",
    "PoolQueue",
    "Position",
    "PositionKind",
    "ProcessQueueInfo",
    "ProducerInfo",
    "PromotionPlan",
    "PurgedQueue",
    "QueueData",
    "QueueEntries",
    "QueueEntry",
    "QueueProgress",
    "QueueStatus",
    "QueueTimeSpan",
    "Rates",
    "ReplicaStatus",
    "ReplicationStatus",
    "ResentLetter",
    "RoleChanged",
    "RunningInfo",
    "SendTiming",
    "SendTimings",
    "StatsItem",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TopicChange",
    "TopicConfig",
    "TopicConsumption",
    "TopicDescription",
    "TopicGroups",
    "TopicKind",
    "TopicRoute",
    "TopicSummary",
    "TopicTraffic",
    "TrackType",
    "UndoneMessages",
    "UnitTopics",
    "copy_of",
    "duration_ms",
    "is_internal_topic",
    "position_of",
]
