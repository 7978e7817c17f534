"""Calls that threads run: how they are handed over, begun, bounded and ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest
import pytest_asyncio

from kerolox.client.aio.consumers.push import threaded as module
from kerolox.client.aio.consumers.push.assignment import Assignment
from kerolox.client.aio.consumers.push.listening import EachMessage
from kerolox.client.aio.consumers.push.running import RunningListeners
from kerolox.client.aio.consumers.push.threaded import (
    InThread,
    ThreadCall,
    ThreadedCalls,
    in_thread,
)
from kerolox.client.core.consuming.ready import Ready
from kerolox.errors import ClientError
from kerolox.message import MessageExt, consume_start_ms
from tests.support.eventually import SECONDS_MAX, until
from tests.unit.client.test_workers import assignment, messages


class Threads(InThread):
    """A listener with threads of its own."""

    def __init__(self, function: Callable[[list[MessageExt]], object], count: int) -> None:
        self.function = function
        self.count = count
        self.submitted = self.ended = 0
        self.pool = ThreadPoolExecutor(count)

    @property
    def threads_max(self) -> int:
        return self.count

    async def __call__(self, given: list[MessageExt]) -> object:
        raise AssertionError("called in the loop")

    def submit(self, action: Callable[[], None]) -> None:
        self.submitted += 1
        self.pool.submit(action)

    def finished(self) -> None:
        self.ended += 1


class Bench:
    """Calls whose listener does what the test sets, in at most ``count`` threads."""

    def __init__(self, count: int) -> None:
        self.act: Callable[[list[MessageExt]], object] = lambda given: None
        self.begun: list[int] = []
        self.done: list[ThreadCall] = []
        self.after: Coroutine[object, object, None] | None = None
        self.running = RunningListeners()
        self.threads = Threads(self.listen, count)
        self.calls = ThreadedCalls(self.running, self.note)

    def listen(self, given: list[MessageExt]) -> object:
        self.begun.append(given[0].queue_offset)
        return self.act(given)

    def note(self, call: ThreadCall) -> Coroutine[object, object, None] | None:
        self.done.append(call)
        after, self.after = self.after, None
        return after

    async def hand_over(self, *offsets: int, size: int = 1, of: Assignment | None = None) -> None:
        entry = Ready(of or assignment(), messages(*offsets), size)
        await self.calls.hand_over((False, self.threads), entry)

    @property
    def offsets(self) -> list[int]:
        return [call.messages[0].queue_offset for call in self.done]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(3)
    yield made
    made.calls.stop()
    await asyncio.to_thread(made.threads.pool.shutdown)


async def test_each_call_runs_once_and_is_settled(bench: Bench) -> None:
    await bench.hand_over(*range(100))
    await bench.hand_over(100, 101, 102, size=2)
    await until(lambda: len(bench.done) == 102)
    assert sorted(bench.offsets) == [*range(101), 102]
    assert len(bench.running) == 0
    await until(lambda: bench.threads.ended == bench.threads.submitted)
    assert all(consume_start_ms(call.messages[0]) for call in bench.done)


async def test_with_one_thread_calls_keep_their_order() -> None:
    bench = Bench(1)
    for start in range(0, 400, 40):
        await bench.hand_over(*range(start, start + 40))
    await until(lambda: len(bench.done) == 400)
    assert bench.begun == bench.offsets == list(range(400))
    assert bench.threads.submitted <= 400
    bench.threads.pool.shutdown()


async def test_calls_that_wait_run_in_as_many_threads_as_there_may_be(bench: Bench) -> None:
    together = threading.Barrier(3, timeout=SECONDS_MAX)
    bench.act = lambda given: together.wait() and None
    await bench.hand_over(*range(9))
    await until(lambda: len(bench.done) == 9)
    assert not any(call.error for call in bench.done)
    assert bench.threads.submitted >= 3


async def test_one_slow_call_stops_no_other(bench: Bench) -> None:
    gate = threading.Event()
    bench.act = lambda given: given[0].queue_offset == 0 and gate.wait(SECONDS_MAX) and None
    await bench.hand_over(*range(50))
    await until(lambda: len(bench.done) == 49)
    assert len(bench.running) == 1
    gate.set()
    await until(lambda: len(bench.done) == 50)


async def test_no_more_is_handed_over_than_there_is_room_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDED_OVER_MAX", 5)
    gate = threading.Event()
    bench.act = lambda given: gate.wait(SECONDS_MAX) and None
    first = asyncio.ensure_future(bench.hand_over(*range(20)))
    cancelled = asyncio.ensure_future(bench.hand_over(100))
    await until(lambda: len(bench.calls._waiters) == 2)
    assert len(bench.running) == 8
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    gate.set()
    await first
    await until(lambda: len(bench.done) == 20)
    assert sorted(bench.begun) == list(range(20))


async def test_who_is_cancelled_as_there_is_room_lets_the_next_one_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDED_OVER_MAX", -2)  # one call at a time
    gate = threading.Event()
    bench.act = lambda given: gate.wait(SECONDS_MAX) and None
    await bench.hand_over(0)
    first, second = (asyncio.ensure_future(bench.hand_over(offset)) for offset in (1, 2))
    await until(lambda: len(bench.calls._waiters) == 2)
    place = bench.calls._waiters[0]
    gate.set()
    await until(place.done)
    first.cancel()
    await second
    await until(lambda: 2 in bench.offsets)


@pytest.mark.parametrize("error", [KeyError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_what_a_listener_raises_ends_no_thread(
    bench: Bench, error: type[BaseException]
) -> None:
    def fail(given: list[MessageExt]) -> None:
        if given[0].queue_offset == 0:
            raise error

    bench.act = fail
    await bench.hand_over(0, 1)
    await until(lambda: len(bench.done) == 2)
    [failed] = [call.error for call in bench.done if call.error]
    assert isinstance(failed, KeyError if error is KeyError else ClientError)


async def test_what_an_async_listener_returns_is_awaited_in_the_loop(bench: Bench) -> None:
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    seen: list[bool] = []

    async def wait() -> str:
        await asyncio.sleep(0)
        seen.append(asyncio.get_running_loop() is loop and threading.get_ident() == here)
        return "told"

    bench.act = lambda given: wait()
    await bench.hand_over(0, 1, 2)
    await until(lambda: len(bench.done) == 3)
    assert [call.result for call in bench.done] == ["told"] * 3
    assert seen == [True] * 3


@pytest.mark.parametrize("closes", [False, True])
async def test_a_close_cancels_async_listeners_but_not_one_that_waits_for_it(
    bench: Bench, closes: bool
) -> None:
    gate, seen = asyncio.Event(), []

    async def wait() -> None:
        if closes:
            bench.running.caller_waits()
        seen.append("begun")
        try:
            await gate.wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        seen.append("ended")

    bench.act = lambda given: wait()
    await bench.hand_over(0)
    await until(lambda: seen)
    bench.calls.stop()
    await bench.running.wait(0)
    bench.calls.abandon()
    if closes:
        await asyncio.sleep(0)
        gate.set()
    await until(lambda: not len(bench.running))
    assert seen == ["begun", "ended" if closes else "cancelled"]


async def test_a_call_counts_as_running_until_its_outcome_is_dealt_with(bench: Bench) -> None:
    gate = asyncio.Event()

    async def settle() -> None:
        await gate.wait()
        raise KeyError("told in the log")

    bench.after = settle()
    await bench.hand_over(0)
    await until(lambda: bench.done)
    assert len(bench.running) == 1
    gate.set()
    await until(lambda: not len(bench.running))


async def test_each_call_has_variables_of_its_own_beside_those_of_the_start() -> None:
    mine: ContextVar[str] = ContextVar("mine")
    mine.set("start")
    bench = Bench(1)
    seen: list[str] = []

    def change(given: list[MessageExt]) -> None:
        seen.append(mine.get())
        mine.set("call")

    bench.act = change
    await bench.hand_over(0, 1)
    await until(lambda: len(bench.done) == 2)
    assert seen == ["start", "start"]
    bench.threads.pool.shutdown()


async def test_calls_of_a_queue_that_was_given_up_do_not_begin(bench: Bench) -> None:
    lost = assignment()
    lost.process_queue.drop()
    await bench.hand_over(0, 1, of=lost)
    await bench.hand_over(2)
    await until(lambda: not len(bench.running))
    assert bench.begun == bench.offsets == [2]


async def test_after_a_stop_no_call_begins_and_those_that_run_are_settled(bench: Bench) -> None:
    gate = threading.Event()
    bench.act = lambda given: gate.wait(SECONDS_MAX) and None
    await bench.hand_over(*range(30))
    await until(lambda: len(bench.begun) == 3)
    bench.calls.stop()
    assert len(bench.running) == 3
    gate.set()
    await bench.running.wait(SECONDS_MAX)
    assert sorted(bench.offsets) == sorted(bench.begun)
    await bench.hand_over(100)
    assert 100 not in bench.begun


async def test_what_ends_after_the_close_counts_no_more(bench: Bench) -> None:
    gate = threading.Event()
    bench.act = lambda given: gate.wait(SECONDS_MAX) and None
    await bench.hand_over(0)
    await until(lambda: bench.begun)
    bench.calls.stop()
    assert bench.calls.abandon() == []
    gate.set()
    await until(lambda: not len(bench.running))
    assert bench.done == []


async def test_a_listener_of_one_message_runs_in_threads_for_calls_of_one(bench: Bench) -> None:
    one = EachMessage(bench.threads)  # type: ignore[arg-type]
    assert in_thread(one, 1) == (True, bench.threads)
    assert in_thread(one, 2) is None
    assert in_thread(bench.threads, 32) == (False, bench.threads)
    assert in_thread(lambda given: None, 1) is None
    assert in_thread(None, 1) is None
    await bench.calls.hand_over((True, bench.threads), Ready(assignment(), messages(7), 1))
    await until(lambda: bench.done)
    # What is given is the message itself, which has no first one.
    assert isinstance(bench.done[0].error, TypeError)
