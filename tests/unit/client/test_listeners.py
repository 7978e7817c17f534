"""What listeners may be, return and raise, and what becomes of their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import ConsumeStatus, TransactionProducer, TransactionState, sync
from kerolox.client.aio.user_code import call_user
from kerolox.client.core.consuming.outcome import failed_outcomes
from kerolox.client.core.hooks import ConsumeContext, ConsumeHook, RpcHook
from kerolox.errors import ClientError
from kerolox.message import Message, MessageExt
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from tests.support.eventually import SECONDS_MAX, until
from tests.unit.client.test_push_consumer import RETRY, Consumer, QueueBroker, record

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2
LATER, DONE = ConsumeStatus.RECONSUME_LATER, ConsumeStatus.CONSUME_SUCCESS


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[QueueBroker]:
    async with QueueBroker() as made:
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be tried again here does not wait long."""
    for name in ("push.consuming.RECONSUME_LOCALLY_SECONDS", "push.workers.WORKER_BACK_SECONDS"):
        monkeypatch.setattr(f"kerolox.client.aio.consumers.{name}", 0.01)


def given_back(broker: QueueBroker) -> list[str]:
    """Log offsets of the messages that were sent back, which are 100 times their queue offsets."""
    return [request.ext_fields["offset"] for request in broker.seen[SEND_BACK]]


def ends(broker: QueueBroker) -> list[str]:
    """The outcomes of transactions that the broker heard of: 8 commit, 12 rollback, 0 unknown."""
    told = broker.seen[RequestCode.END_TRANSACTION]
    return [request.ext_fields["commitOrRollback"] for request in told]


def ask_about(broker: QueueBroker) -> None:
    """Ask the producer how a transaction ended."""
    fields = {"tranStateTableOffset": 7, "commitLogOffset": 9, "msgId": "id"}
    code = RequestCode.CHECK_TRANSACTION_STATE
    check = RemotingCommand.request(code, fields, body=record(7), oneway=True)
    broker.connections[-1].send_oneway(check)


# -- cancellation ---------------------------------------------------------------------------------
async def test_a_cancelled_error_of_a_listener_is_a_failed_consumption(broker: QueueBroker) -> None:
    consumer = Consumer(broker, consume_concurrency=1)

    async def listen(messages: list[MessageExt]) -> None:
        consumer.got.extend(messages)
        if messages[0].body == b"0":
            waited_for = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for

    consumer.subscribe("T", "*", listen)
    broker.count = 3
    async with consumer:
        await until(lambda: len(consumer.got) == 3)
        await until(lambda: given_back(broker) == ["0"])
    assert broker.committed["T", 0] == 3


async def test_a_listener_that_cancels_its_own_task_ends_no_worker_for_good(
    broker: QueueBroker, soon: None
) -> None:
    consumer = Consumer(broker, consume_concurrency=1)

    async def listen(messages: list[MessageExt]) -> None:
        consumer.got.extend(messages)
        if len(consumer.got) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    consumer.subscribe("T", "*", listen)
    broker.count = 3
    async with consumer:
        await until(lambda: {m.body for m in consumer.got} == {b"0", b"1", b"2"})
        await until(lambda: len(consumer.got) == 4)  # the first comes again
    assert broker.committed["T", 0] == 3


async def test_a_close_still_cancels_the_listeners_that_do_not_end(broker: QueueBroker) -> None:
    consumer = Consumer(broker, close_timeout_ms=1)
    ended: list[str] = []

    async def listen(messages: list[MessageExt]) -> None:
        consumer.got.extend(messages)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    consumer.subscribe("T", "*", listen)
    broker.count = 1
    async with consumer:
        await until(lambda: consumer.got)
    assert ended == ["cancelled"]
    assert given_back(broker) == []


async def test_workers_end_with_their_loop_while_listeners_run(broker: QueueBroker) -> None:
    consumer = Consumer(broker, consume_concurrency=2, close_timeout_ms=1)
    consumer.gate.clear()
    broker.count = 2
    async with consumer:
        await until(lambda: len(consumer.got) == 2)
        assert consumer._parts is not None
        workers = list(consumer._parts.consuming._workers._tasks)
        # As asyncio.run does at its end: cancel all that is left, and wait for it.
        for worker in workers:
            worker.cancel()
        done, _ = await asyncio.wait(workers, timeout=SECONDS_MAX)
        assert done == set(workers)
    assert given_back(broker) == []


async def test_a_user_function_may_leave_a_cancellation_uncounted_behind() -> None:
    async def timed_out_the_old_way(_: None) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return  # and never uncancels

    async def cancelled(_: None) -> None:
        raise asyncio.CancelledError

    await call_user(timed_out_the_old_way, None)
    with pytest.raises(ClientError, match="raised CancelledError, but its caller goes on"):
        await call_user(cancelled, None)


async def test_a_hook_that_raises_cancelled_error_is_logged_and_changes_nothing(
    broker: QueueBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Hook(ConsumeHook):
        def before_consume(self, context: ConsumeContext) -> None:
            raise asyncio.CancelledError

    broker.count = 2
    async with Consumer(broker, consume_hooks=(Hook(),), consume_concurrency=1) as consumer:
        await until(lambda: len(consumer.got) == 2)
    assert "before_consume failed" in caplog.text


async def test_a_request_hook_that_raises_cancelled_error_fails_its_request_alone(
    broker: QueueBroker,
) -> None:
    class Hook(RpcHook):
        refused = 0

        def before_request(self, address: str, request: RemotingCommand) -> None:
            if request.code == RequestCode.PULL_MESSAGE and self.refused < 2:
                self.refused += 1
                raise asyncio.CancelledError

    broker.count = 2
    async with Consumer(broker, rpc_hook=Hook(), pull_error_delay_ms=1) as consumer:
        await until(lambda: len(consumer.got) == 2)


@pytest.mark.parametrize("error", [asyncio.CancelledError, StopIteration, SystemExit])
def test_no_error_of_a_blocking_listener_ends_its_worker(error: type[BaseException]) -> None:
    from kerolox.client.sync._portal import Portal

    async def nothing() -> None:
        return None

    def fail(_: int) -> None:
        raise error

    portal = Portal("test")
    portal.open(nothing)
    listen = portal.listener(fail)

    async def bounded() -> None:
        await asyncio.wait_for(listen(1), SECONDS_MAX)  # type: ignore[arg-type]

    try:
        with pytest.raises(ClientError, match=f"listener raised {error.__name__}"):
            portal.run(bounded())
    finally:
        portal.shut(nothing)


# -- plain and async ------------------------------------------------------------------------------
async def test_a_plain_function_may_be_a_listener_in_the_loop(broker: QueueBroker) -> None:
    consumer = Consumer(broker)

    def listen(messages: list[MessageExt]) -> ConsumeStatus | None:
        consumer.got.extend(messages)
        return LATER if messages[0].body == b"1" else None

    consumer.subscribe("T", "*", listen)
    broker.count = 3
    async with consumer:
        await until(lambda: len(consumer.got) == 3)
        await until(lambda: given_back(broker) == ["100"])
    assert broker.committed["T", 0] == 3


async def test_a_plain_function_may_be_a_listener_of_one_message(broker: QueueBroker) -> None:
    consumer = Consumer(broker)
    consumer.subscribe_each("T", "*", consumer.got.append)
    broker.count = 3
    async with consumer:
        await until(lambda: len(consumer.got) == 3)
    assert (broker.committed["T", 0], given_back(broker)) == (3, [])


async def test_an_async_function_may_be_a_listener_of_the_blocking_consumer(
    broker: QueueBroker,
) -> None:
    got: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> None:
        await asyncio.sleep(0)
        got.extend(message.body for message in messages)

    consumer = sync.PushConsumer("g", broker.address)
    consumer.subscribe("T", "*", listen)
    broker.members = [consumer.client_id]
    broker.committed["T", 0] = 0
    broker.count = 2
    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads, consumer.start)
        await until(lambda: len(got) == 2)
        await loop.run_in_executor(threads, consumer.close)
    assert given_back(broker) == []


async def test_a_plain_function_may_be_a_local_transaction_and_a_check(
    broker: QueueBroker,
) -> None:
    def is_paid(message: MessageExt) -> TransactionState:
        return TransactionState.ROLLBACK

    async with TransactionProducer("p", broker.address, check=is_paid) as producer:
        commit = TransactionState.COMMIT
        result = await producer.send_in_transaction(Message("T", b"x"), lambda _: commit)
        assert result.state is commit
        await until(lambda: ends(broker) == ["8"])
        ask_about(broker)
        await until(lambda: ends(broker) == ["8", "12"])


async def test_a_check_that_raises_cancelled_error_leaves_the_outcome_unknown(
    broker: QueueBroker,
) -> None:
    async def is_paid(message: MessageExt) -> TransactionState:
        raise asyncio.CancelledError

    async def pay(message: Message) -> TransactionState:
        raise asyncio.CancelledError

    async with TransactionProducer("p", broker.address, check=is_paid) as producer:
        # The caller's own function, in the caller's own task: what it raises is raised there.
        with pytest.raises(asyncio.CancelledError):
            await producer.send_in_transaction(Message("T", b"x"), pay)
        await until(lambda: ends(broker) == ["0"])
        ask_about(broker)
        await until(lambda: ends(broker) == ["0", "0"])


# -- an outcome for each message ------------------------------------------------------------------
async def test_of_a_batch_only_the_message_that_failed_is_sent_back(broker: QueueBroker) -> None:
    consumer = Consumer(broker, consume_batch_max=16)

    async def listen(message: MessageExt) -> ConsumeStatus | None:
        consumer.got.append(message)
        if message.body == b"3":
            raise KeyError("mine")
        return LATER if message.body == b"7" else None

    consumer.subscribe_each("T", "*", listen)
    broker.count = 16
    async with consumer:
        await until(lambda: len(given_back(broker)) == 2 and len(consumer.got) == 16)
    assert [int(m.body) for m in consumer.got] == list(range(16))
    assert given_back(broker) == ["300", "700"]
    assert broker.committed["T", 0] == 16


async def test_a_listener_of_a_batch_may_give_a_status_for_each_message(
    broker: QueueBroker,
) -> None:
    consumer = Consumer(broker, consume_batch_max=4)

    async def listen(messages: list[MessageExt]) -> list[ConsumeStatus | None]:
        consumer.got.extend(messages)
        return [DONE, None, LATER, LATER]  # an ackIndex of 1, as RocketMQ has it

    consumer.subscribe("T", "*", listen)
    broker.count = 4
    async with consumer:
        await until(lambda: len(given_back(broker)) == 2)
    assert given_back(broker) == ["200", "300"]
    assert broker.committed["T", 0] == 4


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (None, []),
        (DONE, []),
        (LATER, [0, 1, 2]),
        ([None, LATER, DONE], [1]),
        ((None, None, None), []),
        ([LATER], None),
        ([None, None, True], None),
        ("abc", None),
        (True, None),
    ],
)
def test_a_result_says_which_messages_failed(result: Any, failed: list[int] | None) -> None:
    outcomes = failed_outcomes(result, 3)
    assert (None if outcomes is None else list(outcomes)) == failed


async def test_a_listener_may_empty_its_list(broker: QueueBroker) -> None:
    consumer = Consumer(broker, consume_batch_max=4)

    async def listen(messages: list[MessageExt]) -> None:
        while messages:
            consumer.got.append(messages.pop())

    consumer.subscribe("T", "*", listen)
    broker.count = 4
    async with consumer:
        await until(lambda: len(consumer.got) == 4)
    assert broker.committed["T", 0] == 4


# -- no listener ----------------------------------------------------------------------------------
class RetryBroker(QueueBroker):
    """Has a retry topic too, with one message that was first sent to topic ``origin``."""

    def __init__(self, origin: str, tries: int) -> None:
        super().__init__()
        self.origin, self.tries = origin, tries

    async def pull(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.ext_fields["topic"] != RETRY:
            return await super().pull(command)
        if int(command.ext_fields["queueOffset"]):
            while not self.is_closing:
                await self.arrived.wait()
            return None
        body = record(
            0, b"again", f"RETRY_TOPIC\x01{self.origin}\x02", tries=self.tries, topic=RETRY
        )
        return self.answer(command, 0, 1, 1, body)


async def test_a_retried_message_without_listener_goes_back_uncounted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with RetryBroker("Gone", tries=16) as broker:
        broker.routes[RETRY] = broker.routes["T"]
        async with Consumer(broker) as consumer:
            await until(lambda: broker.seen[SEND])
    [sent] = broker.seen[SEND]
    assert (sent.ext_fields["b"], sent.body) == (RETRY, b"again")
    assert "RETRY_TOPIC\x01Gone" in sent.ext_fields["i"]
    assert "DELAY\x0114" in sent.ext_fields["i"]
    # As often tried as before, and below what would make it a dead letter.
    assert (sent.ext_fields["j"], sent.ext_fields["l"]) == ("16", "17")
    assert (given_back(broker), consumer.got) == ([], [])
    assert broker.committed[RETRY, 0] == 1
    assert "no listener for topic Gone in this member of group g" in caplog.text


async def test_a_retried_message_that_cannot_go_back_waits_here_and_is_not_committed(
    soon: None,
) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(2, "busy")

    async with RetryBroker("Late", tries=2) as broker:
        broker.routes[RETRY] = broker.routes["T"]
        broker.answers[SEND] = refuse
        async with Consumer(broker) as consumer:
            await until(lambda: len(broker.seen[SEND]) >= 2)
            assert {sent.ext_fields["j"] for sent in broker.seen[SEND]} == {"2"}
            assert not broker.committed.get((RETRY, 0))
            consumer.subscribe("Late", "*", consumer.listen)
            await until(lambda: consumer.got)
        assert [(m.topic, m.reconsume_times) for m in consumer.got] == [("Late", 2)]
        assert broker.committed[RETRY, 0] == 1


async def test_messages_of_a_queue_whose_topic_was_unsubscribed_stay_there(
    broker: QueueBroker, soon: None
) -> None:
    broker.count = 3
    consumer = Consumer(broker, consume_concurrency=1)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.got)
        # The queue is kept until the next rebalance: the topic may be subscribed again.
        async with consumer._rebalancing:
            consumer.unsubscribe("T")
            consumer.gate.set()
            await until(lambda: consumer._parts and consumer._parts.consuming._workers._later)
            assert (given_back(broker), len(consumer.got)) == ([], 1)
            consumer.subscribe("T", "*", consumer.listen)
            await until(lambda: len(consumer.got) == 3)
    assert (broker.committed["T", 0], given_back(broker)) == (3, [])


async def test_a_member_that_unsubscribed_leaves_the_messages_to_the_others(
    broker: QueueBroker,
) -> None:
    broker.count = 3
    consumer = Consumer(broker, consume_concurrency=1)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.got)
        consumer.unsubscribe("T")
        consumer.gate.set()
        await until(lambda: not consumer.assigned_queues)
        await until(lambda: not any(b'"T"' in c.body for c in broker.seen[35]))
    assert (len(consumer.got), given_back(broker)) == (1, [])
    assert broker.committed.get(("T", 0), 0) <= 1
    assert loads(broker.seen[RequestCode.HEART_BEAT][-1].body)["clientID"] == consumer.client_id
