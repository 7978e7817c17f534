"""Histograms of loads, and what failures are called."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.bench import Histogram, Kind, Load, Tally
from kerolox.errors import BrokerError, ConfigError, RequestTimeoutError


def histogram(times_us: list[int]) -> Histogram:
    made = Histogram()
    for each in times_us:
        made.add(each * 1000)
    return made


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_right_to_a_thirty_second(times_us: list[int], part: float) -> None:
    made = histogram(times_us)
    exact = sorted(times_us)[max(math.ceil(part * len(times_us)) - 1, 0)] / 1e3
    assert exact <= made.percentile_ms(part) + 1e-9
    assert made.percentile_ms(part) <= exact * (1 + 1 / 16) + 0.001
    assert made.percentile_ms(1.0) == made.longest_ms == max(times_us) / 1e3


@given(st.lists(st.integers(0, 10**9)))
def test_each_time_is_in_one_doubling(times_us: list[int]) -> None:
    rows = list(histogram(times_us).doublings())
    assert sum(count for _, count in rows) == len(times_us)
    ends = [end for end, _ in rows]
    assert ends == sorted(set(ends))
    for end, count in rows:
        in_it = [each for each in times_us if end / 2 <= each / 1e3 < end]
        assert count == len(in_it) or end <= 0.001


def test_an_empty_histogram_and_a_clock_that_went_back() -> None:
    made = Histogram()
    assert (made.percentile_ms(0.99), made.mean_ms, made.longest_ms) == (0, 0, 0)
    made.add(-5)
    assert (made.count, made.longest_ns, made.total_ns) == (1, 0, 0)


def test_failures_are_counted_by_their_names() -> None:
    tally = Tally(Load(kind=Kind.SEND, count=1))
    assert (tally.messages_per_second, tally.megabytes_per_second) == (0, 0)
    for error in (
        BrokerError.from_response(2, "busy"),
        BrokerError.from_response(4711, ""),
        RequestTimeoutError(""),
        RequestTimeoutError(""),
    ):
        tally.failed(error)
    assert tally.errors == {"SYSTEM_BUSY": 1, "code 4711": 1, "RequestTimeoutError": 2}


@pytest.mark.parametrize(
    "given", [{}, {"count": -1}, {"count": 1, "size": 0}, {"count": 1, "concurrency": 0}]
)
def test_a_load_without_end_or_sense_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Load(kind=Kind.SEND, **given)  # type: ignore[arg-type]
