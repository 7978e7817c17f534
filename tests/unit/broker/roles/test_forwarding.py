"""What clients ask a master that is paused, or was one: held, passed on, refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.broker.roles import forwarding
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.extensions.roles import RoleAction, RoleChange
from tests.support.clients.peer import Peer, peer_of
from tests.unit.broker.replication.pairs import quick_retries, until_equal

from .cluster import Cluster, cluster_of, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def pause(peer: Peer, milliseconds: int) -> None:
    change = RoleChange(action=RoleAction.PAUSE, token="t", milliseconds=milliseconds)
    answer = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, body=encode_body(change))
    assert answer.code == ResponseCode.SUCCESS


async def test_sends_are_held_until_a_pause_is_over(tmp_path: Path, kernel: str) -> None:
    async with cluster_of(tmp_path, kernel) as cluster:
        broker = await cluster.start("a")
        async with peer_of(broker) as peer:
            await peer.create_topic("T")
            await pause(peer, 300)
            end = broker.parts.store.max_physical_offset
            sends = [asyncio.create_task(peer.send("T", b"%d" % n)) for n in range(5)]
            # Pulls are not.
            assert (await peer.pull("T")).code == ResponseCode.PULL_NOT_FOUND
            assert broker.parts.store.max_physical_offset == end
            answers = await asyncio.gather(*sends)
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}


async def test_a_send_is_not_held_for_longer_than_its_sender_waits(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "HOLD_SECONDS", 0.05)
    async with cluster_of(tmp_path, kernel) as cluster:
        broker = await cluster.start("a")
        async with peer_of(broker) as peer:
            await pause(peer, 60_000)
            answer = await peer.send("T")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "master and slave change their roles" in (answer.remark or "")
            monkeypatch.setattr(forwarding, "HELD_MAX", 0)
            answer = await peer.send("T")
            assert "0 requests wait for it already" in (answer.remark or "")


async def swapped(cluster: Cluster) -> None:
    async with peer_of(cluster["a"]) as peer:
        await peer.create_topic("T")
    await cluster.admin.promote_broker(cluster.at("b"))


async def test_a_former_master_passes_writes_on_for_a_while(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await swapped(cluster)
        async with peer_of(cluster["a"]) as peer:
            sent = await peer.send("T", b"late")
            assert (sent.code, sent.ext_fields["queueOffset"]) == (ResponseCode.SUCCESS, "0")
            fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            assert cluster["b"].parts.tables.offsets.query("G", "T", 0) == 1
            fields.pop("commitOffset")
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            assert answer.ext_fields["offset"] == "1"
            await until_equal(cluster["b"], cluster["a"])
            assert [each.body for each in await peer.messages("T")] == [b"late"]
            # Clients have heard of the other one by now.
            monkeypatch.setattr(cluster["a"].parts.roles.forwarder, "_until", 0.0)
            assert (await peer.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_former_master_says_when_its_master_does_not_answer(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await swapped(cluster)
        await cluster.stop("b")
        async with peer_of(cluster["a"]) as peer:
            answer = await peer.send("T")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "the new master does not answer" in (answer.remark or "")
