"""Work beside the requests: again and again, or whenever there is something to do."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.broker.services.background import BackgroundTasks
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("the disk is full"), "the disk is full; tried again in 0.0 s"),
        (ValueError("odd"), "background work failed; tried again in 0.0 s"),
    ],
    ids=["disk", "fault"],
)
async def test_work_that_failed_is_told_and_tried_again_whatever_it_waits_for(
    caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    pauses = asyncio.Semaphore(1)
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise error

    tasks = BackgroundTasks()
    tasks.follow(pauses.acquire, work, again_seconds=0.01)
    try:
        await until(lambda: runs == 2, what="the second try")
        assert caplog.messages == [text]
        pauses.release()
        await until(lambda: runs == 3, what="the next turn")
    finally:
        await tasks.stop()


async def test_work_is_repeated_and_the_first_pause_may_be_another() -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    tasks = BackgroundTasks()
    tasks.repeat(0.001, work, first=0.0)
    try:
        await until(lambda: runs >= 3, what="three runs")
    finally:
        await tasks.stop()
