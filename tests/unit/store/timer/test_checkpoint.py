"""The timer's check point and metrics as RocketMQ writes them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.bodies import BodyError
from kerolox.store.timer.checkpoint import (
    FILE_BYTES,
    PASSED_MAX,
    TimerCheckpoint,
    decode_checkpoint,
)
from kerolox.store.timer.metrics import TimerMetrics, TimerVersion, TopicWaiting, decode_metrics

_LONGS = st.integers(0, (1 << 63) - 1)
_PASSED = st.lists(st.tuples(_LONGS, _LONGS), max_size=PASSED_MAX).map(tuple)
_CHECKPOINTS = st.builds(TimerCheckpoint, *[_LONGS] * 7, passed=_PASSED, is_open=st.booleans())
METRICS = (
    b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":3},'
    b'"timingCount":{"T":{"count":1,"timeStamp":4}}}'
)


def test_a_check_point_has_the_layout_of_rocketmq() -> None:
    point = TimerCheckpoint(1, 2, 3, 4, 5, 6, 7)
    assert point.encode() == struct.pack(">qqqqqqq", 1, 2, 3, 4, 5, 6, 7)
    assert point.file() == point.encode() + bytes(FILE_BYTES - 56)
    assert len(point.file()) == 4096


@given(_CHECKPOINTS)
def test_a_check_point_is_read_as_it_was_written(point: TimerCheckpoint) -> None:
    assert decode_checkpoint(point.encode()) == point._replace(passed=(), is_open=False)
    assert decode_checkpoint(point.file()) == point


def test_what_is_ours_counts_until_rocketmq_writes_the_file() -> None:
    point = TimerCheckpoint(1, 2, 3, 4, 5, 6, 7, passed=((9, 8),), is_open=True)
    data = bytearray(point.file())
    assert bytes(data[:56]) == point.encode()
    later = point._replace(last_read_ms=2, passed=(), is_open=False)
    data[:56] = later.encode()
    assert decode_checkpoint(data) == later


def test_more_pairs_than_the_file_has_space_for_leave_the_first_out() -> None:
    point = TimerCheckpoint(passed=tuple((n, n) for n in range(PASSED_MAX + 3)))
    assert len(point.file()) == FILE_BYTES
    assert decode_checkpoint(point.file()).passed == point.passed[3:]


@given(st.binary(min_size=30, max_size=30), st.integers(60, 4_000))
def test_garbage_behind_the_numbers_is_no_pair(garbage: bytes, at: int) -> None:
    data = bytearray(TimerCheckpoint(1, 2, 3, 4, 5, 6, 7).file())
    data[at : at + len(garbage)] = garbage
    assert decode_checkpoint(data).passed == ()


def test_an_answer_without_a_data_version_is_read() -> None:
    data = struct.pack(">qqqq", 1, 2, 3, 4)
    assert decode_checkpoint(data) == TimerCheckpoint(1, 2, 3, 4)


def test_a_file_of_zeros_is_the_begin() -> None:
    assert decode_checkpoint(bytes(FILE_BYTES)) == TimerCheckpoint()


@given(st.binary(max_size=31))
def test_a_check_point_that_is_cut_is_refused_with_its_length(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"has {len(data)} bytes, and at least 32"):
        decode_checkpoint(data)


@pytest.mark.parametrize("member", range(7))
def test_a_check_point_with_a_negative_number_is_refused(member: int) -> None:
    numbers = [1] * 7
    numbers[member] = -1
    with pytest.raises(ValueError, match="negative number"):
        decode_checkpoint(struct.pack(">qqqqqqq", *numbers))


def test_metrics_are_those_of_rocketmq() -> None:
    metrics = decode_metrics(METRICS)
    assert metrics == TimerMetrics(
        data_version=TimerVersion(counter=2, timestamp=3),
        timing_count={"T": TopicWaiting(count=1, time_stamp=4)},
    )
    assert metrics.encode() == METRICS
    assert decode_metrics(b"{}") == TimerMetrics()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"timingCount":{"T":{"count":"x"}}}'])
def test_metrics_that_are_malformed_are_refused(data: bytes) -> None:
    with pytest.raises(BodyError):
        decode_metrics(data)
