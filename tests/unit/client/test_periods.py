"""What a producer does by itself, and when: with a clock that is turned by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.client.aio.network import background
from kerolox.client.aio.settings import ClientSettings
from kerolox.errors import BrokerError, RequestTimeoutError
from kerolox.message import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

HEART_BEAT, ROUTE = RequestCode.HEART_BEAT, RequestCode.GET_ROUTEINFO_BY_TOPIC
KINDS = (ProducerSettings, PushConsumerSettings, PullConsumerSettings)


class HandClock:
    """Stands for ``asyncio`` in the module of periodic tasks: they sleep as long as it says."""

    current_task = staticmethod(asyncio.current_task)
    gather = staticmethod(asyncio.gather)

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._busy: set[asyncio.Task[None] | None] = set()

    def ensure_future(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        return task

    async def sleep(self, seconds: float) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waiting))
        task = asyncio.current_task()
        self._busy.discard(task)
        await waiting
        self._busy.add(task)

    def is_idle(self) -> bool:
        """All periodic tasks sleep: they know how late it is."""
        return not self._busy

    async def turn_to(self, seconds: float) -> None:
        """Wake all whose time has come by then, one after the other, when all others sleep."""
        await until(self.is_idle)
        while due := [each for each in self._sleepers if each[0] <= seconds]:
            at, waiting = min(due, key=lambda each: each[0])
            self._sleepers.remove((at, waiting))
            self.now = at
            if not waiting.done():
                waiting.set_result(None)
                for _ in range(3):  # until whoever woke sleeps again, or waits for an answer
                    await asyncio.sleep(0)
        self.now = seconds


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    made = HandClock()
    monkeypatch.setattr(background, "asyncio", made)
    return made


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["TBW102"] = route_body({"a": made.address}, perm=7)
        made.routes["T"] = route_body({"a": made.address}, queues=1)
        yield made


async def test_a_producer_polls_at_once_greets_after_a_second_then_each_30(
    broker: FakeBroker, hand_clock: HandClock
) -> None:
    def polls() -> int:
        return sum(c.ext_fields["topic"] == "TBW102" for c in broker.seen[ROUTE])

    async def settled(polled: int, greeted: int) -> bool:
        """So many have come, and no more are on their way: they would come before an answer."""
        await until(lambda: polls() >= polled and len(broker.seen[HEART_BEAT]) >= greeted)
        await producer.queues("T")
        return (polls(), len(broker.seen[HEART_BEAT])) == (polled, greeted)

    async with Producer("G", broker.address) as producer:
        await asyncio.sleep(0)
        assert await settled(0, 0)
        await hand_clock.turn_to(0.010)
        assert await settled(1, 0)
        await hand_clock.turn_to(0.999)
        assert await settled(1, 0)
        await hand_clock.turn_to(1.0)
        assert await settled(1, 1)
        await hand_clock.turn_to(29.999)
        assert await settled(1, 1)
        await hand_clock.turn_to(30.0)
        assert await settled(2, 2)
        await hand_clock.turn_to(59.999)
        assert await settled(2, 2)
        await hand_clock.turn_to(60.0)
        assert await settled(3, 3)
    assert [c.ext_fields["producerGroup"] for c in broker.seen[RequestCode.UNREGISTER_CLIENT]]


async def test_the_periods_are_settings(broker: FakeBroker, hand_clock: HandClock) -> None:
    settings = ProducerSettings(heartbeat_interval_ms=5_000, route_poll_interval_ms=600_000)
    async with Producer("G", broker.address, settings=settings) as producer:
        await asyncio.sleep(0)
        for at, greeted in ((0.010, 0), (1.0, 1), (5.0, 2), (10.0, 3)):
            await hand_clock.turn_to(at)
            await until(lambda expected=greeted: len(broker.seen[HEART_BEAT]) == expected)
            await producer.queues("T")  # the first route has come meanwhile
    assert sum(c.ext_fields["topic"] == "TBW102" for c in broker.seen[ROUTE]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_client_has_the_shared_settings(kind: type[ClientSettings]) -> None:
    made = kind()
    assert isinstance(made, ClientSettings)
    assert (made.client_ip, made.instance_name, made.unit_name) == ("", "DEFAULT", "")
    assert (made.route_poll_interval_ms, made.heartbeat_interval_ms) == (30_000, 30_000)
    assert (made.api_timeout_ms, made.unit_mode, made.namespace) == (3_000, False, "")
    assert (made.tls, made.credentials, made.rpc_hook) == (False, None, None)


def test_the_shared_settings_count_for_every_kind_of_client() -> None:
    shared = {"client_ip": "10.1.2.3", "instance_name": "i", "unit_name": "u", "namespace": "n"}
    clients = (
        Producer("G", "h:1", settings=ProducerSettings(**shared)),
        PushConsumer("G", "h:1", settings=PushConsumerSettings(**shared)),
        PullConsumer("G", "h:1", settings=PullConsumerSettings(**shared)),
    )
    assert {client.client_id for client in clients} == {"10.1.2.3@i@u"}
    assert {client.group for client in clients} == {"n%G"}


async def test_settings_serve_many_producers_and_stay_as_they_are(broker: FakeBroker) -> None:
    settings = ProducerSettings(retries=1, send_timeout_ms=30_000)
    before = repr(settings)
    async with (
        Producer("one", broker.address, settings=settings) as one,
        Producer("two", broker.address, settings=settings) as two,
    ):
        assert one.settings is two.settings is settings
        assert one.client_id != two.client_id
        await one.send(Message("T", b"x"))
        await two.send(Message("T", b"x"))
    sends = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert {command.ext_fields["a"] for command in sends} == {"one", "two"}
    assert repr(settings) == before


async def test_a_send_has_three_seconds_for_all_its_tries(broker: FakeBroker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(14, "told to")

    broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse
    async with Producer("G", broker.address) as producer:
        with pytest.raises((BrokerError, RequestTimeoutError)) as caught:
            await producer.send(Message("T", b"x"))
    [note] = caught.value.__notes__
    assert "within 3000 ms" in note
