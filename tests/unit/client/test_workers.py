"""Who runs listeners, and when: no broker, only assignments and numbers of messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.aio.consumers.push import workers as module
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.workers import Workers
from kerolox.client.core.consuming.ready import Ready, ReadyList
from kerolox.message import MessageExt, MessageQueue
from tests.support.eventually import until


def messages(*offsets: int) -> list[MessageExt]:
    return [
        MessageExt(
            topic="T",
            body=b"",
            queue_id=0,
            queue_offset=offset,
            commit_log_offset=0,
            properties={},
        )
        for offset in offsets
    ]


def assignment() -> Assignment:
    return Assignment(MessageQueue("T", "b", 0), 0)


class Bench:
    """Workers whose listener does what the test sets; it is noted which task it ran in."""

    def __init__(self, count: int) -> None:
        self.act: Callable[[int], Awaitable[None]] = self.nothing
        self.calls: list[tuple[int, ...]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.settled: list[int] = []
        """How many calls had ended at each check."""
        self.ended = 0
        self.workers = Workers(count, self.consume, lambda: self.settled.append(self.ended))
        self.workers.start()

    async def nothing(self, offset: int) -> None:
        """A listener that does not wait."""

    async def consume(
        self, worker: asyncio.Task[None], entry: Ready[Assignment], turn_ends_ms: int
    ) -> None:
        self.workers.schedule_check()
        self.calls.append(tuple(message.queue_offset for message in entry.take()))
        self.tasks.append(worker)
        await self.act(self.calls[-1][0])
        self.ended += 1
        self.workers.schedule_check()


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(3)
    await asyncio.sleep(0)
    yield made
    await made.workers.close(0)


async def test_listeners_that_do_not_wait_run_in_one_task_and_are_settled_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_MS_MAX", 60_000)  # the machine may stand still
    bench.workers.add(assignment(), messages(*range(50)), 1)
    await until(lambda: bench.ended == 50)
    await until(lambda: bench.settled[-1] == 50)
    assert bench.calls == [(offset,) for offset in range(50)]
    assert len(set(bench.tasks)) == 1
    assert [count for count in bench.settled if count] == [50]


async def test_as_many_listeners_wait_at_the_same_time_as_there_are_workers(bench: Bench) -> None:
    gate = asyncio.Event()

    async def wait(offset: int) -> None:
        await gate.wait()

    bench.act = wait
    bench.workers.add(assignment(), messages(*range(7)), 1)
    await until(lambda: len(bench.calls) == 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(bench.calls), bench.ended) == (3, 0)
    gate.set()
    await until(lambda: bench.ended == 7)
    assert bench.calls == [(offset,) for offset in range(7)]


async def test_one_slow_listener_stops_no_other(bench: Bench) -> None:
    gate = asyncio.Event()

    async def wait_for_the_first(offset: int) -> None:
        if offset == 0:
            await gate.wait()

    bench.act = wait_for_the_first
    bench.workers.add(assignment(), messages(*range(20)), 1)
    bench.workers.add(assignment(), messages(100), 1)
    await until(lambda: bench.ended == 20)
    await until(lambda: bench.settled[-1] == 20)
    assert len(set(bench.tasks)) == 2
    gate.set()
    await until(lambda: bench.settled[-1] == 21)


async def test_listeners_that_never_wait_let_the_loop_have_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_MS_MAX", -1)
    others: list[int] = []

    async def ask_for_a_turn(offset: int) -> None:
        asyncio.get_running_loop().call_soon(lambda: others.append(bench.ended))

    bench.act = ask_for_a_turn
    bench.workers.add(assignment(), messages(*range(5)), 1)
    await until(lambda: len(others) == 5)
    assert others == [1, 2, 3, 4, 5]


async def test_a_worker_that_is_cancelled_as_it_is_woken_passes_that_on(bench: Bench) -> None:
    bench.workers.add(assignment(), messages(1), 1)
    await asyncio.sleep(0)
    assert bench.workers._coming is not None
    bench.workers._tasks[-1].cancel()  # the last one that went to rest is the first to be woken
    await until(lambda: bench.ended == 1)
    assert bench.workers._tasks[-1].cancelled()


async def test_a_listener_that_fails_ends_no_worker(bench: Bench) -> None:
    async def fail(offset: int) -> None:
        raise KeyError(offset)

    bench.act = fail
    bench.workers.add(assignment(), messages(1, 2, 3, 4, 5), 2)
    await until(lambda: len(bench.calls) == 3)
    assert not any(task.done() for task in bench.workers._tasks)


async def test_messages_of_a_queue_that_was_given_up_reach_no_listener(bench: Bench) -> None:
    lost, kept = assignment(), assignment()
    lost.process_queue.drop()
    bench.workers.add(lost, messages(1, 2), 1)
    bench.workers.add(kept, messages(3), 1)
    await until(lambda: bench.ended == 1)
    assert bench.calls == [(3,)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=6))
def test_ready_messages_are_taken_in_order_and_in_calls_of_their_size(
    pulls: list[tuple[int, int]],
) -> None:
    ready: ReadyList[int] = ReadyList()
    wanted: list[tuple[int, list[int]]] = []
    for queue, (count, size) in enumerate(pulls):
        ready.add(queue, messages(*range(count)), size)
        wanted += [(queue, list(range(count))[at : at + size]) for at in range(0, count, size)]
    taken = []
    while (entry := ready.first()) is not None:
        taken.append((entry.queue, [message.queue_offset for message in entry.take()]))
    assert taken == wanted
