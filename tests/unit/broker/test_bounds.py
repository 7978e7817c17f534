"""Tables that clients fill have sizes; whoever comes after is told so, and others go on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.tables import clients, filters, groups, offsets, topics
from kerolox.protocol import bodies, fastjson
from kerolox.protocol.bodies import encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import Peer, peer_of
from tests.support.slices import each_step_is_a_turn

if TYPE_CHECKING:
    from kerolox.broker.broker import Broker


async def test_a_group_too_many_is_not_made(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.heartbeat("c", "first")
    monkeypatch.setattr(groups, "GROUPS_MAX", len(broker.parts.tables.groups.names))
    refused = await peer.heartbeat("c", "second")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "no space for another one" in (refused.remark or "")
    assert (await peer.heartbeat("c", "first")).code == ResponseCode.SUCCESS
    assert "second" not in broker.parts.tables.groups.names


async def test_a_topic_too_many_is_not_made(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await peer.send("First")).code == ResponseCode.SUCCESS
    monkeypatch.setattr(topics, "TOPICS_MAX", len(broker.parts.tables.topics.names))
    for refused in (await peer.send("Second"), await peer.create_topic("Third")):
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "no space for another one" in (refused.remark or "")
    assert (await peer.send("First")).code == ResponseCode.SUCCESS
    assert (await peer.create_topic("First", 8)).code == ResponseCode.SUCCESS


async def test_the_clients_of_a_connection_are_in_so_many_groups(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "GROUPS_PER_CONNECTION_MAX", 3)
    assert (await peer.heartbeat("c", "a", producers=["p", "q"])).code == ResponseCode.SUCCESS
    refused = await peer.heartbeat("c", "b")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "there are 3 groups on its connection already" in (refused.remark or "")
    assert (await peer.heartbeat("c", "a", producers=["p"])).code == ResponseCode.SUCCESS
    async with peer_of(broker) as other:
        assert (await other.heartbeat("d", "b")).code == ResponseCode.SUCCESS


async def test_members_and_subscriptions_are_counted_as_they_come_and_go(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with peer_of(broker) as other:
        await other.heartbeat("d", "a", {"T": "*", "U": "*"}, producers=["p"])
        await other.heartbeat("d", "a", {"T": "*"}, version=2, producers=["p"])
        assert (
            broker.parts.tables.clients._members,
            broker.parts.tables.clients._subscriptions,
        ) == (2, 1)
        monkeypatch.setattr(clients, "SUBSCRIPTIONS_MAX", 2)
        refused = await peer.heartbeat("c", "b", {"T": "*", "U": "*"})
        assert "1 subscriptions in this broker" in (refused.remark or "")
        monkeypatch.setattr(clients, "MEMBERS_MAX", 2)
        refused = await peer.heartbeat("c", "b")
        assert "2 members of groups in this broker" in (refused.remark or "")
        leaving = {"clientID": "d", "producerGroup": "p", "consumerGroup": "a"}
        assert (await other.ask(RequestCode.UNREGISTER_CLIENT, leaving)).code == 0
    assert (broker.parts.tables.clients._members, broker.parts.tables.clients._subscriptions) == (
        0,
        0,
    )
    assert (await peer.heartbeat("c", "b", {"T": "*", "U": "*"})).code == ResponseCode.SUCCESS


async def test_an_offset_too_many_is_refused_and_known_ones_go_on(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(queue_id: int, offset: int) -> dict[str, object]:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": queue_id, "commitOffset": offset}
        return dict(fields)

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    assert (await peer.ask(code, commit(0, 1))).code == ResponseCode.SUCCESS
    monkeypatch.setattr(offsets, "OFFSETS_MAX", 1)
    refused = await peer.ask(code, commit(1, 1))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "this broker keeps 1 offsets" in (refused.remark or "")
    assert (await peer.ask(code, commit(0, 2))).code == ResponseCode.SUCCESS
    assert broker.parts.tables.offsets.query("g", "T", 0) == 2


async def test_expressions_are_kept_up_to_so_many_characters(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filters, "CHARACTERS_MAX", 20)
    await peer.heartbeat("c", "a", {"T": "abc = 1"}, expression_type="SQL92")
    await peer.heartbeat("c", "b", {"T": "abcdefgh = 12345"}, expression_type="SQL92")
    assert broker.parts.tables.filters.get("T", "a") is not None
    assert broker.parts.tables.filters.get("T", "b") is None
    assert "filters of 7 characters are kept, and 20 are the most" in caplog.text
    # What replaces it and is too long leaves nothing: what was meant before counts no more.
    await peer.heartbeat("c", "a", {"T": "x" * 40}, version=2, expression_type="SQL92")
    assert broker.parts.tables.filters.get("T", "a") is None
    assert broker.parts.tables.filters._characters == 0
    await peer.heartbeat("c", "b", {"T": "b = 1"}, version=2, expression_type="SQL92")
    assert broker.parts.tables.filters.get("T", "b") is not None


async def test_a_long_expression_is_compiled_beside_the_loop(broker: Broker, peer: Peer) -> None:
    text = " OR ".join(f"a{number} > 1" for number in range(500))
    assert len(text) > filters.ON_THE_SPOT_CHARACTERS_MAX
    await peer.heartbeat("c", "long", {"T": text}, expression_type="SQL92")
    kept = broker.parts.tables.filters.get("T", "long")
    assert kept is not None
    assert kept.expression is not None
    assert kept.expression.matches({"a499": "2"})


async def test_a_body_that_is_too_long_or_no_json_is_refused_at_once(peer: Peer) -> None:
    long = b'{"clientID":"' + bytes(bodies.REQUEST_BODY_BYTES_MAX) + b'"}'
    answer = await peer.ask(RequestCode.HEART_BEAT, body=long)
    assert "at most 1048576 are taken" in (answer.remark or "")
    bare = b"{a:[" + b"1," * bodies.LENIENT_BODY_BYTES_MAX + b"1]}"
    answer = await peer.ask(RequestCode.HEART_BEAT, body=bare)
    assert "what is no ordinary JSON is read up to 8192 bytes" in (answer.remark or "")
    keyed = b'{"clientID":"c","consumerDataSet":[],{"a":[1]}:1}'
    answer = await peer.ask(RequestCode.HEART_BEAT, body=keyed)
    assert "a key is unhashable" in (answer.remark or "")
    good = encode_body({"clientID": "c", "consumerDataSet": [], "producerDataSet": []})
    assert (await peer.ask(RequestCode.HEART_BEAT, body=good)).code == ResponseCode.SUCCESS


async def test_the_progress_of_many_groups_is_one_look_and_others_have_their_turns(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create_topic("T", 1)
    for number in range(200):
        broker.parts.tables.groups.put(bodies.SubscriptionGroupConfig(group_name=f"G{number}"))
        broker.parts.tables.offsets.commit(f"G{number}", "T", 0, 0, "a test")
    looks = 0
    pairs = broker.parts.tables.offsets._drained.pairs

    def counted() -> list[tuple[str, str]]:
        nonlocal looks
        looks += 1
        return pairs()

    monkeypatch.setattr(broker.parts.tables.offsets._drained, "pairs", counted)
    each_step_is_a_turn(monkeypatch)
    done: list[str] = []

    async def ask(client: Peer, code: RequestCode, fields: dict[str, object]) -> int:
        answer = await client.ask(code, fields)
        done.append(code.name)
        return len(fastjson.loads(answer.body)["consumeStatsList"]) if answer.body else 0

    async with peer_of(broker) as other:
        await other.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        groups_shown, _ = await asyncio.gather(
            ask(peer, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
            ask(other, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}),
        )
    assert groups_shown >= 200
    assert looks == 1
    assert done == ["GET_MAX_OFFSET", "GET_BROKER_CONSUME_STATS"]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "G"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}),
    ],
)
async def test_who_asks_about_many_queues_or_topics_lets_others_have_their_turns(
    broker: Broker,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode,
    fields: dict[str, object],
) -> None:
    await peer.create_topic("Wide", 100)
    for number in range(100):
        broker.parts.tables.topics.put(
            bodies.TopicConfig(topic_name=f"T{number}", read_queue_nums=1)
        )
        broker.parts.tables.offsets.commit("G", f"T{number}", 0, 1, "a test")
    each_step_is_a_turn(monkeypatch)
    done: list[RequestCode] = []

    async def ask(client: Peer, code: RequestCode, fields: dict[str, object]) -> None:
        assert (await client.ask(code, fields)).code == ResponseCode.SUCCESS
        done.append(code)

    queue: dict[str, object] = {"topic": "Wide", "queueId": 0}
    async with peer_of(broker) as other:
        await other.ask(RequestCode.GET_MAX_OFFSET, queue)
        await asyncio.gather(ask(peer, code, fields), ask(other, RequestCode.GET_MAX_OFFSET, queue))
    assert done == [RequestCode.GET_MAX_OFFSET, code]


async def test_large_tables_become_json_beside_the_loop(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def seen(value: object) -> bytes:
        threads.append(threading.current_thread())
        return encode_body(value)

    for module in ("admin", "monitor"):
        monkeypatch.setattr(f"kerolox.broker.requests.{module}.encode_body", seen)
    for code in (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
    ):
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS
    assert len(threads) == 4
    assert threading.main_thread() not in threads
