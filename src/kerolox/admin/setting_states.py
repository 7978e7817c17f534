"""What a broker is set to, beside the defaults, and what waits for its restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from kerolox.broker.config import DERIVED_KEYS, BrokerConfig
from kerolox.config import setting_keys, setting_text
from kerolox.dynamic_config import PENDING_PREFIX

__all__ = ["SettingState", "setting_states"]


@dataclass(frozen=True, slots=True)
class SettingState:
    """One setting of a broker."""

    key: str
    value: str
    """In force."""
    default: str | None
    """RocketMQ's; None: there is none that is the same on every machine, or the key is not known
    here."""
    after_restart: str | None
    """The value that the broker takes at its next start; None: the same."""

    @property
    def is_set(self) -> bool | None:
        """Whether it differs from the default; None: there is none."""
        return None if self.default is None else self.value != self.default


def setting_states(settings: Mapping[str, str]) -> list[SettingState]:
    """What ``Admin.broker_settings`` tells, by key; a broker of Kerolox says there, too, what waits
    for its restart."""
    defaults = _defaults()
    return [
        SettingState(key, value, defaults.get(key), settings.get(PENDING_PREFIX + key))
        for key, value in settings.items()
        if not key.startswith(PENDING_PREFIX)
    ]


def _defaults() -> dict[str, str]:
    """Those that are the same on every machine; they are RocketMQ's."""
    by_name = {
        each.name: setting_text(each.default)
        for each in dataclasses.fields(BrokerConfig)
        if each.default is not dataclasses.MISSING
    }
    return {
        key: by_name[name]
        for key, name in setting_keys(BrokerConfig).items()
        if name in by_name and key not in DERIVED_KEYS
    }
