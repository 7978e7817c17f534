"""Operations of clients that are cancelled at each of their awaits, one after the other.

Whatever the await: nothing of the operation is left, and the client works on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    SendContext,
    SendHook,
    TransactionProducer,
    TransactionState,
    connect,
)
from kerolox.client.aio.life import LifeCycle
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.support.faults.cancelling import each_await
from tests.support.servers.fake_broker import route_body
from tests.unit.client.test_life import nothing_is_left
from tests.unit.client.test_lite_pull_consumer import Broker as LiteBroker
from tests.unit.client.test_lite_pull_consumer import subscribed
from tests.unit.client.test_push_consumer import Consumer, QueueBroker
from tests.unit.client.test_request_reply import push

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
LEAVE = RequestCode.UNREGISTER_CLIENT
Operation = Coroutine[Any, Any, Any]
Attempt = tuple[Operation, Callable[[], Awaitable[None]]]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        made.routes["TBW102"] = made.routes["T"]
        yield made


async def nothing_waits(client: LifeCycle) -> None:
    """No request of the client is open."""
    cluster = client._cluster
    assert cluster is not None

    def waiting() -> list[object]:
        connections = cluster.remoting._connections.values()
        return [future for each in connections for future in each.waiting()]

    await until(lambda: not waiting(), what="no request is open")
    assert not any(each.requests.request_queue for each in cluster.remoting._connections.values())


# -- sends ----------------------------------------------------------------------------------------
class _Hook(SendHook):
    """Makes sends take the general way."""

    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        pass


async def _commit(message: Message) -> TransactionState:
    await asyncio.sleep(0)
    return TransactionState.COMMIT


MESSAGE = Message("T", b"x")


async def _block(producer: TransactionProducer) -> None:
    async with producer.transaction(MESSAGE):
        await asyncio.sleep(0)


SENDS: dict[str, Callable[[TransactionProducer], Operation]] = {
    "send": lambda producer: producer.send(MESSAGE),
    "large": lambda producer: producer.send(Message("T", b"x" * 300_000)),
    "batch": lambda producer: producer.send_batch([MESSAGE, MESSAGE]),
    "batches": lambda producer: producer.send_batches([MESSAGE, MESSAGE], bytes_max=1),
    "key": lambda producer: producer.send(MESSAGE, ordering_key="k"),
    "later": lambda producer: producer.send(MESSAGE, deliver_after=1),
    "block": _block,
    "oneway": lambda producer: producer.send_oneway(MESSAGE),
    "transaction": lambda producer: producer.send_in_transaction(MESSAGE, _commit),
    "request": lambda producer: producer.request(MESSAGE, timeout_ms=60_000),
    "queues": lambda producer: producer.queues("T"),
}


def replies(broker: QueueBroker) -> None:
    """Each request is answered by a reply before its send is."""

    async def answer(command: RemotingCommand) -> RemotingCommand:
        properties = command.ext_fields["i"]
        if "CORRELATION_ID\x01" in properties:
            correlation_id = properties.split("CORRELATION_ID\x01")[1].split("\x02")[0]
            await broker.connections[-1].request(push(correlation_id), timeout_seconds=60)
        return broker.stored(command)

    broker.answers[SEND] = answer
    broker.routes["c_REPLY_TOPIC"] = broker.routes["T"]


@pytest.mark.parametrize("kind", SENDS)
@pytest.mark.parametrize("way", ["plain", "hooked", "batched"])
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_send_that_is_cancelled_anywhere_leaves_nothing_behind(
    broker: QueueBroker, kind: str, way: str, is_known: bool
) -> None:
    """``is_known``: it needs no route and no connection."""
    if kind == "request":
        replies(broker)
    hooks = (_Hook(),) if way == "hooked" else ()
    settings = ProducerSettings(send_hooks=hooks, batching=way == "batched")

    async def attempt() -> Attempt:
        producer = TransactionProducer("p", broker.address, check=_commit, settings=settings)  # type: ignore[arg-type]
        await producer.start()
        if is_known:
            await producer.send(MESSAGE)

        async def check() -> None:
            await nothing_waits(producer)
            assert producer._delivery.open_count == 0
            assert producer._fast_sends is None or producer._fast_sends.open_count == 0
            assert len(producer._requests) == 0
            assert (await producer.send(MESSAGE)).is_ok
            await producer.close()

        return SENDS[kind](producer), check

    waits = not is_known or kind not in ("oneway", "queues")
    assert await each_await(attempt) >= waits
    await nothing_is_left(broker)


async def test_a_send_that_waits_for_room_may_be_cancelled_anywhere(broker: QueueBroker) -> None:
    async with Producer("p", broker.address) as producer:
        await producer.send(MESSAGE)
        cluster = producer._open_cluster()
        [connection] = cluster.remoting._connections.values()

        async def attempt() -> Attempt:
            connection.pause_writing()
            sends = [asyncio.ensure_future(producer.send(MESSAGE)) for _ in range(3)]
            await until(lambda: len(connection.requests.request_queue) >= 3)

            async def check() -> None:
                timer.cancel()
                connection.resume_writing()
                assert all(each.is_ok for each in await asyncio.gather(*sends))
                await nothing_waits(producer)

            timer = asyncio.get_running_loop().call_later(0.02, connection.resume_writing)
            return producer.send(MESSAGE), check

        assert await each_await(attempt) >= 1


# -- reads ----------------------------------------------------------------------------------------
QUEUE = MessageQueue("T", "a", 0)
READS: dict[str, Callable[[PullConsumer], Operation]] = {
    "pull": lambda consumer: consumer.pull(QUEUE, 0),
    "commit": lambda consumer: consumer.commit(QUEUE, 1),
    "committed": lambda consumer: consumer.committed(QUEUE),
}


@pytest.mark.parametrize("kind", READS)
async def test_a_read_that_is_cancelled_anywhere_leaves_nothing_behind(
    broker: QueueBroker, kind: str
) -> None:
    broker.count = 1
    broker.committed["T", 0] = 0

    async def attempt() -> Attempt:
        consumer = PullConsumer("g", broker.address)
        await consumer.start()

        async def check() -> None:
            await nothing_waits(consumer)
            assert len((await consumer.pull(QUEUE, 0)).messages) == 1
            await consumer.close()

        return READS[kind](consumer), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


async def test_a_poll_and_a_seek_may_be_cancelled_anywhere_and_no_message_is_missed() -> None:
    async with LiteBroker() as broker:

        async def attempt() -> Attempt:
            broker.count = 3
            got: list[MessageExt] = []
            broker.committed.clear()
            consumer = subscribed(broker)
            await consumer.start()

            async def check() -> None:
                await consumer.seek(QUEUE, 0)
                while len(got) < 3:
                    got.extend(await consumer.poll(timeout_ms=60_000))
                assert [message.queue_offset for message in got] == [0, 1, 2]
                await consumer.close()

            async def poll_and_seek() -> None:
                await consumer.poll(timeout_ms=60_000)
                await consumer.seek(QUEUE, 1)
                await consumer.commit_sync()

            return poll_and_seek(), check

        assert await each_await(attempt) >= 1
        await nothing_is_left(broker)


async def test_a_loop_over_messages_may_be_cancelled_anywhere(broker: QueueBroker) -> None:
    async def attempt() -> Attempt:
        broker.count = 1
        broker.committed.clear()
        consumer = Consumer(broker, close_timeout_ms=0)
        consumer.subscribe("T")
        await consumer.start()
        asyncio.get_running_loop().call_later(0.02, broker.add, 1)
        seen: list[int] = []

        async def loop() -> None:
            async for message in consumer:
                seen.append(message.queue_offset)
                await consumer.ack(message)
                if message.queue_offset == 1:
                    break

        async def check() -> None:
            # What was given out and not settled is still the consumer's: it comes again elsewhere.
            await consumer.close()
            assert broker.committed.get(("T", 0), 0) <= len(seen)

        return loop(), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


# -- push consumers -------------------------------------------------------------------------------
CHANGES: dict[str, Callable[[Consumer], Operation]] = {
    "rebalance": lambda consumer: consumer.rebalance(),
    "reset": lambda consumer: consumer.reset_offsets({QUEUE: 0}),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_change_of_queues_that_is_cancelled_anywhere_stops_no_consumption(
    broker: QueueBroker, kind: str
) -> None:
    async def attempt() -> Attempt:
        broker.count = 1
        broker.committed.clear()
        consumer = Consumer(broker)
        await consumer.start()
        await until(lambda: consumer.got)
        if kind == "rebalance":
            consumer.subscribe("T2", "*", consumer.listen)
            broker.routes["T2"] = route_body({"a": broker.address}, queues=2)

        async def check() -> None:
            # A change that was cut short is made up for soon, by the rebalance of the background.
            await consumer.rebalance()
            topics = {queue.topic for queue in consumer.assigned_queues}
            assert topics == {"T", "T2"} if kind == "rebalance" else {"T"}
            broker.add(1)
            await until(lambda: [m for m in consumer.got if m.queue_offset == 1])
            assert len(consumer._assignments) == len(set(consumer._assignments))
            await consumer.close()
            assert broker.committed["T", 0] == 2

        return CHANGES[kind](consumer), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


async def test_a_close_with_a_busy_listener_may_be_cancelled_anywhere(broker: QueueBroker) -> None:
    async def attempt() -> Attempt:
        broker.count = 1
        broker.committed.clear()
        consumer = Consumer(broker)
        consumer.gate.clear()
        await consumer.start()
        await until(lambda: consumer.got)
        asyncio.get_running_loop().call_later(0.02, consumer.gate.set)

        async def check() -> None:
            await consumer.close()
            assert broker.committed["T", 0] == 1

        return consumer.close(), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


# -- connections ----------------------------------------------------------------------------------
async def test_a_start_of_a_member_that_is_cancelled_anywhere_keeps_the_connection(
    broker: QueueBroker,
) -> None:
    async with connect(broker.address) as connection, connection.producer("other") as other:

        async def attempt() -> Attempt:
            consumer = connection.push_consumer("c")
            broker.members = [consumer.client_id]

            async def listen(messages: object) -> None:
                pass

            consumer.subscribe("T", "*", listen)

            async def check() -> None:
                assert (await other.send(MESSAGE)).is_ok
                await consumer.start()
                await consumer.close()
                assert (await other.send(MESSAGE)).is_ok
                assert len([each for each in broker.connections if not each.closed]) == 1

            return consumer.start(), check

        assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


@pytest.mark.parametrize("name", ["start", "close"])
async def test_a_connection_may_be_cancelled_anywhere_at_start_and_close(
    broker: QueueBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "start":

        async def ready(self: object) -> None:
            await asyncio.sleep(0)  # as with a web server of addresses

        monkeypatch.setattr("kerolox.client.aio.network.instance.ClientInstance.ready", ready)

    async def attempt() -> Attempt:
        connection = connect(broker.address)
        if name == "close":
            producer = connection.producer("p")
            await producer.start()
            await producer.send(MESSAGE)

        async def check() -> None:
            async with connect(broker.address) as another, another.producer("q") as works:
                assert (await works.send(MESSAGE)).is_ok
            await connection.close()

        return getattr(connection, name)(), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)
