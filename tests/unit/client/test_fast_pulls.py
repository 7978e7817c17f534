"""Rows of fast-path pulls: how they begin, follow each other and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import RpcHook
from kerolox.errors import ClientClosedError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client_connection import ClientConnection
from tests.support.eventually import until
from tests.support.servers.fake_broker import route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker, looks_of, record

PULL = RequestCode.PULL_MESSAGE


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


def connection_of(consumer: Consumer, broker: QueueBroker) -> ClientConnection:
    connection = consumer._open_cluster().remoting.connection(broker.address)
    assert connection is not None
    return connection


def pulls_of(broker: QueueBroker) -> list[RemotingCommand]:
    return [each for each in broker.seen[PULL] if each.ext_fields["topic"] == "T"]


async def test_an_answer_begins_the_next_pull_without_the_task_of_the_queue(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Consumer(broker, pull_batch_size=10) as consumer:
        await until(lambda: pulls_of(broker))
        looks = looks_of(consumer, monkeypatch)
        broker.add(300)
        await until(lambda: len(consumer.got) == 300)
        await until(lambda: len(pulls_of(broker)) > 30)
        assert not [each for each in looks if each.queue.topic == "T"]
        offsets = [int(each.ext_fields["queueOffset"]) for each in pulls_of(broker)]
        assert offsets == list(range(0, 301, 10))
    assert broker.committed["T", 0] == 300


async def test_pulls_that_are_answered_together_leave_in_one_write(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.routes["T"] = route_body({"a": broker.address}, queues=4)
    held: list[asyncio.Future[None]] = []

    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["topic"] != "T" or int(command.ext_fields["queueOffset"]):
            await broker.arrived.wait()
            return None
        held.append(asyncio.get_running_loop().create_future())
        await held[-1]
        return broker.answer(command, 0, 1, 1, record(0))

    broker.answers[PULL] = pull
    async with Consumer(broker) as consumer:
        await until(lambda: len(held) == 4)
        connection = connection_of(consumer, broker)
        writes: list[int] = []
        send = connection.send

        def note(data: bytes) -> None:
            writes.append(data.count(b'"code":11,'))
            send(data)

        monkeypatch.setattr(connection, "send", note)
        for each in held:
            each.set_result(None)
        await until(lambda: sum(writes) == 4)
        assert [count for count in writes if count] == [4]


@pytest.mark.parametrize("is_general", [False, True])
async def test_a_pull_that_is_to_be_repeated_unchanged_waits_a_little(
    broker: QueueBroker, is_general: bool
) -> None:
    async def pull(command: RemotingCommand) -> RemotingCommand:
        offset = int(command.ext_fields["queueOffset"])
        return broker.answer(command, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, 1, b"")

    broker.answers[PULL] = pull
    more = {"pull_interval_ms": 1} if is_general else {}
    async with Consumer(broker, pull_error_delay_ms=600_000, **more) as consumer:
        await until(lambda: pulls_of(broker))
        connection = connection_of(consumer, broker)
        seen = len(pulls_of(broker))
        # What the consumer does in many turns of its loop.
        for _ in range(50):
            await consumer._heartbeat()
        assert not connection.closed
        assert len(pulls_of(broker)) - seen <= 1


class _Sees(RpcHook):
    def __init__(self) -> None:
        self.codes: list[int] = []

    def before_request(self, address: str, request: RemotingCommand) -> None:
        self.codes.append(request.code)

    def after_response(
        self, address: str, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        pass


async def test_with_a_hook_each_pull_takes_the_slow_path(broker: QueueBroker) -> None:
    hook = _Sees()
    async with Consumer(broker, rpc_hook=hook, pull_batch_size=10) as consumer:
        broker.add(50)
        await until(lambda: len(consumer.got) == 50)
    assert hook.codes.count(PULL) == len(broker.seen[PULL])


@pytest.mark.parametrize(
    "changes",
    [
        {"nextBeginOffset": "x"},
        {"nextBeginOffset": None},
        {"suggestWhichBrokerId": "1.5"},
        {"minOffset": ""},
    ],
)
async def test_a_malformed_answer_is_told_and_asked_again(
    broker: QueueBroker, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    is_odd = True

    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        nonlocal is_odd
        answer = await broker.pull(command)
        if answer is not None and answer.body and is_odd:
            is_odd = False
            answer.ext_fields = {
                name: value
                for name, value in (answer.ext_fields | changes).items()
                if value is not None
            }
        return answer

    broker.answers[PULL] = pull
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: pulls_of(broker))
        broker.add(3)
        await until(lambda: len(consumer.got) == 3)
    assert "malformed" in caplog.text
    assert broker.committed["T", 0] == 3


@pytest.mark.parametrize("how", ["torn", "other magic", "huge"])
async def test_torn_records_are_told_and_pulled_again(
    broker: QueueBroker, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_odd = True

    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        nonlocal is_odd
        answer = await broker.pull(command)
        if answer is not None and answer.body and is_odd:
            is_odd = False
            body = answer.body
            answer.body = {
                "torn": body[:-1],
                "other magic": body[:4] + bytes(4) + body[8:],
                "huge": b"\x7f\xff\xff\xff" + body[4:],
            }[how]
        return answer

    broker.answers[PULL] = pull
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: pulls_of(broker))
        broker.add(3)
        await until(lambda: len(consumer.got) == 3)
    assert "record" in caplog.text
    assert broker.committed["T", 0] == 3


async def test_a_refused_pull_is_told_and_repeated(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def pull(command: RemotingCommand) -> RemotingCommand | None:
        answer = await broker.pull(command)
        if len(pulls_of(broker)) == 2:
            return command.response(1, "not now")
        return answer

    broker.answers[PULL] = pull
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: pulls_of(broker))
        broker.add(1)
        await until(lambda: len(pulls_of(broker)) == 2)
        broker.add(2)
        await until(lambda: len(consumer.got) == 3)
    assert "not now" in caplog.text


async def test_a_pull_without_answer_ends_in_its_time_and_is_repeated(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with Consumer(
        broker, pull_timeout_ms=50, suspend_timeout_ms=1, pull_error_delay_ms=1
    ) as consumer:
        await until(lambda: len(pulls_of(broker)) >= 3)
        assert len(connection_of(consumer, broker).requests.pulls) <= 1
    assert "no response in time to request 11 to" in caplog.text


async def test_a_lost_connection_ends_its_pulls_and_another_goes_on(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: pulls_of(broker))
        connection = connection_of(consumer, broker)
        assert len(connection.requests.pulls) == 1
        connection.abort()
        await until(lambda: not len(connection.requests.pulls))
        broker.add(3)
        await until(lambda: len(consumer.got) == 3)
    assert "during request 11 to" in caplog.text


async def test_what_is_answered_after_a_queue_went_is_dropped(broker: QueueBroker) -> None:
    async with Consumer(broker) as consumer:
        await until(lambda: pulls_of(broker))
        connection = connection_of(consumer, broker)
        [assignment] = [each for each in consumer._assignments.values() if each.queue.topic == "T"]
        assert len(connection.requests.pulls) == 1
        broker.members = ["!", consumer.client_id]
        await consumer.rebalance()
        await until(lambda: not len(connection.requests.pulls))
        received = connection.requests.silence.received_at
        broker.add(2)
        await until(lambda: connection.requests.silence.received_at > received)
        assert (consumer.got, len(assignment.process_queue)) == ([], 0)


async def test_pulls_count_among_the_requests_that_a_connection_may_have_open(
    broker: QueueBroker,
) -> None:
    async def count(command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": broker.count})

    broker.answers[RequestCode.GET_MAX_OFFSET] = count
    async with Consumer(broker) as consumer:
        await until(lambda: pulls_of(broker))
        connection = connection_of(consumer, broker)
        assert connection.has_capacity()
        connection.sends.calls_max = len(connection.requests.pulls)
        assert not connection.has_capacity()
        # The answer makes room, and whoever waits for it goes first.
        query = asyncio.ensure_future(consumer.max_offset(MessageQueue("T", "a", 0)))
        await until(lambda: connection.requests.request_queue)
        broker.add(1)
        assert (await query) == 1
        await until(lambda: consumer.got)
        broker.add(1)
        await until(lambda: len(consumer.got) == 2)


async def test_a_failure_while_messages_are_taken_is_logged_and_pulled_again(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with Consumer(broker, pull_error_delay_ms=10) as consumer:
        await until(lambda: pulls_of(broker))
        consuming = consumer._running.consuming
        submit = consuming.submit

        def fail(*_: object) -> None:
            monkeypatch.setattr(consuming, "submit", submit)
            raise ZeroDivisionError

        monkeypatch.setattr(consuming, "submit", fail)
        broker.add(1)
        await until(lambda: "ZeroDivisionError" in caplog.text)
        broker.add(1)
        await until(lambda: consumer.got and consumer.got[-1].queue_offset == 1)


async def test_a_closed_client_ends_its_pulls(broker: QueueBroker) -> None:
    consumer = Consumer(broker)
    await consumer.start()
    await until(lambda: pulls_of(broker))
    connection = connection_of(consumer, broker)
    waiter = connection.loop.create_future()
    connection.requests.pull(b"", 1_000_000, connection.loop.time() + 60, "request 11", waiter)
    await consumer.close()
    assert not len(connection.requests.pulls)
    with pytest.raises(ClientClosedError):
        await waiter
