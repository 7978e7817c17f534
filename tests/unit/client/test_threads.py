from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from kerolox.client import threads
from kerolox.client.sync._portal import Portal
from kerolox.errors import ClientError
from tests.support.eventually import SECONDS_MAX, wait_until


def alive(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython from 3.12 on gives none in functions of ``atexit``."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_a_pool_has_so_many_threads_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORKERS_MAX", 3)
    pool, gate = threads.Pool("bounded"), threading.Event()
    waiting = [pool.submit(lambda: gate.wait(SECONDS_MAX)) for _ in range(9)]
    assert alive("bounded") == 3
    gate.set()
    assert all(future.result(SECONDS_MAX) for future in waiting)
    pool.stop()
    wait_until(lambda: alive("bounded") == 0)


def test_a_pool_uses_an_idle_thread_again() -> None:
    pool = threads.Pool("idle")
    for number in range(5):
        assert pool.submit(lambda number=number: number).result(SECONDS_MAX) == number
        wait_until(lambda: pool._idle == 1)
    assert alive("idle") == 1
    pool.stop()


def test_what_a_pools_function_raises_is_in_its_future() -> None:
    pool = threads.Pool("failing")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(SECONDS_MAX)
    pool.stop()


@pytest.mark.usefixtures("no_threads")
def test_where_there_is_no_thread_a_pool_runs_functions_at_once() -> None:
    assert threads.Pool("none").submit(threading.current_thread).result(0) is (
        threading.current_thread()
    )


@pytest.mark.usefixtures("no_threads")
def test_a_client_that_gets_no_thread_says_what_can_not_be_done() -> None:
    async def nothing() -> None:
        return None

    with pytest.raises(ClientError, match="Producer can't start a thread: can't create new"):
        Portal("Producer").open(nothing)


def test_no_thread_is_started_while_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    with pytest.raises(ClientError, match="Producer can't be used: the interpreter is ending"):
        threads.start(threading.Thread(target=print), "Producer")


def test_in_a_loop_whose_executor_has_ended_functions_run_still() -> None:
    async def main() -> str:
        await asyncio.to_thread(int)
        await asyncio.get_running_loop().shutdown_default_executor()
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(int)
        return (await threads.to_thread(threading.current_thread)).name

    assert asyncio.run(main()) == "kerolox-worker-0"
