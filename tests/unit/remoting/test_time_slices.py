"""Long work in turns that many requests share."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.slices import each_step_is_a_turn

from kerolox.remoting.time_slices import TimeSlices


@pytest.fixture(autouse=True)
def _each_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    each_step_is_a_turn(monkeypatch)


async def test_all_who_share_have_their_turn_one_after_the_other() -> None:
    taken: list[str] = []
    await asyncio.gather(
        TimeSlices().run("aaa", taken.append),
        TimeSlices().run("b", taken.append),
        TimeSlices().run("ccc", taken.append),
    )
    assert "".join(taken) == "abcacac"


async def test_however_many_share_the_loop_does_one_turn_at_a_time() -> None:
    taken: list[int] = []
    work = [asyncio.ensure_future(TimeSlices().run(range(5), taken.append)) for _ in range(50)]
    # Each begins at once with a little.
    await asyncio.sleep(0)
    seen = len(taken)
    assert seen == 50
    while not all(each.done() for each in work):
        await asyncio.sleep(0)
        # The next one may begin in the iteration of the event loop in which one gives the lock
        # back.
        assert len(taken) <= seen + 2
        seen = len(taken)
    assert seen == 250


async def test_small_work_waits_for_nothing_though_others_have_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = asyncio.ensure_future(TimeSlices().run(iter(int, 1), lambda _: None))
    await asyncio.sleep(0)
    monkeypatch.setattr("kerolox.remoting.time_slices.START_SECONDS_MAX", 60.0)
    taken: list[int] = []
    work = TimeSlices().run(range(100), taken.append)
    with pytest.raises(StopIteration):
        work.send(None)
    assert len(taken) == 100
    endless.cancel()


async def test_work_that_fails_or_is_cancelled_gives_its_turn_to_the_others() -> None:

    def fail(_step: int) -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one above
        await TimeSlices().run(range(3), fail)
    endless = asyncio.ensure_future(TimeSlices().run(iter(int, 1), lambda _: None))
    await asyncio.sleep(0)
    endless.cancel()
    taken: list[int] = []
    await TimeSlices().run(range(3), taken.append)
    assert taken == [0, 1, 2]
