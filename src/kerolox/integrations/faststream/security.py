"""FastStream's descriptions of security as settings of our clients."""

from __future__ import annotations

from dataclasses import replace

from faststream.security import BaseSecurity, SASLPlaintext

from kerolox.client.aio.settings import ClientSettings
from kerolox.errors import ConfigError
from kerolox.security.credentials import Credentials


def secured(settings: ClientSettings, security: BaseSecurity | None) -> ClientSettings:
    """Settings with what a description adds: TLS, and an account from ``SASLPlaintext``.

    Raises:
        ConfigError: RocketMQ has no such way.
    """
    if security is None:
        return settings
    if security.use_ssl:
        settings = replace(settings, tls=security.ssl_context or True)
    if isinstance(security, SASLPlaintext):
        return replace(settings, credentials=Credentials(security.username, security.password))
    if type(security) is BaseSecurity:
        return settings
    raise ConfigError(
        f"security is {type(security).__name__}; it must be BaseSecurity or SASLPlaintext"
    )
