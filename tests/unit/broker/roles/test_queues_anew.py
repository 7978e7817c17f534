"""A topic is deleted and made again on a master, and then its slave takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import quick_retries

from .cluster import Cluster, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio

OLD, NEW = 3, 9
"""Messages of both lives."""


async def send(peer: Peer, count: int) -> None:
    for number in range(count):
        assert (await peer.send("T", b"%d" % number)).code == 0


async def commit(peer: Peer, offset: int) -> None:
    fields = {"consumerGroup": "readers", "topic": "T", "queueId": 0, "commitOffset": offset}
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


async def read_and_delete(cluster: Cluster, peer: Peer) -> None:
    """The slave knows the offset of a group, and then the topic goes."""
    await peer.create_topic("T", 1)
    await send(peer, OLD)
    await commit(peer, OLD)
    await take(cluster)
    assert cluster["b"].parts.tables.offsets.query("readers", "T", 0) == OLD
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


async def take(cluster: Cluster) -> None:
    await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))


async def replicated(cluster: Cluster) -> None:
    one, other = cluster["a"].parts.store, cluster["b"].parts.store
    await until(lambda: one.max_physical_offset == other.max_physical_offset)


async def promoted(cluster: Cluster) -> Broker:
    await cluster.lose_master("a")
    await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
    return cluster["b"]


async def assert_begins_anew(broker: Broker) -> None:
    async with peer_of(broker) as peer:
        await peer.heartbeat("member", topics={"T": "*"})
        answer = await peer.pull("T", 0, OLD, tags=None)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"
        answer = await peer.pull("T", 0, 0, tags=None)
        assert len(decode_records(answer.body)) == NEW


async def test_a_slave_forgets_offsets_that_its_master_forgot(tmp_path: Path, kernel: str) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            await read_and_delete(cluster, peer)
            await peer.create_topic("T", 1)
            await send(peer, NEW)
        await take(cluster)
        assert cluster["b"].parts.tables.offsets.query("readers", "T", 0) == -1
        await replicated(cluster)
        await assert_begins_anew(await promoted(cluster))


async def test_a_group_that_began_anew_and_stored_nothing_has_no_old_offset_on_a_slave(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster, peer_of(cluster["a"]) as peer:
        await read_and_delete(cluster, peer)
        await peer.create_topic("T", 1)
        await send(peer, NEW)
        await peer.heartbeat("member", topics={"T": "*"})
        assert (await peer.pull("T", 0, 0, tags=None)).code == 0
        await take(cluster)
        assert cluster["b"].parts.tables.offsets.query("readers", "T", 0) == 0


async def test_a_slave_that_did_not_hear_of_a_deletion_tells_it_by_its_log(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            await read_and_delete(cluster, peer)
            await peer.create_topic("T", 1)
            await send(peer, NEW)
        await replicated(cluster)
        assert cluster["b"].parts.tables.offsets.query("readers", "T", 0) == OLD
        await assert_begins_anew(await promoted(cluster))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_reader_that_only_the_slave_knows_begins_anew(
    tmp_path: Path, kernel: str, is_known: bool, is_told: bool
) -> None:
    """``is_known``: by a heartbeat of before. ``is_told``: the slave heard of the deletion."""
    async with pair_of(tmp_path, kernel) as cluster, peer_of(cluster["b"]) as member:
        async with peer_of(cluster["a"]) as peer:
            await peer.create_topic("T", 1)
            await send(peer, OLD)
            await take(cluster)
            if is_known:
                await member.heartbeat("member", topics={"T": "*"})
            assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
            await peer.create_topic("T", 1)
            if is_told:
                await take(cluster)
            await send(peer, NEW)
        await replicated(cluster)
        await promoted(cluster)
        await member.heartbeat("member", topics={"T": "*"})
        answer = await member.pull("T", 0, OLD, tags=None)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "0"


async def test_an_offset_that_was_set_on_the_slave_counts_in_a_new_queue(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        async with peer_of(cluster["a"]) as peer:
            await take(cluster)
            await peer.create_topic("T", 1)
            await send(peer, NEW)
        await replicated(cluster)
        async with peer_of(cluster["b"]) as peer:
            await commit(peer, OLD)
        broker = await promoted(cluster)
        assert broker.parts.tables.offsets.query("readers", "T", 0) == OLD
        assert not broker.parts.tables.offsets.stale
