"""When a peer has fallen silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerolox.remoting.core.client_requests import SILENT_SECONDS_MAX, Silence

LONG = SILENT_SECONDS_MAX  # 2.5


def test_one_request_that_waits_long_enough_is_a_silence() -> None:
    silence = Silence()
    silence.received_at = 1.0
    assert silence.timed_out(2.0, 2.0 + LONG) == 2.0
    assert silence.lasts(2.0)


def test_a_short_time_limit_alone_says_nothing() -> None:
    assert Silence().timed_out(1.0, 1.2) is None


def test_many_short_time_limits_in_a_row_are_a_silence_since_the_first() -> None:
    silence = Silence()
    silence.received_at = 1.0
    verdicts = [silence.timed_out(2.0 + n / 5, 2.2 + n / 5) for n in range(13)]
    assert verdicts == [None] * 12 + [2.0]


def test_whatever_arrives_ends_a_silence() -> None:
    silence = Silence()
    assert silence.timed_out(1.0, 2.0) is None
    silence.received_at = 2.5
    assert silence.timed_out(2.0, 9.0) is None
    assert silence.timed_out(3.0, 4.0) is None
    assert silence.timed_out(4.0, 5.5) == 3.0


def test_what_arrives_before_the_second_look_ends_it_too() -> None:
    silence = Silence()
    since = silence.timed_out(1.0, 4.0)
    assert since == 1.0
    silence.received_at = 4.05
    assert not silence.lasts(since)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 3.0)), max_size=40))
def test_no_peer_is_given_up_that_said_anything_within_the_limit(
    events: list[tuple[bool, float]],
) -> None:
    silence, now = Silence(), 1.0
    for arrives, seconds in events:
        asked_at, now = now, now + seconds
        if arrives:
            silence.received_at = now
            continue
        since = silence.timed_out(asked_at, now)
        assert since is None or (now - since >= LONG and silence.received_at <= since)
        if now - max(silence.received_at, 1.0) < LONG:
            assert since is None
