"""TLS on a master's port for slaves (``haTlsMode``)."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.replication import server
from kerolox.errors import ConfigError
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.tls import Authority

from .pairs import (
    RawSlave,
    fill,
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


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def of_master(authority: Authority, mode: str, name: str = "127.0.0.1") -> dict[str, Any]:
    certificate, key = authority.files(name)
    return {
        "ha_tls_mode": mode,
        "tls_server_cert_path": str(certificate),
        "tls_server_key_path": str(key),
    }


def of_slave(authority: Authority, **more: Any) -> dict[str, Any]:
    return {
        "ha_tls_mode": "enforcing",
        "tls_client_trust_cert_path": str(authority.ca),
        **more,
    }


async def tls_slave(master: Broker, authority: Authority, stack: AsyncExitStack) -> RawSlave:
    context = ssl.create_default_context(cafile=str(authority.ca))
    port = ha_port(master)
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    stack.callback(streams[1].close)
    return RawSlave(*streams)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_a_slave_follows_its_master_by_tls(
    tmp_path: Path, kernel: str, authority: Authority, mode: str
):
    more = {"of_master": of_master(authority, mode), "of_slave": of_slave(authority)}
    async with pair(tmp_path, kernel, **more) as (master, slave):
        await fill(master, 500)
        await until_equal(master, slave)


async def test_a_plain_slave_is_served_when_permissive_and_refused_when_enforcing(
    tmp_path: Path, authority: Authority, caplog
):
    config = master_config(tmp_path, **of_master(authority, "permissive"))
    async with Broker(config) as master, raw_slave(master) as java:
        java.report(0)
        assert await java.frame() == (0, b"")
    async with Broker(master_config(tmp_path, **of_master(authority, "enforcing"))) as master:
        async with raw_slave(master) as java:
            java.report(0)
            assert await java.is_closed()
        assert "it speaks no TLS, and haTlsMode=enforcing" in caplog.text
        async with AsyncExitStack() as stack:
            slave = await tls_slave(master, authority, stack)
            slave.report(0)
            assert await slave.frame() == (0, b"")


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("other.example", {}, "certificate verify failed"),
        ("127.0.0.1", {"tls_client_trust_cert_path": ""}, "certificate verify failed"),
    ],
)
async def test_a_slave_refuses_a_master_that_its_settings_do_not_trust(
    tmp_path: Path, authority: Authority, caplog, name: str, more: dict[str, Any], words: str
):
    config = master_config(tmp_path, **of_master(authority, "enforcing", name))
    async with Broker(config) as master:
        refused = slave_config(tmp_path, ha_port(master), **of_slave(authority, **more))
        async with Broker(refused) as slave:
            await until(lambda: words in caplog.text)
            assert slave.parts.store.max_physical_offset == 0


async def test_a_slave_that_speaks_tls_to_a_plain_master_says_so(
    tmp_path: Path, authority: Authority, caplog
):
    async with Broker(master_config(tmp_path)) as master:
        config = slave_config(tmp_path, ha_port(master), **of_slave(authority))
        async with Broker(config):
            await until(lambda: "its log does not come" in caplog.text)
            assert "haTlsMode" in caplog.text


async def test_half_a_handshake_and_silence_end_by_themselves(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "SLAVES_MAX", 4)
    limits = {"tls_server_handshake_timeout_millis": 300, "ha_housekeeping_interval": 300}
    settings = {**of_master(authority, "permissive"), **limits}
    own = of_slave(authority)
    async with pair(tmp_path, "python", of_master=settings, of_slave=own) as (master, slave):
        async with raw_slave(master) as silent, raw_slave(master) as half:
            half.writer.write(b"\x16\x03\x01\x02\x00\x01")
            async with raw_slave(master) as garbage:
                garbage.writer.write(b"\x16" + b"\xff" * 400)
                async with asyncio.timeout(SECONDS_MAX):
                    assert await garbage.is_closed()
                    assert await half.is_closed()
                    assert await silent.is_closed()
        await fill(master, 20)
        await until_equal(master, slave)


async def test_a_master_stops_in_bounded_time_while_handshakes_are_under_way(
    tmp_path: Path, authority: Authority
):
    master = Broker(master_config(tmp_path, **of_master(authority, "enforcing")))
    await master.start()
    async with raw_slave(master) as half, raw_slave(master) as silent, AsyncExitStack() as stack:
        half.writer.write(b"\x16\x03\x01")
        good = await tls_slave(master, authority, stack)
        good.report(0)
        await good.frame()
        async with asyncio.timeout(SECONDS_MAX / 2):
            await master.stop()
        for each in (half, silent, good):
            assert await each.is_closed()


async def test_connections_beyond_the_most_are_closed_before_their_handshake(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog
):
    monkeypatch.setattr(server, "SLAVES_MAX", 2)
    config = master_config(tmp_path, **of_master(authority, "permissive"))
    async with Broker(config) as master, raw_slave(master), raw_slave(master):
        async with raw_slave(master) as third:
            assert await third.is_closed()
        assert "2 are connected" in caplog.text


async def test_tls_for_slaves_needs_that_of_the_main_port(tmp_path: Path):
    with pytest.raises(ConfigError, match="haTlsMode=enforcing: the certificate"):
        master_config(tmp_path, ha_tls_mode="enforcing", tls_server_mode="disabled")
