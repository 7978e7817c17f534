"""Bursts: all sends begin at once; each is acknowledged or has its own error, in bounded memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kerolox.client import Producer, ProducerSettings
from kerolox.errors import RequestTimeoutError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.client_connection import BUFFER_BYTES_MAX
from kerolox.remoting.connection import WRITE_HIGH_WATER_BYTES
from kerolox.remoting.core.client_requests import QueuedSend
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
QUEUE = MessageQueue("T", "a", 0)
MIB = 1 << 20


def settings(*, batching: bool = False) -> ProducerSettings:
    return ProducerSettings(send_timeout_ms=3_600_000, batching=batching)


async def test_a_burst_of_sends_is_stored_whole_and_in_order() -> None:
    async with asyncio.timeout(SECONDS_MAX), FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        async with Producer("group", broker.address, settings=settings()) as producer:
            await producer.send(Message("T", b"first"))
            producer._open_cluster().remoting.connection(broker.address).sends.calls_max = 100
            many = [Message("T", b"%04d" % index + bytes(1_020)) for index in range(3_000)]
            results = await asyncio.gather(*map(producer.send, many))
        assert [each.body for each in broker.seen[SEND][1:]] == [each.body for each in many]
        assert [each.queue_offset for each in results] == list(range(2, 3_002))


@pytest.mark.parametrize("batching", [False, True])
async def test_a_burst_to_a_broker_that_reads_nothing_leaves_little_unsent(batching: bool) -> None:
    async with asyncio.timeout(SECONDS_MAX), FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        given = settings(batching=batching)
        async with Producer("group", broker.address, settings=given) as producer:
            await producer.send(Message("T", b"first"), queue=QUEUE)
            [server] = [each for each in broker.connections if not each.closed]
            server._transport.pause_reading()
            connection = producer._open_cluster().remoting.connection(broker.address)
            assert connection is not None
            many = [Message("T", bytes(4_000)) for _ in range(6_000)]
            sends = [
                asyncio.ensure_future(producer.send(each, queue=QUEUE, timeout_ms=1_000))
                for each in many
            ]
            await until(lambda: connection.blocked)
            unsent = connection._transport.get_write_buffer_size()
            assert unsent < WRITE_HIGH_WATER_BYTES + BUFFER_BYTES_MAX + MIB
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(each) for each in outcomes} == {RequestTimeoutError}
            assert len(connection.sends) == 0
            waiting = connection.requests.request_queue.entries.values()
            assert not any(isinstance(each, QueuedSend) for each in waiting)
            server._transport.resume_reading()
            assert (await producer.send(Message("T", b"last"))).is_ok


async def test_sends_to_a_broker_that_stands_still_are_acknowledged_when_it_goes_on() -> None:
    async with asyncio.timeout(SECONDS_MAX), FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        gate = asyncio.Event()

        async def hold(command: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return broker.stored(command)

        async with Producer("group", broker.address, settings=settings()) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers[SEND] = hold
            many = [Message("T", b"%d" % index) for index in range(3_000)]
            sends = [asyncio.ensure_future(producer.send(each)) for each in many]
            hurried = [producer.send(each, timeout_ms=100) for each in many[:500]]
            outcomes = await asyncio.gather(*hurried, return_exceptions=True)
            assert {type(each) for each in outcomes} == {RequestTimeoutError}
            assert not any(send.done() for send in sends)
            gate.set()
            results = await asyncio.gather(*sends)
            assert len({result.queue_offset for result in results}) == 3_000
