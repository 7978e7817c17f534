"""One client for a process: what is made from a connection shares it, and ends with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import kerolox
from kerolox.client import (
    ClientSettings,
    Connection,
    Credentials,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    TransactionState,
    connect,
    sync,
)
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from kerolox.message import Message, MessageExt
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from tests.support.eventually import SECONDS_MAX, until
from tests.unit.client.test_push_consumer import QueueBroker

BEAT, LEAVE = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT
FIRST = PushConsumerSettings(consume_from_where="CONSUME_FROM_FIRST_OFFSET")


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


def consumer_of(
    connection: Connection, broker: QueueBroker, got: list[MessageExt], **settings: int
) -> PushConsumer:
    consumer = connection.push_consumer("c", settings=FIRST.changed(**settings))

    async def listen(messages: list[MessageExt]) -> None:
        got.extend(messages)

    consumer.subscribe("T", "*", listen)
    broker.members = [connection.client_id]
    return consumer


async def test_all_that_a_connection_makes_shares_it(broker: QueueBroker) -> None:
    got: list[MessageExt] = []
    broker.count = 3
    async with kerolox.connect(broker.address) as connection:
        producer, consumer = connection.producer("p"), consumer_of(connection, broker, got)
        puller = connection.pull_consumer("r")
        async with producer, consumer, puller:
            await producer.send(Message("T", b"x"))
            assert await puller.queues("T") == await connection.queues("T")
            await until(lambda: len(got) == 3)
            assert len(broker.connections) == 1
            assert {each.client_id for each in (producer, consumer, puller)} == {
                connection.client_id
            }
            await connection._instance.send_heartbeat()
            body = loads(broker.seen[BEAT][-1].body)
            assert [each["groupName"] for each in body["producerDataSet"]] == ["p"]
            assert [each["groupName"] for each in body["consumerDataSet"]] == ["c", "r"]
    await until(lambda: not broker.server.connections)


async def test_a_connection_that_closes_ends_consumers_then_producers(broker: QueueBroker) -> None:
    connection = await connect(broker.address)
    sent: list[bool] = []
    running = asyncio.Event()
    producer = connection.producer("p")
    await producer.start()
    consumer = connection.push_consumer("c", settings=FIRST)
    broker.members = [connection.client_id]

    async def listen(messages: list[MessageExt]) -> None:
        running.set()
        await until(lambda: connection._closed)
        sent.append((await producer.send(Message("T", b"from a listener that ends"))).is_ok)

    consumer.subscribe("T", "*", listen)
    broker.count = 1
    await consumer.start()
    await running.wait()
    await connection.close()
    assert sent == [True]
    assert broker.committed["T", 0] == 1
    left = [each.ext_fields for each in broker.seen[LEAVE]]
    assert [("consumerGroup" in each, "producerGroup" in each) for each in left] == [
        (True, False),
        (False, True),
    ]
    for each in (producer, consumer, connection):
        with pytest.raises(ClientClosedError):
            await each.start()
    await until(lambda: not broker.server.connections)


async def test_a_member_that_closes_keeps_the_rest_and_may_be_replaced(broker: QueueBroker) -> None:
    async with connect(broker.address) as connection:
        async with connection.producer("p") as producer:
            with pytest.raises(ClientError, match="producer of group 'p' already"):
                await connection.producer("p").start()
            await producer.send(Message("T", b"x"))
        assert [each.ext_fields.get("producerGroup") for each in broker.seen[LEAVE]] == ["p"]
        async with connection.producer("p") as again:
            await again.send(Message("T", b"x"))
        assert len(broker.connections) == 1


async def test_what_starts_first_starts_the_connection(broker: QueueBroker) -> None:
    connection = connect(broker.address)
    first, second = connection.producer("p"), connection.producer("q")
    await asyncio.gather(first.start(), second.start())
    assert (await first.send(Message("T", b"x"))).is_ok
    await connection.close()
    with pytest.raises(ClientClosedError):
        await second.send(Message("T", b"x"))
    with pytest.raises(ClientClosedError, match="Connection is closed; make a new one"):
        await connection.producer("r").start()


async def test_a_listener_may_close_the_connection_of_its_consumer(broker: QueueBroker) -> None:
    closed = asyncio.Event()
    connection = await connect(broker.address)
    # A close that waited for the listener would need an hour.
    settings = FIRST.changed(close_timeout_ms=3_600_000)
    consumer = connection.push_consumer("c", settings=settings)
    broker.members = [connection.client_id]

    async def listen(messages: list[MessageExt]) -> None:
        await connection.close()
        closed.set()

    consumer.subscribe("T", "*", listen)
    broker.count = 1
    await consumer.start()
    async with asyncio.timeout(SECONDS_MAX):
        await closed.wait()


async def test_a_connection_to_a_frozen_broker_closes_in_its_time(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect(broker.address)
    producer = connection.producer("p")
    consumer = consumer_of(connection, broker, [], close_timeout_ms=0)
    await producer.start()
    await consumer.start()
    await producer.send(Message("T", b"x"))
    for module in ("client.aio.life", "client.aio.connection", "client.core.life"):
        monkeypatch.setattr(f"kerolox.{module}.CLOSE_SECONDS_MAX", 0.3)
    monkeypatch.setattr("kerolox.client.core.life.UNREGISTER_SECONDS", 0.1)
    monkeypatch.setattr("kerolox.client.aio.connection.SENDS_SECONDS_MAX", 0.2)

    async def never(command: RemotingCommand) -> None:
        await asyncio.Event().wait()

    for code in (RequestCode.SEND_MESSAGE_V2, LEAVE, RequestCode.UPDATE_CONSUMER_OFFSET):
        broker.answers[code] = never
    sending = asyncio.ensure_future(producer.send(Message("T", b"y"), timeout_ms=3_600_000))
    await until(lambda: len(broker.seen[RequestCode.SEND_MESSAGE_V2]) == 2)
    async with asyncio.timeout(SECONDS_MAX):
        await connection.close()
        with pytest.raises(ClientClosedError):
            await sending
    await until(lambda: not broker.server.connections)


def test_members_take_the_settings_of_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Credentials("access", "secret")
    settings = ClientSettings(
        namespace="ns", api_timeout_ms=1_234, unit_name="u", credentials=keys, tls=True
    )
    connection = connect("127.0.0.1:1", settings=settings)
    producer = connection.producer("p", settings=ProducerSettings(retries=5))
    assert producer.settings.retries == 5
    assert producer.settings.api_timeout_ms == 1_234
    assert (producer.settings.credentials, producer.settings.tls) == (keys, True)
    assert producer.group == "ns%p"
    assert producer.client_id == connection.client_id
    assert connection.client_id.endswith("@u")
    own = connection.pull_consumer("c", settings=None)
    assert own.group == "ns%c"
    with pytest.raises(ConfigError, match="api_timeout_ms is a setting of the connection"):
        connection.producer("p", settings=ProducerSettings(api_timeout_ms=1))
    other = connection.producer("p", settings=ProducerSettings(namespace="mine"))
    assert other.group == "mine%p"


async def test_a_broadcasting_member_keeps_the_folder_of_its_offsets(broker: QueueBroker) -> None:
    connection = connect(broker.address)
    settings = PushConsumerSettings(message_model="BROADCASTING", client_ip="")
    consumer = connection.push_consumer("c", settings=settings)
    assert consumer._own.client_id.endswith("@DEFAULT")
    assert consumer.client_id == connection.client_id


async def test_blocking_clients_of_a_connection_share_its_loop(broker: QueueBroker) -> None:
    broker.count = 2
    threads: set[str] = set()
    got = threading.Semaphore(0)

    def listen(messages: list[MessageExt]) -> None:
        threads.add(threading.current_thread().name)
        got.release()

    def run() -> None:
        with sync.connect(broker.address) as connection:
            consumer = connection.push_consumer("c", settings=FIRST)
            broker.members = [consumer.client_id]
            consumer.subscribe("T", "*", listen)
            producer = connection.producer("p")
            with producer, consumer:
                assert producer.send(Message("T", b"x")).is_ok
                for _ in range(2):
                    assert got.acquire(timeout=SECONDS_MAX)
                loops = [t for t in threading.enumerate() if t.name.endswith("-loop")]
                assert [t.name for t in loops] == ["Connection-loop"]
                assert len(broker.connections) == 1
            with connection.transaction_producer("t", check=lambda m: TransactionState.COMMIT) as t:
                executed = t.send_in_transaction(
                    Message("T", b"x"), lambda m: TransactionState.COMMIT
                )
                assert executed.state is TransactionState.COMMIT
            left = connection.producer("p")
            left.start()
            thread = connection._portal._thread
        assert thread is not None
        assert not thread.is_alive()
        with pytest.raises(ClientClosedError):
            left.send(Message("T", b"x"))
        left.close()
        with pytest.raises(ClientClosedError):
            connection.producer("q").start()

    await asyncio.to_thread(run)
    assert threads
    assert all(name.startswith("PushConsumer-listener") for name in threads)


async def test_a_listener_in_a_thread_may_close_the_connection_of_its_consumer(
    broker: QueueBroker,
) -> None:
    closed = threading.Event()

    def run() -> None:
        connection = sync.connect(broker.address)
        settings = FIRST.changed(close_timeout_ms=3_600_000)
        consumer = connection.push_consumer("c", settings=settings)
        broker.members = [consumer.client_id]

        def listen(messages: list[MessageExt]) -> None:
            connection.close()
            closed.set()

        consumer.subscribe("T", "*", listen)
        consumer.start()
        broker.count = 1
        assert closed.wait(SECONDS_MAX)
        with pytest.raises(ClientClosedError):
            consumer.start()

    broker.count = 1
    await asyncio.to_thread(run)


async def test_a_connection_in_another_event_loop_says_so(broker: QueueBroker) -> None:
    async with connect(broker.address) as connection:

        async def elsewhere() -> None:
            for use in (connection.start(), connection.producer("p").start(), connection.close()):
                with pytest.raises(ClientError, match="belongs to another event loop"):
                    await use

        await asyncio.to_thread(asyncio.run, elsewhere())
        async with connection.producer("p") as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok
