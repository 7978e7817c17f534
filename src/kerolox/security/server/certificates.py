"""Certificates as an operator names them: whose, and how long they are valid."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kerolox.config import open_regular
from kerolox.errors import ConfigError
from kerolox.security.server.der import subject_and_times
from kerolox.text import printable

PEM_BYTES_MAX = 1024 * 1024
"""A file of certificates or of a key has no more."""

EXPIRES_SOON_SECONDS = 30 * 24 * 3600
"""A certificate that is valid no longer than this is warned of."""

_SHORT = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}
"""Types of a subject's parts and their short names in RFC 4514."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_ESCAPED = frozenset(',+"\\<>;=')


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """What a line of the log says of a certificate."""

    subject: str
    """As RFC 4514 writes it: ``CN=broker-a,O=Example``."""
    valid_from: float
    """Seconds since the epoch."""
    valid_until: float

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.valid_until, UTC)
        return f"{self.subject or 'without a subject'}, valid until {until:%Y-%m-%d %H:%M} UTC"

    def trouble(self, now: float) -> str | None:
        """What is wrong with its time; None: nothing for a month."""
        if now < self.valid_from:
            return "is not valid yet, and clients that check it refuse it; set the clock, or wait"
        left = self.valid_until - now
        if left <= 0:
            return "is not valid any more, and clients that check it refuse it; renew it"
        if left <= EXPIRES_SOON_SECONDS:
            return f"is valid for {left / 86_400:.0f} more days; renew it"
        return None


def read_pem(path: Path, setting: str, mark: str, what: str) -> bytes:
    """A file that must have a PEM block, ``what`` in errors, whose first line has ``mark``.

    ConfigError names the ``setting``: the file can't be read, is too large, or has no such block.
    """
    try:
        with open_regular(path) as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{setting}: {_shown(path)} can't be read: {reason}") from None
    if len(data) > PEM_BYTES_MAX:
        raise ConfigError(f"{setting}: {_shown(path)} has more than {PEM_BYTES_MAX} bytes; no PEM")
    if not any(b"-----BEGIN " in line and mark.encode() in line for line in data.splitlines()):
        raise ConfigError(
            f"{setting}: {_shown(path)} has no {what} as PEM (-----BEGIN ...{mark}-----); "
            "'openssl x509', 'pkcs8' and 'pkcs12' convert other formats"
        )
    return data


def certificate_info(pem: bytes, path: Path, setting: str) -> CertificateInfo:
    """Of the first certificate in the text of a PEM file; ConfigError: it is none."""
    found = _CERTIFICATE.search(pem)
    try:
        if found is None:
            raise ValueError("no certificate")
        names, begin, end = subject_and_times(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")))
    except ValueError:
        raise ConfigError(
            f"{setting}: the first certificate in {_shown(path)} is damaged; write it anew"
        ) from None
    return CertificateInfo(subject_text(names), begin.timestamp(), end.timestamp())


def subject_text(names: Iterable[Iterable[tuple[str, str]]]) -> str:
    """A subject as ``getpeercert()`` has it, written as in RFC 4514: the last part first."""
    parts = [
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in names
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    edges = (0, len(value) - 1)
    return "".join(
        f"\\{each}"
        if each in _ESCAPED or (each == " " and at in edges) or (each == "#" and at == 0)
        else each
        if each.isprintable()
        else "".join(f"\\{byte:02x}" for byte in each.encode("utf-8", "surrogatepass"))
        for at, each in enumerate(value)
    )


def _shown(path: Path) -> str:
    return printable(str(path))
