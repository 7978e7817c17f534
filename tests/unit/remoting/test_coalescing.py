"""When a loop rests between its turns, and when it lets that be."""

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest

from kerolox.remoting import coalescing as module
from kerolox.remoting.coalescing import RequestCoalescer

BUSY = 2 * module.CHUNKS_PER_SECOND_MIN
SMALL = BUSY * 500
EPOCH = module.EPOCH_SECONDS


class Loop:
    """What comes in, epoch by epoch, without a clock."""

    def __init__(self) -> None:
        self.coalescer = RequestCoalescer(0.000_25)
        self.now = 100.0

    def epochs(self, seconds: float, chunks: float, size: float, done: float) -> list[bool]:
        """Whether the loop rests after each of the epochs."""
        states = []
        for _ in range(max(1, round(seconds / EPOCH))):
            self.now += EPOCH
            self.coalescer.decide(self.now, chunks, size, done)
            states.append(self.coalescer.is_resting)
        return states

    def begin_rest(self, done: float) -> None:
        while not self.epochs(EPOCH, BUSY, SMALL, done)[0]:
            assert self.now < 200


def test_a_loop_that_has_little_to_do_never_rests() -> None:
    few = module.CHUNKS_PER_SECOND_MIN - 1
    assert not any(Loop().epochs(10, few, few * 500, 5_000))


def test_a_loop_rests_only_after_it_was_busy_for_a_while() -> None:
    loop = Loop()
    states = loop.epochs(2 * module.BUSY_SECONDS_MIN, BUSY, SMALL, 20_000)
    epochs = module.BUSY_SECONDS_MIN / EPOCH
    assert epochs <= states.index(True) <= epochs + 1


def test_a_loop_that_takes_in_large_chunks_never_rests() -> None:
    large = BUSY * (module.CHUNK_BYTES_MAX + 1)
    assert not any(Loop().epochs(10, BUSY, large, 20_000))


def test_a_loop_that_does_as_much_while_it_rests_goes_on_and_is_examined_at_times() -> None:
    loop = Loop()
    loop.begin_rest(20_000)
    states = loop.epochs(20, BUSY, SMALL, 19_000)
    looks = states.count(False)
    assert 20 / module.HELD_SECONDS - 3 <= looks <= 20 / module.HELD_SECONDS + 1
    assert not any(a is b is False for a, b in itertools.pairwise(states))


def test_a_loop_that_does_less_while_it_rests_stops_and_tries_again_ever_later() -> None:
    loop = Loop()
    tries = []
    while len(tries) < 12:
        was_resting = loop.coalescer.is_resting
        done = 20_000 * module.RATE_KEPT_MIN - 1 if was_resting else 20_000
        if loop.epochs(EPOCH, BUSY, SMALL, done)[0]:
            tries.append(loop.now)
        assert not (was_resting and loop.coalescer.is_resting)
    waits = [b - a for a, b in itertools.pairwise(tries)]
    assert waits[0] == pytest.approx(module.RETRY_SECONDS_MIN + EPOCH, abs=1.5 * EPOCH)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(module.RETRY_SECONDS_MAX + EPOCH, abs=1.5 * EPOCH)


def test_a_load_that_ends_while_the_loop_rests_ends_the_rests() -> None:
    loop = Loop()
    loop.begin_rest(20_000)
    loop.epochs(EPOCH, BUSY, SMALL, 20_000)
    states = loop.epochs(module.HELD_SECONDS + 2 * EPOCH, 10, 5_000, 5)
    assert not states[-1]
    assert not any(loop.epochs(10, 10, 5_000, 5))


@asynccontextmanager
async def counting(rest_seconds: float):
    done = 0

    def count() -> int:
        return done

    coalescer = RequestCoalescer(rest_seconds, count)
    coalescer.start()
    try:
        yield coalescer
    finally:
        coalescer.stop()


async def test_the_loop_examines_its_sockets_again_only_after_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    monkeypatch.setattr("kerolox.remoting.coalescing.time.sleep", rests.append)
    async with counting(0.02) as coalescer:
        coalescer.arm()
        assert coalescer.is_armed
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not coalescer.is_armed
        assert rests == [0.02]


async def test_nothing_rests_before_the_start_after_the_stop_or_where_it_is_off() -> None:
    never = RequestCoalescer()
    never.start()
    never.arm()
    assert not never.is_armed
    never.stop()
    async with counting(0.02) as coalescer:
        coalescer.is_resting = True
    assert not coalescer.is_resting
