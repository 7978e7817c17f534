"""Hooks around sends, listeners, pulls, the ends of transactions and each request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from kerolox.client import (
    ConsumeContext,
    ConsumeHook,
    ConsumeStatus,
    EndTransactionContext,
    EndTransactionHook,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    RpcHook,
    SendContext,
    SendHook,
    TransactionProducer,
    TransactionState,
)
from kerolox.client.core.hooks import ConsumeReturnType, MessageType
from kerolox.errors import KeroloxError, ServiceNotAvailableError
from kerolox.message import Message, decode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.message import MessageExt

SEND = RequestCode.SEND_MESSAGE_V2


class Notes(SendHook, EndTransactionHook):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, SendContext]] = []
        self.ends: list[EndTransactionContext] = []

    def before_send(self, context: SendContext) -> None:
        assert context.result is context.error is None
        self.sends.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        self.sends.append(("after", context))

    def end_transaction(self, context: EndTransactionContext) -> None:
        self.ends.append(context)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address}, queues=1)
        yield made


def settings(*hooks: SendHook, **more: Any) -> ProducerSettings:
    return ProducerSettings(send_hooks=hooks, **more)


async def test_a_hook_sees_each_try_before_and_after(broker: FakeBroker) -> None:
    failures = [14, 0]

    async def answer(command: RemotingCommand) -> RemotingCommand:
        code = failures.pop(0)
        return broker.stored(command) if not code else command.response(code, "told to")

    broker.answers[SEND] = answer
    notes = Notes()
    async with Producer("G", broker.address, settings=settings(notes)) as producer:
        result = await producer.send(Message("T", b"x", delay_level=3))
    assert [when for when, _ in notes.sends] == ["before", "after"] * 2
    failed, stored = notes.sends[1][1], notes.sends[3][1]
    assert isinstance(failed.error, ServiceNotAvailableError)
    assert failed.result is None
    assert stored.result == result
    assert stored.error is None
    assert (stored.group, stored.broker_address) == ("G", broker.address)
    assert stored.message_type is MessageType.DELAY


async def test_a_one_way_send_has_hooks_but_no_result(broker: FakeBroker) -> None:
    notes = Notes()
    async with Producer("G", broker.address, settings=settings(notes)) as producer:
        await producer.send_oneway(Message("T", b"x"))
    [(_, before), (_, after)] = notes.sends
    assert before is after
    assert after.is_oneway
    assert after.result is None


async def test_a_hook_may_add_a_property(broker: FakeBroker) -> None:
    class Adds(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.add_property("trace-id", "42")

    async with Producer("G", broker.address, settings=settings(Adds())) as producer:
        await producer.send(Message("T", b"x", tags="a"))
        await producer.send_oneway(Message("T", b"y"))
    first, second = (decode_properties(c.ext_fields["i"]) for c in broker.seen[SEND])
    assert (first["trace-id"], first["TAGS"], second["trace-id"]) == ("42", "a", "42")


async def test_what_a_hook_raises_is_logged_and_the_send_goes_on(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(SendHook):
        def before_send(self, context: SendContext) -> None:
            raise RuntimeError("broken hook")

    notes = Notes()
    with caplog.at_level(logging.WARNING):
        async with Producer("G", broker.address, settings=settings(Fails(), notes)) as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok
    assert "broken hook" in caplog.text
    assert len(notes.sends) == 2


async def test_a_hook_sees_the_end_of_each_transaction(broker: FakeBroker) -> None:
    notes = Notes()

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    async def execute(message: Message) -> TransactionState:
        return TransactionState.ROLLBACK

    given = ProducerSettings(send_hooks=(notes,), end_transaction_hooks=(notes,))
    made = TransactionProducer("G", broker.address, check=check, settings=given)
    async with made as producer:
        sent = await producer.send_in_transaction(Message("T", b"x", keys="k"), execute)
    [end] = notes.ends
    assert (end.topic, end.message_id) == ("T", sent.send.message_id)
    assert end.state is TransactionState.ROLLBACK
    assert not end.is_from_check
    assert end.properties["KEYS"] == "k"
    assert notes.sends[0][1].message_type is MessageType.TRANSACTION_HALF


async def test_requests_go_through_the_hook_and_may_be_signed_or_stopped(
    broker: FakeBroker,
) -> None:
    seen: list[tuple[str, int, int]] = []

    class Signs(RpcHook):
        def before_request(self, address: str, request: RemotingCommand) -> None:
            if request.ext_fields.get("topic") == "Secret":
                raise KeroloxError("no key for this topic")
            request.ext_fields["Signature"] = "s"

        def after_response(
            self, address: str, request: RemotingCommand, response: RemotingCommand
        ) -> None:
            seen.append((address, request.code, response.code))

    given = ProducerSettings(rpc_hook=Signs())
    async with Producer("G", broker.address, settings=given) as producer:
        await producer.send(Message("T", b"x"))
        await producer.send_oneway(Message("T", b"x"))
        with pytest.raises(KeroloxError, match="no key for this topic"):
            await producer.queues("Secret")
    assert (broker.address, SEND, 0) in seen
    assert (broker.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, 0) in seen
    sends = broker.seen[SEND]
    assert len(sends) == 2
    assert all(command.ext_fields["Signature"] == "s" for command in sends)


async def test_requests_of_brokers_go_through_the_hook_too(broker: FakeBroker) -> None:
    seen: list[tuple[str, int]] = []

    class Notices(RpcHook):
        def before_request(self, address: str, request: RemotingCommand) -> None:
            seen.append(("before", request.code))

        def after_response(
            self, address: str, request: RemotingCommand, response: RemotingCommand
        ) -> None:
            seen.append(("after", request.code))

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    given = ProducerSettings(rpc_hook=Notices())
    async with TransactionProducer("G", broker.address, check=check, settings=given) as producer:
        await producer.send(Message("T", b"x"))
        answer = await broker.connections[0].request(
            RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO), timeout_seconds=30
        )
    assert answer.code == 3
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    assert [when for when, each in seen if each == code] == ["before", "after"]


class Listens(ConsumeHook):
    """Keeps each call: when, and what the context said then."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[bytes], bool, ConsumeReturnType]] = []

    def before_consume(self, context: ConsumeContext) -> None:
        self._note("before", context)

    def after_consume(self, context: ConsumeContext) -> None:
        self._note("after", context)

    def _note(self, when: str, context: ConsumeContext) -> None:
        bodies = [message.body for message in context.messages]
        self.calls.append((when, bodies, context.is_success, context.return_type))


async def test_a_pull_that_found_messages_runs_the_hooks() -> None:
    hook = Listens()
    given = PullConsumerSettings(consume_hooks=(hook,))
    async with (
        QueueBroker(2) as broker,
        PullConsumer("G", broker.address, settings=given) as consumer,
    ):
        [queue] = await consumer.queues("T")
        await consumer.pull(queue, 3)
        assert hook.calls == []
        await consumer.pull(queue, 0)
    success = ConsumeReturnType.SUCCESS
    assert hook.calls == [
        ("before", [b"0", b"1"], False, success),
        ("after", [b"0", b"1"], True, success),
    ]


@pytest.mark.parametrize(
    ("status", "is_success", "return_type"),
    [
        (None, True, ConsumeReturnType.SUCCESS),
        (ConsumeStatus.RECONSUME_LATER, False, ConsumeReturnType.FAILED),
        ("what", False, ConsumeReturnType.RETURN_NULL),
    ],
)
async def test_a_hook_sees_a_listener_begin_and_end(
    status: Any, is_success: bool, return_type: ConsumeReturnType
) -> None:
    hook = Listens()
    async with QueueBroker(1) as broker:
        consumer = Consumer(broker, consume_hooks=(hook,))
        consumer.status = status
        async with consumer:
            await until(lambda: len(hook.calls) == 2)
    before, after = hook.calls
    assert before[:3] == ("before", [b"0"], False)
    assert after == ("after", [b"0"], is_success, return_type)
