"""Addresses as RocketMQ writes them: ``host:port``, an IPv6 host in brackets.

RocketMQ cuts at the last colon, so its clients read ``[::1]:10911`` and ``::1:10911``; clients in
other languages read the first form only, so that is the one we write.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket

from kerolox.text import split_list

__all__ = [
    "ALL_HOSTS",
    "is_host",
    "is_loopback",
    "is_wildcard",
    "join_address",
    "local_address",
    "network_of",
    "own_host",
    "split_address",
    "split_hosts",
]

ALL_HOSTS = "*"
"""As an address to listen on: all of this machine, of IPv4 and of IPv6."""

HOST_CHARACTERS_MAX = 255

NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one has all that start with these."""

_HOST = re.compile(r"[^\s,;/\[\]\x00-\x1f\x7f]+")
_PROBES = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of documentation, which nobody has."""


def is_host(text: str) -> bool:
    """Whether it has the form of an IP address or a host name; for any other text a look-up does
    not fail as one that finds nothing."""
    if len(text) > HOST_CHARACTERS_MAX or not _HOST.fullmatch(text):
        return False
    if text.isascii():
        # What the codec does then, without the tables that its import makes for other texts.
        *labels, last = text.split(".")
        return all(0 < len(label) < 64 for label in labels) and len(last) < 64
    try:
        text.encode("idna")
    except UnicodeError:
        # A part that is empty or too long, or characters that no name has.
        return False
    return True


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; the brackets of an IPv6 host are taken off. ValueError: it
    has another form; says which is right.
    """
    scheme, twice, rest = text.strip().rpartition("://")
    if twice:
        raise ValueError(
            f"{text!r} begins with {scheme.rpartition('/')[2]}://, which no address does; write "
            f"host:port, as in {rest!r}"
        )
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not separator or not is_host(host) or not port.isascii() or not port.isdigit():
        raise ValueError(f"{text!r} is no address; write host:port")
    if len(port) > 5 or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} has no valid port (1 to 65535); write host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """``host:port``, or ``[host]:port`` of an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_hosts(text: str) -> tuple[str, ...]:
    """The hosts of a ``listenHost``: several joined by ``;``; empty: all. Short and other forms of
    an IPv4 address (``0``, ``127.1``, ``::ffff:127.0.0.1``) are written out. ValueError: one is no
    address and no host name.
    """
    hosts = dict.fromkeys(map(_written_out, split_list(text)))
    for host in hosts:
        if host != ALL_HOSTS and not is_host(host):
            raise ValueError(f"{host!r} is neither an IP address nor a host name")
    return (ALL_HOSTS,) if ALL_HOSTS in hosts or not hosts else tuple(hosts)


def _written_out(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        if ":" not in host:
            return socket.inet_ntoa(socket.inet_aton(host))
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except (OSError, ValueError):
        return host
    return str(mapped or host)


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    return host in (ALL_HOSTS, "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_host(listen_host: str) -> str:
    """Under which host a server that listens on ``listen_host`` is reached: the first that others
    can reach; where it listens on all, this machine's own address."""
    hosts = split_hosts(listen_host)
    if "::" in hosts and not {ALL_HOSTS, "0.0.0.0"} & set(hosts):
        return local_address(socket.AF_INET6)
    if any(is_wildcard(host) for host in hosts):
        return local_address()
    return next((host for host in hosts if not is_loopback(host)), hosts[0])


@functools.cache
def local_address(family: socket.AddressFamily = socket.AF_INET) -> str:
    """This machine's own address, the one that other machines would see; the loopback's if none."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing; it only picks the outgoing interface.
            probe.connect((_PROBES[family], 9))
            address: str = probe.getsockname()[0]
    except OSError:
        return "127.0.0.1" if family == socket.AF_INET else "::1"
    return address


def network_of(host: str) -> str:
    """What counts as one address where strangers are counted: one of IPv4, the /64 of one of IPv6.
    Whatever else it is, it is that."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        # Of a listener of both families.
        return str(address.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(address) >> NETWORK_BITS << NETWORK_BITS)}/{NETWORK_BITS}"
