"""Our push consumer against our broker and the Java broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kerolox.admin import LAST, Admin
from kerolox.client import ConsumeStatus, PullConsumer, PushConsumer, PushConsumerSettings
from kerolox.message import ConsumeFromWhere, Message, MessageModel
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from kerolox.remoting.client import RemotingClient
from tests.contract.conftest import FIRST
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kerolox.client import Producer
    from kerolox.message import MessageExt
    from tests.contract.conftest import Inbox
    from tests.support.servers.clusters import Cluster


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in messages)


def owned(consumer: PushConsumer, topic: str) -> int:
    return len([queue for queue in consumer.assigned_queues if queue.topic == topic])


async def send(producer: Producer, topic: str, count: int, tags: str = "") -> list[bytes]:
    sent = [b"%s%04d" % (tags.encode(), index) for index in range(count)]
    await asyncio.gather(*(producer.send(Message(topic, body, tags=tags)) for body in sent))
    return sent


async def until_committed(
    cluster: Cluster, group: str, topic: str, is_expected: Callable[[list[int]], bool]
) -> None:
    """The brokers know offsets, by queue id, of which something holds."""
    async with PullConsumer(group, cluster.name_server) as reader:
        queues = await reader.queues(topic)

        async def is_known() -> bool:
            return is_expected([await reader.committed(queue) for queue in queues])

        await until(is_known, what="the commit of offsets")


async def test_every_message_reaches_the_listener(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    before = await send(producer, topic, 50, "b")
    _, got = await inbox.consumer(group, topic)
    after = await send(producer, topic, 50, "z")
    await until(lambda: len(got) >= 100)
    assert bodies(got) == before + after
    assert {message.topic for message in got} == {topic}


async def test_only_subscribed_tags_are_delivered(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic, "a || c")
    for tags in ("a", "b", "c", ""):
        await send(producer, topic, 5, tags)
    await until(lambda: len(got) >= 10)
    await producer.send(Message(topic, b"last", tags="c"))
    await until(lambda: len(got) >= 11)
    assert {message.tags for message in got} == {"a", "c"}


async def test_a_tag_with_the_same_hash_is_not_delivered(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic, "Aa")
    [queue, *_] = await producer.queues(topic)
    for tags in ("BB", "Aa"):  # Java's String.hashCode is 2112 for both
        await producer.send(Message(topic, tags.encode(), tags=tags), queue=queue)
    await until(lambda: got)
    assert bodies(got) == [b"Aa"]


async def test_only_messages_whose_properties_meet_the_condition_are_delivered(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic, "price > 10 AND region = 'EU'")
    for price in (5, 11, 12):
        for region in ("EU", "US"):
            given = {"price": str(price), "region": region}
            await producer.send(Message(topic, f"{price} {region}".encode(), properties=given))
    await until(lambda: len(got) >= 2)
    assert bodies(got) == [b"11 EU", b"12 EU"]


async def test_two_members_share_and_the_rest_take_over_at_once(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    first, got_first = await inbox.consumer(group, topic, persist_interval_ms=50)
    second, got_second = await inbox.consumer(group, topic, persist_interval_ms=50)
    await until(lambda: (owned(first, topic), owned(second, topic)) == (2, 2))
    sent = await send(producer, topic, 200)
    await until(lambda: len(got_first) + len(got_second) >= 200)
    assert bodies(got_first + got_second) == sent
    assert len(got_first) == len(got_second) == 100
    # The last offsets are reported one-way: they have to be there before the other member asks.
    await until_committed(cluster, group, topic, ([50] * 4).__eq__)
    await second.close()
    # Without a word from the broker a member looks every 20 s.
    await until(lambda: owned(first, topic) == 4)
    more = await send(producer, topic, 40, "more")
    await until(lambda: len(got_first) >= 140)
    assert bodies(got_first[100:]) == more


async def test_a_closed_group_goes_on_where_it_stopped(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    first, got = await inbox.consumer(group, topic, persist_interval_ms=50)
    await send(producer, topic, 30)
    await until(lambda: len(got) >= 30)
    # A Java broker may note what a pull commits after what its client committed later. Only a
    # member that stays puts that right: so not while it leaves.
    await until_committed(cluster, group, topic, lambda offsets: sum(offsets) == 30)
    await first.close()
    await until_committed(cluster, group, topic, lambda offsets: sum(offsets) == 30)
    missed = await send(producer, topic, 10, "missed")
    _, got_again = await inbox.consumer(group, topic)
    await until(lambda: len(got_again) >= 10)
    assert bodies(got_again) == missed


async def test_offsets_are_committed_while_running(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic, persist_interval_ms=50)
    await send(producer, topic, 40)
    await until(lambda: len(got) >= 40)
    await until_committed(cluster, group, topic, ([10] * 4).__eq__)


async def test_a_failed_message_comes_again_through_the_retry_topic(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    seen: list[MessageExt] = []

    async def listen(message: MessageExt) -> ConsumeStatus | None:
        seen.append(message)
        if message.reconsume_times == 0:
            if message.body == b"raises":
                raise ValueError("not now")
            return ConsumeStatus.RECONSUME_LATER
        return None

    settings = PushConsumerSettings(consume_from_where=FIRST, delay_level_when_next_consume=1)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen)
    async with consumer:
        for body in (b"raises", b"returns"):
            await producer.send(Message(topic, body, keys="k"))
        # Level 1 is one second.
        await until(lambda: len(seen) >= 4)
    again = [message for message in seen if message.reconsume_times == 1]
    assert bodies(again) == [b"raises", b"returns"]
    assert {(message.topic, message.keys) for message in again} == {(topic, "k")}


async def test_broadcasting_gives_every_member_all_messages_and_keeps_offsets_in_a_file(
    producer: Producer, inbox: Inbox, topic: str, group: str, tmp_path: Path
) -> None:
    async def member(name: str) -> tuple[PushConsumer, list[MessageExt]]:
        return await inbox.consumer(
            group,
            topic,
            message_model=MessageModel.BROADCASTING,
            local_offset_folder=tmp_path,
            instance_name=name,
        )

    one, got_one = await member("one")
    _, got_two = await member("two")
    sent = await send(producer, topic, 20)
    await until(lambda: len(got_one) >= 20 and len(got_two) >= 20)
    assert bodies(got_one) == bodies(got_two) == sent
    await one.close()
    stored = loads((tmp_path / one.client_id / group / "offsets.json").read_bytes())
    assert sorted(stored["offsetTable"].values()) == [5, 5, 5, 5]
    more = await send(producer, topic, 4, "more")
    _, got_again = await member("one")
    await until(lambda: len(got_again) >= 4)
    assert bodies(got_again) == more


async def test_a_new_group_gets_all_of_a_young_topic_even_when_it_starts_at_the_end(
    producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    # While a queue's first message is in memory, a broker says 0 instead of "no offset".
    sent = await send(producer, topic, 8)
    last = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    _, got = await inbox.consumer(group, topic, consume_from_where=last)
    await until(lambda: len(got) >= 8)
    assert bodies(got) == sent


async def test_an_illegal_offset_is_corrected_and_consuming_goes_on(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    await producer.send(Message(topic, b"before"), queue=queue)
    async with PullConsumer(group, cluster.name_server) as reader:
        await reader.pull(queue, 0, wait=True)
        await reader.commit(queue, 1_000)
    _, got = await inbox.consumer(group, topic, illegal_offset_delay_ms=20)
    async with PullConsumer(group, cluster.name_server) as reader:

        async def is_corrected() -> bool:
            return await reader.committed(queue) == 1

        await until(is_corrected)
    await producer.send(Message(topic, b"after"), queue=queue)
    await until(lambda: got)
    assert bodies(got) == [b"after"]


async def test_operators_see_what_a_consumer_does(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    consumer, got = await inbox.consumer(group, topic)
    await send(producer, topic, 8)
    await until(lambda: len(got) >= 8)
    fields = {"consumerGroup": group, "clientId": consumer.client_id, "jstackEnable": False}
    async with RemotingClient() as client:
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        answer = await client.invoke(cluster.broker, request, timeout_seconds=SECONDS_MAX)
    assert answer.code == 0, answer.remark
    info = loads(answer.body)
    mine = {queue: item for queue, item in info["mqTable"].items() if queue.topic == topic}
    assert len(mine) == 4
    assert {item["commitOffset"] for item in mine.values()} == {2}
    assert info["statusTable"][topic]["consumeFailedMsgs"] == 0
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert topic in {item["topic"] for item in info["subscriptionSet"]}


async def test_an_operator_resets_the_offsets_of_a_running_consumer(
    cluster: Cluster, producer: Producer, inbox: Inbox, topic: str, group: str
) -> None:
    _, got = await inbox.consumer(group, topic, persist_interval_ms=50)
    sent = await send(producer, topic, 12)
    await until(lambda: len(got) >= 12)
    await until_committed(cluster, group, topic, ([3] * 4).__eq__)
    fields = {"topic": topic, "group": group, "timestamp": 0, "isForce": True}
    async with RemotingClient() as client:
        request = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        answer = await client.invoke(cluster.broker, request, timeout_seconds=SECONDS_MAX)
    assert answer.code == 0, answer.remark
    await until(lambda: len(got) >= 24)
    assert bodies(got[12:]) == sent


async def test_listeners_run_side_by_side_up_to_the_limit(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    gate = asyncio.Event()
    running, most = 0, 0

    async def listen(messages: list[MessageExt]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    settings = PushConsumerSettings(consume_from_where=FIRST, consume_concurrency=5)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe(topic, "*", listen)
    await send(producer, topic, 20)
    async with consumer:
        await until(lambda: running == 5)
        gate.set()
        await until(lambda: consumer._parts and running == 0)
    assert most == 5


async def consumed(cluster: Cluster, group: str, topic: str, count: int) -> list[MessageExt]:
    """What a consumer with the default settings gets, at least so many messages."""
    got: list[MessageExt] = []

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(messages)

    consumer = PushConsumer(group, cluster.name_server)
    consumer.subscribe(topic, "*", listen)
    async with consumer:
        await until(lambda: len(got) >= count, what="the messages")
    return got


async def test_a_new_group_reads_a_young_queue_from_its_start_whatever_it_asks_for(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    sent = await send(producer, topic, 5)
    assert bodies(await consumed(cluster, group, topic, 5)) == sent


async def test_a_new_group_that_was_put_at_the_end_gets_what_comes_after_that(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    await send(producer, topic, 5, "old")

    async def stored() -> bool:  # Java makes queues of its log by and by
        ends = [await producer.max_offset(queue) for queue in await producer.queues(topic)]
        return sum(ends) == 5

    await until(stored, what="the old messages in their queues")
    async with Admin(cluster.name_server) as admin:
        moves = await admin.move_offsets(group, topic, LAST)
    assert sum(move.new for move in moves) == 5
    sent = await send(producer, topic, 3, "new")
    assert bodies(await consumed(cluster, group, topic, 3)) == sent
