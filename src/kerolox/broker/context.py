"""The parts of a broker, as requests get them: all typed, all made before the ports open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.access.guards import Guards
from kerolox.broker.base import Base
from kerolox.broker.config import BrokerConfig
from kerolox.broker.hooks import PullHook
from kerolox.broker.metrics.broker_stats import BrokerStats
from kerolox.broker.metrics.store_stats import StoreStats
from kerolox.broker.replication.replication import Peers
from kerolox.broker.roles.roles import Roles
from kerolox.broker.services.background import BackgroundTasks
from kerolox.broker.services.filtered_pull import Arrivals
from kerolox.broker.services.popping import Popping
from kerolox.broker.services.replies import RepliesInFlight
from kerolox.broker.services.writing import Writing
from kerolox.broker.tables.assignments import Assignments
from kerolox.broker.tables.json_file import KeptTable
from kerolox.broker.tables.routes import TopicRoutes
from kerolox.broker.tables.tables import Tables
from kerolox.dynamic_config import DynamicConfig
from kerolox.kernel.choice import KernelInUse
from kerolox.remoting.audit import Audit
from kerolox.remoting.unserved import UnservedCodes
from kerolox.settings_class import settings_dataclass

if TYPE_CHECKING:
    from kerolox.broker.roles.controlled import ControlledRole


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class Context(Base):
    """What a handler may use."""

    dynamic_config: DynamicConfig[BrokerConfig]
    kernel: KernelInUse

    guards: Guards
    tables: Tables
    writing: Writing
    peers: Peers
    roles: Roles
    controlled: ControlledRole | None
    """None: there is no controller."""

    broker_stats: BrokerStats
    store_stats: StoreStats
    audit: Audit
    unserved: UnservedCodes
    routes: TopicRoutes
    assignments: Assignments
    arrivals: Arrivals
    popping: Popping
    replies: RepliesInFlight
    background: BackgroundTasks
    pull_hooks: tuple[PullHook, ...]

    @property
    def kept_tables(self) -> tuple[KeptTable, ...]:
        """Those with a file, in the order in which they are loaded."""
        tables, schedule = self.tables, self.writing.schedule
        of_groups = tables.groups, tables.offsets, tables.pops, tables.request_modes
        return tables.topics, *of_groups, schedule, tables.filters
