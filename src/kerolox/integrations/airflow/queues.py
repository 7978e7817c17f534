"""The message queue of Airflow's common messaging (AIP-82)."""

from __future__ import annotations

from kerolox.errors import ConfigError
from kerolox.integrations.airflow import SCHEME
from kerolox.integrations.airflow.triggers import AwaitMessageTrigger

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise ConfigError(
        f"Airflow's common messaging can't be imported ({error}); install kerolox[airflow]"
    ) from error

__all__ = ["KeroloxMessageQueueProvider"]


class KeroloxMessageQueueProvider(BaseMessageQueueProvider):
    """``MessageQueueTrigger(scheme="kerolox", topic=..., group=...)`` is an
    :class:`AwaitMessageTrigger` with these arguments."""

    scheme = SCHEME

    def trigger_class(self) -> type[AwaitMessageTrigger]:
        """The trigger of the scheme."""
        return AwaitMessageTrigger
