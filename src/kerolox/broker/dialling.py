"""How a broker speaks to its name servers: with TLS, and with an account.

RocketMQ's broker takes the first from system properties and from ``tls.config.file``, as its
clients do (``tls.enable``, ``tls.client.*``), and signs nothing. Files are examined whenever a
connection or a registration is made (:mod:`kerolox.broker.outbound`): what was renewed counts from
then on.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from kerolox.errors import ConfigError
from kerolox.role_settings import ENFORCING, RoleSettings
from kerolox.security.credentials import Credentials
from kerolox.security.tls import Tls, TlsSettings
from kerolox.settings_class import settings_dataclass


def _dialling(key: str, **more: object) -> dict[str, object]:
    """Metadata of a setting that counts from the next connection on, and that no request changes:
    whoever did could have the broker believe any name server."""
    return {"key": key, "live": True, **more}


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings(RoleSettings):
    """The part of a broker's settings that is about its own connections."""

    tls_enable: bool | None = field(default=None, metadata=_dialling("tls.enable"))
    """Speak TLS to name servers. Unset: where ``tls.server.mode`` is ``enforcing``, as RocketMQ."""
    use_tls: bool | None = field(default=None, metadata=_dialling("useTLS"))
    """The same; stronger. It is what RocketMQ calls it in ``broker.conf``."""
    tls_client_auth_server: bool = field(default=True, metadata=_dialling("tls.client.authServer"))
    """Check name servers' certificates; false in RocketMQ, which believes any name server."""
    tls_client_trust_cert_path: str = field(
        default="", metadata=_dialling("tls.client.trustCertPath")
    )
    """Certificates of the authorities that sign theirs; empty: those of the system."""
    tls_client_check_host_name: bool = field(
        default=True, metadata=_dialling("tls.client.checkHostName")
    )
    """They must be for the host or the address in ``namesrvAddr``. A key of ours."""
    tls_client_cert_path: str = field(default="", metadata=_dialling("tls.client.certPath"))
    """The broker's own certificate, for name servers that ask for one."""
    tls_client_key_path: str = field(default="", metadata=_dialling("tls.client.keyPath"))
    """Its private key; empty: it is in the certificate's file."""
    tls_client_key_password: str = field(
        default="", repr=False, metadata=_dialling("tls.client.keyPassword", secret=True)
    )
    namesrv_credentials_file: str = field(default="", metadata=_dialling("namesrvCredentialsFile"))
    """A file with the account that requests to name servers are signed with, of the form of
    ``tools.yml`` or ``~/key``. Empty: they are not signed. A key of ours."""

    @property
    def speaks_tls_to_name_servers(self) -> bool:
        """Whether the broker's own connections are encrypted."""
        if self.use_tls is not None:
            return self.use_tls
        if self.tls_enable is not None:
            return self.tls_enable
        return self.tls_server_mode == ENFORCING

    def tls_to_name_servers(self) -> Tls:
        """How they are encrypted; no file is examined."""
        return self.tls_dialled() if self.speaks_tls_to_name_servers else False

    def tls_dialled(self) -> TlsSettings:
        """How connections of the broker are encrypted that are; no file is examined. ConfigError: a
        key is given and no certificate.
        """
        return TlsSettings(
            ca=_path(self.tls_client_trust_cert_path),
            certificate=_path(self.tls_client_cert_path),
            key=_path(self.tls_client_key_path),
            key_password=self.tls_client_key_password or None,
            verify=self.tls_client_auth_server,
            check_host_name=self.tls_client_check_host_name,
        )

    def account_of_broker(self) -> Credentials | None:
        """The account of ``namesrvCredentialsFile``, as the file has it now; None: none is named.
        ConfigError: it can't be read, or lacks a key.
        """
        path = _path(self.namesrv_credentials_file)
        try:
            return None if path is None else Credentials.from_file(path)
        except ConfigError as error:
            raise ConfigError(f"namesrvCredentialsFile: {error}") from None


DIAL_FIELDS = frozenset(DialSettings.__annotations__)
"""Fields of these settings; when one changes, connections are made anew."""


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
