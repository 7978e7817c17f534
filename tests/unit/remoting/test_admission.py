"""Which connections a server takes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.support.eventually import SECONDS_MAX, until

from kerolox.remoting.limits import admission
from kerolox.remoting.limits.admission import LOG_SECONDS, Admission
from kerolox.remoting.server import ConnectionLimits, RemotingServer


def taken(admitting: Admission, host: str, count: int) -> int:
    """How many of so many connections of an address are taken."""
    return sum(admitting.admit(host, 10) for _ in range(count))


@pytest.fixture(autouse=True)
def descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_descriptors_max", lambda: 100_000)


def test_one_address_gets_half_of_all_and_the_next_finds_room() -> None:
    admitting = Admission(connections_max=1000)
    assert taken(admitting, "10.0.0.1", 1000) == 500
    assert taken(admitting, "10.0.0.2", 1000) == 250
    assert admitting.admit("10.0.0.3", 10)


def test_a_closed_connection_makes_room_for_another_of_its_address() -> None:
    admitting = Admission(connections_max=4)
    assert taken(admitting, "10.0.0.1", 4) == 2
    admitting.release("10.0.0.1")
    assert taken(admitting, "10.0.0.1", 4) == 1
    admitting.release("10.0.0.1")
    admitting.release("10.0.0.1")
    assert admitting._by_network == {}


def test_a_number_of_its_own_bounds_each_address_and_lets_a_proxy_have_all() -> None:
    assert taken(Admission(connections_max=10, per_address_max=3), "10.0.0.1", 10) == 3
    assert taken(Admission(connections_max=10, per_address_max=10), "127.0.0.1", 20) == 10


def test_the_addresses_of_one_ipv6_network_count_as_one() -> None:
    admitting = Admission(connections_max=100)
    hosts = [f"2001:db8::{number:x}" for number in range(1, 101)]
    assert sum(admitting.admit(host, 10) for host in hosts) == 50
    assert admitting.admit("2001:db8:0:1::1", 10)
    assert admitting.admit("fe80::1%eth0", 10)
    admitting.release("fe80::1%eth0")


def test_an_ipv4_address_that_is_mapped_counts_as_itself() -> None:
    admitting = Admission(connections_max=100)
    hosts = [f"::ffff:10.0.0.{number}" for number in range(1, 101)]
    assert sum(admitting.admit(host, 10) for host in hosts) == 100, "each counts for itself"
    admitting = Admission(per_address_max=2)
    assert admitting.admit("10.0.0.1", 10)
    assert admitting.admit("::ffff:10.0.0.1", 10)
    assert not admitting.admit("::ffff:a00:1", 10), "all three are one address"
    admitting.release("::ffff:10.0.0.1")
    admitting.release("10.0.0.1")
    assert admitting._by_network == {}


def test_descriptors_that_are_left_are_shared_the_same_way() -> None:
    admitting = Admission()
    descriptors = iter(range(99_900, 100_100))
    assert sum(admitting.admit("10.0.0.1", next(descriptors)) for _ in range(60)) == 50


def test_refusals_of_a_kind_are_told_once_in_some_seconds_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    admitting = Admission(per_address_max=1, clock=lambda: now)
    assert taken(admitting, "10.0.0.1", 1001) == 1
    assert len(caplog.records) == 1
    assert "10.0.0.1: it has 1 connections already (maxConnectionsPerAddress)" in caplog.text
    now = LOG_SECONDS
    assert not admitting.admit("10.0.0.1", 10)
    assert len(caplog.records) == 2
    assert "(999 more refused since the last such line)" in caplog.text


async def test_an_address_that_has_its_share_is_closed_out_and_another_served() -> None:
    async def handle(_command: object, _connection: object) -> None:
        return None

    server = RemotingServer(
        handle,
        host="0.0.0.0",
        port=0,
        connection_limits=ConnectionLimits(connections_per_address_max=2),
    )
    await server.start()
    writers = []
    try:
        writers += [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(2)]
        await until(lambda: len(server.connections) == 2)
        reader, third = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(SECONDS_MAX):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(1) == b""
        third.close()
        other = ("127.0.0.2", 0)
        writers.append(
            (await asyncio.open_connection("127.0.0.1", server.port, local_addr=other))[1]
        )
        await until(lambda: len(server.connections) == 3)
        writers[0].close()
        await until(lambda: len(server.connections) == 2)
        writers.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
        await until(lambda: len(server.connections) == 3)
    finally:
        for writer in writers:
            writer.close()
        await server.stop()
