"""A rate of rows."""

import pyarrow
import pytest

from kerolox.spark.sink.task import slices


class Clock:
    """Time that passes when somebody sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def batches(*sizes):
    return iter([pyarrow.record_batch({"a": list(range(size))}) for size in sizes])


def test_rows_are_given_at_the_rate_and_none_is_lost():
    clock = Clock()
    given = []
    for part in slices(batches(95, 0, 1, 204), 100, clock=clock, sleep=clock.sleep):
        given.append((clock.now - 100, part.num_rows))
        assert part.num_rows <= 10
    assert sum(rows for _, rows in given) == 300
    total = 0
    for when, rows in given:
        assert total <= 100 * when + 1e-6
        total += rows
    assert clock.now == pytest.approx(102.9, abs=0.11)


def test_a_slow_reader_is_not_waited_for():
    clock = Clock()

    def late():
        for batch in batches(10, 10):
            clock.now += 60
            yield batch

    assert sum(part.num_rows for part in slices(late(), 1, clock=clock, sleep=clock.sleep)) == 20
    assert clock.now <= 100 + 60 + 60 + 10
