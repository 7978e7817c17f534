"""Submitted sends: a future for each, on both clients, and no task for plain ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings
from kerolox.client import sync as blocking
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    MessageRejectedError,
    RequestTimeoutError,
    SubmitsFullError,
)
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import SECONDS_MAX, until, wait_until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.client.core.sending.send import SendResult
    from kerolox.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def broker_of_t() -> AsyncIterator[FakeBroker]:
    async with asyncio.timeout(SECONDS_MAX), FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        yield broker


def settings(**named: Any) -> ProducerSettings:
    return ProducerSettings(**({"send_timeout_ms": 3_600_000} | named))


@asynccontextmanager
async def producing(**named: Any) -> AsyncIterator[tuple[Producer, FakeBroker]]:
    """A producer that has sent a message."""
    async with (
        broker_of_t() as broker,
        Producer("group", broker.address, settings=settings(**named)) as producer,
    ):
        await producer.send(Message("T", b"x"))
        yield producer, broker


async def never(command: RemotingCommand) -> None:
    return None


@pytest.mark.parametrize("batching", [False, True])
async def test_submitted_sends_of_a_producer_have_futures(batching: bool) -> None:
    async with broker_of_t() as broker:
        given = settings(batching=batching, retries=0)
        async with Producer("group", broker.address, settings=given) as producer:
            assert (await producer.submit(Message("T", b"first"))).is_ok
            tasks = len(asyncio.all_tasks())
            futures = [producer.submit(Message("T", b"%d" % index)) for index in range(10)]
            assert len(asyncio.all_tasks()) == tasks
            if not batching:
                assert len({(await future).queue_offset for future in futures}) == 10
            delayed = producer.submit(Message("T", b"x", delay_level=1))
            assert (await delayed).is_ok
            with pytest.raises(MessageRejectedError):
                await producer.submit(Message("T", b"x", keys="a\1"))
            await asyncio.gather(*futures, return_exceptions=True)


async def test_a_submitted_send_is_tried_again_and_told_why_it_failed() -> None:
    async with producing(retries=1) as (producer, broker):

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            return command.response(14, "told to")

        broker.answers[SEND] = refuse
        with pytest.raises(BrokerError, match="told to"):
            await producer.submit(Message("T", b"x"))
        assert len(broker.seen[SEND]) == 3


async def test_a_cancelled_future_withdraws_its_send() -> None:
    async with producing() as (producer, broker):
        broker.answers[SEND] = never
        future = producer.submit(Message("T", b"x"))
        await until(lambda: len(broker.seen[SEND]) == 2)
        future.cancel()
        await asyncio.wait([future])
        connection = producer._open_cluster().remoting.connection(broker.address)
        assert connection is not None
        await until(lambda: not connection.waiting())


@pytest.mark.parametrize("kind", ["plain", "delayed", "batched"])
async def test_submits_are_refused_while_as_many_as_allowed_have_no_outcome(kind: str) -> None:
    async with producing(submits_max=3, batching=kind == "batched") as (producer, broker):
        gate = asyncio.Event()

        async def hold(command: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return broker.stored(command)

        broker.answers[SEND] = broker.answers[RequestCode.SEND_BATCH_MESSAGE] = hold
        queue = MessageQueue("T", "a", 0)
        level = 1 if kind == "delayed" else 0
        futures = []
        for number in range(3):
            message = Message("T", b"%d" % number, delay_level=level)
            futures.append(producer.submit(message, queue=queue))
            await until(lambda count=number + 2: count_of(broker) == count)
        with pytest.raises(SubmitsFullError, match="submits_max is 3") as caught:
            producer.submit(Message("T", b"more"))
        assert isinstance(caught.value, BufferError)
        gate.set()
        await asyncio.gather(*futures)
        assert (await producer.submit(Message("T", b"more"))).is_ok


def count_of(broker: FakeBroker) -> int:
    """Sends and batches that it has seen."""
    return len(broker.seen[SEND]) + len(broker.seen[RequestCode.SEND_BATCH_MESSAGE])


async def test_submits_that_wait_for_room_keep_their_order() -> None:
    async with producing() as (producer, broker):
        connection = producer._open_cluster().remoting.connection(broker.address)
        assert connection is not None
        connection.sends.calls_max = 2
        futures = [producer.submit(Message("T", b"%d" % number)) for number in range(50)]
        results = await asyncio.gather(*futures)
        assert len(connection.requests.request_queue) == len(connection.sends) == 0
        assert [each.body for each in broker.seen[SEND][1:]] == [b"%d" % n for n in range(50)]
        assert [each.queue_offset for each in results] == list(range(2, 52))


async def test_a_submitted_send_that_finds_no_capacity_in_time_says_so() -> None:
    async with producing() as (producer, broker):
        broker.answers[SEND] = never
        connection = producer._open_cluster().remoting.connection(broker.address)
        assert connection is not None
        connection.sends.calls_max = 1
        first = producer.submit(Message("T", b"x"))
        with pytest.raises(RequestTimeoutError, match="no capacity in time"):
            await producer.submit(Message("T", b"x"), timeout_ms=50)
        cancelled = producer.submit(Message("T", b"x"))
        cancelled.cancel()
        await until(lambda: not connection.requests.request_queue)
        first.cancel()
        assert not connection.waiting()


async def test_sends_of_many_threads_each_have_their_own_result() -> None:
    async with broker_of_t() as broker:
        offsets: list[int] = []

        def work(producer: blocking.Producer) -> None:
            results = [producer.send(Message("T", b"%d" % index)) for index in range(20)]
            offsets.extend(result.queue_offset for result in results)

        def run() -> None:
            with blocking.Producer("group", broker.address, settings=settings()) as producer:
                threads = [threading.Thread(target=work, args=(producer,)) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

        await asyncio.to_thread(run)
        assert sorted(offsets) == list(range(1, 161))


async def test_threads_that_wait_for_sends_are_not_refused_like_submits() -> None:
    async with broker_of_t() as broker:
        loop, gate = asyncio.get_running_loop(), asyncio.Event()
        results: list[SendResult] = []

        async def hold(command: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return broker.stored(command)

        def run() -> None:
            given = settings(submits_max=1)
            with blocking.Producer("group", broker.address, settings=given) as producer:
                producer.send(Message("T", b"x"))
                broker.answers[SEND] = hold

                def work() -> None:
                    results.append(producer.send(Message("T", b"y")))

                threads = [threading.Thread(target=work) for _ in range(3)]
                for thread in threads:
                    thread.start()
                wait_until(lambda: len(broker.seen[SEND]) == 4)
                with pytest.raises(SubmitsFullError):
                    producer.submit(Message("T", b"z")).result(SECONDS_MAX)
                loop.call_soon_threadsafe(gate.set)
                for thread in threads:
                    thread.join()

        await asyncio.to_thread(run)
        assert [result.is_ok for result in results] == [True] * 3


async def test_a_submitted_send_of_a_thread_is_a_concurrent_future() -> None:
    async with broker_of_t() as broker:

        def run() -> None:
            with blocking.Producer("group", broker.address, settings=settings()) as producer:
                futures = [producer.submit(Message("T", b"%d" % index)) for index in range(50)]
                done = concurrent.futures.as_completed(futures, timeout=SECONDS_MAX)
                assert len({future.result().queue_offset for future in done}) == 50
                with pytest.raises(MessageRejectedError):
                    producer.submit(Message("T", b"")).result(SECONDS_MAX)
                with pytest.raises(MessageRejectedError):
                    producer.send(Message("T", b""))
            with pytest.raises(ClientClosedError):
                producer.submit(Message("T", b"x"))
            with pytest.raises(ClientClosedError):
                producer.send(Message("T", b"x"))

        await asyncio.to_thread(run)


async def test_what_threads_wait_for_ends_with_the_close() -> None:
    async with broker_of_t() as broker:
        producer = blocking.Producer("group", broker.address, settings=settings())
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                producer.send(Message("T", b"x"))
            except ClientClosedError as error:
                errors.append(error)

        def run() -> None:
            producer.start()
            producer.send(Message("T", b"x"))
            broker.answers[SEND] = never
            future = producer.submit(Message("T", b"x"))
            thread = threading.Thread(target=wait)
            thread.start()
            while len(broker.seen[SEND]) < 3:
                threading.Event().wait(0.01)
            producer.close()
            thread.join(SECONDS_MAX)
            with pytest.raises(ClientClosedError):
                future.result(SECONDS_MAX)

        await asyncio.to_thread(run)
        assert len(errors) == 1
