"""Signing requests for brokers that check them (``aclEnable``): ``AclClientRPCHook`` of RocketMQ.

A request gets its account's name and, last, a signature: HmacSHA1, as base64, over the **values**
of its header fields in the order of their names, and its body behind them. A broker does the same
to what arrives. So a request is signed when nothing changes any more: after all hooks, in the
encoding in which it travels.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.errors import ConfigError
from kerolox.properties import parse_properties
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.names import (
    ACCESS_KEY_FIELD,
    SECURITY_TOKEN_FIELD,
    SIGNATURE_FIELD,
    UNIQUE_KEY_QUERY_FIELD,
)

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

FILE_BYTES_MAX = 64 * 1024
"""A file of credentials has no more."""

_UNSIGNED = frozenset((SIGNATURE_FIELD, UNIQUE_KEY_QUERY_FIELD))
"""Fields that a broker leaves out when it checks (``PlainAccessValidator``)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of the brokers' access control (``SessionCredentials``).

    ``repr`` shows the access key only. RocketMQ wants both keys to have more than 6 characters.
    """

    access_key: str
    """The account's name (``accessKey``); it travels with each request."""
    secret_key: str = field(repr=False)
    """What requests are signed with (``secretKey``); it never travels."""
    security_token: str = field(default="", repr=False)
    """Of a temporary account (``securityToken``); it travels. Empty: none."""

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name} is a {type(value).__name__}; it must be a text")
            if not value.strip() and (value or name != "security_token"):
                raise ConfigError(f"{name} is blank; write the account's")
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{name} has a character that is no Unicode text") from None

    @classmethod
    def from_file(cls, path: str | Path) -> Credentials:
        """Read a file as RocketMQ's tools and clients have them.

        Args:
            path: ``*.yml`` or ``*.yaml`` with ``accessKey`` and ``secretKey`` (``conf/tools.yml``);
                any other is a properties file with ``AccessKey``, ``SecretKey`` and maybe
                ``SecurityToken`` (``~/key``).

        Raises:
            ConfigError: it can't be read, or lacks a key; no text of it is told.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                text = file.read(FILE_BYTES_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise ConfigError(f"can't read credentials from {path}: {reason}") from None
        if path.suffix in (".yml", ".yaml"):
            values, names = _flat_yaml(text, path), ("accessKey", "secretKey", "securityToken")
        else:
            values = _properties(text, path)
            names = ACCESS_KEY_FIELD, "SecretKey", SECURITY_TOKEN_FIELD
        access_key, secret_key, token = (values.get(name, "").strip() for name in names)
        for name, value in zip(names, (access_key, secret_key), strict=False):
            if not value:
                raise ConfigError(f"{path} has no {name}; it needs {names[0]} and {names[1]}")
        return cls(access_key, secret_key, token)


class Signer:
    """Signs the requests of one account."""

    __slots__ = ("_fields", "_mac")

    def __init__(self, credentials: Credentials) -> None:
        self._fields = {ACCESS_KEY_FIELD: credentials.access_key}
        if credentials.security_token:
            self._fields[SECURITY_TOKEN_FIELD] = credentials.security_token
        # Copied for each request: to make one anew costs as much as all the rest.
        self._mac = hmac.new(credentials.secret_key.encode(), digestmod="sha1")

    def sign(self, command: RemotingCommand) -> None:
        """Add the account and the signature to a request; the last step before it is encoded.

        In the ROCKETMQ encoding fields without text are taken out: a broker reads them as missing,
        and its signature has the word ``null`` for them.
        """
        fields = command.ext_fields
        if command.serialize_type != SerializeType.JSON:
            fields = command.ext_fields = {name: text for name, text in fields.items() if text}
        fields.update(self._fields)
        fields[SIGNATURE_FIELD] = self.signature(fields, command.body)

    def signature(self, fields: dict[str, str], body: bytes) -> str:
        """The signature of a request with these header fields, the account's among them."""
        names = sorted(fields)
        if not "".join(names).isascii():
            # Java compares UTF-16 units.
            names.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        text = "".join([fields[name] for name in names if name not in _UNSIGNED])
        mac = self._mac.copy()
        mac.update(text.encode("utf-8", "replace"))
        mac.update(body)
        return b2a_base64(mac.digest(), newline=False).decode()


def _properties(text: str, path: Path) -> dict[str, str]:
    try:
        return parse_properties(text)
    except ConfigError:
        # Its text shows the line, which may be the secret.
        raise ConfigError(f"{path} has a \\u that no four hex digits follow") from None


def _flat_yaml(text: str, path: Path) -> dict[str, str]:
    """``name: value`` lines, as RocketMQ's file of the tools has them; nothing else of YAML."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        item = line.strip()
        if not item or item.startswith("#") or item == "---":
            continue
        name, separator, value = item.partition(":")
        value = value.strip()
        if not separator or line[0].isspace() or name.startswith("-"):
            raise ConfigError(f"{path}, line {number}: write accessKey: TEXT or secretKey: TEXT")
        if value[:1] in ("'", '"'):
            value, _, rest = value[1:].partition(value[0])
            if rest.strip() and not rest.strip().startswith("#"):
                raise ConfigError(f"{path}, line {number}: something stands behind the quoted text")
        else:
            value = value.partition(" #")[0].rstrip()
        values[name.strip()] = value
    return values
