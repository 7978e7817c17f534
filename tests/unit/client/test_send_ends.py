"""A send ends in its own time, whoever is silent, and plainly when its producer is closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings, TransactionProducer, TransactionState
from kerolox.errors import ClientClosedError, RequestTimeoutError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SEND, ROUTE = RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ROUTEINFO_BY_TOPIC
HOUR_MS = 3_600_000


async def never(command: RemotingCommand) -> None:
    await asyncio.Event().wait()


async def refuse(command: RemotingCommand) -> RemotingCommand:
    return command.response(14, "told to")


async def no_check(_: object) -> TransactionState:
    raise AssertionError


def producer(name_server: str, **settings: Any) -> TransactionProducer:
    given = ProducerSettings(api_timeout_ms=HOUR_MS, **settings)
    return TransactionProducer("group", name_server, check=no_check, settings=given)


WAYS: dict[str, Callable[[TransactionProducer], Awaitable[object]]] = {
    "send": lambda made: made.send(Message("T", b"x")),
    "send_oneway": lambda made: made.send_oneway(Message("T", b"x")),
    "send_batch": lambda made: made.send_batch([Message("T", b"x")]),
    "request": lambda made: made.request(Message("T", b"x")),
    "send_in_transaction": lambda made: made.send_in_transaction(Message("T", b"x"), no_check),
}
"""Each way in which a message leaves."""


@pytest.mark.parametrize("way", WAYS)
async def test_a_first_send_ends_in_time_though_name_servers_are_silent(way: str) -> None:
    async with FakeBroker() as silent, asyncio.timeout(SECONDS_MAX):
        silent.answers[ROUTE] = never
        async with producer(silent.address, send_timeout_ms=100) as made:
            with pytest.raises(RequestTimeoutError, match=r"no route of topic 'T' .* 100 ms"):
                await WAYS[way](made)
            await until(lambda: silent.seen[ROUTE])


async def test_a_first_send_succeeds_where_one_of_two_name_servers_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    begin, turned = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: begin() + turned)
    monkeypatch.setattr(random, "getrandbits", lambda _bits: 0)  # the first one comes first
    async with FakeBroker() as silent, FakeBroker() as other:
        silent.answers[ROUTE] = never
        other.routes["T"] = route_body({"a": other.address})
        servers = f"{silent.address};{other.address}"
        settings = ProducerSettings(api_timeout_ms=600_000, send_timeout_ms=400_000)
        async with Producer("group", servers, settings=settings) as made:
            sending = asyncio.ensure_future(made.send(Message("T", b"x")))
            await until(lambda: any(c.ext_fields["topic"] == "T" for c in silent.seen[ROUTE]))
            assert not other.seen[ROUTE]
            turned = 300.0
            await until(sending.done)
            assert sending.result().is_ok


async def test_a_send_after_a_route_that_came_too_late_succeeds() -> None:
    async with FakeBroker() as slow, asyncio.timeout(SECONDS_MAX):
        slow.routes["T"] = route_body({"a": slow.address})
        gate = asyncio.Event()

        async def late(command: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return slow._default(command)

        slow.answers[ROUTE] = late
        async with producer(slow.address) as made:
            with pytest.raises(RequestTimeoutError, match="no route"):
                await made.send(Message("T", b"x"), timeout_ms=50)
            gate.set()
            assert (await made.send(Message("T", b"x"), timeout_ms=60_000)).is_ok


async def test_a_first_request_ends_in_time_though_a_broker_leaves_its_greeting() -> None:
    async with FakeBroker() as broker, asyncio.timeout(SECONDS_MAX):
        broker.routes["T"] = broker.routes["c_REPLY_TOPIC"] = route_body({"a": broker.address})
        broker.answers[RequestCode.HEART_BEAT] = never
        async with producer(broker.address) as made:
            # The topic's route is there already: only the greeting is what it waits for.
            await made.send(Message("T", b"x"), timeout_ms=HOUR_MS)
            with pytest.raises(RequestTimeoutError, match="brokers that may bring the reply"):
                await made.request(Message("T", b"x"), timeout_ms=200)
        assert len(broker.seen[SEND]) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_send_that_waits_for_its_route_says_that_its_producer_was_closed(way: str) -> None:
    async with FakeBroker() as silent, asyncio.timeout(SECONDS_MAX):
        silent.answers[ROUTE] = never
        made = producer(silent.address, send_timeout_ms=HOUR_MS)
        await made.start()
        sending = asyncio.ensure_future(WAYS[way](made))
        await until(lambda: any(c.ext_fields["topic"] == "T" for c in silent.seen[ROUTE]))
        await made.close()
        with pytest.raises(ClientClosedError):
            await sending


@pytest.mark.parametrize(
    ("queue", "answer"),
    [(None, never), (MessageQueue("T", "a", 0), never), (None, refuse)],
    ids=["unanswered", "to a given queue", "between two tries"],
)
async def test_a_send_under_way_says_that_its_producer_was_closed(
    queue: MessageQueue | None, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.client.core.sending.retry.PAUSE_MS", HOUR_MS // 2)
    monkeypatch.setattr("kerolox.client.core.sending.retry.PAUSE_MS_MAX", HOUR_MS // 2)
    async with FakeBroker() as broker, asyncio.timeout(SECONDS_MAX):
        broker.routes["T"] = route_body({"a": broker.address})
        broker.answers[SEND] = answer
        made = producer(broker.address, send_timeout_ms=HOUR_MS)
        await made.start()
        sending = asyncio.ensure_future(made.send(Message("T", b"x"), queue=queue))
        await until(lambda: broker.seen[SEND])
        await made.close()
        with pytest.raises(ClientClosedError):
            await sending
        assert len(broker.seen[SEND]) == 1
