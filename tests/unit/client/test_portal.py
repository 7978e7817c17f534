from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ClassVar

import pytest

from kerolox.client.sync import PushConsumer
from kerolox.client.sync._portal import Portal
from kerolox.errors import ClientClosedError, ClientError, ConfigError
from tests.support.eventually import SECONDS_MAX, wait_until


async def nothing() -> None:
    return None


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail() -> None:
    raise KeyError("mine")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end waits for its threads however slow the machine is."""
    for name in ("STOP_SECONDS_MAX", "LISTENER_STOP_SECONDS_MAX"):
        monkeypatch.setattr(f"kerolox.client.sync._portal.{name}", 30.0)


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal("test")
    made.threads_max = 2
    made.open(nothing)
    yield made
    made.shut(nothing)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("test-")]


def test_results_and_errors_come_back(portal: Portal) -> None:
    assert portal.run(double(21)) == 42
    with pytest.raises(KeyError, match="mine"):
        portal.run(fail())


def test_many_threads_may_call_at_once(portal: Portal) -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(portal.run(double(n))))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(20)]


def test_no_thread_is_left_after_the_end() -> None:
    portal = Portal("test")
    portal.threads_max = 3
    portal.open(nothing)
    listen = portal.listener(lambda value: value)
    assert [portal.run(_await(listen, n)) for n in range(5)] == list(range(5))
    assert len(names()) >= 2
    portal.shut(nothing)
    assert names() == []
    assert not portal.is_open


async def _await(listen: Callable[[int], Awaitable[Any]], value: int) -> Any:
    return await listen(value)


def test_before_the_start_and_after_the_end_calls_are_refused() -> None:
    portal = Portal("test")
    with pytest.raises(ClientClosedError, match="call start"):
        portal.run(double(1))
    portal.open(nothing)
    portal.shut(nothing)
    portal.shut(nothing)
    with pytest.raises(ClientClosedError):
        portal.run(double(1))


def test_a_failed_start_leaves_nothing_behind() -> None:
    portal = Portal("test")
    with pytest.raises(KeyError):
        portal.open(fail)
    assert names() == []
    portal.open(nothing)
    assert portal.run(double(1)) == 2
    portal.shut(nothing)


def test_the_end_cancels_what_still_runs() -> None:
    portal = Portal("test")
    portal.open(nothing)
    errors: list[BaseException] = []
    entered = threading.Event()

    async def forever() -> None:
        entered.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.run(forever())
        except ClientClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(30)
    portal.shut(nothing)
    thread.join(SECONDS_MAX)
    assert len(errors) == 1


def test_an_interrupt_of_a_thread_that_closes_leaves_the_close_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    portal = Portal("test")
    portal.open(nothing)
    ended: list[asyncio.Task[None]] = []
    shared: list[asyncio.Task[None]] = []

    async def close() -> None:
        if not shared:
            shared.append(asyncio.ensure_future(asyncio.sleep(0)))
            shared[0].add_done_callback(ended.append)
        await asyncio.shield(shared[0])

    def interrupted(self: object, loop: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kerolox.client.sync._waits.TaskCall.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            portal.shut(close)
    assert portal.is_open
    threads = [threading.Thread(target=portal.shut, args=[close]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert ended == shared
    assert not shared[0].cancelled()
    assert names() == []


def test_calls_of_threads_end_with_the_loop_whenever_they_began(portal: Portal) -> None:
    """Also those that are on their way into the loop when it ends."""
    ended: list[bool] = []

    def call() -> None:
        while True:
            try:
                portal.run(double(1))
            except ClientClosedError:
                ended.append(True)
                return

    threads = [threading.Thread(target=call, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    portal.shut(nothing)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert len(ended) == 16


def test_waiting_in_the_loops_own_thread_is_refused(portal: Portal) -> None:
    async def inside() -> None:
        portal.run(nothing())

    with pytest.raises(ClientError, match="own event loop"):
        portal.run(inside())


def test_plain_functions_run_in_the_loops_thread(portal: Portal) -> None:
    assert portal.call(threading.current_thread) is not threading.current_thread()
    assert portal.call(lambda a, b=0: a + b, 1, b=2) == 3


def test_listeners_run_in_no_more_threads_than_allowed(portal: Portal) -> None:
    gate = threading.Barrier(2, timeout=SECONDS_MAX)
    used: set[int] = set()

    def listen(value: int) -> int:
        used.add(threading.get_ident())
        gate.wait()
        return value

    async def all_at_once() -> list[int]:
        run = portal.listener(listen)
        return list(await asyncio.gather(*(run(n) for n in range(6))))

    assert portal.run(all_at_once()) == list(range(6))
    assert len(used) == 2


def test_a_listeners_error_is_its_callers(portal: Portal) -> None:
    def listen(value: int) -> None:
        raise (ValueError if value else SystemExit)("mine")

    run = portal.listener(listen)
    with pytest.raises(ValueError, match="mine"):
        portal.run(_await(run, 1))
    with pytest.raises(ClientError, match="SystemExit"):
        portal.run(_await(run, 0))


def test_a_forgotten_portal_ends_its_thread() -> None:
    portal = Portal("test")
    portal.open(nothing)
    del portal
    gc.collect()
    wait_until(lambda: names() == [])


def test_a_consumer_that_was_never_started_can_be_closed() -> None:
    consumer = PushConsumer("group", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="no subscription"):
        consumer.start()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.start()


def test_properties_that_examine_tables_are_read_in_the_loops_thread(portal: Portal) -> None:
    consumer = PushConsumer("g", "127.0.0.1:1")
    consumer._portal = portal

    class Table(dict[str, int]):
        """Says which threads went through it."""

        seen: ClassVar[list[str]] = []

        def __iter__(self) -> Iterator[str]:
            self.seen.append(threading.current_thread().name)
            return super().__iter__()

    table = Table()
    consumer._client._assignments = table  # type: ignore[assignment]
    assert consumer.assigned_queues == []
    assert Table.seen == ["test-loop"]


def test_properties_can_be_read_before_the_start_and_after_the_end() -> None:
    consumer = PushConsumer("g", "127.0.0.1:1")
    assert (consumer.assigned_queues, consumer.client_id) == ([], consumer._client.client_id)
    consumer.close()
    assert consumer.assigned_queues == []


def test_an_asynchronous_iterator_is_waited_for_one_by_one() -> None:
    ended: list[str] = []

    async def numbers(last: int) -> AsyncIterator[int]:
        try:
            for number in range(last):
                await asyncio.sleep(0)
                yield number
            raise ValueError("that was all")
        finally:
            ended.append("end")

    portal = Portal("Test")
    portal.open(nothing)
    try:
        some = portal.iterate(lambda: numbers(5))
        assert [next(some), next(some)] == [0, 1]
        some.close()
        assert ended == ["end"]
        with pytest.raises(ValueError, match="that was all"):
            list(portal.iterate(lambda: numbers(2)))
        left = portal.iterate(lambda: numbers(5))
        assert next(left) == 0
    finally:
        portal.shut(nothing)
    with pytest.raises(ClientClosedError):
        next(left)
