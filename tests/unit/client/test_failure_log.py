"""Failures of listeners in the log: a traceback now and then, no flood."""

from __future__ import annotations

import logging

import pytest

from kerolox.client.aio.consumers.push.failure_log import (
    KINDS_MAX,
    LINES_PER_SECOND_MAX,
    TRACEBACK_MS,
    FailureLog,
)

LOG = logging.getLogger("kerolox.failures")


def failed(kind: type[Exception] = ValueError, text: str = "no such order") -> Exception:
    try:
        raise kind(text)
    except Exception as error:
        return error


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def failures(clock: Clock, caplog: pytest.LogCaptureFixture) -> FailureLog:
    caplog.set_level(logging.WARNING, LOG.name)
    return FailureLog(LOG, clock)


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[bool]:
    return [each.exc_info is not None for each in caplog.records]


def test_alike_failures_have_one_traceback_in_its_time(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        failures.add(f"m{number}", failed())
    assert tracebacks(caplog) == [True, False, False]
    assert caplog.messages[0] == "listener failed for message m0"
    assert caplog.messages[2] == "listener failed for message m2: ValueError: no such order"
    clock.now_ms += TRACEBACK_MS - 1
    failures.add("m3", failed())
    clock.now_ms += 1
    failures.add("m4", failed())
    assert tracebacks(caplog)[3:] == [False, True]


def test_another_class_or_place_has_a_traceback_of_its_own(
    failures: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    failures.add("m0", failed())
    failures.add("m1", failed(KeyError))
    try:
        raise ValueError("elsewhere")
    except ValueError as error:
        failures.add("m2", error)
    failures.add("m3", ValueError("never raised"))
    assert tracebacks(caplog) == [True, True, True, True]


def test_a_flood_is_ten_lines_a_second_and_the_next_one_counts_the_rest(
    failures: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(LINES_PER_SECOND_MAX + 90):
        failures.add(f"m{number}", failed())
    assert len(caplog.records) == LINES_PER_SECOND_MAX
    clock.now_ms += 1_000
    failures.add("later", failed())
    assert caplog.messages[-1] == (
        "listener failed for message later (90 more failures like this left out): "
        "ValueError: no such order"
    )


def test_kinds_are_bounded(failures: FailureLog) -> None:
    for number in range(KINDS_MAX + 1):
        failures.add("m", type(f"Error{number}", (Exception,), {})())
    assert len(failures._kinds) == 1


def test_a_text_of_many_lines_and_characters_is_one_bounded_line(
    failures: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    failures.add("m0", failed())
    failures.add("m1", failed(text="x" * 10_000))
    assert len(caplog.messages[1]) < 600
