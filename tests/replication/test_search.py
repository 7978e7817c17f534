"""A slave that starts before its master, at a name server of RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.clusters import JavaPeer
from tests.unit.broker.replication.pairs import until_equal

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

RARELY = {"register_name_server_period": 60_000}
SECONDS = 30.0
"""Less than that."""


async def test_a_slave_finds_its_master_at_a_name_server_of_rocketmq(tmp_path: Path) -> None:
    with JavaPeer(tmp_path / "java", with_broker=False) as java:
        names = f"127.0.0.1:{java.namesrv_port}"
        common = {"namesrv_addr": names, "vip_port_enable": False, **RARELY}
        slave = small_config(tmp_path / "s", broker_role="SLAVE", broker_id=1, **common)
        master = small_config(tmp_path / "m", **common)
        async with Broker(slave) as follower:
            await follower.parts.roles.search.poll()
            async with Broker(master) as leader:
                status = follower.parts.roles.status
                await until(lambda: status().is_following, seconds=SECONDS)
                async with peer_of(leader) as peer:
                    await peer.create_topic("T")
                    await peer.send("T", b"x")
                await until_equal(leader, follower)
