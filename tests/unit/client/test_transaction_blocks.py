"""Transactions as blocks of code, on both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import Transaction, TransactionProducer, TransactionState, sync
from kerolox.client.core.sending.transaction import state_after
from kerolox.errors import BrokerError, ClientError, MessageRejectedError
from kerolox.message import Message, MessageExt
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)
SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address}, queues=1)
        yield made


def producer_of(broker: FakeBroker) -> TransactionProducer:
    async def check(message: MessageExt) -> TransactionState:
        return UNKNOWN

    return TransactionProducer("G", broker.address, check=check)


async def told(broker: FakeBroker, count: int = 1) -> list[TransactionState]:
    """What the broker heard of the outcomes."""
    await until(lambda: len(broker.seen[END]) >= count)
    return [TransactionState(int(c.ext_fields["commitOrRollback"])) for c in broker.seen[END]]


@pytest.mark.parametrize(
    ("chosen", "error", "state"),
    [
        (None, None, COMMIT),
        (None, ValueError(), ROLLBACK),
        (None, asyncio.CancelledError(), UNKNOWN),
        (None, KeyboardInterrupt(), UNKNOWN),
        (ROLLBACK, None, ROLLBACK),
        (COMMIT, ValueError(), COMMIT),
        (UNKNOWN, None, UNKNOWN),
    ],
)
def test_how_a_block_ends_decides_unless_it_says_so_itself(
    chosen: TransactionState | None, error: BaseException | None, state: TransactionState
) -> None:
    assert state_after(chosen, error) is state


async def test_a_block_that_ends_well_commits(broker: FakeBroker) -> None:
    async with producer_of(broker) as producer:
        transaction = producer.transaction(Message("T", b"x", keys="42"))
        async with transaction as entered:
            assert entered is transaction
            assert not broker.seen[END]
            [half] = broker.seen[SEND]
            assert f"UNIQ_KEY\x01{transaction.transaction_id}" in half.ext_fields["i"]
            assert transaction.result.queue.topic == "T"
            assert transaction.state is UNKNOWN
        assert transaction.state is COMMIT
        assert await told(broker) == [COMMIT]
    [end] = broker.seen[END]
    assert end.ext_fields["transactionId"] == transaction.transaction_id
    assert end.ext_fields["fromTransactionCheck"] == "false"


async def test_an_exception_rolls_back_and_goes_on(broker: FakeBroker) -> None:
    async with producer_of(broker) as producer:
        with pytest.raises(ValueError, match="no money"):
            async with producer.transaction(Message("T", b"x")):
                raise ValueError("no money")
        assert await told(broker) == [ROLLBACK]
    assert broker.seen[END][0].remark == "ValueError: no money"


async def test_a_cancelled_block_leaves_the_outcome_to_the_check(broker: FakeBroker) -> None:
    began = asyncio.Event()

    async def work(producer: TransactionProducer) -> None:
        async with producer.transaction(Message("T", b"x")):
            began.set()
            await asyncio.Event().wait()

    async with producer_of(broker) as producer:
        working = asyncio.ensure_future(work(producer))
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert await told(broker) == [UNKNOWN]


@pytest.mark.parametrize(
    ("choose", "state"),
    [
        (Transaction.rollback, ROLLBACK),
        (Transaction.commit, COMMIT),
        (Transaction.leave_open, UNKNOWN),
    ],
)
async def test_a_block_may_say_how_it_ends(
    broker: FakeBroker, choose: Callable[[Transaction], None], state: TransactionState
) -> None:
    async with producer_of(broker) as producer:
        async with producer.transaction(Message("T", b"x")) as transaction:
            choose(transaction)
        assert await told(broker) == [state]
        assert transaction.state is state


async def test_a_half_that_is_not_stored_runs_no_block(broker: FakeBroker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(13, "told to")

    broker.answers[SEND] = refuse
    async with producer_of(broker) as producer:
        with pytest.raises(BrokerError, match="told to"):
            async with producer.transaction(Message("T", b"x")):
                pytest.fail("the block ran")
        with pytest.raises(MessageRejectedError, match="can't be delayed"):
            async with producer.transaction(Message("T", b"x", delay_level=1)):
                pytest.fail("the block ran")
    assert not broker.seen[END]


async def test_a_half_that_is_not_stored_safely_is_rolled_back(broker: FakeBroker) -> None:
    async def unsafe(command: RemotingCommand) -> RemotingCommand:
        return broker.stored(command, 10)

    broker.answers[SEND] = unsafe
    async with producer_of(broker) as producer:
        with pytest.raises(ClientError, match="FLUSH_DISK_TIMEOUT; it is rolled back"):
            async with producer.transaction(Message("T", b"x")):
                pytest.fail("the block ran")
        assert await told(broker) == [ROLLBACK]


async def test_a_transaction_is_used_once(broker: FakeBroker) -> None:
    async with producer_of(broker) as producer:
        transaction = producer.transaction(Message("T", b"x"))
        with pytest.raises(ClientError, match="has not begun"):
            _ = transaction.transaction_id
        async with transaction:
            pass
        with pytest.raises(ClientError, match="begun already"):
            await transaction.__aenter__()
    assert len(broker.seen[SEND]) == 1


async def test_the_result_of_a_listener_has_the_id_too(broker: FakeBroker) -> None:
    async with producer_of(broker) as producer:
        done = await producer.send_in_transaction(Message("T", b"x"), lambda message: COMMIT)
    assert done.transaction_id == done.send.message_id
    assert await told(broker) == [COMMIT]


async def test_blocks_of_the_blocking_producer(broker: FakeBroker) -> None:
    def work() -> list[Any]:
        made = sync.TransactionProducer("G", broker.address, check=lambda message: UNKNOWN)
        with made as producer:
            with producer.transaction(Message("T", b"1")) as committed:
                assert committed.transaction_id == committed.result.message_id
            failed = producer.transaction(Message("T", b"2"))
            with pytest.raises(ValueError, match="no"), failed:
                raise ValueError("no")
            with producer.transaction(Message("T", b"3")) as chosen:
                chosen.rollback()
            stopped = producer.transaction(Message("T", b"4"))
            with pytest.raises(KeyboardInterrupt), stopped:
                raise KeyboardInterrupt
            with producer.transaction(Message("T", b"5")) as left:
                left.leave_open()
            return [each.state for each in (committed, failed, chosen, stopped, left)]

    states = await asyncio.to_thread(work)
    assert states == [COMMIT, ROLLBACK, ROLLBACK, UNKNOWN, UNKNOWN]
    assert await told(broker, 5) == states
