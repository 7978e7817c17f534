"""Start and close of clients: once for all callers, in bounded time, cancelled anywhere."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import Producer, ProducerSettings, PullConsumer, PushConsumer, sync
from kerolox.client.aio.client import Client
from kerolox.client.core.life import CLOSE_SECONDS_MAX, close_seconds
from kerolox.errors import ClientClosedError, ClientError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import SECONDS_MAX, until, wait_until
from tests.support.faults import cancelling
from tests.support.faults.cancelling import each_await
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

SEND, LEAVE = RequestCode.SEND_MESSAGE_V2, RequestCode.UNREGISTER_CLIENT
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
Attempt = tuple[Coroutine[Any, Any, Any], Callable[[], Awaitable[None]]]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


async def never(command: RemotingCommand) -> None:
    await asyncio.Event().wait()


def freeze(broker: FakeBroker) -> None:
    """The broker takes everything and answers nothing from now on."""
    for code in RequestCode:
        broker.answers[code] = never


async def nothing_is_left(broker: FakeBroker) -> None:
    """No connection, and no task of a client."""

    def tasks() -> list[str]:
        files = [task.get_coro().cr_code.co_filename for task in asyncio.all_tasks()]
        return [each for each in files if "kerolox/client" in each or each == cancelling.__file__]

    await until(lambda: all(each.closed for each in broker.connections), what="all are closed")
    await until(lambda: not tasks(), what="no task is left")


# -- one close for all who call it ----------------------------------------------------------------
def test_a_close_takes_five_seconds_unless_listeners_may_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert close_seconds() == close_seconds(3.0) == CLOSE_SECONDS_MAX
    assert close_seconds(60.0) == 62.0


async def test_a_close_goes_on_when_its_caller_is_cancelled(broker: QueueBroker) -> None:
    broker.count = 3
    consumer = Consumer(broker, consume_concurrency=2)
    consumer.gate.clear()
    await consumer.start()
    await until(lambda: len(consumer.got) == 2)
    closing = asyncio.ensure_future(consumer.close())
    await until(lambda: consumer._closing is not None)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    consumer.gate.set()
    await until(lambda: broker.seen[LEAVE])
    assert broker.committed["T", 0] == 2
    await nothing_is_left(broker)
    await consumer.close()


async def test_all_callers_of_close_wait_for_its_end(broker: QueueBroker) -> None:
    broker.count = 1
    consumer = Consumer(broker)
    consumer.gate.clear()
    await consumer.start()
    await until(lambda: consumer.got)
    callers = [asyncio.ensure_future(consumer.close()) for _ in range(3)]
    await until(lambda: consumer._closing is not None)
    assert not any(caller.done() for caller in callers)
    consumer.gate.set()
    await asyncio.gather(*callers)
    assert broker.committed["T", 0] == 1
    assert len(broker.seen[LEAVE]) == 1
    await nothing_is_left(broker)


async def test_listeners_that_close_their_consumer_do_not_wait_for_themselves(
    broker: QueueBroker,
) -> None:
    broker.count = 4
    consumer = Consumer(broker, close_timeout_ms=600_000, consume_concurrency=4)
    closed: list[str] = []
    others: list[int] = []

    async def listen(messages: list[Any]) -> None:
        number = messages[0].queue_offset
        if number == 0:
            await consumer.close()
            closed.append("by itself")
        elif number == 1:  # in a task of its own
            await asyncio.gather(consumer.close())
            closed.append("by its task")
        else:
            await until(lambda: consumer._closing is not None)
            others.append(number)

    consumer.subscribe("T", "*", listen)
    await consumer.start()
    await until(lambda: len(closed) == 2)
    assert sorted(others) == [2, 3]
    await nothing_is_left(broker)


async def test_a_close_is_bounded_when_no_broker_answers(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.core.life.CLOSE_SECONDS_MAX", 0.1)
    monkeypatch.setattr("kerolox.client.core.life.UNREGISTER_SECONDS", 0.1)
    monkeypatch.setattr("kerolox.client.aio.life.CLOSE_SECONDS_MAX", 0.1)
    hour = 3_600_000
    consumer = Consumer(broker, api_timeout_ms=hour, close_timeout_ms=0)
    settings = ProducerSettings(api_timeout_ms=hour, send_timeout_ms=hour)
    producer = Producer("group", broker.address, settings=settings)
    await producer.start()
    await producer.send(Message("T", b"x"))
    broker.count = 5
    await consumer.start()
    await until(lambda: len(consumer.got) == 5)
    freeze(broker)
    sending = asyncio.ensure_future(producer.send(Message("T", b"y")))
    await until(lambda: len(broker.seen[SEND]) == 2)
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.gather(consumer.close(), producer.close())
    with pytest.raises(ClientClosedError, match="unknown"):
        await sending
    await nothing_is_left(broker)


async def test_a_frozen_broker_keeps_no_offset_of_another_from_being_stored(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "consumers.push.ownership.ownership.OFFSETS_SECONDS_MAX",
        "network.instance.UNREGISTER_SECONDS_MAX",
    ):
        monkeypatch.setattr(f"kerolox.client.aio.{name}", 1.0)
    async with QueueBroker() as frozen:
        for each in (broker, frozen):
            each.count = 1
        broker.routes["T"] = route_body({"a": frozen.address, "b": broker.address}, queues=1)
        consumer = Consumer(broker, api_timeout_ms=3_600_000)
        frozen.members = broker.members
        await consumer.start()
        await until(lambda: len(consumer.got) == 2)
        freeze(frozen)
        await consumer.close()
        assert broker.committed["T", 0] == 1
        assert broker.seen[LEAVE]
        assert frozen.seen[LEAVE]


async def test_a_listener_that_can_not_be_cancelled_keeps_nobody_from_leaving(
    broker: QueueBroker,
) -> None:
    broker.count = 1
    consumer = Consumer(broker, close_timeout_ms=0)
    gate, ended = asyncio.Event(), asyncio.Event()

    async def listen(messages: list[Any]) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                consumer.got.append(messages[0])
        ended.set()

    consumer.subscribe("T", "*", listen)
    await consumer.start()
    await until(lambda: consumer._parts and len(consumer._parts.consuming.running))
    await consumer.close()
    assert consumer.got
    assert broker.seen[LEAVE]
    gate.set()
    await ended.wait()
    await nothing_is_left(broker)


async def test_what_was_sent_before_a_close_has_its_result(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.SENDS_SECONDS_MAX", 30.0)
    gate = asyncio.Event()

    async def store(command: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return broker.stored(command)

    broker.answers[SEND] = store
    producer = Producer("group", broker.address)
    await producer.start()
    sending = [asyncio.ensure_future(producer.send(Message("T", b"x"))) for _ in range(5)]
    await until(lambda: len(broker.seen[SEND]) == 5)
    closing = asyncio.ensure_future(producer.close())
    await until(lambda: producer._closing is not None)
    with pytest.raises(ClientClosedError):
        await producer.send(Message("T", b"late"))
    gate.set()
    assert all(result.is_ok for result in await asyncio.gather(*sending))
    await closing


async def test_sends_of_threads_to_a_frozen_broker_end_with_the_close(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.life.CLOSE_SECONDS_MAX", 0.2)
    settings = ProducerSettings(api_timeout_ms=3_600_000, send_timeout_ms=3_600_000)
    producer = sync.Producer("group", broker.address, settings=settings)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(17) as threads:
        await loop.run_in_executor(threads, producer.start)
        await loop.run_in_executor(threads, producer.send, Message("T", b"x"))
        freeze(broker)
        sends = [
            loop.run_in_executor(threads, producer.send, Message("T", b"x")) for _ in range(16)
        ]
        await until(lambda: len(broker.seen[SEND]) == 17)
        await loop.run_in_executor(threads, producer.close)
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results] == [ClientClosedError] * 16
    await nothing_is_left(broker)


async def test_a_send_that_waits_for_a_route_ends_with_the_close(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.SENDS_SECONDS_MAX", 0.1)
    broker.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = never
    producer = Producer("group", broker.address)
    await producer.start()
    sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
    await until(lambda: broker.seen[RequestCode.GET_ROUTEINFO_BY_TOPIC])
    await producer.close()
    with pytest.raises(ClientClosedError):
        await sending


# -- cancelled at any await -----------------------------------------------------------------------
def _producer(broker: QueueBroker) -> Client:
    return Producer("group", broker.address, settings=ProducerSettings(enable_trace=True))


def _pull_consumer(broker: QueueBroker) -> Client:
    return PullConsumer("group", broker.address)


def _push_consumer(broker: QueueBroker) -> Client:
    return Consumer(broker)


@pytest.mark.parametrize("make", [_producer, _pull_consumer, _push_consumer])
async def test_a_start_that_is_cancelled_anywhere_leaves_nothing_and_can_be_repeated(
    broker: QueueBroker, make: Callable[[QueueBroker], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ready(self: object) -> None:
        await asyncio.sleep(0)  # as with a web server of addresses

    monkeypatch.setattr("kerolox.client.aio.network.instance.ClientInstance.ready", ready)

    async def attempt() -> Attempt:
        client = make(broker)

        async def check() -> None:
            await nothing_is_left(broker) if client._cluster is None else None
            await client.start()
            assert await client.queues("T")
            if isinstance(client, PushConsumer):
                assert client.assigned_queues
            await client.close()
            await nothing_is_left(broker)

        return client.start(), check

    assert await each_await(attempt) >= 1


@pytest.mark.parametrize("make", [_producer, _pull_consumer, _push_consumer])
async def test_a_close_that_is_cancelled_anywhere_ends_all_the_same(
    broker: QueueBroker, make: Callable[[QueueBroker], Client]
) -> None:
    async def attempt() -> Attempt:
        client = make(broker)
        await client.start()
        if isinstance(client, Producer):
            await client.send(Message("T", b"x"))
        broker.seen[LEAVE].clear()

        async def check() -> None:
            await client.close()
            ids = [each.ext_fields["clientID"] for each in broker.seen[LEAVE]]
            assert isinstance(client, PullConsumer) or client.client_id in ids
            await nothing_is_left(broker)

        return client.close(), check

    assert await each_await(attempt) >= 1


async def test_two_starts_at_once_are_one(broker: QueueBroker) -> None:
    consumer = Consumer(broker)
    await asyncio.gather(consumer.start(), consumer.start())
    assert consumer.assigned_queues
    assert len(consumer._parts.consuming._workers._tasks) == consumer.settings.consume_concurrency
    await consumer.close()
    await nothing_is_left(broker)


async def test_a_close_during_a_start_ends_both(broker: QueueBroker) -> None:
    broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = never
    consumer = Consumer(broker)
    starting = asyncio.ensure_future(consumer.start())
    await until(lambda: broker.seen[RequestCode.GET_CONSUMER_LIST_BY_GROUP])
    await consumer.close()
    await starting
    with pytest.raises(ClientClosedError):
        await consumer.start()
    await nothing_is_left(broker)


# -- loops and what is not closed -----------------------------------------------------------------
def in_own_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a coroutine gives that runs in a loop of its own, in a thread of its own."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(asyncio.run(main()))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: result)
    thread.join(SECONDS_MAX)
    return result[0]


async def test_each_loop_in_turn_may_have_clients_of_its_own(broker: QueueBroker) -> None:
    async def send() -> bool:
        async with Producer("group", broker.address) as producer:
            return (await producer.send(Message("T", b"x"))).is_ok

    for _ in range(3):
        assert await asyncio.to_thread(in_own_loop, send) is True
    await nothing_is_left(broker)


@pytest.mark.parametrize("make", [_producer, _pull_consumer, _push_consumer])
async def test_a_client_in_a_loop_that_is_not_its_own_says_so(
    broker: QueueBroker, make: Callable[[QueueBroker], Client]
) -> None:
    async with make(broker) as client:
        await client.queues("T")
        for use in (lambda: client.queues("T"), client.start, client.close):
            error = await asyncio.to_thread(in_own_loop, use)
            assert isinstance(error, ClientError)
            assert "another event loop" in str(error)
            assert client.group in str(error)
        await client.start()
        assert await client.queues("T")


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_client_whose_loop_has_ended_can_still_be_closed(broker: QueueBroker) -> None:
    producer = Producer("group", broker.address)

    async def leave_open() -> None:
        await producer.start()
        await producer.send(Message("T", b"x"))

    assert await asyncio.to_thread(in_own_loop, leave_open) is None
    with pytest.raises(ClientError, match="another event loop"):
        await producer.send(Message("T", b"x"))
    await producer.close()
    with pytest.raises(ClientClosedError):
        await producer.start()
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_client_that_is_not_closed_is_warned_of(broker: QueueBroker) -> None:
    async def leave_open() -> None:
        producer = Producer("forgotten", broker.address)
        await producer.start()

    def forget() -> None:
        in_own_loop(leave_open)
        gc.collect()

    with pytest.warns(ResourceWarning, match="Producer of group 'forgotten' was not closed"):
        await asyncio.to_thread(forget)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_blocking_client_that_is_not_closed_is_warned_of(broker: QueueBroker) -> None:
    def forget() -> None:
        sync.Producer("forgotten", broker.address).start()
        gc.collect()

    with pytest.warns(ResourceWarning, match="Producer of group 'forgotten' was not closed"):
        await asyncio.to_thread(forget)


@pytest.mark.parametrize("batching", [False, True])
async def test_a_producer_is_told_when_another_running_loop_uses_it(
    broker: QueueBroker, batching: bool
) -> None:
    settings = ProducerSettings(batching=batching)
    async with Producer("p", broker.address, settings=settings) as producer:
        await producer.send(Message("T", b"x"))
        before = len(broker.seen[SEND]) + len(broker.seen[RequestCode.SEND_BATCH_MESSAGE])

        async def elsewhere() -> None:
            with pytest.raises(ClientError, match="belongs to another event loop"):
                await producer.send(Message("T", b"x"))
            with pytest.raises(ClientError, match="belongs to another event loop"):
                await producer.submit(Message("T", b"x"))

        await asyncio.to_thread(asyncio.run, elsewhere())
        await producer.send(Message("T", b"y"))
        after = len(broker.seen[SEND]) + len(broker.seen[RequestCode.SEND_BATCH_MESSAGE])
        assert after == before + 1
