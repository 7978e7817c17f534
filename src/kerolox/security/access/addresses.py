"""White lists: which addresses a text names (``RemoteAddressStrategyFactory``).

====================================  =============================================================
text                                  whom it names
====================================  =============================================================
blank                                 nobody
``*`` ``*.*.*.*`` ``*:*:*:*:*:*:*:*``  everybody
``10.1.2.3``, ``fe80::1``             one address
``10.1.2.3,fe80::1``                  several
``10.1.2.{3,4}``, ``fe80::{1,2}``     several that differ in their last part
``10.1.*.*``, ``10.1.2.3-20``         each part of the first is anything or within a range
``fe80:1:*``, ``fe80::1-20:*``        the same; a ``*`` at the end stands for all parts that follow
====================================  =============================================================

Where RocketMQ takes less care than the text does, this follows the text: parts behind a range
count, a range may be ``0-0``, and ``fe80::1-20`` is the last part of an address. What it can't
compare with anything (a first part that is no number, a part such as ``1*``) is an error here;
there it fails each request.

A peer that reaches an IPv6 socket by IPv4 (``::ffff:10.1.2.3``) has its IPv4 address.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from kerolox.security.access.accounts import Addresses
from kerolox.text import quoted

ADDRESSES_CHARACTERS_MAX = 16 * 1024
"""Of one text; some thousand addresses."""

PARSED_HOSTS_MAX = 4096
"""Peers whose address is remembered as a number."""

_EVERYBODY_TEXTS = frozenset(("*", "*.*.*.*", "*:*:*:*:*:*:*:*"))
_V4_NUMBER = re.compile(r"0|[1-9][0-9]{0,2}")
_V6_NUMBER = re.compile(r"[0-9A-Fa-f]{1,4}")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Everybody:
    """``NullRemoteAddressStrategy``."""

    def __contains__(self, host: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Several:
    """``MultipleRemoteAddressStrategy``, ``OneRemoteAddressStrategy``; none: nobody."""

    addresses: frozenset[_Address]

    def __contains__(self, host: str) -> bool:
        return bool(self.addresses) and _parsed(host) in self.addresses


@dataclass(frozen=True, slots=True)
class _Range:
    """``RangeRemoteAddressStrategy``: the least and the greatest of each part, 4 or 8."""

    bounds: tuple[_Bounds, ...]

    def __contains__(self, host: str) -> bool:
        address = _parsed(host)
        if address is None or (address.version == 4) != (len(self.bounds) == 4):
            return False
        data = address.packed
        size = len(data) // len(self.bounds)
        return all(
            low <= int.from_bytes(data[at * size : (at + 1) * size]) <= high
            for at, (low, high) in enumerate(self.bounds)
        )


EVERYBODY: Final[Addresses] = _Everybody()
NOBODY: Final[Addresses] = _Several(frozenset())


def parse_addresses(text: str | None) -> Addresses:
    """The addresses of a text, of one of the forms above; ValueError says which part is wrong and
    what would be right.
    """
    if text is None or not text.strip():
        return NOBODY
    if len(text) > ADDRESSES_CHARACTERS_MAX:
        raise ValueError(
            f"a white list of {len(text)} characters is too long; the most is "
            f"{ADDRESSES_CHARACTERS_MAX}, so write several"
        )
    if text in _EVERYBODY_TEXTS:
        return EVERYBODY
    if text.endswith("}"):
        return _Several(frozenset(map(_one, _of_braces(text))))
    if "," in text:
        return _Several(frozenset(_one(each) for each in text.split(",") if each))
    if "*" in text or "-" in text:
        return _Range(_v6_bounds(text) if ":" in text else _v4_bounds(text))
    return _Several(frozenset((_one(text),)))


def parse_address_lists(text: str) -> tuple[Addresses, ...]:
    """The lists of a setting, which joins them by ``;``, as :func:`parse_addresses` reads each;
    none where it is blank.
    """
    parts = (part.strip() for part in text.split(";"))
    return tuple(parse_addresses(part) for part in parts if part)


@functools.lru_cache(PARSED_HOSTS_MAX)
def _parsed(host: str) -> _Address | None:
    """The address of a peer, in brackets or not; None when it is none (a Unix socket)."""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return _plain(ipaddress.ip_address(host))
    except ValueError:
        return None


def _plain(address: _Address) -> _Address:
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


def _one(text: str) -> _Address:
    try:
        return _plain(ipaddress.ip_address(text))
    except ValueError:
        pass
    shown = quoted(text)
    if text != text.strip():
        raise ValueError(f"{shown} has a blank at an end; write addresses without blanks")
    if "/" in text:
        raise ValueError(
            f"{shown} is no address; instead of a network write 10.1.*.* or 10.1.0-3.*"
        )
    if "*" in text or "-" in text:
        raise ValueError(
            f"{shown} stands among several addresses, where each must be whole; "
            "give a range a line of its own"
        )
    raise ValueError(
        f"{shown} is no IP address; write one such as 10.1.2.3 or fe80::1 (names are not looked up)"
    )


def _of_braces(text: str) -> list[str]:
    """``10.1.2.{3,4}`` → both."""
    head, brace, tail = text[:-1].partition("{")
    if not brace or not head.endswith((".", ":")):
        raise ValueError(
            f"{quoted(text)}: braces hold the last part of an address, as in 10.1.2.{{3,4}}"
        )
    return [head + each for each in tail.split(",") if each]


def _v4_bounds(text: str) -> tuple[_Bounds, ...]:
    parts = [each.strip() for each in text.split(".")]
    if len(parts) != 4:
        raise ValueError(
            f"{quoted(text)} has {len(parts)} parts; write four, as in 10.1.*.* or 10.1.2.3-20"
        )
    bounds = tuple(_bounds_of(each, _V4_NUMBER, 10, 255, text) for each in parts)
    if not _V4_NUMBER.fullmatch(parts[0]):
        raise ValueError(f"{quoted(text)}: the first part must be a number")
    return bounds


def _v6_bounds(text: str) -> tuple[_Bounds, ...]:
    parts = _v6_parts(text)
    bounds = [_bounds_of(each, _V6_NUMBER, 16, 0xFFFF, text) for each in parts]
    ranges = [at for at, each in enumerate(parts) if "-" in each or each == "*"]
    whole = [at for at in ranges if parts[at] == "*"]
    last = len(parts) - 1
    if any(at != last for at in whole) or any(at < last - len(whole) for at in ranges):
        raise ValueError(
            f"{quoted(text)}: a * stands at the end, a range at the end or before the last *"
        )
    if 0 in ranges:
        raise ValueError(f"{quoted(text)}: the first part must be a number")
    return tuple(bounds) + ((0, 0xFFFF),) * (8 - len(bounds))


def _v6_parts(text: str) -> list[str]:
    """At most 8; fewer are a prefix."""
    head, gap, tail = text.partition("::")
    if "::" in tail:
        raise ValueError(f"{quoted(text)}: an address has :: at most once")
    before = head.split(":") if head or not gap else []
    after = tail.split(":") if tail else []
    if gap and after == ["*"]:
        # RocketMQ's reading: one part of 0, and whatever follows.
        parts = [*before, "0", "*"]
    elif gap:
        parts = [*before, *["0"] * (8 - len(before) - len(after)), *after]
    else:
        parts = before
    if len(parts) > 8:
        raise ValueError(f"{quoted(text)} has more than eight parts")
    return [each.strip() for each in parts]


def _bounds_of(part: str, number: re.Pattern[str], base: int, greatest: int, text: str) -> _Bounds:
    if part == "*":
        return 0, greatest
    low, dash, high = part.partition("-")
    ends = (low, high) if dash else (low, low)
    if not all(number.fullmatch(each) for each in ends):
        raise ValueError(
            f"{quoted(text)}: {quoted(part)} is no number, no range such as 3-20, no *"
        )
    first, last = (int(each, base) for each in ends)
    if last > greatest or first > last:
        raise ValueError(
            f"{quoted(text)}: {quoted(part)} is no part of an address; a part is at most "
            f"{greatest:{'x' if base == 16 else 'd'}}, and a range goes upwards"
        )
    return first, last
