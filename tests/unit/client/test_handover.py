"""Calls of threads on their way into a loop, and threads on their way out of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kerolox.client.sync._handover import (
    POLL_SECONDS,
    STARTED_AT_ONCE_MAX,
    WAKING_AT_ONCE,
    WOKEN_AT_ONCE_MAX,
    Handover,
)
from kerolox.client.sync._portal import Portal
from kerolox.errors import ClientClosedError
from tests.support.eventually import SECONDS_MAX, wait_until

MANY = 20


class Loop:
    """Runs what it is given when it is told to."""

    def __init__(self) -> None:
        self.woken = 0
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None], *, context: object) -> None:
        self.woken += 1
        self.soon.append(call)

    def call_soon(self, call: Callable[[], None], *, context: object) -> None:
        self.soon.append(call)

    def call_later(self, seconds: float, call: Callable[[], None], *, context: object) -> object:
        assert seconds == POLL_SECONDS
        self.later.append(call)
        return call

    def turn(self) -> None:
        """One turn: what was ready before it."""
        ready, self.soon = self.soon, []
        for call in ready:
            call()

    def look(self) -> None:
        """The time of whatever has a timer is over."""
        due, self.later = self.later, []
        for call in due:
            call()


class Call:
    """Says what became of it."""

    def __init__(self, name: int, said: list[tuple[str, int]]) -> None:
        self.name = name
        self.said = said

    def start(self) -> None:
        self.said.append(("start", self.name))

    def wake(self) -> None:
        self.said.append(("wake", self.name))

    def end(self) -> None:
        raise AssertionError


class Scene:
    """A loop turned by hand, and calls."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.said: list[tuple[str, int]] = []
        self.calls = [Call(name, self.said) for name in range(MANY)]
        self.handover = Handover(self.loop, self.calls)  # type: ignore[arg-type]

    def end(self, count: int = MANY) -> None:
        """So many calls end in one iteration of the event loop."""
        for call in self.calls[:count]:
            self.handover.ended(call)
        assert self.said == []
        self.loop.turn()

    @property
    def woken(self) -> list[int]:
        return [name for what, name in self.said if what == "wake"]

    @property
    def started(self) -> list[int]:
        return [name for what, name in self.said if what == "start"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_calls_of_many_threads_wake_the_loop_once_and_begin_in_turns() -> None:
    said: list[tuple[str, int]] = []
    loop = Loop()
    handover = Handover(loop)  # type: ignore[arg-type]
    calls = [Call(name, said) for name in range(2 * STARTED_AT_ONCE_MAX + 1)]
    for call in calls:
        handover.put(call)
    assert loop.woken == 1
    for turn in (1, 2):
        loop.turn()
        assert len(said) == turn * STARTED_AT_ONCE_MAX
    loop.turn()
    assert said == [("start", call.name) for call in calls]
    assert not loop.soon
    handover.put(calls[0])
    assert loop.woken == 2


def test_the_only_call_goes_on_at_once() -> None:
    said: list[tuple[str, int]] = []
    call = Call(0, said)
    Handover(Loop(), [call]).ended(call)  # type: ignore[arg-type]
    assert said == [("wake", 0)]


def test_few_threads_are_woken_by_the_loop(scene: Scene) -> None:
    scene.end(WOKEN_AT_ONCE_MAX)
    assert scene.woken == list(range(WOKEN_AT_ONCE_MAX))
    assert not scene.loop.later


def test_many_threads_are_woken_one_by_the_other(scene: Scene) -> None:
    scene.end()
    assert scene.woken == list(range(WAKING_AT_ONCE))
    for count in range(WAKING_AT_ONCE, MANY):
        scene.handover.woken()
        assert scene.woken == list(range(count + 1))
    scene.handover.woken()
    assert scene.woken == list(range(MANY))


def test_the_loop_sleeps_while_threads_wake_each_other(scene: Scene) -> None:
    scene.end()
    for call in scene.calls[:-1]:
        scene.handover.put(call)
        assert scene.loop.woken == 0
        scene.handover.woken()
    assert scene.loop.woken == 1
    scene.loop.turn()
    assert scene.started == list(range(MANY - 1))
    scene.handover.put(scene.calls[0])
    assert scene.loop.woken == 2


def test_what_is_handed_over_meanwhile_begins_at_the_next_look(scene: Scene) -> None:
    scene.end()
    scene.handover.put(scene.calls[0])
    scene.loop.look()
    assert scene.started == [0]
    assert scene.woken == list(range(WAKING_AT_ONCE))
    scene.handover.woken()
    scene.handover.put(scene.calls[1])
    scene.loop.look()
    assert scene.started == [0, 1]
    assert scene.loop.woken == 0


def test_when_a_thread_wakes_nobody_the_loop_does(scene: Scene) -> None:
    scene.end()
    scene.handover.put(scene.calls[0])
    scene.loop.look()
    assert scene.woken == list(range(WAKING_AT_ONCE))
    scene.loop.look()
    assert scene.woken == list(range(MANY))
    assert not scene.loop.later
    scene.loop.turn()
    scene.handover.put(scene.calls[1])
    scene.loop.turn()
    assert scene.started == [0, 1]


def test_what_ends_while_threads_wake_each_other_is_woken_by_them(scene: Scene) -> None:
    scene.end(MANY - 1)
    scene.handover.ended(scene.calls[-1])
    scene.loop.turn()
    for _ in range(MANY):
        scene.handover.woken()
    assert scene.woken == list(range(MANY))
    assert [scene.loop.look() for _ in range(2)] == [None, None]
    assert not scene.loop.later


def test_all_threads_go_on_when_the_loop_ends(scene: Scene) -> None:
    scene.end(MANY - 1)
    scene.handover.end()
    assert scene.woken == list(range(MANY - 1))
    scene.handover.ended(scene.calls[-1])
    assert scene.woken == list(range(MANY))


# -- with threads ---------------------------------------------------------------------------------
async def nothing() -> None:
    return None


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal("test")
    made.open(nothing)
    yield made
    made.shut(nothing)


class Rounds:
    """Futures of many calls, which end together."""

    def __init__(self) -> None:
        self.open: list[asyncio.Future[int]] = []

    def begin(self) -> asyncio.Future[int]:
        self.open.append(asyncio.get_running_loop().create_future())
        return self.open[-1]

    async def run(self) -> int:
        raise AssertionError("it has begun already")

    def end_all(self) -> None:
        ending, self.open = self.open, []
        for number, future in enumerate(ending):
            future.set_result(number)


def run_all(work: Callable[[], object], threads: int = MANY) -> list[threading.Thread]:
    """Begin the same work in many threads."""
    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    return running


def test_calls_that_end_together_each_have_their_own_result(portal: Portal) -> None:
    rounds = Rounds()
    results: list[int] = []
    threads = run_all(
        lambda: results.extend(portal.settle(rounds.begin, rounds.run) for _ in range(3))
    )
    for _ in range(3):
        wait_until(lambda: len(rounds.open) == MANY)
        portal.call(rounds.end_all)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert sorted(results) == sorted([*range(MANY)] * 3)


def test_an_interrupted_thread_keeps_none_of_the_others(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds()
    ends: list[str] = []
    woken = Handover.woken

    def interrupt(self: Handover) -> None:
        if threading.current_thread().name == "test-loop":
            woken(self)
        else:
            raise KeyboardInterrupt

    def work() -> None:
        try:
            portal.settle(rounds.begin, rounds.run)
        except KeyboardInterrupt:
            ends.append("interrupted")

    monkeypatch.setattr(Handover, "woken", interrupt)
    threads = run_all(work)
    wait_until(lambda: len(rounds.open) == MANY)
    portal.call(rounds.end_all)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert ends == ["interrupted"] * MANY


def test_threads_that_wait_end_with_the_portal() -> None:
    portal = Portal("test")
    portal.open(nothing)
    rounds = Rounds()
    ends: list[Any] = []

    def work() -> None:
        try:
            while True:
                portal.settle(rounds.begin, rounds.run)
        except ClientClosedError as error:
            ends.append(error)

    threads = run_all(work)
    wait_until(lambda: len(rounds.open) == MANY)
    portal.call(rounds.end_all)
    portal.shut(nothing)
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert len(ends) == MANY
