"""What a broker is: a master or a slave, and of which epoch."""

from __future__ import annotations

from collections.abc import Mapping

from kerolox.broker.config import BrokerConfig
from kerolox.observable import Observable
from kerolox.protocol.extensions.roles import SLAVE, SYNC_MASTER
from kerolox.settings_class import settings_dataclass


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What settings or ``role.json`` say; promotion and demotion replace it."""

    broker_role: str
    broker_id: int
    ha_master_address: str = ""
    """Where a slave's master sends its log, as the settings say; empty: as a name server says."""
    epoch: int = 0
    """The highest that the broker has heard of."""
    is_recorded: bool = False
    """``role.json`` says it; ``brokerRole``, ``brokerId`` and ``haMasterAddress`` of the settings
    do not count then."""

    @classmethod
    def of(cls, config: BrokerConfig, epoch: int = 0) -> Role:
        """What the settings say."""
        return cls(
            broker_role=config.broker_role,
            broker_id=config.broker_id,
            ha_master_address=config.ha_master_address,
            epoch=epoch,
        )

    @property
    def is_slave(self) -> bool:
        """It copies the log of a master, and takes no messages."""
        return self.broker_role == SLAVE

    @property
    def is_sync_master(self) -> bool:
        """Senders wait until their message is on a slave."""
        return self.broker_role == SYNC_MASTER

    @property
    def overrides(self) -> Mapping[str, object]:
        """Field name → value of the settings that do not count."""
        names = ("broker_role", "broker_id", "ha_master_address") if self.is_recorded else ()
        return {name: getattr(self, name) for name in names}


BrokerRole = Observable[Role]
"""The role of a broker that runs."""
