"""Files of settings, accounts and keys, checked without a server: ``broker.conf``,
``namesrv.conf``, ``controller.conf``, ``tls.properties``, ``plain_acl.yml``, ``tools.yml``. No
finding has a secret."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kerolox.config import nearest, read_properties, setting_keys
from kerolox.doctor.findings import Finding, worst_first
from kerolox.doctor.settings_file import Lines, check_keys, check_settings
from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.role_settings import TLS_CLIENT_KEYS, RoleSettings, TlsServerSettings
from kerolox.security.access.documents import FILE_BYTES_MAX, KEY_CHARACTERS_MIN, read_document
from kerolox.security.credentials import Credentials

BROKER, NAMESRV, CONTROLLER = "broker", "namesrv", "controller"
TLS, ACCOUNTS, TOOLS = "tls", "accounts", "tools"
KINDS = (BROKER, NAMESRV, CONTROLLER, TLS, ACCOUNTS, TOOLS)
"""What a file may be for."""


_ANYBODY = "203.0.113.1"
"""An address that nobody has (RFC 5737): a white list with it has all."""


def check_file(path: Path, kind: str = "") -> list[Finding]:
    """What is wrong with a file; nothing where it is well. ``kind``: one of ``KINDS``; empty: by
    its name and what it says.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from None
    return worst_first(list(_CHECKS[kind or _kind(path, data)](path, data)))


def _kind(path: Path, data: bytes) -> str:
    name = path.name.lower()
    if path.suffix in (".yml", ".yaml"):
        return TOOLS if name.startswith("tools") or b"accounts" not in data else ACCOUNTS
    keys = [line.strip() for line in data.splitlines() if line.strip()[:1] not in (b"#", b"!", b"")]
    if "tls" in name or (keys and all(each.startswith(b"tls.") for each in keys)):
        return TLS
    if "controller" in name:
        return CONTROLLER
    return NAMESRV if "namesrv" in name or "nameserver" in name else BROKER


def _broker(path: Path, _: bytes) -> Iterator[Finding]:
    yield from check_settings(path)


def _namesrv(path: Path, _: bytes) -> Iterator[Finding]:
    yield from _role(path, NamesrvConfig)


def _controller(path: Path, _: bytes) -> Iterator[Finding]:
    from kerolox.controller.config import ControllerConfig

    yield from _role(path, ControllerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TlsFile(RoleSettings):
    """``tls.properties``: what servers read of it, and what clients do."""

    tls_enable: str = field(default="", metadata={"key": "tls.enable"})
    tls_client_key_path: str = field(default="", metadata={"key": "tls.client.keyPath"})
    tls_client_key_password: str = field(
        default="", metadata={"key": "tls.client.keyPassword", "secret": True}
    )
    tls_client_cert_path: str = field(default="", metadata={"key": "tls.client.certPath"})
    tls_client_auth_server: str = field(
        default="", metadata={"key": "tls.client.authServer", "choices": ("true", "false", "")}
    )
    tls_client_trust_cert_path: str = field(
        default="", metadata={"key": "tls.client.trustCertPath"}
    )
    tls_client_check_host_name: str = field(
        default="", metadata={"key": "tls.client.checkHostName", "choices": ("true", "false", "")}
    )


_TLS_KEYS = TLS_CLIENT_KEYS | {
    key for key in setting_keys(TlsServerSettings) if key.startswith("tls.")
}


def _tls(path: Path, _: bytes) -> Iterator[Finding]:
    try:
        values, lines = read_properties(path), Lines.of_file(path)
    except ConfigError as error:
        yield Finding("setting-wrong", str(path), str(error), "correct the file")
        return
    for key in values.keys() - _TLS_KEYS:
        best = nearest(key, _TLS_KEYS)
        yield Finding(
            "setting-unknown",
            lines.of(key),
            "no setting of TLS has this name: RocketMQ ignores it, Kerolox does not start",
            f"write {best}, if that is what is meant" if best else "take the line out",
        )
    known = {key: text for key, text in values.items() if key in _TLS_KEYS and text.strip()}
    yield from check_keys(lines, known, _TlsFile)
    yield from _tls_files(path, lines, known)
    for side in ("server", "client"):
        if known.get(f"tls.{side}.keyPath") and not known.get(f"tls.{side}.certPath"):
            yield Finding(
                "settings-contradict",
                lines.of(f"tls.{side}.keyPath"),
                f"a key without a certificate (tls.{side}.certPath) is not used",
                f"set tls.{side}.certPath",
            )
    wish = known.get("tls.server.need.client.auth", "none").strip().lower()
    if wish != "none" and known.get("tls.server.authClient", "").strip() != "true":
        yield Finding(
            "settings-contradict",
            lines.of("tls.server.need.client.auth"),
            "certificates of clients are not checked while tls.server.authClient is not true: "
            "RocketMQ takes any, and Kerolox asks for none",
            "set tls.server.authClient=true and tls.server.trustCertPath",
        )


def _tls_files(path: Path, lines: Lines, known: Mapping[str, str]) -> Iterator[Finding]:
    """Files that are named and can't be read, and keys that others can read."""
    for key, text in known.items():
        if not key.endswith("Path"):
            continue
        file = Path(text.strip()).expanduser()
        if not file.is_absolute() and not file.exists():
            continue  # it begins where the server is started, which is not known
        if not file.is_file():
            yield Finding(
                "setting-wrong", lines.of(key), f"there is no file {file}", "correct the path"
            )
        elif key.endswith("keyPath"):
            yield from _readable(file, "a private key")
    if any(key.endswith("keyPassword") for key in known):
        yield from _readable(path, "the password of a key")


def _role(path: Path, settings: type[RoleSettings]) -> Iterator[Finding]:
    try:
        values, lines = read_properties(path), Lines.of_file(path)
    except ConfigError as error:
        yield Finding("setting-wrong", str(path), str(error), "correct the file")
        return
    yield from check_keys(lines, values, settings)


def _accounts(path: Path, data: bytes) -> Iterator[Finding]:
    yield from _readable(path, "secrets of accounts")
    try:
        document = read_document(data, str(path))
    except ConfigError as error:
        where, what = _place(path, str(error))
        advice = "correct it: until then the accounts that were read before stay in force"
        yield Finding("setting-wrong", where, what, advice)
        return
    for warning in document.warnings:
        where, what = _place(path, warning)
        yield Finding("account-doubtful", where, what, "correct it, or take it out")
    if not document.accounts and not document.white:
        yield Finding(
            "account-doubtful", str(path), "it has no account", "add one, or set aclEnable=false"
        )
    if any(_ANYBODY in each for each in document.white):
        yield Finding(
            "account-doubtful",
            f"{path}: globalWhiteRemoteAddresses",
            "from anywhere everything is allowed",
            "name the addresses that need no account",
        )
    for account in document.accounts:
        if _ANYBODY in account.white:
            yield Finding(
                "account-doubtful",
                f"{path}: whiteRemoteAddress",
                f"whoever names account {account.access_key} needs no signature, from anywhere",
                "name the addresses that need none, or take the line out",
            )


def _tools(path: Path, data: bytes) -> Iterator[Finding]:
    yield from _readable(path, "a secret")
    known = ("accessKey", "secretKey", "securityToken")
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        key = line.partition(":")[0].strip()
        if key and not key.startswith(("#", "-")) and key not in known and ":" in line:
            best = nearest(key, known)
            yield Finding(
                "setting-unknown",
                f"{path}, line {number}: {key[:64]}",
                "the tools read accessKey, secretKey and securityToken only",
                f"write {best}, if that is what is meant" if best else "take the line out",
            )
    try:
        found = Credentials.from_file(path)
    except ConfigError as error:
        where, what = _place(path, str(error))
        yield Finding("setting-wrong", where, what, "write accessKey: TEXT and secretKey: TEXT")
        return
    for name, key in (("accessKey", found.access_key), ("secretKey", found.secret_key)):
        if len(key) < KEY_CHARACTERS_MIN:
            yield Finding(
                "setting-wrong",
                f"{path}: {name}",
                f"it has {len(key)} characters, and brokers take {KEY_CHARACTERS_MIN} or more",
                "make an account with longer keys",
            )


def _readable(path: Path, what: str) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        yield Finding(
            "secret-readable",
            str(path),
            f"other users of this machine can read {what} there",
            f"chmod 600 {path}",
        )


def _place(path: Path, text: str) -> tuple[str, str]:
    """Where and what of an error that begins with the file and maybe a line."""
    where, separator, what = text.partition(": ")
    return (where, what) if separator and where.startswith(str(path)) else (str(path), text)


_CHECKS: Mapping[str, Callable[[Path, bytes], Iterator[Finding]]] = {
    BROKER: _broker,
    NAMESRV: _namesrv,
    CONTROLLER: _controller,
    TLS: _tls,
    ACCOUNTS: _accounts,
    TOOLS: _tools,
}
