"""As much of a certificate's bytes (X.509, DER) as an operator is told of it.

Python's ``ssl`` decodes only certificates that it has verified, and a server has to say something
of its own, an expired one too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

_OID, _UTC_TIME, _TIME, _VERSION = 0x06, 0x17, 0x18, 0xA0
_BMP_STRING = 0x1E

_KINDS = {
    "550403": "commonName",
    "55040a": "organizationName",
    "55040b": "organizationalUnitName",
    "550406": "countryName",
    "550408": "stateOrProvinceName",
    "550407": "localityName",
    "0992268993f22c640119": "domainComponent",
    "0992268993f22c640101": "userId",
}

Names = tuple[tuple[tuple[str, str], ...], ...]
"""A subject as ``ssl.SSLSocket.getpeercert`` has it."""


def subject_and_times(certificate: bytes) -> tuple[Names, datetime, datetime]:
    """Its subject, and from when to when it is valid; ValueError: it is no certificate."""
    (_, whole), *_ = _items(certificate)
    (_, signed), *_ = _items(whole)
    parts = list(_items(signed))
    if parts and parts[0][0] == _VERSION:
        parts.pop(0)
    if len(parts) < 5:
        raise ValueError("too few parts")
    (_, validity), (_, subject) = parts[3], parts[4]
    times = list(_items(validity))
    if len(times) != 2:
        raise ValueError("no validity")
    names = tuple(tuple(_name(item) for _, item in _items(part)) for _, part in _items(subject))
    return names, _time(*times[0]), _time(*times[1])


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of what stands one after the other."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("cut off")
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size - 0x80
            size = int.from_bytes(data[at : at + count])
            at += count
        if at + size > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + size]
        at += size


def _name(item: bytes) -> tuple[str, str]:
    pair = list(_items(item))
    if len(pair) != 2 or pair[0][0] != _OID:
        raise ValueError("no name")
    (_, kind), (tag, value) = pair
    text = value.decode("utf-16-be" if tag == _BMP_STRING else "utf-8", "replace")
    return _KINDS.get(kind.hex(), kind.hex()), text


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year: from 1950 on.
        text = ("19" if text >= "5" else "20") + text
    elif tag != _TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
