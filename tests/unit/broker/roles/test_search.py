"""A slave that has nothing to follow finds its master soon, however rarely it registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.errors import ClientError
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.support.servers.up import free_port
from tests.unit.broker.replication.pairs import quick_retries, until_equal

from .cluster import cluster_of, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

RARELY = {"register_name_server_period": 60_000}
SECONDS = 30.0
"""Less than that."""

WAITS = "this slave waits for its master"


async def test_a_slave_that_starts_before_its_master_follows_it_soon(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with cluster_of(tmp_path, kernel) as cluster:
        slave = await cluster.start_slave("b", **RARELY)
        await until(lambda: WAITS in caplog.text)
        await slave.parts.roles.search.poll()
        await slave.parts.roles.search.poll()
        master = await cluster.start("a", **RARELY)
        async with peer_of(master) as peer:
            await peer.create_topic("T")
            await peer.send("T", b"early")
        is_following = slave.parts.roles.status
        await until(lambda: is_following().is_following, seconds=SECONDS)
        await until_equal(master, slave)
        await until(lambda: "T" in slave.parts.tables.topics, seconds=5.0)
        assert caplog.text.count(WAITS) == 1
        assert f"master {master.parts.identity.ha_address} sends its log" in caplog.text


async def test_a_slave_follows_its_master_to_another_address_soon(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel, **RARELY) as cluster:
        await cluster.lose_master("a")
        cluster.ports["a"] = free_port()
        master = await cluster.start("a", broker_role="ASYNC_MASTER", **RARELY)
        status = cluster["b"].parts.roles.status
        await until(lambda: status().is_following, seconds=SECONDS)
        assert status().master_address == cluster.at("a")
        await until_equal(master, cluster["b"])


async def test_a_slave_that_never_followed_says_that_all_is_lost(
    tmp_path: Path, kernel: str
) -> None:
    async with cluster_of(tmp_path, kernel) as cluster:
        await cluster.start_slave("b", **RARELY)
        with pytest.raises(
            ClientError, match="has never followed its master, its log is empty: everything"
        ):
            await cluster.admin.promote_broker(cluster.at("b"))
        changed = await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        assert changed.role == "ASYNC_MASTER"


async def test_a_search_asks_no_more_once_the_slave_follows(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(tmp_path, kernel, **RARELY) as cluster:
        search = cluster["b"].parts.roles.search
        await until(lambda: cluster["b"].parts.roles.status().master_address)
        asked: list[str] = []

        async def addresses_of(client: object, server: str, name: str) -> dict[int, str]:
            asked.append(server)
            return {}

        monkeypatch.setattr("kerolox.broker.roles.searching.addresses_of", addresses_of)
        await search.poll()
        await cluster["a"].parts.roles.search.poll()
        assert asked == []
        await cluster.lose_master("a")
        await until(lambda: asked)
