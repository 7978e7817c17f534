"""What a producer does first, in which order: checks, start, routes, queues, sends."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING

import pytest

from kerolox.client import Producer, ProducerSettings, TransactionProducer, TransactionState, sync
from kerolox.errors import ConfigError
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import dumps, loads
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_producer import Clock, turns

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.server import ServerConnection

ROUTE, BEAT = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT
SEND = RequestCode.SEND_MESSAGE_V2


class Noting(FakeBroker):
    """Knows in which order it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, str]] = []

    async def __aenter__(self) -> Noting:
        await super().__aenter__()
        return self

    async def _handle(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        self.order.append((command.code, command.ext_fields.get("topic", "")))
        return await super()._handle(command, connection)


def first_beat_after(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", ms)


async def test_a_start_asks_for_the_route_and_greets_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_beat_after(monkeypatch, 20)
    settings = ProducerSettings(heartbeat_interval_ms=10)
    async with Noting() as broker:
        broker.routes["TBW102"] = route_body({"a": broker.address}, perm=7)
        made = Producer("group", broker.address, settings=settings)
        await turns()
        assert broker.order == []
        async with made:
            await until(lambda: (BEAT, "") in broker.order, what="a heartbeat")
        assert broker.order[0] == (ROUTE, "TBW102")
        assert {code for code, _ in broker.order} == {ROUTE, BEAT, RequestCode.UNREGISTER_CLIENT}
        assert len(broker.connections) == 1


async def test_a_start_names_the_instance_and_brokers_hear_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_beat_after(monkeypatch, 20)
    settings = ProducerSettings(client_ip="10.0.0.7", heartbeat_interval_ms=10)
    async with Noting() as broker:
        broker.routes["TBW102"] = route_body({"a": broker.address}, perm=7)
        async with Producer("group", broker.address, settings=settings) as made:
            assert re.fullmatch(r"10\.0\.0\.7@\d+#\d+", made.client_id)
            await until(lambda: broker.seen[BEAT], what="a heartbeat")
            assert loads(broker.seen[BEAT][0].body)["clientID"] == made.client_id


@pytest.mark.parametrize("group", ["DEFAULT_PRODUCER", "", "a b", "x" * 256])
async def test_a_group_that_is_illegal_is_refused_before_anything_is_opened(group: str) -> None:
    async with FakeBroker() as broker:
        tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
        for kind in (Producer, sync.Producer):
            with pytest.raises(ConfigError, match="producer group"):
                kind(group, broker.address)
        await turns()
        assert broker.connections == []
        assert asyncio.all_tasks() <= tasks
        assert set(threading.enumerate()) <= threads


async def test_a_client_that_is_made_is_not_known_to_anybody() -> None:
    async with FakeBroker() as broker:
        threads = set(threading.enumerate())
        made = [kind("group", broker.address) for kind in (Producer, sync.Producer)]
        await turns()
        assert broker.connections == []
        assert set(threading.enumerate()) <= threads
        del made


async def test_a_heartbeat_waits_until_the_one_before_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_beat_after(monkeypatch, 3_600_000_000)
    clock, answered = Clock(monkeypatch), asyncio.Event()

    async def answer(command: RemotingCommand) -> RemotingCommand:
        await answered.wait()
        return command.response()

    settings = ProducerSettings(heartbeat_interval_ms=1_000, api_timeout_ms=3_600_000)
    async with FakeBroker() as broker:
        broker.routes["TBW102"] = route_body({"a": broker.address}, perm=7)
        broker.answers[BEAT] = answer
        async with Producer("group", broker.address, settings=settings) as made:
            await made.queues("TBW102")
            clock.turn(2)
            await until(lambda: broker.seen[BEAT], what="a heartbeat")
            for _ in range(5):
                clock.turn(2)
                await turns()
            await made.queues("TBW102")  # what was sent before this has arrived
            assert len(broker.seen[BEAT]) == 1
            answered.set()

            async def again() -> bool:
                clock.turn(2)
                await turns()
                return len(broker.seen[BEAT]) > 1

            await until(again, what="the next heartbeat")


async def test_a_broker_goes_with_the_poll_that_no_longer_names_it() -> None:
    settings = ProducerSettings(route_poll_interval_ms=10)
    async with FakeBroker() as broker, FakeBroker() as other:
        broker.routes["T"] = route_body({"a": broker.address, "b": other.address})
        async with Producer("group", broker.address, settings=settings) as made:
            await made.send(Message("T", b"x"))
            cluster = made._open_cluster()
            assert cluster.master_address("b") == other.address
            broker.routes["T"] = route_body({"a": broker.address})
            await until(lambda: cluster.master_address("b") is None, what="the poll")
            assert cluster.master_address("a") == broker.address


async def test_queues_to_send_to_are_those_that_take_messages() -> None:
    def queues(broker: str, perm: int, writable: int) -> dict[str, object]:
        return {
            "brokerName": broker,
            "perm": perm,
            "readQueueNums": 4,
            "writeQueueNums": writable,
            "topicSysFlag": 0,
        }

    async with FakeBroker() as broker:
        names = ("some", "all", "read-only", "without-master")
        broker.routes["T"] = dumps(
            {
                "brokerDatas": [
                    {
                        "brokerAddrs": {int(name == "without-master"): broker.address},
                        "brokerName": name,
                        "cluster": "c",
                    }
                    for name in names
                ],
                "queueDatas": [
                    queues("some", 6, 2),
                    queues("all", 2, 1),
                    queues("read-only", 4, 4),
                    queues("without-master", 6, 4),
                ],
            }
        )
        async with Producer("group", broker.address) as made:
            found = await made.queues("T")
    assert found == [
        MessageQueue("T", "all", 0),
        MessageQueue("T", "some", 0),
        MessageQueue("T", "some", 1),
    ]


async def test_a_first_send_asks_for_the_route_then_sends_then_judges() -> None:
    async with Noting() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        async with Producer("group", broker.address) as made:
            result = await made.send(Message("T", b"x"))
            assert (await made.send(Message("T", b"y"))).queue == result.queue
        own = [code for code, topic in broker.order if topic == "T" or code == SEND]
        assert own[:3] == [ROUTE, SEND, SEND]
        assert result.queue == MessageQueue("T", "a", 0)
        assert result.queue_offset == 1


async def test_a_producer_of_transactions_is_a_producer() -> None:
    def check(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    assert issubclass(TransactionProducer, Producer)
    assert issubclass(sync.TransactionProducer, sync.Producer)
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with TransactionProducer("group", broker.address, check=check) as made:
            await made.send(Message("T", b"plain"))
            await made.send_in_transaction(
                Message("T", b"half"), lambda message: TransactionState.COMMIT
            )
        marks = ["TRAN_MSG" in command.ext_fields["i"] for command in broker.seen[SEND]]
        flags = [int(command.ext_fields["f"]) & 4 for command in broker.seen[SEND]]
    assert (marks, flags) == ([False, True], [0, 4])


async def test_a_send_is_waited_for_or_calls_back_or_goes_one_way() -> None:
    called: list[object] = []
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with Producer("group", broker.address) as made:
            waited = await made.send(Message("T", b"waited for"))
            sending = asyncio.ensure_future(made.send(Message("T", b"called back")))
            sending.add_done_callback(lambda done: called.append(done.result()))
            await until(lambda: called, what="the call back")
            broker.answers[SEND] = _refused
            failing = asyncio.ensure_future(made.send(Message("T", b"refused"), timeout_ms=600_000))
            failing.add_done_callback(lambda done: called.append(done.exception()))
            await until(lambda: len(called) == 2, what="the call back of a failure")
            assert await made.send_oneway(Message("T", b"one way")) is None  # type: ignore[func-returns-value]
            await until(lambda: broker.seen[SEND][-1].body == b"one way", what="the message")
        ways = [command.is_oneway for command in broker.seen[SEND]]
    assert waited.is_ok
    assert called[0] == sending.result()
    assert "code 13" in str(called[1])
    assert ways == [False, False, False, True]


async def _refused(command: RemotingCommand) -> RemotingCommand:
    return command.response(13, "told to")
