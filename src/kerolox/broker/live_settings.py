"""Settings that operators change while a broker runs (UPDATE_BROKER_CONFIG).

All are written to the broker's settings file. Those of :data:`LIVE` take effect at once; the
others, which are built into files, sockets and the kernel, with the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kerolox.broker.cleaning import retention_rules
from kerolox.broker.registration import OPERATOR_SECONDS_MAX
from kerolox.config import setting_keys, store_settings_file
from kerolox.errors import BrokerError
from kerolox.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker

__all__ = ["LIVE", "LiveSettings"]

FIXED_KEYS = frozenset(("brokerConfigPath", "rocketmqHome", "configBlackList"))
"""Keys that no request changes, whatever ``configBlackList`` says."""

LIVE = frozenset(
    """
    broker_permission auto_create_topic_enable auto_create_subscription_group
    reject_transaction_message region_id trace_on default_query_max_num filter_support_retry
    enable_property_filter transaction_time_out transaction_check_max store_reply_message_enable
    enable_detail_stat auto_delete_unused_stats file_reserved_time delete_when
    disk_max_used_space_ratio clean_file_forcibly_enable disk_space_warning_level_ratio
    disk_space_clean_forcibly_ratio disable_consume_if_consumer_read_slowly
    consumer_fallbehind_threshold enable_schedule_message_stats max_message_size
    start_accept_send_request_time_stamp namesrv_addr register_broker_timeout_mills
    compressed_register notify_consumer_ids_changed_enable max_msgs_num_batch
    """.split()
)
"""Fields of ``BrokerConfig`` that take effect at once."""

_log = logging.getLogger(__name__)


class LiveSettings:
    """The settings of one broker: those in force, and those written for the next start."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._given: dict[str, str] = {}
        """What requests have changed."""
        self._writing = asyncio.Lock()
        self.version = {"counter": 0, "timestamp": now_ms()}
        """``DataVersion`` of the settings."""

    def as_properties(self) -> dict[str, str]:
        """All settings, as the file will have them."""
        return self._broker.config.as_properties() | self._given

    async def change(self, values: Mapping[str, str], asker: str) -> None:
        """Take over other values, and write them to the file.

        Raises:
            BrokerError: one may not be changed.
            ConfigError: a key is unknown, or a value does not fit; nothing was changed.
            OSError: the file can't be written; what is live is in force nevertheless.
        """
        config = self._broker.config
        if not (FIXED_KEYS | set(config.config_black_list.split(";"))).isdisjoint(values):
            raise BrokerError(
                "Can not update config in black list.", code=ResponseCode.NO_PERMISSION
            )
        wanted = config.changed(self._given | dict(values), asker)
        names = setting_keys(type(config))
        live = {key for key in values if names.get(key) in LIVE}
        self._given |= values
        config.take_over(wanted, [names[key] for key in live])
        self.version = {
            "counter": int(self.version["counter"]) + 1,
            "timestamp": self._now_ms(),
        }
        # A broker that was started without a file would not read the one that it wrote.
        start = f"the next start with -c {config.settings_file}"
        for key, value in values.items():
            when = f"at once, and with {start}" if key in live else f"with {start}"
            _log.info("%s set %s=%s, which takes effect %s", asker, key, value, when)
        await self._apply({names[key] for key in live})
        async with self._writing:
            await asyncio.to_thread(
                store_settings_file, config.settings_file, self.as_properties(), values
            )

    async def _apply(self, fields: set[str]) -> None:
        """Tell those who keep a copy."""
        broker = self._broker
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
