"""Light message queues over a real socket: sent to many, pulled without a topic, held, bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}


def to_queues(*names: str) -> str:
    return f"TAGS\x01a\x02INNER_MULTI_DISPATCH\x01{','.join(names)}"


async def bodies(peer: Peer, topic: str, group: str = "%LMQ%reader") -> list[bytes]:
    answer = await peer.pull(topic, group=group)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_records(answer.body)]


async def test_a_message_is_pulled_from_each_light_queue_that_it_names(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        sent = await peer.send("T", b"1", queue_id=3, properties=to_queues("%LMQ%a", "%LMQ%b"))
        assert sent.code == ResponseCode.SUCCESS
        await peer.send("T", b"2", properties=to_queues("%LMQ%a"))
        assert await bodies(peer, "%LMQ%a") == [b"1", b"2"]
        assert await bodies(peer, "%LMQ%b") == [b"1"]
        # Neither the queues nor their group are in a table, and they need not be.
        assert "%LMQ%a" not in broker.parts.tables.topics.names
        assert "%LMQ%reader" not in broker.parts.tables.groups.names
        elsewhere = await peer.pull("%LMQ%a", queue_id=1, group="%LMQ%reader")
        assert elsewhere.code == ResponseCode.SYSTEM_ERROR
        assert (await peer.send("%LMQ%b", b"straight")).code == ResponseCode.SUCCESS
        assert await bodies(peer, "%LMQ%b") == [b"1", b"straight"]


async def test_a_held_pull_of_a_light_queue_is_woken(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        waiting = asyncio.create_task(
            peer.pull("%LMQ%a", group="%LMQ%reader", suspend_ms=60_000, tags="a")
        )
        await until(lambda: broker.parts.store.stats()["held_pulls"] == 1)
        await peer.send("T", b"wake", properties=to_queues("%LMQ%b", "%LMQ%a"))
        answer = await waiting
        assert [message.body for message in decode_records(answer.body)] == [b"wake"]


async def test_an_expression_is_told_where_a_light_queue_goes_on(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, enable_property_filter=True, **LMQ)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        for number in range(9):
            names = () if number < 5 else ("%LMQ%a",)
            await peer.send("T", b"%d" % number, properties=to_queues(*names))
        sql = {"tags": "TAGS = 'a'", "expressionType": "SQL92", "group": "%LMQ%reader"}
        ends = {}
        for count in (1, 3, 4, 32):
            answer = await peer.pull("%LMQ%a", offset=0, maxMsgNums=count, **sql)
            assert len(decode_records(answer.body)) == min(count, 4)
            ends[count] = answer.ext_fields["nextBeginOffset"]
        assert ends == {1: "1", 3: "3", 4: "4", 32: "4"}


async def test_offsets_of_light_groups_are_kept_as_rocketmq_keeps_them(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    fields = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": 0}
    plain = {"consumerGroup": "g", "topic": "T", "queueId": 3}
    for _start in range(2):
        async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
            if not broker.parts.store.queue_bounds("%LMQ%a", 0)[1]:
                await peer.create_topic("T")
                await peer.send("T", b"1", properties=to_queues("%LMQ%a"))
                pulled = await peer.pull("%LMQ%a", group="%LMQ%g", sys_flag=5, commitOffset=1)
                assert pulled.code == ResponseCode.SUCCESS
                await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**plain, "commitOffset": 7})
            for asked, offset in ((fields, "1"), ({**fields, "queueId": 5}, "1"), (plain, "7")):
                answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
                assert answer.ext_fields["offset"] == offset
            everything = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        kept = fastjson.loads((config.config_folder / "lmqConsumerOffset.json").read_bytes())
        assert kept == {
            "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 1},
            "offsetTable": {"T@g": {3: 7}},
        }
        assert fastjson.loads(everything.body) == kept
        assert not (config.config_folder / "consumerOffset.json").exists()


@pytest.mark.parametrize("enable_lmq", [True, False])
async def test_offsets_outlive_a_change_of_the_kind_of_queues(tmp_path: Path, enable_lmq: bool):
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 3}
    config = small_config(tmp_path, enable_lmq=not enable_lmq)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": 7})
    config = small_config(tmp_path, enable_lmq=enable_lmq)
    async with Broker(config) as broker, peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.ext_fields["offset"] == "7"


async def test_too_many_light_queues_are_refused_in_rocketmq_s_words(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ, max_lmq_consume_queue_num=1)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        refused = await peer.send("T", b"1", properties=to_queues("%LMQ%a", "%LMQ%b"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark.startswith("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq")
        assert (await peer.send("T", b"1", properties=to_queues("%LMQ%a"))).code == 0
        assert (await peer.send("%LMQ%c", b"1")).code == ResponseCode.SYSTEM_ERROR


async def test_a_light_queue_is_deleted_as_a_topic_is(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"1", properties=to_queues("%LMQ%a"))
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%LMQ%a"})
        assert answer.code == ResponseCode.SUCCESS
        assert broker.parts.store.queue_bounds("%LMQ%a", 0) == (0, 0)
        await peer.send("T", b"2", properties=to_queues("%LMQ%a"))
        assert await bodies(peer, "%LMQ%a") == [b"2"]


async def test_without_lmq_such_names_are_topics_like_others(peer: Peer):
    answer = await peer.pull("%LMQ%a")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    await peer.create_topic("T")
    await peer.send("T", b"1", properties=to_queues("%LMQ%a"))
    assert (await peer.pull("%LMQ%a")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_light_queues_and_groups_have_one_figure_together(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"1", properties=to_queues("%LMQ%a", "%LMQ%b"))
        for name in ("a", "b"):
            await bodies(peer, f"%LMQ%{name}", f"%LMQ%{name}")
        await bodies(peer, "T", "%LMQ%a")
        await bodies(peer, "T", "plain")
        await broker.parts.broker_stats.refresh()
        found = {
            key: broker.parts.broker_stats.view("GROUP_GET_NUMS", key) is not None
            for key in ("%LMQ%@%LMQ%", "T@%LMQ%", "T@plain", "%LMQ%a@%LMQ%a", "T@%LMQ%a")
        }
        assert list(found.values()) == [True, True, True, False, False]
        assert broker.parts.broker_stats.view("GROUP_GET_LATENCY", "0@%LMQ%@%LMQ%") is not None


async def test_a_light_queue_has_a_longer_name_than_a_topic_may(tmp_path: Path, kernel: str):
    config = small_config(tmp_path, **LMQ)
    name = "%LMQ%" + "x" * 250
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        held = asyncio.create_task(peer.pull(name, group="%LMQ%g", suspend_ms=60_000))
        await until(lambda: broker.parts.store.stats()["held_pulls"] == 1)
        sent = await peer.send("T", b"1", properties=to_queues(name))
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        assert [message.body for message in decode_records((await held).body)] == [b"1"]
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert await bodies(peer, name) == [b"1"]
        # Straight to it goes nothing: a record can't hold that name.
        assert (await peer.send(name, b"2")).code == ResponseCode.SYSTEM_ERROR
