"""Lines of one kind come a few times a second."""

from __future__ import annotations

import logging

import pytest

from kerolox.cli.process.logs import KINDS_MAX, LINES_PER_SECOND_MAX, LogLimit


def test_lines_of_a_kind_are_left_out_and_counted() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    lines: list[str] = []

    def log(message: str, *values: object) -> None:
        record = logging.LogRecord("kerolox", logging.WARNING, "", 1, message, values, None)
        if limit.filter(record):
            lines.append(record.getMessage())

    for number in range(100):
        log("closing %d", number)
    log("another kind")
    assert lines == [f"closing {n}" for n in range(LINES_PER_SECOND_MAX)] + ["another kind"]
    now = 1.5
    log("closing %d", 100)
    log("closing %d", 101)
    assert lines[-2:] == ["closing 100 (90 more lines like this left out)", "closing 101"]


@pytest.mark.parametrize("count", [3 * KINDS_MAX])
def test_kinds_that_are_told_apart_are_bounded(count: int) -> None:
    limit = LogLimit(lambda: 0.0)
    for number in range(count):
        limit.filter(logging.LogRecord("k", logging.INFO, "", 1, f"kind {number}", (), None))
    assert len(limit._seen) <= KINDS_MAX
