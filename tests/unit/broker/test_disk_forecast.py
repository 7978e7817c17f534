"""When the disk will be full, of logs with every kind of past and with clocks that were set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.admin import Admin
from kerolox.broker.disk_forecast import HISTORY_MS_MIN, Forecast, Mark, forecast, marks_of
from kerolox.message import Message
from kerolox.testing import LocalBroker

HOUR = 3_600_000
NOW = 1_800_000_000_000
GIB = 1 << 30


def steady(hours: int, now: int = NOW) -> list[Mark]:
    """A log that has grown by a gibibyte an hour, up to now."""
    return [Mark(now - (hours - each) * HOUR, each * GIB) for each in range(hours)]


def expected(
    marks: list[Mark], end: int, *, free: int, reserved: int = 72 * HOUR, now: int = NOW
) -> Forecast:
    return forecast(marks_of(marks, end, now), end, now, free_bytes=free, reserved_ms=reserved)


def test_a_log_that_loses_nothing_yet_fills_the_disk_at_its_rate() -> None:
    found = expected(steady(24), 24 * GIB, free=10 * GIB)
    assert found.bytes_per_second == GIB / 3600
    assert found.full_ms == NOW + 10 * HOUR


def test_what_is_old_goes_first_where_there_is_space_for_as_long_as_it_is_kept() -> None:
    assert expected(steady(72), 72 * GIB, free=2 * GIB).full_ms is None
    assert expected(steady(60), 60 * GIB, free=14 * GIB).full_ms is None
    # 60 GiB are there: 12 hours until the first file goes, and there is space for eleven.
    assert expected(steady(60), 60 * GIB, free=11 * GIB).full_ms == NOW + 11 * HOUR


def test_a_rate_that_has_risen_fills_the_disk_although_files_go() -> None:
    # An hour's gibibyte until yesterday, five since.
    slow = [Mark(NOW - (174 - each) * HOUR, each * GIB) for each in range(75, 150)]
    fast = [Mark(NOW - (24 - each) * HOUR, (150 + each * 5) * GIB) for each in range(24)]
    found = expected([*slow, *fast], 270 * GIB, free=100 * GIB, reserved=100 * HOUR)
    assert found.full_ms is not None
    assert NOW + 20 * HOUR < found.full_ms < NOW + 40 * HOUR


def test_without_history_nothing_is_said() -> None:
    assert expected([], 0, free=GIB) == Forecast()
    assert expected([Mark(-1, 0)], 0, free=GIB) == Forecast()
    young = [Mark(NOW - HISTORY_MS_MIN + 1, 0)]
    assert expected(young, GIB, free=GIB) == Forecast()
    assert expected([Mark(NOW - HISTORY_MS_MIN, 0)], GIB, free=GIB).full_ms == NOW + HOUR


def test_a_log_that_nobody_writes_to_never_fills_the_disk() -> None:
    assert expected([Mark(NOW - 50 * HOUR, GIB)], GIB, free=0) == Forecast(0.0)


def test_a_disk_that_is_full_is_full_now() -> None:
    assert expected(steady(10), 10 * GIB, free=0).full_ms == NOW


def test_files_of_the_future_say_nothing_after_the_clock_was_set_back() -> None:
    back = NOW - 100 * HOUR
    assert expected(steady(24), 24 * GIB, free=GIB, now=back) == Forecast()
    # Those from before the mistaken future still do.
    mixed = [*steady(20, NOW), Mark(NOW + 500 * HOUR, 20 * GIB), Mark(NOW + 501 * HOUR, 21 * GIB)]
    found = expected(mixed, 22 * GIB, free=10 * GIB)
    assert found.bytes_per_second is not None
    assert NOW < (found.full_ms or 0) < NOW + 20 * HOUR


def test_a_file_that_is_younger_than_those_behind_it_is_left_out() -> None:
    marks = [Mark(NOW - 10 * HOUR, 0), Mark(NOW - HOUR, GIB), Mark(NOW - 5 * HOUR, 5 * GIB)]
    assert marks_of(marks, 10 * GIB, NOW) == [marks[0], marks[2]]


def test_a_file_that_is_not_full_yet_is_no_mark() -> None:
    assert marks_of([Mark(NOW - HOUR, 2 * GIB)], GIB, NOW) == []


MARKS = st.lists(
    st.builds(Mark, st.integers(-5, NOW + 500 * HOUR), st.integers(0, 100 * GIB)), max_size=20
)


@given(MARKS, st.integers(0, 120 * GIB), st.integers(0, 200 * GIB), st.integers(0, 500 * HOUR))
def test_every_log_and_clock_gives_a_time_from_now_on_or_none(
    marks: list[Mark], end: int, free: int, reserved: int
) -> None:
    kept = marks_of(marks, end, NOW)
    for one, other in itertools.pairwise(kept):
        assert one.ms <= other.ms
        assert one.offset <= other.offset
    found = expected(marks, end, free=free, reserved=reserved)
    if found.bytes_per_second is None:
        assert found.full_ms is None
    else:
        assert found.bytes_per_second >= 0
    assert found.full_ms is None or NOW <= found.full_ms <= NOW + reserved


@pytest.mark.parametrize("kernel", ["python", "native"])
async def test_a_broker_tells_of_it_once_its_log_is_old_enough(kernel: str) -> None:
    async with LocalBroker(kernel=kernel) as broker, Admin(broker.name_server) as admin:
        topic = broker.create_topic(queues=1)
        await admin.send_message(Message(topic, b"x" * 1_000))
        young = await admin.broker_runtime(broker.address)
        assert (young.growth_per_second, young.disk_full_ms) == (None, None)
        broker.advance(hours=2)
        old = await admin.broker_runtime(broker.address)
        assert old.growth_per_second is not None
        assert 0.1 < old.growth_per_second < 1, "a kilobyte and more in two hours"
        assert old.disk_full_ms == -1, "what is older than fileReservedTime goes before"
