"""The parts of a broker, as requests get them: all typed, all made before the ports open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kerolox.broker.access.gate import AccessGate
from kerolox.broker.config import BrokerConfig
from kerolox.broker.hooks import PullHook
from kerolox.broker.identity import Identity
from kerolox.broker.metrics.broker_stats import BrokerStats
from kerolox.broker.metrics.store_stats import StoreStats
from kerolox.broker.replication.replication import Replication
from kerolox.broker.roles.roles import Roles
from kerolox.broker.services.background import BackgroundTasks
from kerolox.broker.services.bulk_ends import BulkEnds
from kerolox.broker.services.cleaning import Cleaner
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.registration import Registration
from kerolox.broker.services.replies import RepliesInFlight
from kerolox.broker.services.schedule import DelaySchedule
from kerolox.broker.services.transactions import Transactions
from kerolox.broker.services.write_gate import WriteGate
from kerolox.broker.services.writer import RecordWriter
from kerolox.broker.tables.assignments import Assignments
from kerolox.broker.tables.clients import ClientTable
from kerolox.broker.tables.filters import FilterTable
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.json_file import KeptTable
from kerolox.broker.tables.locks import QueueLocks
from kerolox.broker.tables.offsets import OffsetTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.dynamic_config import DynamicConfig
from kerolox.kernel import KernelInUse, StoreKernel
from kerolox.remoting.audit import Audit
from kerolox.remoting.limits.requests import RequestLimits
from kerolox.remoting.tls.server_tls import ServerTls
from kerolox.remoting.unserved import UnservedCodes
from kerolox.security.access.watching import AccountsWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a handler may use. ``now_ms`` gives milliseconds since the epoch."""

    config: BrokerConfig
    dynamic_config: DynamicConfig[BrokerConfig]
    now_ms: Callable[[], int]
    identity: Identity
    kernel: KernelInUse
    store: StoreKernel
    access: AccessGate
    accounts: AccountsWatch | None
    """The files of accounts; None without ``aclEnable``."""

    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    filters: FilterTable
    clients: ClientTable
    locks: QueueLocks

    gate: WriteGate
    writer: RecordWriter
    schedule: DelaySchedule
    transactions: Transactions
    bulk_ends: BulkEnds
    arrivals: Arrivals
    replies: RepliesInFlight
    cleaner: Cleaner
    registration: Registration
    assignments: Assignments
    replication: Replication
    roles: Roles
    background: BackgroundTasks

    store_stats: StoreStats
    broker_stats: BrokerStats

    pull_hooks: tuple[PullHook, ...]
    unserved: UnservedCodes
    tls: ServerTls | None
    """None: disabled."""
    audit: Audit
    limits: RequestLimits

    @property
    def kept_tables(self) -> tuple[KeptTable, ...]:
        """Those with a file, in the order in which they are loaded."""
        return (self.topics, self.groups, self.offsets, self.schedule, self.filters)
