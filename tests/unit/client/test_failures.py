"""Failures that no caller gets: a function of the user's is told of each, wherever it happens."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import (
    ClientSettings,
    LitePullConsumer,
    LitePullConsumerSettings,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    TransactionProducer,
    TransactionState,
    connect,
    sync,
)
from kerolox.client.core.failures import note_failure
from kerolox.client.core.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from kerolox.errors import BrokerError, ClientError, ConfigError, KeroloxError
from kerolox.message import ConsumeFromWhere, Message, MessageExt, MessageModel, MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import PULL, Consumer, QueueBroker, record

CLOSED_PORT = "127.0.0.1:1"
LOG = logging.getLogger("kerolox.failures")


class Told(list[tuple[str, BaseException]]):
    """What a client told; two of them are two functions, whatever they were told."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]

    def __call__(self, what: str, error: BaseException) -> None:
        self.append((what, error))

    def has(self, begin: str) -> bool:
        return any(what.startswith(begin) for what, _ in self)

    def error(self, begin: str) -> BaseException:
        return next(error for what, error in self if what.startswith(begin))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


async def refused(command: RemotingCommand) -> RemotingCommand:
    return command.response(1, "not today")


# -- the function itself --------------------------------------------------------------------------
def test_errors_of_ours_are_a_line_others_have_their_traceback(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    ours, others = ClientError("no broker"), ValueError("no number")
    note_failure(told, LOG, "pull failed", ours)
    note_failure(told, LOG, "rebalance failed", others)
    assert list(told) == [("pull failed", ours), ("rebalance failed", others)]
    first, second = caplog.records
    assert (first.levelname, first.message) == ("WARNING", "pull failed: no broker")
    assert (second.levelname, second.message) == ("ERROR", "rebalance failed")
    assert (first.exc_info, second.exc_info is not None) == (None, True)


def test_what_the_function_raises_is_logged_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(what: str, error: BaseException) -> None:
        raise LookupError(what)

    note_failure(fails, LOG, "pull failed", ClientError("no broker"))
    [record] = [each for each in caplog.records if each.getMessage() == "on_failure failed"]
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == "LookupError('pull failed')"


def test_a_function_that_nobody_could_call_is_refused_at_once() -> None:
    async def waits(what: str, error: BaseException) -> None: ...

    with pytest.raises(ConfigError, match="on_failure is an async function"):
        ClientSettings(on_failure=waits)
    with pytest.raises(ConfigError, match="on_failure is called with 2 arguments"):
        ClientSettings(on_failure=lambda what: None)  # type: ignore[misc, arg-type]
    with pytest.raises(ConfigError, match="on_failure is of type int"):
        ClientSettings(on_failure=5)  # type: ignore[arg-type]


# -- all clients ----------------------------------------------------------------------------------
async def test_a_heartbeat_that_fails_is_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", 20)
    settings = ProducerSettings(heartbeat_interval_ms=10, on_failure=told)
    async with FakeBroker() as made:
        made.routes["TBW102"] = route_body({"a": made.address, "down": CLOSED_PORT})
        async with Producer("group", made.address, settings=settings):
            await until(lambda: told.has(f"request {RequestCode.HEART_BEAT:d} to {CLOSED_PORT}"))
    assert all(isinstance(error, KeroloxError) for _, error in told)


async def test_name_servers_that_a_web_server_does_not_give_are_told(told: Told) -> None:
    settings = ProducerSettings(name_server_domain=CLOSED_PORT, on_failure=told)
    async with Producer("group", settings=settings):
        pass
    assert told.has("no name servers from http://")


async def test_the_end_of_a_client_that_fails_is_told(
    told: Told, broker: QueueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: object, cluster: object) -> None:
        raise RuntimeError("no end")

    monkeypatch.setattr(PullConsumer, "_leave", fails)
    settings = PullConsumerSettings(on_failure=told)
    async with PullConsumer("g", broker.address, settings=settings):
        pass
    assert str(told.error("the end of PullConsumer of group 'g' failed")) == "no end"


async def test_what_a_connection_makes_tells_what_the_connection_is_told(
    told: Told, broker: QueueBroker
) -> None:
    async with connect(broker.address, settings=ClientSettings(on_failure=told)) as connection:
        assert connection.producer("p").settings.on_failure is told
        with pytest.raises(ConfigError, match="on_failure is a setting of the connection"):
            connection.producer("q", settings=ProducerSettings(on_failure=Told()))


# -- producers ------------------------------------------------------------------------------------
async def test_a_hook_of_sends_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    class Fails(SendHook):
        def before_send(self, context: SendContext) -> None:
            raise LookupError("no tenant")

    settings = ProducerSettings(send_hooks=(Fails(),), on_failure=told)
    async with Producer("p", broker.address, settings=settings) as producer:
        await producer.send(Message("T", b"x"))
        await producer.send_oneway(Message("T", b"x"))
    assert [str(error) for what, error in told if "Fails.before_send failed" in what] == [
        "no tenant",
        "no tenant",
    ]


async def test_traces_that_are_not_sent_are_told_once_in_a_row(
    told: Told, broker: QueueBroker
) -> None:
    broker.routes["RMQ_SYS_TRACE_TOPIC"] = route_body({"a": CLOSED_PORT}, queues=1)
    settings = ProducerSettings(enable_trace=True, on_failure=told)
    async with Producer("p", broker.address, settings=settings) as producer:
        await producer.send(Message("T", b"x"))
        await until(lambda: told.has("1 traces are not sent"))


async def test_a_check_of_a_transaction_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    def check(message: MessageExt) -> TransactionState:
        raise LookupError("no order")

    settings = ProducerSettings(on_failure=told)
    async with TransactionProducer("p", broker.address, check=check, settings=settings) as producer:
        await producer.send(Message("T", b"x"))
        fields = {"tranStateTableOffset": 7, "commitLogOffset": 9, "msgId": "id"}
        code = RequestCode.CHECK_TRANSACTION_STATE
        asked = RemotingCommand.request(code, fields, body=record(7), oneway=True)
        broker.connections[-1].send_oneway(asked)
        await until(lambda: told.has("check of message"))
    assert str(told.error("check of message")) == "no order"


# -- push consumers -------------------------------------------------------------------------------
async def test_each_failure_of_a_listener_is_told(told: Told, broker: QueueBroker) -> None:
    consumer = Consumer(broker, on_failure=told)

    async def fails(messages: list[MessageExt]) -> None:
        raise ValueError(messages[0].body.decode())

    consumer.subscribe("T", "*", fails)
    broker.count = 20
    async with consumer:
        await until(lambda: len(told) == 20)
    assert all(what.startswith("listener failed for message ") for what, _ in told)
    assert {str(error) for _, error in told} == {str(number) for number in range(20)}


async def test_a_listener_of_one_message_tells_each_of_a_list(
    told: Told, broker: QueueBroker
) -> None:
    consumer = Consumer(broker, on_failure=told, consume_batch_max=4)

    async def fails(message: MessageExt) -> None:
        raise ValueError(message.body.decode())

    consumer.subscribe_each("T", "*", fails)
    broker.count = 4
    async with consumer:
        await until(lambda: len(told) == 4)


async def test_a_listener_in_a_thread_tells_its_failure_from_the_event_loop(
    told: Told, broker: QueueBroker
) -> None:
    threads: list[threading.Thread] = []

    def note(what: str, error: BaseException) -> None:
        threads.append(threading.current_thread())
        told(what, error)

    def fails(messages: list[MessageExt]) -> None:
        threads.append(threading.current_thread())
        raise ValueError("no order")

    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    settings = sync.PushConsumerSettings(on_failure=note, consume_from_where=first)
    consumer = sync.PushConsumer("g", broker.address, settings=settings)
    consumer.subscribe("T", "*", fails)
    broker.members, broker.count = [consumer.client_id], 1
    await asyncio.to_thread(consumer.start)
    try:
        await until(lambda: told.has("listener failed"))
    finally:
        await asyncio.to_thread(consumer.close)
    assert str(told.error("listener failed")) == "no order"
    assert threads[0] is not threads[1]


async def test_a_hook_of_consumers_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    class Fails(ConsumeHook):
        def after_consume(self, context: ConsumeContext) -> None:
            raise LookupError("no span")

    broker.count = 1
    async with Consumer(broker, on_failure=told, consume_hooks=(Fails(),)):
        await until(lambda: any("Fails.after_consume failed" in what for what, _ in told))


async def test_a_pull_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    broker.answers[PULL] = refused
    async with Consumer(broker, on_failure=told, pull_error_delay_ms=10):
        await until(lambda: len([what for what, _ in told if what.startswith("pull of ")]) > 1)
    error = told.error("pull of ")
    assert isinstance(error, BrokerError)
    assert error.remark == "not today"


async def test_a_rebalance_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refused
    async with Consumer(broker, on_failure=told):
        await until(lambda: told.has("rebalance of topic T failed"))


async def test_a_callback_for_queues_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    consumer = Consumer(broker, on_failure=told)

    async def fails(queues: list[MessageQueue]) -> None:
        raise LookupError("no cache")

    consumer.on_assigned(fails)
    async with consumer:
        await until(lambda: any("fails failed" in what for what, _ in told))


async def test_messages_that_cannot_be_given_back_are_told(told: Told, broker: QueueBroker) -> None:
    broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = refused
    broker.answers[RequestCode.SEND_MESSAGE_V2] = refused
    consumer = Consumer(broker, on_failure=told)

    async def fails(messages: list[MessageExt]) -> None:
        raise ValueError("no order")

    consumer.subscribe("T", "*", fails)
    broker.count = 1
    async with consumer:
        await until(lambda: told.has("send-back of message ") and told.has("retry of message "))


async def test_offsets_that_a_broker_refuses_are_told(told: Told, broker: QueueBroker) -> None:
    broker.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = refused
    broker.count = 1
    consumer = Consumer(broker, on_failure=told)
    async with consumer:
        await until(lambda: len(consumer.got) == 1)
    assert told.has("offset 1 of ")


async def test_offsets_of_a_file_that_cannot_be_written_are_told(
    told: Told, broker: QueueBroker, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("no folder")
    broker.count = 1
    consumer = Consumer(
        broker,
        on_failure=told,
        message_model=MessageModel.BROADCASTING,
        local_offset_folder=tmp_path / "offsets",
    )
    async with consumer:
        await until(lambda: len(consumer.got) == 1)
        (tmp_path / "offsets").rename(tmp_path / "aside") if (tmp_path / "offsets").exists() else 0
        (tmp_path / "offsets").write_text("no folder")
    assert told.has("offsets were not stored in ")


async def test_offsets_that_a_store_of_ones_own_refuses_are_told(
    told: Told, broker: QueueBroker
) -> None:
    class Store:
        async def load(self, queue: MessageQueue) -> int | None:
            return 0

        async def store(self, offsets: Any) -> None:
            raise LookupError("no database")

    broker.count = 1
    consumer = Consumer(broker, on_failure=told, offset_store=Store())
    async with consumer:
        await until(lambda: len(consumer.got) == 1)
    assert "no database" in str(told.error("offsets of 1 queues were not stored"))


async def test_locks_that_a_broker_does_not_grant_are_told(told: Told, broker: QueueBroker) -> None:
    broker.answers[RequestCode.LOCK_BATCH_MQ] = refused
    consumer = Consumer(broker, on_failure=told)

    async def listen(messages: list[MessageExt]) -> None: ...

    consumer.subscribe("T", "*", listen, ordered=True)
    async with consumer:
        await until(lambda: told.has("no answer to the locks of broker a"))


# -- lite pull consumers --------------------------------------------------------------------------
async def test_a_lite_pull_that_fails_is_told(told: Told, broker: QueueBroker) -> None:
    async def least(command: RemotingCommand) -> RemotingCommand:
        return command.response(ext_fields={"offset": 0})

    broker.answers[RequestCode.GET_MIN_OFFSET] = least
    broker.answers[RequestCode.GET_MAX_OFFSET] = least
    broker.answers[PULL] = refused
    settings = LitePullConsumerSettings(on_failure=told, pull_error_delay_ms=10)
    made = LitePullConsumer("g", broker.address, settings=settings)
    broker.members = [made.client_id]
    made.subscribe("T")
    async with made:
        await until(lambda: told.has("pull of ") or told.has("start of "))


def test_a_partial_function_may_be_told_too(told: Told) -> None:
    def note(kept: Told, what: str, error: BaseException) -> None:
        kept(what, error)

    settings = ClientSettings(on_failure=functools.partial(note, told))
    note_failure(settings.on_failure, LOG, "pull failed", ClientError("no broker"))
    assert told.has("pull failed")
