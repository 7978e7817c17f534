"""What nearly every part of a broker uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kerolox.broker.config import BrokerConfig, BrokerSettings
from kerolox.broker.identity import Identity
from kerolox.broker.role import BrokerRole
from kerolox.kernel import StoreKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Settings, role, store, addresses and clocks of one broker. ``now_ms`` gives milliseconds
    since the epoch, ``steady_ms`` those of a clock that nobody sets."""

    settings: BrokerSettings
    role: BrokerRole
    store: StoreKernel
    identity: Identity
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.settings.current
