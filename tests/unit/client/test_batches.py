"""Automatic batching: who travels together, in which order, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings, SendStatus
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    MessageRejectedError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.message import Message, MessageQueue, decode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.records import decode_batch
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

BATCH, SEND = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2
HOUR_MS = 3_600_000


@pytest.fixture(params=["python", "native"], autouse=True)
def _codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        pytest.importorskip("kerolox_kernel")
    monkeypatch.setenv(KERNEL_VARIABLE, request.param)


class BatchBroker(FakeBroker):
    """Stores batches as brokers do: an id for each message, the offset of the first."""

    def stored(self, command: RemotingCommand, code: int = 0) -> RemotingCommand:
        if command.code != BATCH:
            return super().stored(command, code)
        ids = []
        first = self._offset
        for _ in bodies_of(command):
            self._offset += 1
            ids.append(f"ID{self._offset}")
        fields = {"msgId": ",".join(ids), "queueId": command.ext_fields["e"], "queueOffset": first}
        return command.response(code, ext_fields=fields)


def bodies_of(command: RemotingCommand) -> list[bytes]:
    return [bytes(body) for _, body, _ in decode_batch(command.body)[0]]


@asynccontextmanager
async def batching(
    *, brokers: int = 1, queues: int = 1, **settings: Any
) -> AsyncIterator[tuple[Producer, list[BatchBroker]]]:
    """A producer that has sent a message to each of some brokers."""
    async with asyncio.timeout(SECONDS_MAX), BatchBroker() as first, BatchBroker() as second:
        used = [first, second][:brokers]
        first.routes["T"] = route_body(
            {name: each.address for name, each in zip("ab", used, strict=False)}, queues=queues
        )
        given = ProducerSettings(**({"send_timeout_ms": HOUR_MS, "batching": True} | settings))
        async with Producer("group", first.address, settings=given) as producer:
            for name in "ab"[:brokers]:
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", name, 0))
            for each in used:
                each.seen.clear()
                each._offset = 0
            yield producer, used


def messages(count: int, **named: Any) -> list[Message]:
    return [Message("T", b"%d" % index, **named) for index in range(count)]


async def test_sends_of_one_turn_travel_together_each_with_its_own_result() -> None:
    async with batching() as (producer, (broker,)):
        results = await asyncio.gather(*map(producer.send, messages(3, tags="t", keys="k")))
        (request,) = broker.seen[BATCH]
        assert bodies_of(request) == [b"0", b"1", b"2"]
        assert decode_properties(request.ext_fields["i"]) == {"WAIT": "true"}
        texts = [decode_properties(bytes(t).decode()) for _, _, t in decode_batch(request.body)[0]]
        for index, (result, text) in enumerate(zip(results, texts, strict=True)):
            assert text["UNIQ_KEY"] == result.message_id
            assert (text["TAGS"], text["KEYS"]) == ("t", "k")
            assert (result.status, result.queue) == (SendStatus.SEND_OK, MessageQueue("T", "a", 0))
            assert (result.queue_offset, result.offset_message_id) == (index, f"ID{index + 1}")
        assert not broker.seen[SEND]


async def test_batches_have_one_queue_one_wait_and_one_time_limit() -> None:
    async with batching(queues=2) as (producer, (broker,)):
        queues = [MessageQueue("T", "a", number) for number in range(2)]
        await asyncio.gather(
            producer.send(Message("T", b"0"), queue=queues[0]),
            producer.send(Message("T", b"1"), queue=queues[1]),
            producer.send(Message("T", b"2", wait_store_ok=False), queue=queues[0]),
            producer.send(Message("T", b"3"), queue=queues[0]),
            producer.send(Message("T", b"4"), queue=queues[0], timeout_ms=HOUR_MS - 1),
            producer.send(Message("T", b"5"), queue=queues[1]),
        )
        seen = {tuple(bodies_of(each)): each.ext_fields for each in broker.seen[BATCH]}
        assert set(seen) == {(b"0", b"3"), (b"1", b"5"), (b"2",), (b"4",)}
        assert seen[b"1", b"5"]["e"] == "1"
        assert seen[b"2",]["i"] == "WAIT\1false"


@pytest.mark.parametrize("alone", [{"delay_level": 1}, {"body": b"x" * 5_000}])
async def test_what_goes_alone_keeps_its_place(alone: dict[str, Any]) -> None:
    async with batching() as (producer, (broker,)):
        order: list[list[bytes]] = []

        async def note(command: RemotingCommand) -> RemotingCommand:
            order.append(bodies_of(command) if command.code == BATCH else [command.body])
            return broker.stored(command)

        broker.answers[BATCH] = broker.answers[SEND] = note
        first, second, *rest = messages(4)
        lone = Message(**({"topic": "T", "body": b"lone"} | alone))
        await asyncio.gather(*map(producer.send, [first, second, lone, *rest]))
        assert [len(bodies) for bodies in order] == [2, 1, 2]
        assert order[0] == [b"0", b"1"]
        assert order[2] == [b"2", b"3"]


async def test_a_full_batch_waits_for_no_more() -> None:
    async with batching(batch_bytes_max=1_000) as (producer, (broker,)):
        many = [Message("T", bytes([index]) * 300) for index in range(8)]
        results = await asyncio.gather(*map(producer.send, many))
        sizes = [len(request.body) for request in broker.seen[BATCH]]
        assert max(sizes) <= 1_000
        assert [body for each in broker.seen[BATCH] for body in bodies_of(each)] == [
            message.body for message in many
        ]
        assert [result.queue_offset for result in results] == list(range(8))
        await producer.send(Message("T", b"x" * 2_000))
        assert len(broker.seen[BATCH][-1].body) > 2_000


async def test_a_batch_lingers_as_long_as_it_is_told_to() -> None:
    async with batching(linger_ms=60_000, batch_bytes_max=400) as (producer, (broker,)):
        sends = [asyncio.ensure_future(producer.send(each)) for each in messages(2)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not broker.seen[BATCH]
        full = asyncio.ensure_future(producer.send(Message("T", b"x" * 400)))
        await asyncio.gather(*sends, full)
        assert [len(bodies_of(each)) for each in broker.seen[BATCH]] == [2, 1]


async def test_a_message_that_is_illegal_fails_alone() -> None:
    async with batching() as (producer, (broker,)):
        many = [Message("T", b"0"), Message("T", b"1", keys="a\1"), Message("T", b"2")]
        results = await asyncio.gather(*map(producer.send, many), return_exceptions=True)
        assert isinstance(results[1], MessageRejectedError)
        assert [b for each in broker.seen[BATCH] for b in bodies_of(each)] == [b"0", b"2"]


async def test_a_sender_that_went_away_takes_its_message_along() -> None:
    async with batching() as (producer, (broker,)):
        sends = [asyncio.ensure_future(producer.send(each)) for each in messages(3)]
        asyncio.get_running_loop().call_soon(sends[1].cancel)
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        (request,) = broker.seen[BATCH]
        assert bodies_of(request) == [b"0", b"2"]
        broker.answers[BATCH] = never
        late = asyncio.ensure_future(producer.send(Message("T", b"late")))
        await until(lambda: len(broker.seen[BATCH]) == 2)
        late.cancel()
        await asyncio.wait([late])
        assert late.cancelled()
        del broker.answers[BATCH]
        assert (await producer.send(Message("T", b"x"))).is_ok


async def never(command: RemotingCommand) -> None:
    return None


async def test_a_refused_batch_goes_on_elsewhere_under_its_own_ids() -> None:
    async with batching(brokers=2) as (producer, brokers):
        refused: list[RemotingCommand] = []

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            refused.append(command)
            return command.response(14, "told to")

        brokers[0].answers[BATCH] = refuse
        while not refused:
            results = await asyncio.gather(*map(producer.send, messages(3)))
        assert {result.queue.broker_name for result in results} == {"b"}
        assert refused[0].body == brokers[1].seen[BATCH][-1].body
        assert len({result.message_id for result in results}) == 3


async def test_the_failure_of_a_batch_is_each_one_s_own_error() -> None:
    async with batching(retries=0) as (producer, (broker,)):

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            return command.response(13, "told to")

        broker.answers[BATCH] = refuse
        errors = await asyncio.gather(*map(producer.send, messages(3)), return_exceptions=True)
        assert all(isinstance(error, BrokerError) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert all("told to" in str(error) for error in errors)


async def test_a_batch_without_answer_ends_in_its_time() -> None:
    async with batching() as (producer, (broker,)):
        broker.answers[BATCH] = never
        sends = [producer.send(each, timeout_ms=50) for each in messages(3)]
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in errors] == [RequestTimeoutError] * 3


async def test_an_answer_that_names_too_few_messages_is_an_error_of_each() -> None:
    async with batching() as (producer, (broker,)):

        async def one(command: RemotingCommand) -> RemotingCommand:
            fields = {"msgId": "ID1", "queueId": "0", "queueOffset": "0"}
            return command.response(ext_fields=fields)

        broker.answers[BATCH] = one
        errors = await asyncio.gather(*map(producer.send, messages(2)), return_exceptions=True)
        assert [type(error) for error in errors] == [RemoteProtocolError] * 2


async def test_a_batch_that_waits_when_its_producer_is_closed_is_sent() -> None:
    async with batching(linger_ms=30) as (producer, (broker,)):
        sends = [asyncio.ensure_future(producer.send(each)) for each in messages(2)]
        await asyncio.sleep(0)
        await producer.close()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert all(not isinstance(each, BaseException) and each.is_ok for each in results)
        assert len(broker.seen[BATCH]) == 1
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", b"x"))
