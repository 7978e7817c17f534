"""What our broker for FastStream has beside what every broker of it has."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import IncorrectState, RejectMessage
from faststream.message import AckStatus
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256

import kerolox
from kerolox import (
    ConfigError,
    Message,
    MessageExt,
    MessageRejectedError,
    PushConsumerSettings,
    SimpleConsumerSettings,
    TransactionState,
)
from kerolox.integrations.faststream import (
    KeroloxBroker,
    KeroloxMessage,
    KeroloxResponse,
    KeroloxRouter,
    TestKeroloxBroker,
)
from kerolox.integrations.faststream.subscriber import HandlersLock
from kerolox.testing import LocalBroker
from tests.support.eventually import until

pytestmark = pytest.mark.xdist_group("faststream")


@pytest.fixture(scope="module")
def sql_server() -> Any:
    with LocalBroker(settings={"enablePropertyFilter": "true"}) as broker:
        yield broker


def make(server: LocalBroker, **options: Any) -> KeroloxBroker:
    return KeroloxBroker(server.name_server, create_topics=True, logger=None, **options)


@asynccontextmanager
async def running(broker: KeroloxBroker) -> AsyncIterator[KeroloxBroker]:
    async with broker:
        await broker.start()
        yield broker


def collect(broker: KeroloxBroker, topic: str, **options: Any) -> list[Any]:
    """What comes to a subscriber."""
    got: list[Any] = []

    @broker.subscriber(topic, **options)
    async def handle(message: Any) -> None:
        got.append(message)

    return got


# -- publishing -----------------------------------------------------------------------------------
async def test_tags_keys_headers_and_bodies_are_those_of_the_message(server: LocalBroker) -> None:
    broker, topic = make(server), server.create_topic()
    async with running(broker):
        sent = await broker.publish(
            {"id": 1}, topic, tags="new", keys=["a", "b"], headers={"region": "EU", "n": 5}
        )
        await broker.publish(None, topic)
    first, empty = server.messages(topic, count=2)
    assert sent.message_id == first.message_id
    assert (first.body, first.tags, first.keys) == (b'{"id":1}', "new", "a b")
    assert first.properties["region"] == "EU"
    assert first.properties["n"] == "5"
    assert first.properties["content-type"] == "application/json"
    assert empty.body == b"\0"  # RocketMQ has no empty body


async def test_messages_of_an_ordering_key_are_in_one_queue(server: LocalBroker) -> None:
    broker, topic = make(server), server.create_topic()
    async with running(broker):
        sent = [await broker.publish(n, topic, ordering_key="42") for n in range(6)]
        batches = await broker.publish_batch(1, 2, 3, topic=topic, ordering_key="42")
    assert len({each.queue for each in [*sent, *batches]}) == 1


async def test_a_delayed_message_comes_at_its_moment(own_kerolox_broker: LocalBroker) -> None:
    server = own_kerolox_broker
    broker, topic = make(server), server.create_topic()
    got = collect(broker, topic)
    async with running(broker):
        after = await broker.publish("after", topic, deliver_after=timedelta(minutes=90))
        at = datetime.now(UTC) + timedelta(hours=2)
        await broker.publish("at", topic, deliver_at=at)
        await broker.publish("level", topic, delay_level=4)
        await broker.publish("now", topic)
        assert after.recall_handle
        await until(lambda: got == ["now"], what="what is not delayed")
        server.advance(minutes=1)
        await until(lambda: got == ["now", "level"], what="the level")
        server.advance(minutes=90)
        await until(lambda: got == ["now", "level", "after"], what="what is for later")
        server.advance(minutes=30)
        await until(lambda: got[3:] == ["at"], what="what is for a moment")


async def test_a_handler_says_more_than_the_body_of_what_it_publishes(server: LocalBroker) -> None:
    broker, topic, results = make(server), server.create_topic(), server.create_topic()

    @broker.subscriber(topic)
    @broker.publisher(results, tags="default", headers={"of": "publisher"})
    async def handle(message: str) -> Any:
        return message if message == "plain" else KeroloxResponse(message, tags="own", keys="k")

    async with running(broker):
        await broker.publish("plain", topic)
        await broker.publish("more", topic)
        stored = await asyncio.to_thread(server.messages, results, count=2)
    assert {m.body: (m.tags, m.keys, m.properties["of"]) for m in stored} == {
        b"plain": ("default", "", "publisher"),
        b"more": ("own", "k", "publisher"),
    }


async def test_a_batch_is_published_and_handled_as_a_list(server: LocalBroker) -> None:
    broker, topic, results = make(server), server.create_topic(queues=1), server.create_topic()
    got: list[list[int]] = []

    @broker.subscriber(topic, batch=True, max_records=4)
    @broker.publisher(results, batch=True)
    async def handle(messages: list[int]) -> list[int]:
        got.append(messages)
        return messages

    async with running(broker):
        await broker.publish_batch(*range(10), topic=topic)
        await until(lambda: sum(map(len, got)) == 10, what="the messages")
        stored = await asyncio.to_thread(server.messages, results, count=10)
    assert [number for batch in got for number in batch] == list(range(10))
    assert max(map(len, got)) <= 4
    assert len(got) < 10
    assert sorted(int(message.body) for message in stored) == list(range(10))


async def test_a_command_of_an_unconnected_broker_is_refused() -> None:
    with pytest.raises(IncorrectState, match="not connected"):
        await KeroloxBroker("127.0.0.1:1").publish("x", "Orders")


# -- what becomes of messages ---------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["push", "queue"])
async def test_a_message_whose_handler_raises_comes_again_and_then_is_done(
    server: LocalBroker, mode: str
) -> None:
    broker, topic = make(server), server.create_topic()
    tries: list[int] = []
    settings = PushConsumerSettings() if mode == "push" else SimpleConsumerSettings()

    async def handle(body: str, message: KeroloxMessage) -> None:
        tries.append(message.raw_message.reconsume_times)
        if len(tries) == 1:
            raise ValueError("once")

    broker.subscriber(topic, mode=mode, group=f"g-{topic}", settings=settings)(handle)
    async with running(broker):
        await broker.publish("x", topic)
        await until(lambda: tries, what="the message")

        def is_again() -> bool:
            server.advance(seconds=15)
            return len(tries) == 2

        await until(is_again, what="the message again")
        server.advance(minutes=2)
    assert tries == [0, 1]


@pytest.mark.parametrize("mode", ["push", "ordered", "queue"])
async def test_a_handler_settles_by_hand_with_a_delay(server: LocalBroker, mode: str) -> None:
    broker, topic = make(server), server.create_topic(queues=1)
    got: list[str] = []

    @broker.subscriber(topic, mode=mode, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: KeroloxMessage) -> None:
        got.append(body)
        await (message.nack(delay=1) if len(got) == 1 else message.ack())

    async with running(broker):
        await broker.publish("a", topic)
        await until(lambda: got, what="the message")
        server.advance(seconds=2)
        await until(lambda: got == ["a", "a"], what="the message again")


@pytest.mark.parametrize("mode", ["push", "ordered", "queue"])
async def test_a_rejected_message_is_a_dead_letter(server: LocalBroker, mode: str) -> None:
    broker, topic, group = make(server), server.create_topic(), f"g-{server.create_topic()}"

    @broker.subscriber(topic, mode=mode, group=group, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, message: KeroloxMessage) -> None:
        if body == "raises":
            raise ValueError(body)
        await message.reject("no such order")

    async with running(broker):
        await broker.publish("raises", topic)
        await broker.publish("says so", topic)
        letters = await asyncio.to_thread(server.messages, f"%DLQ%{group}", count=2)
    reasons = {m.body: m.properties.get("DEAD_LETTER_REASON") for m in letters}
    assert reasons == {b"raises": None, b"says so": "no such order"}


@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.MANUAL])
async def test_what_is_acknowledged_does_not_come_again_however_long_its_handler_takes(
    server: LocalBroker, policy: AckPolicy
) -> None:
    broker, topic = make(server), server.create_topic()
    got: list[str] = []

    @broker.subscriber(topic, mode="queue", ack_policy=policy)
    async def handle(body: str, message: KeroloxMessage) -> None:
        got.append(body)
        await message.ack()
        server.advance(minutes=5)
        raise ValueError(body)

    async with running(broker):
        await broker.publish("a", topic)
        await until(lambda: got, what="the message")
        await broker.publish("b", topic)
        await until(lambda: len(got) == 2, what="the next one")
    assert got == ["a", "b"]


@pytest.mark.parametrize("mode", ["push", "queue"])
async def test_what_a_stopped_subscriber_had_not_done_comes_to_the_next(
    server: LocalBroker, mode: str
) -> None:
    topic, group = server.create_topic(), f"g-{server.create_topic()}"
    first, second = make(server, graceful_timeout=0.1), make(server)
    begun = asyncio.Event()

    @first.subscriber(topic, mode=mode, group=group)
    async def hang(body: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    got = collect(second, topic, mode=mode, group=group)
    async with running(first):
        await first.publish("a", topic)
        await begun.wait()
    async with running(second):
        for _ in range(2):
            server.advance(minutes=1)
        await until(lambda: got == ["a"], what="the message")


# -- reading --------------------------------------------------------------------------------------
async def test_workers_handle_messages_side_by_side(server: LocalBroker) -> None:
    broker, topic = make(server), server.create_topic()
    meeting = asyncio.Barrier(5)

    @broker.subscriber(topic, max_workers=5)
    async def handle(body: int) -> None:
        await meeting.wait()

    async with running(broker), asyncio.timeout(5):
        await broker.publish_batch(*range(4), topic=topic)
        await meeting.wait()


async def test_a_queue_is_handled_in_order_by_any_number_of_workers(server: LocalBroker) -> None:
    broker, topic = make(server), server.create_topic(queues=2)
    got: dict[int, list[int]] = {0: [], 1: []}

    @broker.subscriber(topic, mode="ordered", max_workers=4)
    async def handle(body: int) -> None:
        await asyncio.sleep(0)
        got[body % 2].append(body)

    async with running(broker):
        for number in range(40):
            await broker.publish(number, topic, ordering_key=number % 2)
        await until(lambda: sum(map(len, got.values())) == 40, what="the messages")
    assert got == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}


async def test_only_messages_of_the_expression_come(sql_server: LocalBroker) -> None:
    broker, topic = make(sql_server), sql_server.create_topic()
    tagged = collect(broker, topic, group="tagged", expression="new || changed")
    dear = collect(broker, topic, group="dear", expression="price > 10")
    popped = collect(broker, topic, group="popped", expression="new", mode="queue")
    async with running(broker):
        await broker.publish("a", topic, tags="new", headers={"price": 5})
        await broker.publish("b", topic, tags="old", headers={"price": 50})
        await until(lambda: (tagged, dear, popped) == (["a"], ["b"], ["a"]), what="the messages")


async def test_a_subscriber_reads_several_topics(server: LocalBroker) -> None:
    broker, one, two = make(server), server.create_topic(), server.create_topic()
    got: list[str] = []

    @broker.subscriber(one, two, group="several")
    async def handle(body: str) -> None:
        got.append(body)

    async with running(broker):
        await broker.publish("one", one)
        await broker.publish("two", two)
        await until(lambda: sorted(got) == ["one", "two"], what="both")


async def test_an_unknown_topic_is_named_in_the_log(
    server: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = KeroloxBroker(server.name_server, logger=logging.getLogger("faststream-test"))
    collect(broker, "nowhere")
    async with running(broker):
        pass
    assert "no name server knows nowhere" in caplog.text


# -- requests, transactions -----------------------------------------------------------------------
async def test_requests_and_replies_work_with_any_client(server: LocalBroker) -> None:
    broker, topic, plain = make(server), server.create_topic(), server.create_topic()

    @broker.subscriber(topic)
    async def double(number: int) -> int:
        return 2 * number

    async def answer(messages: list[MessageExt]) -> None:
        await producer.send(kerolox.create_reply(messages[0], b"ours"))

    consumer = kerolox.PushConsumer("answers", server.name_server)
    consumer.subscribe(plain, "*", answer)
    async with (
        kerolox.Producer("asks", server.name_server) as producer,
        consumer,
        running(broker),
    ):
        reply = await producer.request(Message(topic, b"21"), timeout_ms=5_000)
        assert reply.body == b"42"
        answered = await broker.request("who?", plain, timeout=5)
        assert await answered.decode() == b"ours"


async def test_a_message_of_a_transaction_is_seen_when_its_block_succeeds(
    own_kerolox_broker: LocalBroker,
) -> None:
    server, topic = own_kerolox_broker, own_kerolox_broker.create_topic()
    asked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    broker = make(server, transaction_check=check)
    got = collect(broker, topic)
    async with running(broker):
        async with broker.transaction("good", topic, keys="1") as transaction:
            assert transaction.transaction_id
        with pytest.raises(ValueError, match="no"):
            async with broker.transaction("bad", topic):
                raise ValueError("no")
        async with broker.transaction("checked", topic) as transaction:
            transaction.leave_open()
        await until(lambda: got == ["good"], what="the committed one")
        await asyncio.to_thread(server.advance, minutes=2)
        await until(lambda: got == ["good", "checked"], what="the checked one")
    assert asked == [b"checked"]


async def test_a_broker_without_check_has_no_transactions(server: LocalBroker) -> None:
    async with running(make(server)) as broker:
        with pytest.raises(ConfigError, match="transaction_check"):
            async with broker.transaction("x", "Orders"):
                pass


# -- in memory ------------------------------------------------------------------------------------
async def test_in_memory_groups_expressions_and_transactions_count() -> None:
    broker = KeroloxBroker("127.0.0.1:1", transaction_check=lambda message: TransactionState.COMMIT)
    one = collect(broker, "Orders", group="a")
    other = collect(broker, "Orders", group="a")
    tagged = collect(broker, "Orders", group="b", expression="new")
    dear = collect(broker, "Orders", group="c", expression="price > 10")
    async with TestKeroloxBroker(broker):
        await broker.publish("x", "Orders", tags="new", headers={"price": "20"})
        await broker.publish("y", "Orders", deliver_after=3600)
        async with broker.transaction("z", "Orders") as transaction:
            assert len(one + other) == 2
            assert transaction.transaction_id
        async with broker.transaction("never", "Orders") as transaction:
            transaction.rollback()
    assert sorted(one + other) == ["x", "y", "z"]
    assert (tagged, dear) == (["x"], ["x"])


async def test_in_memory_what_a_real_producer_refuses_is_refused() -> None:
    broker = KeroloxBroker("127.0.0.1:1")
    async with TestKeroloxBroker(broker):
        with pytest.raises(MessageRejectedError, match="reserved"):
            await broker.publish("x", "Orders", headers={"UNIQ_KEY": "1"})


# -- wrong use ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"mode": "fast"}, "push, ordered or queue"),
        ({"mode": "queue", "settings": PushConsumerSettings()}, "SimpleConsumerSettings"),
        ({"settings": SimpleConsumerSettings()}, "PushConsumerSettings"),
        ({"mode": "ordered", "batch": True}, "leave batch out"),
        ({"max_workers": 0}, "max_workers is 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        KeroloxBroker("127.0.0.1:1").subscriber("Orders", **options)


async def test_what_can_not_be_sent_so_is_refused(server: LocalBroker) -> None:
    broker = make(server, transaction_check=lambda message: TransactionState.COMMIT)
    batch = broker.publisher("Orders", batch=True)
    async with running(broker):
        with pytest.raises(ConfigError, match="a batch can't be delayed"):
            await batch.publish("a", "b", deliver_after=5)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="a request can't be delayed"):
            await broker.request("a", "Orders", delay_level=3)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="a message of a transaction can't be delayed"):
            async with broker.transaction("a", "Orders", deliver_after=5):  # type: ignore[call-arg]
                pass


def test_an_unknown_option_is_refused_as_by_a_function() -> None:
    broker = KeroloxBroker("127.0.0.1:1")
    for call in (
        lambda **more: broker.subscriber("Orders", **more),
        lambda **more: broker.publisher("Orders", **more),
        lambda **more: KeroloxBroker("127.0.0.1:1", **more),
        lambda **more: KeroloxResponse("x", **more),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument 'topik'"):
            call(topik="billing")


def test_a_router_of_another_broker_is_refused() -> None:
    with pytest.raises(TypeError, match="KeroloxRouter"):
        KeroloxRouter().include_router(object())  # type: ignore[arg-type]


def test_security_becomes_accounts_and_tls() -> None:
    broker = KeroloxBroker(
        "127.0.0.1:1", security=SASLPlaintext("someone", "secret-1", use_ssl=True)
    )
    assert broker._settings.credentials == kerolox.Credentials("someone", "secret-1")
    assert broker._settings.tls is True
    assert KeroloxBroker("127.0.0.1:1", security=BaseSecurity())._settings.tls is False
    with pytest.raises(ConfigError, match="SASLPlaintext"):
        KeroloxBroker("127.0.0.1:1", security=SASLScram256("a", "b"))


# -- settling and decoding by ourselves -----------------------------------------------------------
async def test_each_message_is_settled_by_its_own_policy_though_handlers_nest() -> None:
    broker = KeroloxBroker("127.0.0.1:9", logger=None)
    got: dict[str, KeroloxMessage] = {}

    @broker.subscriber("outer")
    async def outer(body: str, message: KeroloxMessage) -> None:
        got["outer"] = message
        await broker.publish(body, "inner")

    @broker.subscriber("inner", ack_policy=AckPolicy.MANUAL)
    async def inner(message: KeroloxMessage) -> None:
        got["inner"] = message

    async with TestKeroloxBroker(broker):
        await broker.publish("a", "outer")
    assert got["inner"].committed is None
    assert got["outer"].committed is AckStatus.ACKED


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (AckPolicy.NACK_ON_ERROR, AckStatus.NACKED),
        (AckPolicy.REJECT_ON_ERROR, AckStatus.REJECTED),
        (AckPolicy.ACK, AckStatus.ACKED),
        (AckPolicy.MANUAL, None),
    ],
)
async def test_a_handler_that_raises_has_its_message_settled_by_the_policy(
    policy: AckPolicy, status: AckStatus | None
) -> None:
    broker, got = KeroloxBroker("127.0.0.1:9", logger=None), []

    @broker.subscriber("raises", ack_policy=policy)
    async def raises(message: KeroloxMessage) -> None:
        got.append(message)
        raise ValueError("no such order")

    @broker.subscriber("wishes", ack_policy=policy)
    async def wishes(message: KeroloxMessage) -> None:
        got.append(message)
        raise RejectMessage

    async with TestKeroloxBroker(broker):
        with pytest.raises(ValueError, match="no such order"):
            await broker.publish("a", "raises")
        assert [message.committed for message in got] == [status]
        if policy is not AckPolicy.MANUAL:
            await broker.publish("a", "wishes")
            assert got[1].committed is AckStatus.REJECTED


@pytest.mark.parametrize("batch", [False, True])
async def test_json_is_read_as_python_reads_it(batch: bool) -> None:
    texts = {b"NaN": "nan", b"[1e999, -0.0, 1.0]": "[inf, -0.0, 1.0]", b'"\\ud800"': "'\\ud800'"}
    texts[b'{"a": 1, "a": 12345678901234567890123}'] = "{'a': 12345678901234567890123}"
    broker, got = KeroloxBroker("127.0.0.1:9", logger=None), []

    @broker.subscriber("T", batch=batch)
    async def handle(message: KeroloxMessage) -> None:
        got.append(await message.decode())

    async with TestKeroloxBroker(broker):
        for text in texts:
            await broker.publish(text, "T", headers={"content-type": "application/json"})
        with pytest.raises(json.JSONDecodeError, match="Expecting value"):
            await broker.publish(b"[1,]", "T", headers={"content-type": "application/json"})
    assert [repr(each[0] if batch else each) for each in got] == list(texts.values())


async def test_a_stop_waits_until_the_message_is_settled() -> None:
    broker, order = KeroloxBroker("127.0.0.1:9", logger=None), []
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    @broker.subscriber("T")
    async def handle(message: KeroloxMessage) -> None:
        raise ValueError("no such order")

    class Slow(KeroloxMessage):
        async def nack(self, delay: Any = None) -> None:
            begun.set()
            await may_go_on.wait()
            await super().nack(delay)
            order.append("settled")

    async with TestKeroloxBroker(broker):
        [subscriber] = broker.subscribers
        subscriber.lock = HandlersLock()
        [call] = subscriber.calls

        async def slow_parse(raw: MessageExt) -> KeroloxMessage:
            return Slow(raw, raw.body)

        call.parser = slow_parse
        raw = MessageExt(
            topic="T", body=b"a", queue_id=0, queue_offset=0, commit_log_offset=0, properties={}
        )
        task = asyncio.create_task(subscriber.consume(raw))
        await begun.wait()
        stop = asyncio.create_task(subscriber.stop())
        stop.add_done_callback(lambda _: order.append("stopped"))
        await asyncio.sleep(0)
        may_go_on.set()
        await stop
        await task
    assert order == ["settled", "stopped"]
