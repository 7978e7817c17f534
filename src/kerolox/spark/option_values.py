"""Checks of option texts that all formats share: ``rocketmq`` to read and write, stores, jobs.

Spark hands option names over in lower case and compares them without regard to case; so does this
module. An option that nobody knows is an error that names the nearest one, since a misspelt
``startingOffsets`` would otherwise mean the default. Each error names the option, what was wrong
with its text and what to write. Secrets never stand in an error.
"""

from __future__ import annotations

import dataclasses
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.aio.network.identity import checked_addresses
from kerolox.config import nearest
from kerolox.errors import ConfigError, MessageRejectedError
from kerolox.security.credentials import Credentials
from kerolox.security.tls import TlsSettings
from kerolox.text import looks_like_seconds, printable, seconds_text, split_list

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from enum import Enum

    _Choice = TypeVar("_Choice", bound=Enum)
    _Value = TypeVar("_Value")

CONNECTION_OPTIONS = {
    "nameServer": "addresses of the name servers, host:port, several joined by ';' (required)",
    "accessKey": "account that requests are signed with, for brokers with aclEnable",
    "secretKey": "its secret; Spark shows neither",
    "securityToken": "of a temporary account",
    "credentialsFile": "instead of these three: RocketMQ's conf/tools.yml, or properties as ~/key",
    "tls": "true: encrypt connections; default false, or true with another option of TLS",
    "tlsCaFile": "PEM file of the authorities that are trusted; default: the system's",
    "tlsCertificateFile": "PEM file of our certificate, for servers that ask for one",
    "tlsKeyFile": "PEM file of its private key; default: in the certificate's file",
    "tlsKeyPassword": "what the private key is encrypted with",
    "tlsVerify": "true (default): check the servers' certificates",
    "tlsCheckHostName": "true (default): they must be for the host or address connected to",
    "tlsConfigFile": "instead of all these but tls: RocketMQ's tls.properties (tls.client.)",
}
"""The options of all formats that connect to servers, with their meaning."""

OF_SPARK = frozenset(("checkpointlocation", "path"))
"""Options that Spark hands to a sink beside those that its user wrote for the format."""

WHOLE_MAX = 2**63 - 1
"""No number of an option is larger: offsets, times and counts are 64 bits wide."""

WAIT_MS_MAX = 30 * 24 * 60 * 60 * 1000
"""Thirty days; much longer waits are none that a system can time."""

ERROR_CHARACTERS_MAX = 600
"""Of what is reported of a file, whose path may be long."""

_BOOLEANS = {"true": True, "false": False}
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NUMBER_WITH_UNIT = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_DIGITS_MAX = 19


class OptionValues:
    """The options that a user gave one query, by their canonical names; read by kind. ``known``:
    every option of the format with its meaning. ``given``: what Spark hands over, names in any
    case. ``ignored``: further names, in lower case, that are no mistake. ConfigError: an option
    that the format does not have; names the nearest one.
    """

    def __init__(
        self,
        format_name: str,
        known: Mapping[str, str],
        given: Mapping[str, str],
        *,
        ignored: Collection[str] = (),
    ) -> None:
        self._known = known
        self._given: dict[str, str] = {}
        canonical = {name.lower(): name for name in known}
        for name, value in given.items():
            found = canonical.get(name.lower())
            if found is not None:
                self._given[found] = str(value)
            elif name.lower() not in ignored:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
                raise ConfigError(f"format {format_name} has no option {name!r}; {hint}")

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str, default: str = "") -> str:
        """The text without space around it; an empty one is the default."""
        return self._given.get(name, "").strip() or default

    def raw(self, name: str) -> str | None:
        """The text as it was given; None: it was not."""
        return self._given.get(name)

    def required(self, name: str) -> str:
        """The text of an option that must be given."""
        if name not in self._given:
            raise ConfigError(f"option {name} is missing: {self._known[name]}")
        return self._given[name]

    def items(self, name: str, separator: str = ",") -> tuple[str, ...]:
        """The parts of a list, trimmed, each once, empty ones left out."""
        parts = (part.strip() for part in self._given.get(name, "").split(separator))
        return tuple(dict.fromkeys(part for part in parts if part))

    def filled_items(self, name: str) -> tuple[str, ...]:
        """As :meth:`items`; an option that is given has at least one."""
        found = self.items(name)
        if name in self and not found:
            raise ConfigError(f"option {name} is empty: {self._known[name]}")
        return found

    def one_of(self, *names: str) -> str | None:
        """The one of these options that is given; None: none is."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise ConfigError(
                f"option {given[1]} and {given[0]} exclude each other; give one of them"
            )
        return given[0] if given else None

    def columns(self, name: str = "columns") -> tuple[str, ...] | None:
        """Names of columns, each once; None: not given."""
        if name not in self:
            return None
        found = [part.strip() for part in self.text(name).split(",") if part.strip()]
        if not found or len({each.lower() for each in found}) != len(found):
            raise ConfigError(f"option {name}={self._shown(name)} is empty or names a column twice")
        return tuple(found)

    def namespace(self, name: str = "namespace") -> str:
        """What stands before topics and groups; empty: not given."""
        text = self.text(name)
        letters = text.replace("-", "").replace("_", "")
        if name in self and not (letters.isascii() and letters.isalnum()):
            raise ConfigError(
                f"option {name}={self._shown(name)} must be letters, digits, '-' and '_'"
            )
        return text

    def positive(self, name: str, *, maximum: int = WHOLE_MAX) -> int | None:
        """A whole number from 1 up; None: not given."""
        return self.whole(name, minimum=1, maximum=maximum)

    def whole(self, name: str, *, minimum: int = 0, maximum: int = WHOLE_MAX) -> int | None:
        """A whole number in plain digits; None: not given."""
        if name not in self._given:
            return None
        text = self._given[name].strip()
        value = int(text) if _is_digits(text) else -1
        if not minimum <= value <= maximum:
            upper = "up" if maximum == WHOLE_MAX else f"to {maximum}"
            raise ConfigError(
                f"option {name}={printable(text)!r} must be a whole number from {minimum} {upper}"
            )
        return value

    def wait_ms(self, name: str) -> int | None:
        """A wait in milliseconds, from 1 to thirty days; None: not given."""
        return self.positive(name, maximum=WAIT_MS_MAX)

    def boolean(self, name: str, *, default: bool) -> bool:
        """``true`` or ``false``, in any case."""
        text = self._given.get(name, str(default)).strip().lower()
        if text not in _BOOLEANS:
            raise ConfigError(f"option {name}={printable(text)!r} must be true or false")
        return _BOOLEANS[text]

    def choice(self, name: str, default: _Choice) -> _Choice:
        """The member of ``default``'s enumeration whose value is the text, in any case."""
        text = self._given.get(name, str(default.value)).strip().lower()
        members = {str(each.value).lower(): each for each in type(default)}
        if text not in members:
            first, last = ", ".join(list(members)[:-1]), list(members)[-1]
            raise ConfigError(f"option {name}={printable(text)!r} must be {first} or {last}")
        return members[text]

    def byte_size(self, name: str) -> int | None:
        """Bytes, from 1 up, as ``500000``, ``64k``, ``100m``, ``2g``; None: not given."""
        return self._with_unit(name, _UNIT_BYTES, "bytes from 1 up, as in 500000, 64k, 100m or 2g")

    def duration_ms(self, name: str) -> int | None:
        """Milliseconds, from 1 up: ``500``, ``500ms``, ``30s``, ``15m``, ``2h``, ``1d``; None: not
        given."""
        rule = (
            "a time from 1 ms up, as in 500ms, 30s, 15m, 2h or 1d; without a unit it is "
            "milliseconds"
        )
        return self._with_unit(name, {"": 1, **_UNIT_MS}, rule)

    def timestamp_ms(self, name: str) -> int | None:
        """A moment in milliseconds since 1970, or in ISO 8601 with its zone; None: not given."""
        if name not in self._given:
            return None
        text = self._given[name].strip()
        if _is_digits(text) and int(text) <= WHOLE_MAX:
            if looks_like_seconds(int(text)):
                raise ConfigError(f"option {name}: {seconds_text(int(text), UTC)}")
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None and moment.timestamp() >= 0:
                return round(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
        raise ConfigError(
            f"option {name}={self._shown(name)} must be milliseconds since 1970, or a time with "
            "its zone as in 2026-01-31T18:00:00Z"
        )

    def name_servers(self, name: str = "nameServer") -> tuple[str, ...]:
        """Addresses ``host:port``, joined by ``;`` or ``,``; at least one."""
        text = self.required(name).replace(",", ";")
        found = tuple(dict.fromkeys(split_list(text)))
        if not found:
            raise ConfigError(f"option {name} is empty; write host:port, as in 127.0.0.1:9876")
        with of_option(name):
            return checked_addresses(found)

    def credentials(self) -> Credentials | None:
        """The account of ``accessKey``, ``secretKey`` and ``securityToken``, or of
        ``credentialsFile``, which is read here; None: none given."""
        if "credentialsFile" in self:
            self.one_of("credentialsFile", "accessKey", "secretKey", "securityToken")
            return self._of_file("credentialsFile", Credentials.from_file)
        access_key, secret_key = self.text("accessKey"), self.text("secretKey")
        token = self.text("securityToken")
        if not (access_key or secret_key or token):
            return None
        for name, value in (("accessKey", access_key), ("secretKey", secret_key)):
            if not value:
                raise ConfigError(
                    f"option {name} is missing: an account has accessKey and secretKey, and some "
                    "have a securityToken"
                )
        return Credentials(access_key, secret_key, token)

    def tls(self) -> bool | TlsSettings:
        """What the options that begin with ``tls`` say; False: no TLS. Their files are read here,
        and again wherever connections are made."""
        further = [name for name in self._given if name.startswith("tls") and name != "tls"]
        if not self.boolean("tls", default=bool(further)):
            if further:
                raise ConfigError(
                    f"option {further[0]} is given, but tls=false; leave one of them out"
                )
            return False
        if "tlsConfigFile" in self:
            self.one_of("tlsConfigFile", *(each for each in further if each != "tlsConfigFile"))
            made = self._of_file("tlsConfigFile", TlsSettings.from_file)
            with of_option(f"tlsConfigFile={self._shown('tlsConfigFile')}"):
                made.context()
            return made
        for name in ("tlsKeyFile", "tlsKeyPassword"):
            if name in self and "tlsCertificateFile" not in self:
                raise ConfigError(
                    f"option {name} is given, but not tlsCertificateFile that it belongs to"
                )
        made = TlsSettings(
            ca=self.raw("tlsCaFile"),
            certificate=self.raw("tlsCertificateFile"),
            key=self.raw("tlsKeyFile"),
            key_password=self.raw("tlsKeyPassword"),
            verify=self.boolean("tlsVerify", default=True),
            check_host_name=self.boolean("tlsCheckHostName", default=True),
        )
        if made.ca is not None and made.verify:
            self._check_files(TlsSettings(ca=made.ca), "tlsCaFile")
        if made.certificate is not None:
            # Without a check of others no authorities are read.
            own = dataclasses.replace(made, ca=None, verify=False)
            self._check_files(own, "tlsCertificateFile", "tlsKeyFile", "tlsKeyPassword")
        return made

    def _of_file(self, name: str, read: Callable[[str], _Value]) -> _Value:
        """What the file that an option names says."""
        path = self.raw(name) or ""
        check_path(name, path)
        if not path.strip():
            raise ConfigError(f"option {name} is empty: {self._known[name]}")
        with of_option(name):
            return read(path)

    def _check_files(self, settings: TlsSettings, *names: str) -> None:
        with of_option(" and ".join(name for name in names if name in self)):
            settings.context()

    def _with_unit(self, name: str, units: Mapping[str, int], rule: str) -> int | None:
        if name not in self._given:
            return None
        found = _NUMBER_WITH_UNIT.fullmatch(self._given[name].strip().lower())
        unit = units.get(found[2]) if found else None
        value = int(found[1]) * unit if found and unit else 0
        if not 1 <= value <= WHOLE_MAX:
            raise ConfigError(f"option {name}={self._shown(name)} must be {rule}")
        return value

    def _shown(self, name: str) -> str:
        return repr(printable(self._given[name].strip()))


@contextmanager
def of_option(name: str) -> Iterator[None]:
    """Let an error of a value inside name its option."""
    try:
        yield
    except (ConfigError, MessageRejectedError) as error:
        reason = printable(str(error), characters_max=ERROR_CHARACTERS_MAX)
        raise ConfigError(f"option {name}: {reason}") from None


def check_path(name: str, text: str) -> None:
    """Refuse a text of an option that no file system takes for a path."""
    if "\0" in text:
        raise ConfigError(
            f"option {name}={printable(text)!r} has a null character; no path has one"
        )


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
