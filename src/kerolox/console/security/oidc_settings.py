"""How the console asks a provider of OpenID Connect who somebody is: a file of JSON.

It has no secret in it: that of the client stands in a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kerolox.addresses import is_loopback
from kerolox.config import read_regular
from kerolox.console.security.roles import ROLE_NAMES
from kerolox.errors import ConfigError

__all__ = ["CALLBACK", "OidcSettings", "read_oidc_settings"]

CALLBACK = "/login/oidc/callback"
"""The path, below the console's own, to which the provider sends browsers back."""

FILE_BYTES_MAX = 64 * 1024
SECRET_BYTES_MAX = 4 * 1024
CHARACTERS_MAX = 2_048
ROLES_MAX = 1_000


class OidcSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """One provider; ConfigError: from :meth:`check`, where the settings don't fit together."""

    issuer: str
    """Address of the provider, as its discovery document has it."""
    client_id: str
    """What the provider calls the console."""
    redirect_uri: str
    """Address of the console as browsers have it, with ``/login/oidc/callback``."""
    roles: dict[str, str]
    """Value of the claim → role of the console. Of several the highest counts."""
    role_claim: str = "groups"
    """The claim with those values: a text or a list. ``a.b`` is the member b of the claim a."""
    name_claim: str = "preferred_username"
    """The claim with the name that pages and the audit log show; without it ``sub``."""
    scopes: tuple[str, ...] = ("openid", "profile")
    client_secret_file: str = ""
    """Empty: the provider asks for no secret of the client, since PKCE proves who began."""
    label: str = "OpenID Connect"
    """What the button of the login page calls the provider."""

    def check(self, root_path: str) -> None:
        """Refuse what can't work, or is not safe, by a ConfigError that names the setting;
        ``root_path``: where a proxy has the console.
        """
        for name, value in (("issuer", self.issuer), ("redirectUri", self.redirect_uri)):
            check_address(name, value)
        if urlsplit(self.redirect_uri).path != root_path + CALLBACK:
            raise ConfigError(
                f"redirectUri is {self.redirect_uri!r}; its path is {root_path + CALLBACK}"
            )
        if not self.client_id or "openid" not in self.scopes:
            raise ConfigError("clientId is empty, or the scope 'openid' is missing")
        if not self.roles or len(self.roles) > ROLES_MAX:
            raise ConfigError(f"roles names 1 to {ROLES_MAX} values of the claim {self.role_claim}")
        for value, role in self.roles.items():
            if role not in ROLE_NAMES:
                raise ConfigError(
                    f"roles: {value!r} is {role!r}; the roles are {', '.join(ROLE_NAMES)}"
                )

    @property
    def after_logout(self) -> str:
        """Where the provider sends browsers after a logout: the login page."""
        return self.redirect_uri.removesuffix("/oidc/callback")

    def client_secret(self) -> str:
        """What proves that the console asks; empty: nothing does. ConfigError: its file can't be
        read, or is empty.
        """
        if not self.client_secret_file:
            return ""
        path = Path(self.client_secret_file).expanduser()
        try:
            secret = read_regular(path, SECRET_BYTES_MAX).decode().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: the secret of the client can't be read: {error}") from None
        if not secret:
            raise ConfigError(f"{path}: the secret of the client is empty")
        return secret


def check_address(name: str, value: str) -> None:
    """Refuse an address to which a secret would go in the clear: one that is neither of HTTPS, nor
    of HTTP on this machine.
    """
    parts = urlsplit(value) if len(value) <= CHARACTERS_MAX else urlsplit("")
    is_safe = parts.scheme == "https" or (
        parts.scheme == "http" and is_loopback(parts.hostname or "")
    )
    if not is_safe or not parts.hostname or parts.fragment or parts.username is not None:
        raise ConfigError(
            f"{name} is {value[:CHARACTERS_MAX]!r}; it begins with https://, or with http:// on "
            "this machine alone, and has no user and no #"
        )


def read_oidc_settings(path: Path) -> OidcSettings:
    """The settings of a file; ConfigError: it can't be read, or has other members."""
    try:
        return msgspec.json.decode(read_regular(path, FILE_BYTES_MAX), type=OidcSettings)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no file of OpenID Connect: {error}") from None
