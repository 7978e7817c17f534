"""What producers do beyond a plain send, against our broker and the Java broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from kerolox.client import (
    CompressionType,
    Producer,
    ProducerSettings,
    TransactionProducer,
    TransactionState,
    select_by_hash,
    sync,
)
from kerolox.message import Message, java_hash
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

TIME_MS = int(SECONDS_MAX * 1000)


async def test_messages_of_a_key_share_a_queue_and_stay_in_order(
    producer: Producer, inbox: Inbox, topic: str
) -> None:
    keys = [f"order-{number}" for number in range(8)]

    async def send_all(key: str) -> None:
        for step in range(10):
            message = Message(topic, b"%d" % step, keys=key)
            sent = await producer.send(message, ordering_key=key, timeout_ms=TIME_MS)
            assert sent.queue.queue_id == abs(java_hash(key)) % 4

    await asyncio.gather(*(send_all(key) for key in keys))
    chosen = await producer.send(Message(topic, b"x"), selector=select_by_hash(-7))
    assert chosen.queue.queue_id == 3
    _, got = await inbox.consumer(f"group-{topic}", topic)
    await until(lambda: len(got) == 81)
    by_key: dict[str, list[MessageExt]] = defaultdict(list)
    for message in sorted(got, key=lambda each: each.queue_offset):
        by_key[message.keys].append(message)
    for key in keys:
        assert [message.body for message in by_key[key]] == [b"%d" % step for step in range(10)]
        assert len({message.queue_id for message in by_key[key]}) == 1


async def test_a_delay_is_kept_to_the_millisecond_or_rounded_to_a_level(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str
) -> None:
    _, got = await inbox.consumer(f"group-{topic}", topic)
    await producer.send(Message(topic, b"later"), deliver_after=1)
    await producer.send(Message(topic, b"rounded"), deliver_after=0.5, round_up=True)
    await until(lambda: len(got) == 2)
    # A broker of 4.9 has no timer.
    name, wanted = ("DELAY", {b"later": 1, b"rounded": 1})
    if cluster.kind == "ours":
        name, wanted = ("TIMER_DELAY_MS", {b"later": 1_000, b"rounded": 500})
    assert {message.body: int(message.properties[name]) for message in got} == wanted
    # One clock has stamped both.
    assert all(message.store_timestamp - message.born_timestamp >= 500 for message in got)


async def test_a_block_that_succeeds_is_seen_and_one_that_fails_is_not(
    cluster: Cluster, inbox: Inbox, topic: str
) -> None:
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.unique_key)
        return TransactionState.COMMIT

    _, got = await inbox.consumer(f"group-{topic}", topic)
    made = TransactionProducer(f"producers-{topic}", cluster.name_server, check=check)
    async with made as producer:
        async with producer.transaction(Message(topic, b"committed")):
            pass
        with pytest.raises(ValueError, match="no money"):
            async with producer.transaction(Message(topic, b"rolled back")):
                raise ValueError("no money")
        async with producer.transaction(Message(topic, b"asked about")) as left:
            left.leave_open()
        await until(lambda: len(got) == 2, what="both commits")
    assert sorted(message.body for message in got) == [b"asked about", b"committed"]
    assert left.transaction_id in asked
    assert left.transaction_id in {message.unique_key for message in got}


async def test_a_long_list_goes_as_batches_and_arrives_whole(
    producer: Producer, inbox: Inbox, topic: str
) -> None:
    messages = [Message(topic, b"%05d" % number, keys=f"k{number}") for number in range(2_500)]
    [queue, *_] = await producer.queues(topic)
    results = await producer.send_batches(messages, queue=queue, timeout_ms=TIME_MS)
    assert [len(result.message_id.split(",")) for result in results] == [1_000, 1_000, 500]
    _, got = await inbox.consumer(f"group-{topic}", topic)
    await until(lambda: len(got) >= 2_500)
    got.sort(key=lambda message: message.queue_offset)
    assert [message.body for message in got] == [message.body for message in messages]


@pytest.mark.parametrize("serialize_type", ["JSON", "ROCKETMQ"])
@pytest.mark.parametrize("is_vip", [False, True])
async def test_compressions_encodings_and_both_ports_work(
    cluster: Cluster, inbox: Inbox, topic: str, serialize_type: str, is_vip: bool
) -> None:
    body = b"compress me " * 10_000
    for kind in CompressionType:
        settings = ProducerSettings(
            compress_type=kind, serialize_type=serialize_type, vip_channel=is_vip
        )
        async with Producer("producers", cluster.name_server, settings=settings) as producer:
            await producer.send(Message(topic, body, tags=kind.name), timeout_ms=TIME_MS)
            await producer.send(Message(topic, b"x", keys="\u00e9"), timeout_ms=TIME_MS)
            await producer.send_oneway(Message(topic, b"y"))
    given = {"serialize_type": serialize_type}
    _, got = await inbox.consumer(f"group-{topic}", topic, **given)
    await until(lambda: len(got) == 9)
    large = {message.tags: message for message in got if message.body == body}
    assert {tags: m.sys_flag & 0x701 for tags, m in large.items()} == {
        kind.name: kind.value for kind in CompressionType
    }


async def test_the_blocking_producer_has_all_of_it(cluster: Cluster, topic: str) -> None:
    def work() -> None:
        made = sync.TransactionProducer(
            f"p-{topic}", cluster.name_server, check=lambda message: TransactionState.COMMIT
        )
        with made as producer:
            sent = [producer.send(Message(topic, b"x"), ordering_key="k") for _ in range(3)]
            assert len({result.queue for result in sent}) == 1
            producer.send(Message(topic, b"x"), deliver_after=1)
            assert len(producer.send_batches([Message(topic, b"x")] * 3)) == 1
            with producer.transaction(Message(topic, b"x")) as transaction:
                assert transaction.result.is_ok
            assert transaction.state is TransactionState.COMMIT

    await asyncio.to_thread(work)
