"""Which brokers hear of a client: those of the topics that it uses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kerolox.client import Producer, PullConsumer, PullConsumerSettings
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import loads
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

BEAT, UNREGISTER = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
QUEUE = MessageQueue("T", "a", 0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


@pytest_asyncio.fixture
async def other(broker: QueueBroker) -> AsyncIterator[QueueBroker]:
    """Another broker, of topic U."""
    async with QueueBroker() as made:
        broker.routes["U"] = route_body({"b": made.address}, queues=1)
        yield made


async def test_a_broker_of_an_unsubscribed_topic_is_told_once_and_not_greeted_again(
    broker: QueueBroker, other: QueueBroker
) -> None:
    consumer = Consumer(broker)
    consumer.subscribe("U", "*", consumer.listen)
    other.members = broker.members
    async with consumer:
        assert other.seen[BEAT]
        consumer.unsubscribe("U")
        await until(lambda: other.seen[UNREGISTER])
        assert b'"topic":"U"' not in other.seen[BEAT][-1].body
        greeted, known = len(other.seen[BEAT]), len(broker.seen[BEAT])
        await consumer._heartbeat()
        assert (len(other.seen[BEAT]), len(broker.seen[BEAT])) == (greeted, known + 1)
    assert (len(other.seen[UNREGISTER]), len(broker.seen[UNREGISTER])) == (1, 1)


async def test_a_topic_that_is_only_asked_about_has_no_broker_greeted(
    broker: QueueBroker, other: QueueBroker
) -> None:
    async with Consumer(broker) as consumer:
        assert await consumer.queues("U") == [MessageQueue("U", "b", 0)]
        await consumer._heartbeat()
    async with Producer("g", broker.address) as producer:
        await producer.send(Message("T", b"x"))
        await producer.queues("U")
        await producer._heartbeat()
    assert not other.seen[BEAT]
    assert not other.seen[UNREGISTER]


async def test_a_topic_that_is_subscribed_again_has_its_brokers_greeted_again(
    broker: QueueBroker, other: QueueBroker
) -> None:
    other.count = 1
    consumer = Consumer(broker)
    consumer.subscribe("U", "*", consumer.listen)
    other.members = broker.members
    async with consumer:
        consumer.unsubscribe("U")
        await until(lambda: other.seen[UNREGISTER])
        greeted = len(other.seen[BEAT])
        consumer.subscribe("U", "*", consumer.listen)
        await until(lambda: len(other.seen[BEAT]) > greeted)
        await until(lambda: len(consumer.assigned_queues) == 2)


# -- pull consumers -------------------------------------------------------------------------------
async def test_a_pull_consumer_polls_the_routes_of_what_it_pulls(broker: QueueBroker) -> None:
    broker.count = 1
    settings = PullConsumerSettings(route_poll_interval_ms=10)
    async with FakeBroker() as moved, PullConsumer("g", broker.address, settings=settings) as pull:
        await pull.pull(QUEUE, 0)
        moved.answers[RequestCode.PULL_MESSAGE] = broker.pull
        broker.routes["T"] = route_body({"a": moved.address}, queues=1)
        assert pull._cluster is not None
        cluster = pull._cluster
        await until(lambda: cluster.master_address("a") == moved.address)
        await pull.pull(QUEUE, 0)
        assert len(moved.seen[RequestCode.PULL_MESSAGE]) == 1


async def test_a_pull_consumer_is_known_to_the_brokers_it_pulls_from_and_leaves_them(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.consumers.pull_consumer.HEARTBEAT_FIRST_MS", 10)
    broker.count = 1
    settings = PullConsumerSettings(heartbeat_interval_ms=10)
    async with PullConsumer("g", broker.address, settings=settings) as pull:
        await pull.pull(QUEUE, 0)
        await until(lambda: len(broker.seen[BEAT]) >= 2)
        me = pull.client_id
        answer = await broker.ask_client(307, consumerGroup="g", clientId=me)
        assert loads(answer.body)["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert (await broker.ask_client(220, group="g")).code == 3
    [data] = loads(broker.seen[BEAT][-1].body)["consumerDataSet"]
    assert (data["groupName"], data["consumeType"]) == ("g", "CONSUME_ACTIVELY")
    assert [each["topic"] for each in data["subscriptionDataSet"]] == ["T"]
    [unregistered] = broker.seen[UNREGISTER]
    assert unregistered.ext_fields == {"clientID": me, "consumerGroup": "g"}


async def test_a_pull_consumer_that_only_examines_offsets_joins_no_group(
    broker: QueueBroker,
) -> None:
    async with PullConsumer("g", broker.address) as pull:
        await pull.commit(QUEUE, 1)
        assert await pull.committed(QUEUE) == 1
        await pull._heartbeat()
    assert not broker.seen[BEAT]
    assert not broker.seen[UNREGISTER]
