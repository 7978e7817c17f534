"""Signing requests for brokers that check them (``aclEnable``): ``AclClientRPCHook`` of RocketMQ.

A request gets its account's name and, last, a signature (:mod:`kerolox.security.signatures`). A
broker makes the same one of what arrives. So a request is signed when nothing changes any more:
after all hooks, in the encoding in which it travels. What a codec has written as a frame is signed
as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kerolox.errors import ConfigError
from kerolox.protocol.codes import FRAME_BYTES_MAX, HEADER_SIZE_MASK, SerializeType
from kerolox.protocol.framing import LENGTHS
from kerolox.protocol.names import ACCESS_KEY_FIELD, SECURITY_TOKEN_FIELD, SIGNATURE_FIELD
from kerolox.security.signatures import SecretKey, SignedOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.protocol.command import RemotingCommand

FILE_BYTES_MAX = 64 * 1024
"""A file of credentials has no more."""

TOOL_VARIABLES = ("KEROLOX_ACCESS_KEY", "KEROLOX_SECRET_KEY", "KEROLOX_SECURITY_TOKEN")
"""Environment variables with the account of command line tools."""

_YAML_NAMES = ("accessKey", "secretKey", "securityToken")
_PROPERTY_NAMES = (ACCESS_KEY_FIELD, "SecretKey", SECURITY_TOKEN_FIELD)

_FIELDS = b'"extFields":{'
_SIGNATURE = f'"{SIGNATURE_FIELD}":"'.encode()
"""No JSON text has these inside of it: their quotes would be escaped."""

_SIGNATURE_BYTES = 28 + 2
"""Those of a signature, which is 20 bytes as base64, and of what follows it."""


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
            if value.endswith(("\n", "\r")):
                raise ConfigError(
                    f"{name} ends with a line break, as files do and no account's does; take it "
                    "off (text.rstrip('\\r\\n'))"
                )
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
        is_yaml = path.suffix in (".yml", ".yaml")
        text = _text_of(path)
        values = _flat_yaml(text, path) if is_yaml else _properties(text, path)
        names = _YAML_NAMES if is_yaml else _PROPERTY_NAMES
        found = _if_complete(values, names)
        if found is None:
            missing = next(name for name in names if not values.get(name, "").strip())
            raise ConfigError(f"{path} has no {missing}; it needs {names[0]} and {names[1]}")
        return found


def tool_credentials(
    access_key: str | None,
    secret_key: str | None,
    security_token: str | None,
    environment: Mapping[str, str],
) -> Credentials | None:
    """The account of a command line tool; the first that is there:

    1. what is given, each part by itself or in ``$KEROLOX_ACCESS_KEY``, ``$KEROLOX_SECRET_KEY``
       and ``$KEROLOX_SECURITY_TOKEN``;
    2. ``$ROCKETMQ_HOME/conf/tools.yml``, which RocketMQ's ``mqadmin`` reads;
    3. ``~/key``, which RocketMQ's ``SessionCredentials()`` reads.

    A file without both keys does not count. One line break at the end of an option or a variable
    is no part of it: it comes with what was read from a file.

    Args:
        access_key, secret_key, security_token: from options; None: not given.
        environment: the variables.

    Raises:
        ConfigError: one key is given and the other is not, or ``tools.yml`` can't be read.
    """
    access_key, secret_key, security_token = (
        without_line_end(given if given is not None else environment.get(variable))
        for given, variable in zip(
            (access_key, secret_key, security_token), TOOL_VARIABLES, strict=True
        )
    )
    if access_key or secret_key or security_token:
        if not access_key or not secret_key:
            missing = 0 if not access_key else 1
            raise ConfigError(
                f"an account has two keys; give --{('access-key', 'secret-key')[missing]} or"
                f" ${TOOL_VARIABLES[missing]}, too"
            )
        return Credentials(access_key, secret_key, security_token or "")
    home = environment.get("ROCKETMQ_HOME", "")
    tools = Path(home, "conf", "tools.yml")
    if home and tools.exists():
        return _if_complete(_flat_yaml(_text_of(tools), tools), _YAML_NAMES)
    key = Path(environment.get("HOME", ""), "key")
    if environment.get("HOME") and key.is_file():
        try:
            return _if_complete(_properties(_text_of(key), key), _PROPERTY_NAMES)
        except ConfigError:
            return None  # many things are called so
    return None


def without_line_end(text: str | None) -> str | None:
    """A text without the one line break at its end, if it has one."""
    return None if text is None else text.removesuffix("\n").removesuffix("\r")


class _Header(msgspec.Struct, gc=False):
    """What a signature needs of a JSON header."""

    extFields: dict[str, str]


_read_header = msgspec.json.Decoder(_Header).decode
_to_json = msgspec.json.Encoder().encode


class Signer:
    """Signs the requests of one account."""

    __slots__ = ("_fields", "_members", "_order", "_secret")

    def __init__(self, credentials: Credentials) -> None:
        self._fields = {ACCESS_KEY_FIELD: credentials.access_key}
        if credentials.security_token:
            self._fields[SECURITY_TOKEN_FIELD] = credentials.security_token
        # As the first header fields of all, up to the signature.
        self._members = _FIELDS + _to_json(self._fields)[1:-1] + b"," + _SIGNATURE
        self._order = SignedOrder()
        self._secret = SecretKey(credentials.secret_key)

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

    def sign_frames(self, frames: bytes) -> bytes:
        """Whole requests, one behind the other, as they travel: those with a JSON header that are
        not signed yet get account and signature. One that no frame would hold then stays as it is,
        and its broker refuses it."""
        signed: list[bytes] = []
        start, added = 0, len(self._members) - len(_FIELDS) + _SIGNATURE_BYTES
        while start < len(frames):
            size, word = LENGTHS.unpack_from(frames, start)
            body_start = start + 8 + (word & HEADER_SIZE_MASK)
            header = frames[start + 8 : body_start]
            end = start + 4 + size
            if (
                word != len(header)  # another encoding
                or _SIGNATURE in header
                or _FIELDS not in header  # no codec writes such
                or size + added > FRAME_BYTES_MAX
            ):
                signed.append(frames[start:end])
            else:
                size, header_size = size + added, len(header) + added
                signed.append(LENGTHS.pack(size, header_size))
                signed += self._signed(header, frames[body_start:end])
            start = end
        return b"".join(signed)

    def _signed(self, header: bytes, body: bytes) -> tuple[bytes, ...]:
        """Header and body of a request, signed."""
        fields = _read_header(header).extFields
        fields.update(self._fields)
        signature = self.signature(fields, body).encode()
        head, _, rest = header.partition(_FIELDS)
        return head, self._members, signature, b'",', rest, body

    def signature(self, fields: dict[str, str], body: bytes) -> str:
        """The signature of a request with these header fields, the account's among them."""
        return self._secret.signature(self._order.text(fields, remember=True), body)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"can't read credentials from {path}: {reason}") from None


def _if_complete(values: Mapping[str, str], names: tuple[str, str, str]) -> Credentials | None:
    access_key, secret_key, token = (values.get(name, "").strip() for name in names)
    return Credentials(access_key, secret_key, token) if access_key and secret_key else None


def _properties(text: str, path: Path) -> dict[str, str]:
    from kerolox.properties import parse_properties  # few have such a file

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
