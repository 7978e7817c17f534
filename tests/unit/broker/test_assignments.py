"""A member of 5.x that leaves the sharing of queues to its broker gets its queues."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import Peer, peer_of, small_config

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.protocol.command import RemotingCommand

GROUP = "readers"
EVERYTHING = [(name, number) for name in ("broker-a", "broker-b") for number in range(3)]


async def ask(peer: Peer, client_id: str, **more: object) -> RemotingCommand:
    body = {
        "clientId": client_id,
        "consumerGroup": GROUP,
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
        **more,
    }
    return await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))


def queues(answer: RemotingCommand) -> list[tuple[str, int]] | None:
    """Broker and number of each, which are all pulled; None: the client keeps what it has."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    body: Any = fastjson.loads(answer.body)
    found = body.get("messageQueueAssignments")
    if found is None:
        return None
    assert {each["mode"] for each in found} <= {"PULL"}
    return [(each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"]) for each in found]


async def test_members_share_the_queues_of_all_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.tables.routes.FRESH_SECONDS", 0.0)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        settings = NamesrvConfig(
            listen_port=0,
            listen_host="127.0.0.1",
            kv_config_path=tmp_path / "kvConfig.json",
            config_store_path=tmp_path / "namesrv.properties",
        )
        server = NameServer(settings)
        await server.start()
        stack.push_async_callback(server.stop)
        address = f"127.0.0.1:{server.port}"
        brokers = []
        for name in ("broker-a", "broker-b"):
            config = small_config(tmp_path / name, namesrv_addr=address, broker_name=name)
            brokers.append(await enter(Broker(config)))
            peer = await enter(peer_of(brokers[-1]))
            await peer.create_topic("T", 3)
        one, two = await enter(peer_of(brokers[0])), await enter(peer_of(brokers[0]))
        await one.heartbeat("c1", GROUP, {"T": "*"})
        assert queues(await ask(one, "c1")) == EVERYTHING
        await two.heartbeat("c2", GROUP, {"T": "*"})
        for strategy, first in (("AVG", EVERYTHING[:3]), ("AVG_BY_CIRCLE", EVERYTHING[::2])):
            shares = [queues(await ask(one, each, strategyName=strategy)) for each in ("c1", "c2")]
            assert shares == [first, [each for each in EVERYTHING if each not in first]]
        # The retry topic of a group has its queues where its members are.
        assert queues(await ask(one, "c1", topic=f"%RETRY%{GROUP}")) == [("broker-a", 0)]
        assert queues(await ask(one, "c1", messageModel="BROADCASTING")) == EVERYTHING
        await server.stop()
        assert queues(await ask(one, "c1")) == EVERYTHING[:3], "as they were last known"
        assert queues(await ask(one, "c1", topic="U")) is None


async def test_a_broker_without_name_servers_shares_its_own_queues(
    broker: Broker, peer: Peer
) -> None:
    await peer.create_topic("T", 2)
    await peer.heartbeat("c1", GROUP, {"T": "*"})
    assert queues(await ask(peer, "c1")) == [("broker-t", 0), ("broker-t", 1)]
    assert queues(await ask(peer, "c1", topic="%LMQ%light")) == [("broker-t", 0)]
    await peer.create_topic("T", 2, perm=2)
    assert queues(await ask(peer, "c1")) == []


async def test_who_is_no_member_that_the_broker_knows_keeps_what_it_has(
    broker: Broker, peer: Peer
) -> None:
    await peer.create_topic("T", 2)
    assert queues(await ask(peer, "c1")) is None
    await peer.heartbeat("c1", GROUP, {"T": "*"})
    assert queues(await ask(peer, "c2")) is None
    assert queues(await ask(peer, "c1", topic="Nowhere")) is None


async def test_a_strategy_that_no_broker_has_is_refused_by_name(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 2)
    await peer.heartbeat("c1", GROUP, {"T": "*"})
    answer = await ask(peer, "c1", strategyName="MACHINE_ROOM")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert "strategy[MACHINE_ROOM] is not known here" in answer.remark
    assert "AVG or AVG_BY_CIRCLE" in answer.remark


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"topic":"T"}', b'{"topic":"T","consumerGroup":"g","clientId":7}'],
)
async def test_a_question_that_is_none_is_refused(peer: Peer, body: bytes) -> None:
    answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_names_in_a_question_are_bounded(peer: Peer) -> None:
    for member in ("topic", "consumerGroup", "clientId", "strategyName"):
        answer = await ask(peer, "c1", **{member: "x" * 300})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert member in (answer.remark or "")
