"""What a broker does when settings of it have changed while it runs (UPDATE_BROKER_CONFIG, reload).

Most parts read the settings, which they share, each time. This tells those that keep a copy: the
kernel, the rules of retention, and tables that were made by the settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.broker.config import BrokerConfig
from kerolox.broker.dialling import DIAL_FIELDS
from kerolox.broker.identity import Identity
from kerolox.broker.services.cleaning import Cleaner, retention_rules
from kerolox.broker.services.registration import OPERATOR_SECONDS_MAX, Registration
from kerolox.broker.services.write_gate import WriteGate
from kerolox.broker.tables.clients import ClientTable
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.kernel import StoreKernel
from kerolox.remoting.limits.requests import RequestLimits


@dataclass(frozen=True, slots=True)
class ConfigApplier:
    """The parts of a broker that keep what settings say."""

    config: BrokerConfig
    identity: Identity
    store: StoreKernel
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable
    gate: WriteGate
    cleaner: Cleaner
    registration: Registration
    limits: RequestLimits

    async def __call__(self, fields: frozenset[str]) -> None:
        """Have the settings in force everywhere. ``fields`` are those that changed."""
        if fields & {"region_id", "trace_on"}:
            self.identity.announce(self.store)
        self.cleaner.retention.rules = retention_rules(self.config)
        self.store.set_max_message_size(self.config.max_message_size)
        self.limits.use(self.config)
        self.gate.refresh()
        self.clients.take_heartbeats_anew()
        if "reject_transaction_message" in fields:
            self.topics.push_halves()
        if "broker_permission" in fields:
            self.groups.push_all()
            self.topics.push_all()
        if fields & DIAL_FIELDS:
            self.registration.dial_anew()
        if fields & (DIAL_FIELDS | {"broker_permission", "namesrv_addr"}):
            await self.registration.now(timeout_seconds=OPERATOR_SECONDS_MAX)
