"""When a send tries again, whom it asks then, and what it ends with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings, SendStatus
from kerolox.client.core.sending import retry as retry_module
from kerolox.client.core.sending.retry import Tries, pause_ms
from kerolox.errors import RequestTimeoutError, ServiceNotAvailableError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

SEND = RequestCode.SEND_MESSAGE_V2


def producer(name_server: str, **settings: Any) -> Producer:
    given = {"send_timeout_ms": 60_000, **settings}
    return Producer("group", name_server, settings=ProducerSettings(**given))


def test_a_broker_that_was_not_asked_yet_is_asked_at_once() -> None:
    assert pause_ms([], "a") == 0
    assert pause_ms(["a"], "b") == 0
    assert pause_ms(["a", "b", "a"], "c") == 0


def test_the_pause_before_a_broker_doubles_each_time_up_to_a_second() -> None:
    pauses = [pause_ms(["a"] * times, "a") for times in range(1, 8)]
    assert pauses == [50, 100, 200, 400, 800, 1_000, 1_000]
    assert pause_ms(["a"] * 100, "a") == 1_000
    assert pause_ms(["a", "b", "a"], "b") == 50


def test_a_send_without_time_says_that_nothing_was_sent() -> None:
    with pytest.raises(RequestTimeoutError, match="within 7 ms; nothing was sent"):
        Tries(3, (), retry_when_not_stored_ok=False).end(7)


async def test_each_broker_is_tried_once_before_one_is_tried_again() -> None:
    order: list[str] = []

    def refusing(name: str) -> Any:
        async def refuse(command: RemotingCommand) -> RemotingCommand:
            order.append(name)
            return command.response(14, "told to")

        return refuse

    async with FakeBroker() as a, FakeBroker() as b, FakeBroker() as c:
        brokers = {"a": a, "b": b, "c": c}
        a.routes["T"] = route_body({name: broker.address for name, broker in brokers.items()})
        for name, broker in brokers.items():
            broker.answers[SEND] = refusing(name)
        async with producer(a.address, retries=3) as made:
            with pytest.raises(ServiceNotAvailableError) as caught:
                await made.send(Message("T", b"x"))
    assert len(set(order[:3])) == 3
    assert order[3] != order[2]
    assert f"tried 4 times within 60000 ms: {', '.join(order)}" in caught.value.__notes__


async def test_a_broker_that_failed_is_asked_again_only_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_module, "PAUSE_MS", 50_000)
    monkeypatch.setattr(retry_module, "PAUSE_MS_MAX", 50_000)
    loop = asyncio.get_running_loop()
    begin, turned = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: begin() + turned)

    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(14, "told to")

    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        broker.answers[SEND] = refuse
        async with producer(broker.address, send_timeout_ms=3_600_000) as made:
            sending = asyncio.ensure_future(made.send(Message("T", b"x")))
            await until(lambda: broker.seen[SEND])
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(broker.seen[SEND]) == 1
            del broker.answers[SEND]
            turned = 50.0
            assert (await sending).is_ok
        assert len(broker.seen[SEND]) == 2


async def test_a_pause_that_leaves_no_time_for_a_try_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_module, "PAUSE_MS", 3_600_000)
    monkeypatch.setattr(retry_module, "PAUSE_MS_MAX", 3_600_000)

    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(14, "told to")

    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        broker.answers[SEND] = refuse
        async with producer(broker.address) as made:
            with pytest.raises(ServiceNotAvailableError) as caught:
                await made.send(Message("T", b"x"))
    assert "tried 1 times within 60000 ms: a" in caught.value.__notes__


@pytest.mark.parametrize("code", [2, 13, 14])
async def test_a_message_that_is_stored_stays_so_whatever_later_tries_come_to(code: int) -> None:
    async with FakeBroker() as a, FakeBroker() as b:

        async def answer(command: RemotingCommand) -> RemotingCommand:
            if len(a.seen[SEND]) + len(b.seen[SEND]) == 1:
                return a.stored(command, code=10)
            return command.response(code, "told to")

        a.routes["T"] = route_body({"a": a.address, "b": b.address})
        a.answers[SEND] = b.answers[SEND] = answer
        async with producer(a.address, retry_when_not_stored_ok=True) as made:
            result = await made.send(Message("T", b"x"))
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert len(a.seen[SEND]) + len(b.seen[SEND]) > 1
