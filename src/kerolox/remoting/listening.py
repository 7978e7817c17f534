"""Opening the sockets that a server listens on: several addresses, one port, IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterable
from typing import cast

from kerolox.addresses import ALL_HOSTS, is_wildcard, split_hosts
from kerolox.errors import ConfigError

TRIES_MAX = 20
"""Free ports that are tried until one is free on all addresses."""

ACCEPT_STEPS = 3
"""Steps of the loop from an accepted connection to the task that serves it: a task opens the
transport, which calls ``connection_made``, which may start a task."""

_MISSING = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
_Address = tuple[str, int] | tuple[str, int, int, int]
_Place = tuple[socket.AddressFamily, _Address]
"""Family and socket address."""


async def listening_sockets(listen_host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses that ``listen_host`` names, joined by ``;``, on the same
    port, 0: a free one; in their order.

    ``*`` is all of IPv4, and of IPv6 where the machine has it. Sockets of IPv6 take no IPv4: each
    family has its own. A host name is all of its addresses that this machine has. ``backlog``:
    connections that the system may keep until they are accepted. ConfigError names the one that
    can't be listened on, and what to do.
    """
    try:
        hosts = split_hosts(listen_host)
    except ValueError as error:
        raise ConfigError(f"listenHost: {error}") from None
    places = _without_covered({host: await _places(host) for host in hosts})
    tries = 1 if port else TRIES_MAX
    while True:
        tries -= 1
        try:
            return _open_all(places, port, backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not tries:
                raise ConfigError(_listen_error(error, str(error.filename), port)) from error


async def close_listeners(servers: Iterable[asyncio.Server]) -> None:
    """Stop listening. Each connection that was accepted has reached its protocol afterwards.

    asyncio takes up an accepted connection in a task of its own. When the server is closed before
    that task begins, the connection stays open, without a protocol and with nobody to end it.
    """
    servers = list(servers)
    loop = asyncio.get_running_loop()
    for listener in (each for server in servers for each in server.sockets):
        with contextlib.suppress(NotImplementedError):  # of a loop that accepts in another way
            loop.remove_reader(listener)
    for _ in range(ACCEPT_STEPS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


async def _places(host: str) -> list[_Place]:
    if host == ALL_HOSTS:
        return [(socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_INET6, ("::", 0))]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(_listen_error(error, host, 0)) from error
    places = ((socket.AddressFamily(family), cast("_Address", at)) for family, _, _, _, at in found)
    return list(dict.fromkeys(places))


def _without_covered(places: dict[str, list[_Place]]) -> dict[str, list[_Place]]:
    """Without addresses of a family all of whose addresses are listened on, and without repeats."""
    entire = {family for each in places.values() for family, at in each if is_wildcard(at[0])}
    seen: set[tuple[int, str]] = set()
    left: dict[str, list[_Place]] = {}
    for host, each in places.items():
        for family, at in each:
            is_covered = family in entire and not is_wildcard(at[0])
            if not is_covered and (family, at[0]) not in seen:
                seen.add((family, at[0]))
                left.setdefault(host, []).append((family, at))
    return left


def _open_all(places: dict[str, list[_Place]], port: int, backlog: int) -> list[socket.socket]:
    """All on one port. Raises: OSError, with the host as its file name."""
    opened: list[socket.socket] = []
    try:
        for host, wanted in places.items():
            missing: OSError | None = None
            before = len(opened)
            for family, at in wanted:
                try:
                    opened.append(_open(family, (at[0], port, *at[2:]), backlog))
                    port = opened[0].getsockname()[1]
                except OSError as error:
                    error.filename = host
                    if error.errno not in _MISSING:
                        raise
                    missing = error
            if missing is not None and len(opened) == before:
                raise missing
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def _open(family: socket.AddressFamily, at: _Address, backlog: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(at)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made


def _is_listened_on(port: int) -> bool:
    """Whether this process itself listens on a port, as far as ``/proc`` tells."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return False
    return any(_port_of(int(name)) == port for name in names)


def _port_of(descriptor: int) -> int:
    """The port that a descriptor listens on; 0: it is no such socket, or is closed by now."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            is_ip = copy.family in (socket.AF_INET, socket.AF_INET6)
            if not is_ip or not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return 0
            return int(copy.getsockname()[1])
    except OSError:
        return 0


def _listen_error(error: OSError, host: str, port: int) -> str:
    where = f"port {port} of {'all addresses' if host == ALL_HOSTS else host}"
    if error.errno == errno.EADDRINUSE and _is_listened_on(port):
        return (
            f"{where} is in use by this process itself: two servers of it, or two ports of a "
            "broker, have the same number; choose another port"
        )
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is in use by another process; find it with 'ss -ltnp sport = :{port}', "
            "or choose another port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where} may not be used by this user; choose a port above 1023"
    return f"{where} can't be listened on: {error.strerror or error}"
