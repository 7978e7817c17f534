"""What a broker does when settings of it have changed while it runs (UPDATE_BROKER_CONFIG, reload).

Most parts read the settings, which they share, each time. This tells those that keep a copy: the
kernel, the rules of retention, and tables that were made by the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.services.cleaning import retention_rules
from kerolox.broker.services.registration import OPERATOR_SECONDS_MAX

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker

__all__ = ["apply_settings"]


async def apply_settings(broker: Broker, fields: frozenset[str]) -> None:
    """Have the settings in force everywhere. ``fields`` are those that changed."""
    if fields & {"region_id", "trace_on"}:
        broker.set_identity()
    broker.cleaner.retention.rules = retention_rules(broker.config)
    broker.store.set_max_message_size(broker.config.max_message_size)
    broker.allow_hot_sends()
    broker.clients.take_heartbeats_anew()
    broker.clients.notify_enable = broker.config.notify_consumer_ids_changed_enable
    if "broker_permission" in fields:
        broker.groups.push_all()
        broker.topics.push_all()
    if fields & {"broker_permission", "namesrv_addr"}:
        await broker.registration.now(timeout_seconds=OPERATOR_SECONDS_MAX)
