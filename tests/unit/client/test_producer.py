"""The producer against brokers that fail in chosen ways."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.client import Producer, ProducerSettings, SendStatus
from kerolox.errors import (
    BrokerBusyError,
    ClientClosedError,
    ConnectError,
    MessageRejectedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    TopicRouteNotFoundError,
)
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2
CLOSED_PORT = "127.0.0.1:1"


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Brokers a and b with topic T; a is the name server too."""
    async with FakeBroker() as a, FakeBroker() as b:
        a.routes["T"] = route_body({"a": a.address, "b": b.address})
        yield a, b


def producer(name_server: str, **settings: Any) -> Producer:
    return Producer("group", name_server, settings=ProducerSettings(**settings))


def fails_with(code: int) -> Any:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        return command.response(code, "told to")

    return answer


class Clock:
    """The loop's, which a test turns forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        begin, self._turned = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: begin() + self._turned)

    def turn(self, seconds: float) -> None:
        self._turned += seconds


@pytest_asyncio.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def turns() -> None:
    """Some of the loop, in which whatever is due is done."""
    for _ in range(20):
        await asyncio.sleep(0)


def asked(brokers: tuple[FakeBroker, ...]) -> int:
    """Sends that they have seen."""
    return sum(len(broker.seen[SEND]) for broker in brokers)


async def never(command: RemotingCommand) -> None:
    await asyncio.Event().wait()


async def test_a_refused_message_goes_to_the_other_broker(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    a, b = pair
    a.answers[SEND] = fails_with(14)
    async with producer(a.address) as made:
        results = [await made.send(Message("T", b"x")) for _ in range(10)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert len(b.seen[SEND]) == 10
    assert a.seen[SEND]
    tried = {command.ext_fields["i"] for command in a.seen[SEND]}
    assert tried <= {command.ext_fields["i"] for command in b.seen[SEND]}


async def test_after_three_tries_the_last_error_is_raised_and_tells_of_all(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    for broker in pair:
        broker.answers[SEND] = fails_with(14)
    async with producer(pair[0].address) as made:
        with pytest.raises(ServiceNotAvailableError, match="told to") as caught:
            await made.send(Message("T", b"x"))
    assert sum(len(broker.seen[SEND]) for broker in pair) == 3
    assert "tried 3 times" in caught.value.__notes__[0]


async def test_a_busy_broker_is_no_reason_to_try_another(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    for broker in pair:
        broker.answers[SEND] = fails_with(2)
    async with producer(pair[0].address) as made:
        with pytest.raises(BrokerBusyError):
            await made.send(Message("T", b"x"))
    assert sum(len(broker.seen[SEND]) for broker in pair) == 1


async def test_a_broker_that_is_down_is_avoided(pair: tuple[FakeBroker, FakeBroker]) -> None:
    a, _ = pair
    a.routes["T"] = route_body({"a": a.address, "down": CLOSED_PORT})
    async with producer(a.address) as made:
        results = [await made.send(Message("T", b"x")) for _ in range(8)]
    assert {result.queue.broker_name for result in results} == {"a"}


async def test_a_broker_without_master_in_an_ordered_route_is_tried_and_avoided(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    a, _ = pair
    a.routes["T"] = route_body({"a": a.address})[:-1] + b',"orderTopicConf":"a:1;gone:1"}'
    async with producer(a.address) as made:
        results = [await made.send(Message("T", b"x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"a"}


async def test_all_tries_share_one_time_limit(
    pair: tuple[FakeBroker, FakeBroker], clock: Clock
) -> None:
    async with producer(pair[0].address) as made:
        for name, broker in zip("ab", pair, strict=True):
            # Over connections that are there already.
            await made.send(Message("T", b"x"), queue=MessageQueue("T", name, 0))
            broker.answers[SEND] = never
        sending = asyncio.ensure_future(made.send(Message("T", b"x"), timeout_ms=600_000))
        await until(lambda: asked(pair) == 2 + 1)
        clock.turn(300)
        await turns()
        assert not sending.done()
        clock.turn(300)
        with pytest.raises(RequestTimeoutError):
            await sending
    # The first took all of it: nothing is left for another one.
    assert asked(pair) == 2 + 1


async def test_a_request_ends_when_its_time_is_over_and_not_before(
    pair: tuple[FakeBroker, FakeBroker], clock: Clock
) -> None:
    async with producer(pair[0].address) as made:
        asking = asyncio.ensure_future(made.request(Message("T", b"x"), timeout_ms=600_000))
        await until(lambda: asked(pair))
        await turns()
        clock.turn(300)
        await turns()
        assert not asking.done()
        clock.turn(300)
        with pytest.raises(RequestTimeoutError, match="to topic T within 600000 ms"):
            await asking
        assert not made._requests


async def test_a_given_queue_is_tried_once(pair: tuple[FakeBroker, FakeBroker]) -> None:
    a, b = pair
    a.answers[SEND] = fails_with(14)
    async with producer(a.address) as made:
        with pytest.raises(ServiceNotAvailableError):
            await made.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
        with pytest.raises(ServiceNotAvailableError):
            await made.send(Message("T", b"x"), selector=lambda queues, _: queues[0])
    assert (len(a.seen[SEND]), len(b.seen[SEND])) == (2, 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_a_status_that_is_not_ok_is_returned_unless_a_retry_is_wanted(
    pair: tuple[FakeBroker, FakeBroker], code: int, status: SendStatus
) -> None:
    for broker in pair:

        async def late(command: RemotingCommand, broker: FakeBroker = broker) -> RemotingCommand:
            return broker.stored(command, code=code)

        broker.answers[SEND] = late
    async with producer(pair[0].address) as made:
        result = await made.send(Message("T", b"x"))
        assert result.status is status
    assert sum(len(broker.seen[SEND]) for broker in pair) == 1
    async with producer(pair[0].address, retry_when_not_stored_ok=True) as made:
        result = await made.send(Message("T", b"x"))
        assert result.status is status
    assert sum(len(broker.seen[SEND]) for broker in pair) == 4


async def test_a_new_topic_takes_the_queues_of_the_template(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    a, b = pair
    a.routes["TBW102"] = route_body({"b": b.address}, queues=8, perm=7)
    async with producer(a.address, default_topic_queue_nums=3) as made:
        results = [await made.send(Message("New", b"x")) for _ in range(6)]
    assert {result.queue for result in results} == {MessageQueue("New", "b", i) for i in range(3)}
    fields = b.seen[SEND][0].ext_fields
    assert (fields["b"], fields["c"], fields["d"]) == ("New", "TBW102", "3")


async def test_without_any_route_nothing_is_sent(pair: tuple[FakeBroker, FakeBroker]) -> None:
    async with producer(pair[0].address) as made:
        with pytest.raises(TopicRouteNotFoundError, match="New"):
            await made.send(Message("New", b"x"))
        pair[0].routes["ReadOnly"] = route_body({"a": pair[0].address}, perm=4)
        with pytest.raises(TopicRouteNotFoundError, match="ReadOnly"):
            await made.send(Message("ReadOnly", b"x"))


async def test_sends_at_the_same_time_share_one_route_request(
    pair: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.ROUTE_POLL_FIRST_MS", 60_000)
    async with producer(pair[0].address) as made:
        await asyncio.gather(*(made.send(Message("T", b"x")) for _ in range(50)))
    asked = pair[0].seen[RequestCode.GET_ROUTEINFO_BY_TOPIC]
    assert len([command for command in asked if command.ext_fields["topic"] == "T"]) == 1


async def test_name_servers_are_asked_in_turn_until_one_answers(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    addresses = f"{CLOSED_PORT};{pair[0].address};127.0.0.1:2"
    for _ in range(5):  # the first one to be asked is random
        async with producer(addresses) as made:
            await made.send(Message("T", b"x"))
    async with producer(f"{CLOSED_PORT};127.0.0.1:2") as made:
        with pytest.raises(ConnectError, match="no name server answers"):
            await made.send(Message("T", b"x"))


async def test_requests_at_the_same_time_make_each_other_skip_no_name_server(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    addresses = f"{CLOSED_PORT};127.0.0.1:2;127.0.0.1:3;{pair[0].address}"
    for _ in range(4):
        async with producer(addresses) as made:
            cluster = made._open_cluster()
            routes = await asyncio.gather(*(cluster.fetch_route("T") for _ in range(20)))
            assert all(routes)


async def test_a_changed_route_is_followed(pair: tuple[FakeBroker, FakeBroker]) -> None:
    a, b = pair
    a.routes["T"] = route_body({"a": a.address})
    async with producer(a.address, route_poll_interval_ms=10) as made:
        await made.send(Message("T", b"x"))
        a.routes["T"] = route_body({"b": b.address})

        async def goes_to_b() -> bool:
            return (await made.send(Message("T", b"x"))).queue.broker_name == "b"

        await until(goes_to_b)


async def test_large_bodies_are_compressed_and_batches_are_not(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    a, b = pair
    body = b"x" * 5000
    async with producer(a.address) as made:
        await made.send(Message("T", body))
        await made.send(Message("T", body[:4095]))
        await made.send(Message("T", bytes(300_000)))
        await made.send_batch([Message("T", body), Message("T", body)])
    sent = {len(c.body): c for broker in pair for c in broker.seen[SEND]}
    plain = sent.pop(4095)
    assert plain.ext_fields["f"] == "0"
    assert sorted(len(zlib.decompress(c.body)) for c in sent.values()) == [5000, 300_000]
    assert {c.ext_fields["f"] for c in sent.values()} == {"769"}
    [batch] = a.seen[RequestCode.SEND_BATCH_MESSAGE] + b.seen[RequestCode.SEND_BATCH_MESSAGE]
    assert (batch.ext_fields["f"], batch.ext_fields["m"]) == ("0", "true")
    assert len(batch.body) > 10_000


async def test_a_oneway_message_asks_for_no_answer(pair: tuple[FakeBroker, FakeBroker]) -> None:
    a, b = pair
    async with producer(a.address) as made:
        await made.send_oneway(Message("T", b"x"))
        await until(lambda: a.seen[SEND] + b.seen[SEND])
    [command] = a.seen[SEND] + b.seen[SEND]
    assert command.is_oneway


@pytest.mark.parametrize(
    "message",
    [Message("a b", b"x"), Message("T", b""), Message("SCHEDULE_TOPIC_XXXX", b"x")],
    ids=["topic", "empty body", "system topic"],
)
async def test_an_illegal_message_is_refused_before_anything_is_asked(message: Message) -> None:
    async with producer(CLOSED_PORT) as made:
        with pytest.raises(MessageRejectedError):
            await made.send(message)
        with pytest.raises(MessageRejectedError):
            await made.send_oneway(message)
        with pytest.raises(MessageRejectedError):
            await made.send_batch([message])


async def test_a_batch_over_the_limit_is_refused() -> None:
    async with producer(CLOSED_PORT, message_bytes_max=1000) as made:
        with pytest.raises(MessageRejectedError, match="send_batches cuts it"):
            await made.send_batch([Message("T", bytes(600)), Message("T", bytes(600))])


async def test_a_producer_is_used_between_start_and_close(
    pair: tuple[FakeBroker, FakeBroker],
) -> None:
    made = producer(pair[0].address)
    with pytest.raises(ClientClosedError, match="start"):
        await made.send(Message("T", b"x"))
    await made.start()
    await made.start()
    await made.send(Message("T", b"x"))
    await made.close()
    await made.close()
    with pytest.raises(ClientClosedError):
        await made.send(Message("T", b"x"))
    with pytest.raises(ClientClosedError):
        await made.start()
    unregistered = [c for broker in pair for c in broker.seen[RequestCode.UNREGISTER_CLIENT]]
    assert {c.ext_fields["producerGroup"] for c in unregistered} == {"group"}
    assert {c.ext_fields["clientID"] for c in unregistered} == {made.client_id}


async def test_heartbeats_name_the_group(
    pair: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", 3_600_000)
    async with producer(pair[0].address) as made:
        await made.send(Message("T", b"x"))
        await made._heartbeat()
    for broker in pair:
        [heartbeat] = broker.seen[RequestCode.HEART_BEAT]
        assert b'"producerDataSet":[{"groupName":"group"}]' in heartbeat.body
