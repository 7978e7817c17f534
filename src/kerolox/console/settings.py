"""Settings of the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kerolox.addresses import is_loopback
from kerolox.console.security.oidc_settings import OidcSettings
from kerolox.errors import ConfigError
from kerolox.user_folders import CONFIG, STATE, user_folder

__all__ = ["ConsoleSettings", "history_file", "users_file"]

PORT = 8089
SAMPLE_SECONDS = 15.0

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def users_file(environment: Mapping[str, str]) -> Path:
    """Where users are kept unless told otherwise: beside the contexts of the command line."""
    return user_folder(CONFIG, environment) / "console-users.json"


def history_file(environment: Mapping[str, str]) -> Path:
    """Where the history is kept unless told otherwise."""
    return user_folder(STATE, environment) / "console-history.sqlite"


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings:
    """How a console serves; ConfigError: they don't fit together."""

    name_server: str
    """``host:port`` of name servers, joined by ``;``."""
    users: Path
    history: Path | None
    """None: in memory."""
    title: str = ""
    """What pages call the cluster; empty: its name servers."""
    host: str = "127.0.0.1"
    port: int = PORT
    actions: bool = False
    """Whether anything can be changed at all."""
    certificate: Path | None = None
    """PEM; the console serves HTTPS then."""
    private_key: Path | None = None
    insecure: bool = False
    """Serve plain HTTP on an address that other machines reach."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed."""
    root_path: str = ""
    """Where a proxy has the console, for example ``/mq``."""
    oidc: OidcSettings | None = None
    """The provider that signs in those who have no account here; None: there is none."""
    schemas: Path | None = None
    """A file that names the schemas of topics, by which bodies are shown; None: there is none."""
    sample_seconds: float = SAMPLE_SECONDS
    """Time between two samples for the history."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("TLS needs both a certificate and its private key")
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                f"root path {self.root_path!r}: write it as /mq, with no / at its end"
            )
        is_open = not is_loopback(self.host) and self.certificate is None
        if is_open and not self.insecure and not self.trusted_proxies:
            raise ConfigError(
                f"{self.host} is reached by other machines, and passwords would cross the network "
                "in the clear: give --tls-certificate and --tls-key, or --trust-proxy for one that "
                "has TLS, or --insecure"
            )
        if self.oidc is not None:
            self.oidc.check(self.root_path)
        if not 1 <= self.sample_seconds <= 900:
            raise ConfigError(f"sample seconds are {self.sample_seconds:g}; from 1 to 900 fit")
