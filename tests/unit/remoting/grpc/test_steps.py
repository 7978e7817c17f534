"""Whose step is next at the port for gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from kerolox.remoting.grpc import steps
from kerolox.remoting.grpc.steps import StepQueue


class Loop:
    """Runs what is due, an iteration at a time."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def iterate(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Worker:
    def __init__(self, name: str, steps: int, done: list[str]) -> None:
        self.name, self.steps, self.done = name, steps, done

    def go_on(self) -> bool:
        self.done.append(self.name)
        self.steps -= 1
        if self.steps < 0:
            raise ValueError(self.name)
        return self.steps > 0


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def table(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> StepQueue:
    """Whose iterations have time for one step alone."""
    monkeypatch.setattr(steps, "SLICE_SECONDS_MAX", 0.0)
    made: Any = loop
    return StepQueue(made)


def test_who_brings_much_waits_behind_who_brings_little(loop: Loop, table: StepQueue) -> None:
    done: list[str] = []
    for name, count in (("much", 3), ("little", 1)):
        table.join(Worker(name, count, done))
    while loop.due:
        before = len(done)
        loop.iterate()
        assert len(done) == before + 1
    assert done == ["much", "little", "much", "much"]


def test_each_iteration_has_its_own_time(
    loop: Loop, table: StepQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLICE_SECONDS_MAX", 1.0)
    now = 100.0
    monkeypatch.setattr(steps, "monotonic", lambda: now)
    assert table.has_time()
    now += 2
    assert not table.has_time()
    loop.iterate()
    assert table.has_time()


def test_one_that_joins_again_has_one_place(loop: Loop, table: StepQueue) -> None:
    done: list[str] = []
    worker = Worker("one", 1, done)
    table.join(worker)
    table.join(worker)
    assert table.has_joined(worker)
    loop.iterate()
    assert (done, loop.due, table.has_joined(worker)) == (["one"], [], False)


def test_one_that_fails_leaves_the_others_their_turn(loop: Loop, table: StepQueue) -> None:
    done: list[str] = []
    failing = Worker("failing", 0, done)
    for worker in (failing, Worker("good", 1, done)):
        table.join(worker)
    while loop.due:
        with contextlib.suppress(ValueError):
            loop.iterate()
    assert done == ["failing", "good"]
    assert not table.has_joined(failing)
