"""Queues that are read in order, against a broker that locks as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio

from kerolox.client import ConsumeStatus, MessageModel, Outcome
from kerolox.client.aio.consumers.push import orderly
from kerolox.message import MessageExt, MessageQueue, decode_properties
from kerolox.protocol.codes import PullSysFlag, RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import dumps, loads
from tests.support.eventually import until
from tests.support.faults.cancelling import each_await
from tests.unit.client.test_life import nothing_is_left
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
UPDATE, SEND = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.SEND_MESSAGE_V2
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
T0 = MessageQueue("T", "a", 0)


class LockBroker(QueueBroker):
    """Locks all queues but those that others have."""

    def __init__(self, count: int = 0) -> None:
        super().__init__(count)
        self.others: set[MessageQueue] = set()
        self.is_silent = False
        self.order: list[int] = []
        """Codes of requests for locks and offsets, as they came."""
        self.answers[LOCK] = self.lock
        for code in (UNLOCK, UPDATE):
            self.answers[code] = self.note

    async def lock(self, command: RemotingCommand) -> RemotingCommand | None:
        self.order.append(command.code)
        if self.is_silent:
            return None
        held = [
            item
            for item in loads(command.body)["mqSet"]
            if MessageQueue(item["topic"], item["brokerName"], item["queueId"]) not in self.others
        ]
        return command.response(body=dumps({"lockOKMQSet": held}))

    async def note(self, command: RemotingCommand) -> RemotingCommand:
        self.order.append(command.code)
        return self._default(command)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[LockBroker]:
    async with LockBroker() as made:
        yield made


class Orderly(Consumer):
    """Reads T in order; ``results`` has what its listener says of each message, by offset."""

    def __init__(self, broker: LockBroker, **settings: Any) -> None:
        super().__init__(broker, suspend_current_queue_ms=10, **settings)
        self.results: dict[int, list[Any]] = {}
        self.seen: list[tuple[int, int]] = []
        """Offset and tries of each message that the listener got."""
        self.subscribe("T", "*", self.in_order, ordered=True)

    async def in_order(self, messages: list[MessageExt]) -> Any:
        self.seen += [(message.queue_offset, message.reconsume_times) for message in messages]
        await self.gate.wait()
        said = [
            results.pop(0) if (results := self.results.get(message.queue_offset)) else None
            for message in messages
        ]
        if any(isinstance(each, Exception) for each in said):
            raise said[0]
        return said


async def test_a_message_that_fails_is_tried_again_here_before_those_behind_it(
    broker: LockBroker,
) -> None:
    broker.count = 4
    consumer = Orderly(broker)
    later = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
    consumer.results[1] = [later, ValueError("not now"), Outcome.nack(delay=0.01)]
    async with consumer:
        await until(lambda: len(consumer.seen) == 7)
    assert consumer.seen == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (3, 0)]
    assert (broker.seen[SEND_BACK], broker.seen[SEND]) == ([], [])
    assert broker.committed["T", 0] == 4


async def test_of_a_batch_what_is_behind_a_failure_comes_again(broker: LockBroker) -> None:
    broker.count = 4
    consumer = Orderly(broker, consume_batch_max=4)
    consumer.results[1] = [Outcome.nack()]
    async with consumer:
        await until(lambda: broker.count == 4 and len(consumer.seen) == 7)
    assert consumer.seen == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 0), (3, 0)]
    assert broker.committed["T", 0] == 4


async def test_after_the_last_try_a_message_becomes_a_dead_letter(broker: LockBroker) -> None:
    broker.count = 2
    consumer = Orderly(broker, max_reconsume_times=2)
    consumer.results[0] = [Outcome.nack()] * 9
    async with consumer:
        await until(lambda: len(consumer.seen) == 4)
    assert consumer.seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
    [sent] = broker.seen[SEND]
    assert sent.ext_fields["b"] == "%RETRY%g"
    assert int(sent.ext_fields["j"]) >= int(sent.ext_fields["l"])
    assert decode_properties(sent.ext_fields["i"])["DEAD_LETTER_REASON"] == "it failed 3 times"
    assert broker.committed["T", 0] == 2


async def test_a_dead_letter_that_cannot_be_sent_holds_its_queue_up(broker: LockBroker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(2, "busy")

    broker.answers[SEND] = broker.answers[SEND_BACK] = refuse
    broker.count = 2
    consumer = Orderly(broker)
    consumer.results[0] = [Outcome.dead_letter("bad")] * 2
    async with consumer:
        await until(lambda: len(consumer.seen) == 4)
    assert consumer.seen == [(0, 0), (0, 1), (0, 2), (1, 0)]


async def test_what_another_member_has_locked_is_not_read_until_it_is_free(
    broker: LockBroker,
) -> None:
    broker.count, broker.others = 1, {T0}
    consumer = Orderly(broker)
    async with consumer:
        await until(lambda: len(broker.seen[LOCK]) >= 2)
        assert (consumer.seen, consumer.assigned_queues) == ([], [])
        assert broker.seen[RequestCode.PULL_MESSAGE] == []
        broker.others.clear()
        await until(lambda: consumer.seen)
    asked = loads(broker.seen[LOCK][0].body)
    assert (asked["clientId"], asked["consumerGroup"]) == (consumer.client_id, "g")
    assert broker.committed["T", 0] == 1


async def test_locks_are_given_up_when_offsets_are_stored(broker: LockBroker) -> None:
    broker.count = 1
    consumer = Orderly(broker)
    async with consumer:
        await until(lambda: consumer.seen)
    locked = next(at for at, code in enumerate(broker.order) if code == UNLOCK)
    assert UPDATE in broker.order[:locked]
    unlocked = loads(broker.seen[UNLOCK][0].body)
    assert unlocked["mqSet"] == [{"topic": "T", "brokerName": "a", "queueId": 0}]


async def test_a_queue_goes_only_when_its_listener_has_ended(
    broker: LockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orderly, "LEAVE_SECONDS_MAX", 0.01)
    broker.count = 2
    consumer = Orderly(broker)
    consumer.gate.clear()
    async with consumer:
        await until(lambda: consumer.seen)
        broker.members = ["!", consumer.client_id]  # the first one gets the only queue
        await consumer.rebalance()
        assert consumer.assigned_queues == [T0]
        assert broker.seen[UNLOCK] == []
        consumer.gate.set()
        await until(lambda: not consumer.assigned_queues)
        # What the listener finished counts, and no further message was given to it.
        assert consumer.seen == [(0, 0)]
        assert broker.committed["T", 0] == 1
        await until(lambda: broker.seen[UNLOCK])


async def test_a_lock_that_is_lost_takes_the_queue_along_and_stores_nothing(
    broker: LockBroker,
) -> None:
    broker.count = 2
    consumer = Orderly(broker, persist_interval_ms=600_000)
    async with consumer:
        await until(lambda: len(consumer.seen) == 2)
        stored = len(broker.seen[UPDATE])
        broker.others = {T0}
        await consumer._renew_locks()
        assert len(broker.seen[UPDATE]) == stored
        assert consumer.assigned_queues == []
        broker.others.clear()
        await until(lambda: consumer.assigned_queues)


async def test_without_an_answer_a_lock_ends_and_nothing_is_read(
    broker: LockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Orderly(broker, pull_error_delay_ms=5)
    async with consumer:
        await until(lambda: consumer.assigned_queues == [T0])
        lock = next(iter(consumer._assignments.values())).orderly
        assert lock is not None
        assert lock.lock is not None
        lock.lock.lose()  # as if more than 30 s had passed since the last answer
        broker.add(1)
        await asyncio.sleep(0)
        assert consumer.seen == []
        await consumer._renew_locks()
        await until(lambda: consumer.seen)


async def test_broadcasting_reads_in_order_without_locks(broker: LockBroker, tmp_path: Any) -> None:
    broker.count = 3
    consumer = Orderly(
        broker, message_model=MessageModel.BROADCASTING, local_offset_folder=tmp_path
    )
    consumer.results[1] = [Outcome.nack()]
    async with consumer:
        await until(lambda: len(consumer.seen) == 4)
    assert consumer.seen == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert broker.seen[LOCK] == []


async def test_a_listener_that_cancels_its_own_task_stops_no_queue(
    broker: LockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orderly, "RESTART_SECONDS", 0.01)
    broker.count = 2
    consumer = Orderly(broker)
    cancelled: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        consumer.seen += [(m.queue_offset, m.reconsume_times) for m in messages]
        if not cancelled:
            cancelled.append(1)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    consumer.subscribe("T", "*", listen, ordered=True)
    async with consumer:
        await until(lambda: len(consumer.seen) == 3)
    assert consumer.seen == [(0, 0), (0, 0), (1, 0)]


async def test_a_topic_may_be_read_in_order_from_now_on(broker: LockBroker) -> None:
    broker.count = 1
    consumer = Orderly(broker)
    consumer.subscribe("T", "*", consumer.listen)
    async with consumer:
        await until(lambda: consumer.got)
        assert broker.seen[LOCK] == []
        consumer.subscribe("T", "*", consumer.in_order, ordered=True)
        await until(lambda: broker.seen[LOCK])
        broker.add(1)
        await until(lambda: consumer.seen)
    assert consumer.seen[-1] == (1, 0)


async def test_operators_see_order_and_locks(broker: LockBroker) -> None:
    broker.count = 1
    consumer = Orderly(broker)
    async with consumer:
        await until(lambda: consumer.seen)
        answer = await broker.ask_client(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=consumer.client_id
        )
        info = loads(answer.body)
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"
        assert info["mqTable"][T0]["locked"]
        assert info["mqTable"][T0]["lastLockTimestamp"] > 0


async def test_a_start_that_is_cut_short_gives_up_the_locks_it_asked_for(
    broker: LockBroker,
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def lock_slowly(command: RemotingCommand) -> RemotingCommand | None:
        answer = await broker.lock(command)
        asked.set()
        await go_on.wait()
        return answer

    broker.answers[LOCK] = lock_slowly
    consumer = Orderly(broker)
    starting = asyncio.ensure_future(consumer.start())
    await asked.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go_on.set()
    assert loads(broker.seen[UNLOCK][-1].body)["mqSet"]
    await consumer.close()


async def test_a_renewal_that_crosses_the_end_of_a_queue_leaves_no_lock_behind(
    broker: LockBroker,
) -> None:
    consumer = Orderly(broker)
    async with consumer:
        await until(lambda: consumer.assigned_queues)
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def lock_slowly(command: RemotingCommand) -> RemotingCommand | None:
            asked.set()
            await go_on.wait()
            return await broker.lock(command)

        broker.answers[LOCK] = lock_slowly
        renewing = asyncio.ensure_future(consumer._renew_locks())
        await asked.wait()
        broker.members = ["!", consumer.client_id]
        await consumer.rebalance()
        assert consumer.assigned_queues == []
        before = len(broker.seen[UNLOCK])
        go_on.set()
        await renewing
        assert len(broker.seen[UNLOCK]) == before + 1


CHANGES: dict[str, Callable[[Orderly], Coroutine[Any, Any, None]]] = {
    "start": lambda consumer: consumer.start(),
    "rebalance": lambda consumer: consumer.rebalance(),
    "renewal": lambda consumer: consumer._renew_locks(),
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_what_is_cancelled_anywhere_leaves_an_ordered_queue_read_once_and_unlocked(
    broker: LockBroker, kind: str
) -> None:
    async def attempt() -> tuple[Coroutine[Any, Any, None], Callable[[], Awaitable[None]]]:
        broker.count = 1
        broker.others.clear()
        broker.committed.clear()
        consumer = Orderly(broker)
        revoked: list[MessageQueue] = []
        consumer.on_revoked(revoked.extend)
        if kind != "start":
            await consumer.start()
            await until(lambda: consumer.seen)
        if kind == "rebalance":
            broker.members = ["!", consumer.client_id]
        if kind == "renewal":
            broker.others = {T0}

        async def check() -> None:
            broker.others.clear()
            broker.members = [consumer.client_id]
            if consumer._cluster is None:
                await nothing_is_left(broker)
            if kind == "close":
                await consumer.close()
                return
            await consumer.start()
            await consumer.rebalance()
            await until(lambda: T0 in consumer.assigned_queues)
            broker.add(1)
            await until(lambda: consumer.seen[-1:] == [(1, 0)])
            await consumer.close()
            assert loads(broker.seen[UNLOCK][-1].body)["mqSet"]
            assert broker.committed["T", 0] == 2
            await nothing_is_left(broker)

        return CHANGES[kind](consumer), check

    assert await each_await(attempt) >= 1
    await nothing_is_left(broker)


async def test_pulls_of_an_ordered_queue_bring_no_offset_along(broker: LockBroker) -> None:
    broker.count = 100
    consumer = Orderly(broker)
    async with consumer:
        await until(lambda: len(consumer.seen) == 100)
    pulls = [c.ext_fields for c in broker.seen[RequestCode.PULL_MESSAGE]]
    ordered = [fields for fields in pulls if fields["topic"] == "T"]
    assert len(ordered) > 1
    assert not any(int(each["sysFlag"]) & PullSysFlag.COMMIT_OFFSET for each in ordered)
    assert broker.committed["T", 0] == 100


async def test_a_queue_that_goes_stores_its_offset_after_a_store_under_way(
    broker: LockBroker,
) -> None:
    answered = asyncio.Event()

    async def slow(command: RemotingCommand) -> RemotingCommand:
        stored.append(int(command.ext_fields["commitOffset"]))
        await answered.wait()
        return await broker.note(command)

    stored: list[int] = []
    broker.answers[UPDATE], broker.count = slow, 1
    async with Orderly(broker, persist_interval_ms=10) as consumer:
        await until(lambda: bool(stored))
        broker.add(1)
        table = consumer._running.offsets.table
        await until(lambda: table.read(T0) == 2)
        going = asyncio.ensure_future(consumer._running.ownership.give_up([T0]))
        await until(lambda: consumer._assignments[T0].process_queue.is_dropped)
        assert stored == [1]
        answered.set()
        await going
        assert stored == [1, 2]
