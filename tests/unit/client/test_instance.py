"""The client instance: shared connections, one heartbeat, requests of brokers by group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionProducer,
    TransactionState,
)
from kerolox.client.core.addressees import addressees
from kerolox.message import Message, MessageExt, PropertyKey, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from tests.support.eventually import until
from tests.unit.client.test_push_consumer import QueueBroker, record

BEAT, LEAVE = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


def producer_of(broker: QueueBroker, group: str, **settings: object) -> Producer:
    given = ProducerSettings(**{"instance_name": "shop", **settings})  # type: ignore[arg-type]
    return Producer(group, broker.address, settings=given)


def consumer_of(broker: QueueBroker, group: str) -> PushConsumer:
    settings = PushConsumerSettings(
        instance_name="shop", consume_from_where="CONSUME_FROM_FIRST_OFFSET"
    )
    consumer = PushConsumer(group, broker.address, settings=settings)

    async def listen(messages: list[MessageExt]) -> None:
        pass

    consumer.subscribe("T", "*", listen)
    broker.members = [consumer.client_id]
    return consumer


def groups(broker: QueueBroker) -> tuple[list[str], list[str]]:
    """Those of producers and of consumers that the last heartbeat named."""
    body = loads(broker.seen[BEAT][-1].body)
    return (
        sorted(each["groupName"] for each in body["producerDataSet"]),
        sorted(each["groupName"] for each in body["consumerDataSet"]),
    )


async def test_clients_with_the_same_id_share_connections_and_one_heartbeat(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for periodic in ("HEARTBEAT_FIRST_MS", "ROUTE_POLL_FIRST_MS"):  # only those of the test count
        monkeypatch.setattr(f"kerolox.client.aio.producers.producer.{periodic}", 3_600_000)
    async with producer_of(broker, "p") as producer, consumer_of(broker, "c") as consumer:
        await producer.send(Message("T", b"x"))
        assert len(broker.connections) == 1
        assert producer._cluster is consumer._cluster
        assert producer.client_id == consumer.client_id
        beats, asked = len(broker.seen[BEAT]), len(broker.seen[ROUTE])
        topics = producer._instance.topics()
        await producer._instance.send_heartbeat()
        await producer._instance.poll()
        assert groups(broker) == (["p"], ["c"])
        assert len(broker.seen[BEAT]) == beats + 1
        assert sorted(topics) == ["%RETRY%c", "T", "TBW102"]
        assert len(broker.seen[ROUTE]) == asked + len(topics)
    assert len(broker.seen[LEAVE]) == 2


async def test_a_member_that_leaves_takes_only_its_own_group_with_it(broker: QueueBroker) -> None:
    consumer = consumer_of(broker, "c")
    async with producer_of(broker, "p") as producer:
        await consumer.start()
        await producer.send(Message("T", b"x"))
        await consumer.close()
        [left] = broker.seen[LEAVE]
        assert left.ext_fields["consumerGroup"] == "c"
        assert "producerGroup" not in left.ext_fields
        await producer._instance.send_heartbeat()
        assert groups(broker) == (["p"], [])
        await producer.send(Message("T", b"y"))
        assert len(broker.connections) == 1
    assert broker.seen[LEAVE][-1].ext_fields["producerGroup"] == "p"


@pytest.mark.parametrize("other", [{"instance_name": "b"}, {"api_timeout_ms": 1_000}])
async def test_clients_of_other_ids_or_settings_share_nothing(
    broker: QueueBroker, other: dict[str, object]
) -> None:
    async with producer_of(broker, "p") as first, producer_of(broker, "q", **other) as second:
        assert first._cluster is not second._cluster


async def test_two_members_of_one_group_have_connections_of_their_own(broker: QueueBroker) -> None:
    async with producer_of(broker, "p") as first, producer_of(broker, "p") as second:
        assert first._cluster is not second._cluster
    async with producer_of(broker, "p") as third, producer_of(broker, "q") as fourth:
        assert third._cluster is fourth._cluster


async def test_the_last_of_an_instance_closes_its_connections(broker: QueueBroker) -> None:
    first, second = producer_of(broker, "p"), producer_of(broker, "q")
    await asyncio.gather(first.start(), second.start())
    await first.send(Message("T", b"x"))
    await asyncio.gather(first.close(), second.close())
    await until(lambda: not broker.server.connections)
    assert second._instance._cluster is None


async def test_a_producer_that_closes_waits_for_its_own_sends_alone(broker: QueueBroker) -> None:
    gate = asyncio.Event()

    async def later(command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return broker.stored(command)

    async with producer_of(broker, "p") as first, consumer_of(broker, "c"):  # with a held pull
        second = producer_of(broker, "q")
        await second.start()
        await second.send(Message("T", b"x"))
        broker.answers[RequestCode.SEND_MESSAGE_V2] = later
        sending = asyncio.ensure_future(first.send(Message("T", b"y")))
        await until(lambda: len(broker.seen[RequestCode.SEND_MESSAGE_V2]) == 2)
        await second.close()
        assert not sending.done()
        gate.set()
        assert (await sending).is_ok


async def test_a_route_that_one_member_finds_is_news_to_the_others(broker: QueueBroker) -> None:
    route = broker.routes.pop("T")
    async with producer_of(broker, "p") as producer, consumer_of(broker, "c") as consumer:
        assert consumer.assigned_queues == []
        broker.routes["T"] = route
        await producer.send(Message("T", b"x"))
        await until(lambda: consumer.assigned_queues)


async def test_a_check_is_answered_by_the_producer_of_its_group(broker: QueueBroker) -> None:
    asked: list[str] = []

    def transactions(group: str) -> TransactionProducer:
        def check(message: MessageExt) -> TransactionState:
            asked.append(group)
            return TransactionState.COMMIT

        settings = ProducerSettings(instance_name="shop")
        return TransactionProducer(group, broker.address, check=check, settings=settings)

    async with transactions("a") as first, transactions("b"):
        await first.send(Message("T", b"x"))
        for group in ("b", "a", "gone"):
            properties = encode_properties({PropertyKey.PRODUCER_GROUP: group})
            fields = {"tranStateTableOffset": 0, "commitLogOffset": 0}
            request = RemotingCommand.request(
                RequestCode.CHECK_TRANSACTION_STATE,
                fields,
                body=record(0, b"x", properties=properties),
            )
            broker.connections[0].send(request.encode())
        await until(lambda: len(broker.seen[RequestCode.END_TRANSACTION]) == 2)
    assert asked == ["b", "a"]


class Named:
    """A member, as far as requests are handed to it."""

    def __init__(self, group: str, *, is_consumer: bool, waits: str = "") -> None:
        self.group = group
        self.is_consumer = is_consumer
        self.waits = waits

    def waits_for(self, correlation_id: str) -> bool:
        return correlation_id == self.waits


P, Q = Named("p", is_consumer=False, waits="1"), Named("q", is_consumer=False, waits="2")
C, D = Named("c", is_consumer=True), Named("d", is_consumer=True)


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "d"}, [D]),
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "x"}, []),
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, [C, D]),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "d"}, [D]),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "x"}, [C]),
        (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "d"}, [D]),
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"group": "c"}, [C]),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "c"}, [C]),
        (
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            {"properties": encode_properties({PropertyKey.CORRELATION_ID: "2"})},
            [Q],
        ),
        (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {}, [P]),
        (99, {}, [P]),
    ],
)
def test_a_request_goes_to_the_member_that_it_is_for(
    code: int, fields: dict[str, object], expected: list[Named]
) -> None:
    assert addressees(RemotingCommand.request(code, fields), [P, C, Q, D]) == expected


def test_what_no_member_can_do_goes_to_the_first_which_refuses_it() -> None:
    command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, {})
    assert addressees(command, [C, D]) == [C]
    assert addressees(command, []) == []


async def test_a_pull_consumer_shares_too(broker: QueueBroker) -> None:
    settings = PullConsumerSettings(instance_name="shop")
    async with (
        producer_of(broker, "p") as producer,
        PullConsumer("c", broker.address, settings=settings) as consumer,
    ):
        assert await consumer.queues("T") == await producer.queues("T")
        assert len(broker.connections) == 1
