"""What pops have out when master and slave change places."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.pop_names import PopInitMode
from tests.support.clients.peer import peer_at
from tests.support.clients.pops import Member
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import quick_retries

from .cluster import Cluster, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def until_copied(cluster: Cluster) -> None:
    """Wait until the slave has the master's log."""
    one, other = (cluster[name].parts.store for name in ("a", "b"))
    await until(lambda: one.max_physical_offset == other.max_physical_offset)


@pytest.mark.parametrize("is_planned", [True, False])
async def test_a_new_master_knows_what_is_out(tmp_path: Path, kernel: str, is_planned: bool):
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_at(cluster.at("a")) as peer:
            await peer.create_topic("T", 1)
            for number in range(5):
                await peer.send("T", b"%d" % number)
            member, ordered = Member(peer), Member(peer, group="in-order")
            ordered.is_order = True
            popped = await member.pop(3)
            await member.ack_all(popped[1:2])
            block = await ordered.pop(2)
        await until_copied(cluster)
        tables = cluster["b"].parts.peers.replication.tables
        assert tables is not None
        await tables.sync_from(cluster.at("a"))
        if is_planned:
            await cluster.admin.promote_broker(cluster.at("b"))
        else:
            await cluster.lose_master("a")
            await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        async with peer_at(cluster.at("b")) as peer:
            member, ordered = Member(peer), Member(peer, group="in-order")
            ordered.is_order = True
            assert [each.text for each in await member.pop()] == ["3", "4"]
            assert await ordered.pop() == []
            # Receipts of the old master count.
            await member.ack_all([popped[0], popped[2]])
            await ordered.ack_all(block)
            assert [each.text for each in await ordered.pop(1)] == ["2"]
        if is_planned:
            async with peer_at(cluster.at("a")) as peer:
                member = Member(peer)
                member.init_mode = PopInitMode.MAX
                assert (await member.ask()).code == ResponseCode.NO_PERMISSION
                assert (await member.ack(popped[0])).code == ResponseCode.NO_PERMISSION
