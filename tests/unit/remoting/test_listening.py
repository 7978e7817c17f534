"""Sockets on several addresses, of IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from tests.support.servers.up import free_port

from kerolox.errors import ConfigError
from kerolox.remoting.listening import listening_sockets


async def names(host: str, port: int = 0) -> list[tuple[str, int]]:
    """Open and close again; where they listened."""
    made = await listening_sockets(host, port, 5)
    try:
        return [each.getsockname()[:2] for each in made]
    finally:
        for each in made:
            each.close()


async def test_all_means_both_families_on_one_port() -> None:
    for host in ("*", ""):
        [(first, port), (second, same)] = await names(host)
        assert (first, second) == ("0.0.0.0", "::")
        assert port == same


async def test_several_addresses_share_a_free_port() -> None:
    found = await names("127.0.0.1;127.0.0.2;::1")
    assert [host for host, _ in found] == ["127.0.0.1", "127.0.0.2", "::1"]
    assert len({port for _, port in found}) == 1


async def test_an_address_that_another_covers_is_left_out() -> None:
    assert [host for host, _ in await names("127.0.0.1;0.0.0.0;::1")] == ["0.0.0.0", "::1"]


async def test_a_host_name_is_all_of_its_addresses_that_there_are() -> None:
    assert "127.0.0.1" in [host for host, _ in await names("localhost")]


async def test_sockets_of_ipv6_take_no_ipv4() -> None:
    made = await listening_sockets("::", 0, 5)
    try:
        assert made[0].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    finally:
        made[0].close()


async def test_an_address_that_is_not_there_is_named_and_the_others_are_let_go() -> None:
    port = free_port()
    with pytest.raises(ConfigError, match=rf"port {port} of 192\.0\.2\.1 can't be listened on"):
        await names("127.0.0.1;192.0.2.1", port)
    assert await names("127.0.0.1", port) == [("127.0.0.1", port)]


async def test_a_port_that_one_address_has_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.2 is in use"):
            await names("127.0.0.1;127.0.0.2", port)


async def test_a_port_that_this_process_has_in_use_is_said_to_be_its_own() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} .* in use by this process itself"):
            await names("127.0.0.1", port)


async def test_a_port_that_another_process_has_in_use_is_said_to_be_that_ones() -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=pipe, stdout=pipe
    )
    try:
        assert holder.stdout is not None
        port = int(await holder.stdout.readline())
        with pytest.raises(ConfigError, match=rf"port {port} .* in use by another process"):
            await names("127.0.0.1", port)
    finally:
        holder.kill()
        await holder.wait()
