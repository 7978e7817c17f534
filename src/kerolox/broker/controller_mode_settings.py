"""The part of a broker's settings that is about a controller: those of ``BrokerConfig`` and
``MessageStoreConfig`` of RocketMQ 5.3.3, with their defaults."""

from __future__ import annotations

from dataclasses import field

from kerolox.addresses import split_address
from kerolox.broker.ha_settings import HaSettings
from kerolox.errors import ConfigError
from kerolox.protocol.java_numbers import INT_MAX
from kerolox.role_settings import LATER
from kerolox.settings_class import settings_dataclass
from kerolox.text import split_list

CONTROLLERS_MAX = 15
"""Addresses of ``controllerAddr``."""

HEARTBEATS_OF_TIMEOUT = 4

_INT: dict[str, object] = {"max": INT_MAX}
_PERIOD = LATER | {"min": 10} | _INT
_COUNT = LATER | {"min": 1} | _INT


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class ControllerModeSettings(HaSettings):
    """Settings of brokers under a controller. Times are milliseconds."""

    enable_controller_mode: bool = False
    """A controller says whether this broker is a master or a slave; ``brokerRole``, ``brokerId``
    and ``role.json`` do not count."""
    controller_addr: str = field(default="", metadata={"bytes": 4096})
    """``host:port`` of each controller, joined by ``;``."""
    sync_controller_metadata_period: int = field(default=10_000, metadata=_PERIOD)
    """Between two questions of which controller leads."""
    sync_broker_metadata_period: int = field(default=5_000, metadata=_PERIOD)
    """Between two questions of who is the master, for a notice that was lost."""
    check_sync_state_set_period: int = field(default=5_000, metadata=_PERIOD)
    """Between two checks of a master for slaves that are to leave the sync state set."""
    broker_heartbeat_interval: int = field(default=1_000, metadata=_PERIOD)
    """Between two heartbeats to all controllers; ``heartbeat_ms`` is what counts."""
    send_heartbeat_timeout_millis: int = field(default=1_000, metadata=_PERIOD)
    controller_heart_beat_timeout_mills: int = field(
        default=10_000, metadata=LATER | {"min": 300, "max": 600_000}
    )
    """A controller that hears nothing for so long elects another master. A master takes no messages
    from two thirds of it on."""
    broker_election_priority: int = field(default=INT_MAX, metadata=LATER | {"min": 0})
    """Of two brokers that have the same, the one with the lower number is elected: this is the last
    one."""
    ha_max_time_slave_not_catchup: int = field(default=15_000, metadata=LATER | {"min": 1} | _INT)
    """A slave that was behind for so long leaves the sync state set."""
    all_ack_in_sync_state_set: bool = field(default=False, metadata=LATER)
    """A send is answered when its message is on all brokers of the sync state set. Without it, what
    was acknowledged may be lost with the master, as in RocketMQ."""
    in_sync_replicas: int = field(default=1, metadata=_COUNT)
    """The same for so many of them, the master among them, where not all are waited for."""
    min_in_sync_replicas: int = field(default=1, metadata=_COUNT)
    """A master whose sync state set has fewer takes no messages."""
    async_learner: bool = field(default=False, metadata=LATER)
    """This broker copies the log, and is never elected."""
    sync_from_last_file: bool = field(default=False, metadata=LATER)
    """An empty slave gets its master's last file only."""

    @property
    def heartbeat_ms(self) -> int:
        """Between two heartbeats: four of them in the time after which a controller takes this
        broker for dead, so that one may be late."""
        least = self.controller_heart_beat_timeout_mills // HEARTBEATS_OF_TIMEOUT
        return min(self.broker_heartbeat_interval, least)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The addresses of ``controllerAddr``. ConfigError: one is malformed, or they are too many,
        or none where a controller is wanted.
        """
        found = split_list(self.controller_addr)
        for address in found:
            try:
                split_address(address)
            except ValueError as error:
                raise ConfigError(f"controllerAddr: {error}") from None
        if len(found) > CONTROLLERS_MAX or (self.enable_controller_mode and not found):
            raise ConfigError(
                f"controllerAddr has to name 1 to {CONTROLLERS_MAX} controllers as host:port, "
                "joined by semicolons"
            )
        return found
