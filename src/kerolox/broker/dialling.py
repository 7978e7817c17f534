"""How a broker speaks to its name servers: with TLS, and with an account.

RocketMQ's broker signs nothing. Files are examined whenever a connection or a registration is made
(:mod:`kerolox.broker.outbound`): what was renewed counts from then on.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.security.credentials import Credentials
from kerolox.security.dialling import TlsDialSettings, dialling
from kerolox.security.tls import Tls
from kerolox.settings_class import settings_dataclass


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings(TlsDialSettings):
    """The part of a broker's settings that is about its own connections."""

    namesrv_credentials_file: str = field(default="", metadata=dialling("namesrvCredentialsFile"))
    """A file with the account that requests to name servers are signed with, of the form of
    ``tools.yml`` or ``~/key``. Empty: they are not signed. A key of ours."""

    @property
    def speaks_tls_to_name_servers(self) -> bool:
        """Whether the broker's own connections are encrypted."""
        return self.dials_tls

    def tls_to_name_servers(self) -> Tls:
        """How they are encrypted; no file is examined."""
        return self.tls_or_plain()

    def account_of_broker(self) -> Credentials | None:
        """The account of ``namesrvCredentialsFile``, as the file has it now; None: none is named.
        ConfigError: it can't be read, or lacks a key.
        """
        named = self.namesrv_credentials_file
        try:
            return Credentials.from_file(Path(named).expanduser()) if named else None
        except ConfigError as error:
            raise ConfigError(f"namesrvCredentialsFile: {error}") from None


DIAL_FIELDS = frozenset(TlsDialSettings.__annotations__) | frozenset(DialSettings.__annotations__)
"""Fields of these settings; when one changes, connections are made anew."""
