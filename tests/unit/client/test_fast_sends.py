"""Fast-path sends: encoded by a codec, a future each; whatever fails goes the slow path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings, SendStatus
from kerolox.client.core.sending.send import SendHeader
from kerolox.errors import BrokerError, ClientError, MessageRejectedError, RequestTimeoutError
from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.message import Message, MessageQueue, decode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.remoting.client_connection import ONEWAY_PER_ITERATION_MAX
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand
    from kerolox.remoting.client_connection import ClientConnection

SEND = RequestCode.SEND_MESSAGE_V2
HOUR_MS = 3_600_000


@pytest.fixture(params=["python", "native"], autouse=True)
def _codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "native":
        pytest.importorskip("kerolox_kernel")
    monkeypatch.setenv(KERNEL_VARIABLE, request.param)


@asynccontextmanager
async def sending(
    *, brokers: int = 1, room: int = 65_535, **settings: Any
) -> AsyncIterator[tuple[Producer, list[FakeBroker]]]:
    """A producer that has sent a message to each of some brokers, which no longer are among
    ``seen``."""
    async with asyncio.timeout(SECONDS_MAX), FakeBroker() as first, FakeBroker() as second:
        used = [first, second][:brokers]
        first.routes["T"] = route_body(
            {name: each.address for name, each in zip("ab", used, strict=False)}, queues=1
        )
        given = ProducerSettings(**({"send_timeout_ms": HOUR_MS} | settings))
        async with Producer("group", first.address, settings=given) as producer:
            producer._open_cluster().remoting._open_calls_max = room
            for name in "ab"[:brokers]:
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", name, 0))
            for each in used:
                each.seen[SEND].clear()
            yield producer, used


def connection_to(producer: Producer, broker: FakeBroker) -> ClientConnection:
    connection = producer._open_cluster().remoting.connection(broker.address)
    assert connection is not None
    return connection


async def never(command: RemotingCommand) -> None:
    return None


@pytest.fixture
def no_general_way(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Requests that were made on the slow path."""
    made: list[object] = []
    request = SendHeader.request

    def seen(self: SendHeader, *args: Any, **named: Any) -> RemotingCommand:
        made.append(args)
        return request(self, *args, **named)

    monkeypatch.setattr(SendHeader, "request", seen)
    return made


async def test_a_fast_send_needs_no_request_of_the_slow_path(
    no_general_way: list[object],
) -> None:
    async with sending() as (producer, (broker,)):
        no_general_way.clear()
        message = Message("T", b"body", tags="t", keys=["k", "l"], properties={"p": "v"}, flag=3)
        result = await producer.send(message)
        (seen,) = broker.seen[SEND]
        properties = decode_properties(seen.ext_fields["i"])
        assert properties == {
            "p": "v",
            "KEYS": "k l",
            "TAGS": "t",
            "WAIT": "true",
            "UNIQ_KEY": result.message_id,
        }
        assert (seen.body, seen.ext_fields["h"], seen.ext_fields["e"]) == (b"body", "3", "0")
        assert result.queue == MessageQueue("T", "a", 0)
        assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, 2)
        assert result.offset_message_id.endswith("00000002")
        assert not no_general_way


async def test_a_lone_send_is_written_at_once_and_the_next_with_its_turn() -> None:
    async with sending() as (producer, (broker,)):
        gathered = connection_to(producer, broker).sends
        await until(lambda: not gathered.buffered_frames)  # as a heartbeat
        lone = producer.submit(Message("T", b"lone"))
        assert (len(gathered), gathered.buffered_frames) == (1, 0)
        others = [producer.submit(Message("T", b"other")) for _ in range(2)]
        assert (len(gathered), gathered.buffered_frames) == (3, 2)
        results = await asyncio.gather(lone, *others)
        assert [result.status for result in results] == [SendStatus.SEND_OK] * 3


async def test_one_way_sends_need_no_request_of_the_slow_path_and_give_others_turns(
    no_general_way: list[object],
) -> None:
    async with sending() as (producer, (broker,)):
        no_general_way.clear()
        turns: list[None] = []

        async def other() -> None:
            while True:
                turns.append(await asyncio.sleep(0))

        beside = asyncio.ensure_future(other())
        for number in range(5 * ONEWAY_PER_ITERATION_MAX):
            await producer.send_oneway(Message("T", b"%d" % number))
        assert len(turns) >= 4
        beside.cancel()
        await until(lambda: len(broker.seen[SEND]) == 5 * ONEWAY_PER_ITERATION_MAX)
        assert all(command.is_oneway for command in broker.seen[SEND])
        bodies = [command.body for command in broker.seen[SEND]]
        assert bodies == [b"%d" % number for number in range(5 * ONEWAY_PER_ITERATION_MAX)]
        assert not no_general_way


async def test_a_one_way_send_without_room_waits_in_the_slow_path() -> None:
    async with sending() as (producer, (broker,)):
        connection = connection_to(producer, broker)
        connection.pause_writing()
        waiting = asyncio.ensure_future(producer.send_oneway(Message("T", b"later")))
        await until(lambda: connection.requests.request_queue)
        connection.resume_writing()
        await waiting
        await until(lambda: [command.body for command in broker.seen[SEND]] == [b"later"])


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x", delay_level=2),
        Message("T", b"x" * 5_000),
        Message("T", bytearray(b"x")),  # type: ignore[arg-type]
    ],
    ids=["delayed", "compressed", "no bytes"],
)
async def test_what_does_not_fit_takes_the_slow_path(
    message: Message, no_general_way: list[object]
) -> None:
    async with sending() as (producer, (broker,)):
        no_general_way.clear()
        assert (await producer.send(message)).is_ok
        assert len(no_general_way) == len(broker.seen[SEND]) == 1


async def test_an_illegal_message_is_refused_and_keeps_nothing() -> None:
    async with sending() as (producer, (broker,)):
        with pytest.raises(MessageRejectedError, match="keys has U\\+0001"):
            await producer.send(Message("T", b"x", keys="a\1b"))
        assert not broker.seen[SEND]
        assert len(connection_to(producer, broker).sends) == 0


async def test_a_refused_fast_send_goes_on_elsewhere_under_its_own_id() -> None:
    async with sending(brokers=2) as (producer, brokers):
        refused: list[RemotingCommand] = []

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            refused.append(command)
            return command.response(14, "told to")

        brokers[0].answers[SEND] = refuse
        while not refused:
            result = await producer.send(Message("T", b"x"))
        assert result.queue.broker_name == "b"
        (first,) = refused
        ids = {
            decode_properties(each.ext_fields["i"])["UNIQ_KEY"]
            for each in (first, brokers[1].seen[SEND][-1])
        }
        assert ids == {result.message_id}


async def test_a_fast_send_to_a_given_queue_is_tried_once() -> None:
    async with sending() as (producer, (broker,)):

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            return command.response(14, "told to")

        broker.answers[SEND] = refuse
        with pytest.raises(BrokerError, match="told to"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
        assert len(broker.seen[SEND]) == 1


async def test_a_fast_send_that_is_stored_less_safely_is_tried_again_if_so_set() -> None:
    async with sending(brokers=2, retry_when_not_stored_ok=True) as (producer, brokers):

        async def slowly(command: RemotingCommand) -> RemotingCommand:
            return brokers[0].stored(command, 10)

        brokers[0].answers[SEND] = slowly
        results = [await producer.send(Message("T", b"x")) for _ in range(2)]
        assert [result.queue.broker_name for result in results] == ["b", "b"]
        brokers[1].answers[SEND] = slowly
        stored = await producer.send(Message("T", b"x"))
        assert stored.status is SendStatus.FLUSH_DISK_TIMEOUT


async def test_a_fast_send_without_answer_ends_in_its_own_time() -> None:
    async with sending() as (producer, (broker,)):
        broker.answers[SEND] = never
        slow = asyncio.ensure_future(producer.send(Message("T", b"slow")))
        with pytest.raises(RequestTimeoutError, match="request 310 to 127"):
            await producer.send(Message("T", b"x"), timeout_ms=50)
        assert len(connection_to(producer, broker).sends) == 1
        slow.cancel()
        await asyncio.wait([slow])
        assert len(connection_to(producer, broker).sends) == 0


async def test_a_cancelled_fast_send_leaves_nothing_and_gives_way_to_the_next() -> None:
    async with sending(room=1) as (producer, (broker,)):
        asked: asyncio.Queue[RemotingCommand] = asyncio.Queue()

        async def hold(command: RemotingCommand) -> None:
            asked.put_nowait(command)

        broker.answers[SEND] = hold
        sends = [asyncio.ensure_future(producer.send(Message("T", b"%d" % i))) for i in range(4)]
        assert (await asked.get()).body == b"0"
        sends[1].cancel()
        sends[0].cancel()
        second = await asked.get()
        assert second.body == b"2"
        broker.answers.clear()
        await broker.connections[-1].loop.create_task(_answer(broker, second))
        assert [(await send).queue_offset for send in sends[2:]] == [2, 3]
        connection = connection_to(producer, broker)
        assert len(connection.sends) == len(connection.requests.request_queue) == 0
        await until(connection.has_capacity)


async def _answer(broker: FakeBroker, command: RemotingCommand) -> None:
    for connection in broker.connections:
        if not connection.closed:
            connection.send_command(broker.stored(command))


async def test_fast_and_other_requests_wait_in_one_queue() -> None:
    async with sending(room=1) as (producer, (broker,)):
        gate = asyncio.Event()
        bodies: list[bytes] = []

        async def hold(command: RemotingCommand) -> RemotingCommand:
            bodies.append(command.body)
            await gate.wait()
            return broker.stored(command)

        broker.answers[SEND] = hold
        messages = [Message("T", b"%d" % i, delay_level=i % 2) for i in range(6)]
        sends = asyncio.gather(*map(producer.send, messages))
        await until(lambda: bodies)
        gate.set()
        await sends
        assert bodies == [message.body for message in messages]


async def test_a_fast_send_that_finds_no_capacity_in_time_says_so() -> None:
    async with sending(room=1) as (producer, (broker,)):
        broker.answers[SEND] = never
        first = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await until(lambda: broker.seen[SEND])
        with pytest.raises(RequestTimeoutError, match="no capacity in time"):
            await producer.send(Message("T", b"x"), timeout_ms=50)
        first.cancel()
        await asyncio.wait([first])


async def test_an_illegal_message_that_waits_for_room_is_refused_when_it_has_it() -> None:
    async with sending(room=1) as (producer, (broker,)):
        asked = asyncio.Event()

        async def hold(command: RemotingCommand) -> RemotingCommand:
            await asked.wait()
            return broker.stored(command)

        broker.answers[SEND] = hold
        first = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await until(lambda: broker.seen[SEND])
        second = asyncio.ensure_future(producer.send(Message("T", b"x", keys="a\1")))
        third = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await asyncio.sleep(0)
        asked.set()
        assert (await first).is_ok
        with pytest.raises(MessageRejectedError):
            await second
        assert (await third).is_ok


async def test_a_lost_connection_ends_fast_sends_which_are_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with sending() as (producer, (broker,)):
        broker.answers[SEND] = never
        send = asyncio.ensure_future(producer.send(Message("T", b"x")))
        await until(lambda: broker.seen[SEND])
        del broker.answers[SEND]
        for connection in broker.connections:
            connection.abort()
        assert (await send).is_ok
        assert "during request 310" in caplog.text
        assert len(broker.seen[SEND]) == 2


async def test_what_is_known_of_latency_counts_fast_sends_too() -> None:
    async with sending(latency_fault_enable=True) as (producer, (broker,)):
        assert producer._faults is not None
        await producer.send(Message("T", b"x"))
        assert producer._faults.is_available("a")

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            return command.response(13, "told to")

        broker.answers[SEND] = refuse
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"))
        assert not producer._faults.is_available("a")


async def test_brokers_that_no_connection_leads_to_yet_have_their_turn() -> None:
    async with FakeBroker() as first, FakeBroker() as second, asyncio.timeout(SECONDS_MAX):
        first.routes["T"] = route_body({"a": first.address, "b": second.address}, queues=1)
        async with Producer("group", first.address) as producer:
            names = [(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(6)]
    assert names.count("a") == names.count("b") == 3


async def test_a_producer_that_sends_in_another_loop_is_told_so() -> None:
    async with sending() as (producer, _):

        def elsewhere() -> None:
            with pytest.raises(ClientError, match="event loop"):
                asyncio.run(producer.send(Message("T", b"x")))

        await asyncio.to_thread(elsewhere)
        assert (await producer.send(Message("T", b"x"))).is_ok
