"""How a server speaks TLS to other servers, where it connects to them.

RocketMQ takes it from system properties and from ``tls.config.file``, as its clients do
(``tls.enable``, ``tls.client.*``). Files are examined whenever a connection is made: what was
renewed counts from then on.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from kerolox.role_settings import ENFORCING, RoleSettings
from kerolox.security.tls import Tls, TlsSettings
from kerolox.settings_class import settings_dataclass


def dialling(key: str, **more: object) -> dict[str, object]:
    """Metadata of a setting that counts from the next connection on, and that no request changes:
    whoever did could have the server believe any other one."""
    return {"key": key, "live": True, **more}


@settings_dataclass(frozen=True, slots=True, kw_only=True)
class TlsDialSettings(RoleSettings):
    """The part of a role's settings that is about its own connections."""

    tls_enable: bool | None = field(default=None, metadata=dialling("tls.enable"))
    """Speak TLS to them. Unset: where ``tls.server.mode`` is ``enforcing``, as RocketMQ."""
    use_tls: bool | None = field(default=None, metadata=dialling("useTLS"))
    """The same; stronger. It is what RocketMQ calls it in ``broker.conf``."""
    tls_client_auth_server: bool = field(default=True, metadata=dialling("tls.client.authServer"))
    """Check their certificates; false in RocketMQ, which believes any server."""
    tls_client_trust_cert_path: str = field(
        default="", metadata=dialling("tls.client.trustCertPath")
    )
    """Certificates of the authorities that sign theirs; empty: those of the system."""
    tls_client_check_host_name: bool = field(
        default=True, metadata=dialling("tls.client.checkHostName")
    )
    """They must be for the host or the address that is connected to. A key of ours."""
    tls_client_cert_path: str = field(default="", metadata=dialling("tls.client.certPath"))
    """The certificate of this server, for others that ask for one."""
    tls_client_key_path: str = field(default="", metadata=dialling("tls.client.keyPath"))
    """Its private key; empty: it is in the certificate's file."""
    tls_client_key_password: str = field(
        default="", repr=False, metadata=dialling("tls.client.keyPassword", secret=True)
    )

    @property
    def dials_tls(self) -> bool:
        """Whether its own connections are encrypted."""
        if self.use_tls is not None:
            return self.use_tls
        if self.tls_enable is not None:
            return self.tls_enable
        return self.tls_server_mode == ENFORCING

    def tls_or_plain(self) -> Tls:
        """How they are encrypted, if they are; no file is examined."""
        return self.tls_dialled() if self.dials_tls else False

    def tls_dialled(self) -> TlsSettings:
        """How those are encrypted that are; no file is examined. ConfigError: a key is given and no
        certificate.
        """
        return TlsSettings(
            ca=_path(self.tls_client_trust_cert_path),
            certificate=_path(self.tls_client_cert_path),
            key=_path(self.tls_client_key_path),
            key_password=self.tls_client_key_password or None,
            verify=self.tls_client_auth_server,
            check_host_name=self.tls_client_check_host_name,
        )


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
