"""Who may connect to a master's port for slaves, and what comes of those who misbehave there."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kerolox.broker.base import Identity
from kerolox.broker.broker import Broker
from kerolox.broker.replication import server
from kerolox.broker.replication.replication import Replication
from kerolox.broker.replication.sockets import TEXTS_MAX, LoggedTexts
from kerolox.broker.replication.waits import SlaveWaits
from kerolox.broker.role import Role
from kerolox.errors import ConfigError
from kerolox.observable import Observable
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.support.faults.resets import reset_at_once
from tests.support.servers.up import free_port

from .memory_log import MemoryLog
from .pairs import (
    ha_port,
    master_config,
    pair,
    quick_retries,
    raw_slave,
    slave_config,
    until_equal,
)

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

GUARDS: tuple[dict[str, Any], ...] = ({"tls_server_mode": "enforcing"}, {"acl_enable": True})


def guarded(tmp_path: Path, values: dict[str, Any]) -> Any:
    """A master's settings; what else those would need is no matter here."""
    config = master_config(tmp_path)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


async def opened_port(config: Any) -> int:
    """The port for slaves that a master with these settings opens; 0: none."""
    settings, log = Observable(config), MemoryLog()
    identity = Identity(settings, Mock(), "127.0.0.1", config.listen_port)
    base = Mock(settings=settings, role=Observable(Role.of(config)), store=log, identity=identity)
    slave_server = server.SlaveServer(config, log, SlaveWaits(config, log))
    replication = Replication(base, slave_server, Mock(), Mock())
    await replication.start()
    port = replication.port
    await replication.stop()
    return port


async def send(broker: Broker, count: int) -> None:
    async with peer_of(broker) as peer:
        await peer.create_topic("T")
        for number in range(count):
            assert (await peer.send("T", b"%d" % number)).code == 0


@pytest.mark.parametrize("guard", GUARDS)
async def test_no_port_for_slaves_is_open_beside_guarded_ones(
    tmp_path: Path, guard: dict[str, Any]
):
    assert await opened_port(guarded(tmp_path, guard)) == 0
    named = free_port()
    assert await opened_port(guarded(tmp_path, {**guard, "ha_listen_port": named})) == named


async def test_the_same_is_said_of_a_host_once_a_minute():
    told = LoggedTexts()
    assert told.is_new("it reports the offset 5", 0.0, "10.1.2.3")
    assert not told.is_new("it reports the offset 77", 59.0, "10.1.2.3")
    assert told.is_new("it reports the offset 77", 59.0, "10.1.2.4")
    assert told.is_new("it reports the offset 5", 61.0, "10.1.2.3")
    for number in range(2 * TEXTS_MAX):
        told.is_new("x", 0.0, f"host-{number}")
    assert told.is_new("it reports the offset 5", 62.0, "10.1.2.3"), "only so many are remembered"


async def test_a_list_of_slaves_opens_the_port_beside_accounts_but_not_beside_tls(tmp_path: Path):
    named = {"ha_allowed_slaves": "127.0.0.1"}
    with_tls, with_accounts = ({**guard, **named} for guard in GUARDS)
    assert await opened_port(guarded(tmp_path, with_accounts)) > 0
    assert await opened_port(guarded(tmp_path, with_tls)) == 0


async def test_accounts_of_slaves_open_the_port_beside_accounts(tmp_path: Path):
    config = guarded(tmp_path, {"acl_enable": True, "ha_acl_enable": True})
    assert await opened_port(config) > 0


async def test_tls_for_slaves_opens_the_port_beside_enforced_tls(tmp_path: Path):
    modes = ("permissive", "enforcing")
    guards = [{"tls_server_mode": "enforcing", "ha_tls_mode": mode} for mode in modes]
    opened = [await opened_port(guarded(tmp_path, guard)) > 0 for guard in guards]
    assert opened == [False, True]


async def test_a_slave_that_no_list_names_is_refused_and_others_are_served(
    tmp_path: Path, kernel: str, caplog
):
    config = master_config(tmp_path, ha_allowed_slaves="10.1.2.3; 10.7.*.*")
    async with Broker(config, kernel=kernel) as master, raw_slave(master) as slave:
        assert await slave.is_closed()
        assert "127.0.0.1 is not among haAllowedSlaves" in caplog.text
        async with raw_slave(master) as again:
            assert await again.is_closed()
        assert caplog.text.count("haAllowedSlaves") == 1, "it is said once a minute"
        assert master.parts.peers.replication.waits.replicated.slaves == 0
    allowed = {"ha_allowed_slaves": "10.1.2.3; 127.0.0.*"}
    async with pair(tmp_path, kernel, of_master=allowed) as (master, follower):
        await send(master, 5)
        await until_equal(master, follower)


@pytest.mark.parametrize("with_tls", [False, True])
async def test_connections_that_are_reset_at_once_are_neither_slaves_nor_news(
    tmp_path: Path, with_tls: bool, caplog
):
    more = {"ha_tls_mode": "permissive"} if with_tls else {}
    config = master_config(tmp_path, ha_allowed_slaves="10.1.2.3", **more)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    async with Broker(config) as master:
        reset_at_once(ha_port(master), server.BACKLOG)
        async with raw_slave(master) as slave:
            assert await slave.is_closed()
        replication = master.parts.peers.replication
        assert replication.waits.replicated.slaves == 0
    assert failures == []
    assert not [each for each in caplog.records if each.exc_info or "slave ?" in each.message]


@pytest.mark.parametrize("text", ["10.0.0.0/8", "somewhere", "10.1.2.3;5.6.7"])
async def test_a_list_of_slaves_that_is_malformed_stops_the_start(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match="haAllowedSlaves"):
        master_config(tmp_path, ha_allowed_slaves=text)


async def test_connections_beyond_the_most_are_closed_and_a_slave_is_served(
    tmp_path: Path, kernel: str, caplog
):
    async with pair(tmp_path, kernel) as (master, slave), AsyncExitStack() as stack:
        for _ in range(server.SLAVES_MAX - 1):
            # Some say where they stand, some half of it, some nothing.
            one = await stack.enter_async_context(raw_slave(master))
            one.writer.write(bytes(_ % 9))
        closed = [await stack.enter_async_context(raw_slave(master)) for _ in range(20)]
        async with asyncio.timeout(20):
            assert all([await one.is_closed() for one in closed])
        assert "64 are connected" in caplog.text
        await send(master, 5)
        await until_equal(master, slave)


async def test_a_slave_that_is_pointed_at_itself_says_so_and_keeps_its_log(
    tmp_path: Path, kernel: str, caplog
):
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        await send(master, 5)
        end = master.parts.store.max_physical_offset
    (tmp_path / "master").rename(tmp_path / "slave")
    port = free_port()
    config = slave_config(tmp_path, port, listen_port=port, vip_port_enable=False)
    async with Broker(config, kernel=kernel) as slave:
        await until(lambda: "its log does not come" in caplog.text)
        assert slave.parts.store.max_physical_offset == end
        async with peer_of(slave) as peer:
            assert (await peer.pull("T")).code >= 0


async def test_whoever_speaks_garbage_again_and_again_fills_no_log(tmp_path: Path, caplog):
    async with Broker(master_config(tmp_path)) as master:
        for number in range(5):
            async with raw_slave(master) as garbage:
                garbage.writer.write(bytes([0x80, number]) * 100)
                assert await garbage.is_closed()
        assert caplog.text.count("it is no slave") == 1


async def test_a_slave_of_a_broker_that_has_no_slaves_says_so(tmp_path: Path, kernel: str, caplog):
    """The other one is no master: nobody listens, or it is its port for clients."""
    async with Broker(master_config(tmp_path), kernel=kernel) as master:
        for port in (master.port, free_port()):
            caplog.clear()
            async with Broker(slave_config(tmp_path, port), kernel=kernel) as slave:
                await until(lambda: "its log does not come" in caplog.text)
                assert slave.parts.store.max_physical_offset == 0
