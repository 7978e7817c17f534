"""The rules of a put, against those of RocketMQ 5.3.3 written down once more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.message import PropertyKey
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.java_numbers import LONG_MAX, LONG_MIN, java_long
from kerolox.protocol.names import TIMER_TOPIC, TOPIC_BYTES_MAX
from kerolox.store.timer.puts import (
    DRAWS,
    NEVER_ENQUEUED,
    AsItIs,
    ForTimer,
    RealPlace,
    Refused,
    TimerSettings,
    decide_put,
    delete_key,
    delivered,
    key_of,
    out_ms,
    real_place,
    rolled,
    unique_keys_of,
)
from kerolox.store.timer.wheel import PRECISIONS_MS

NOW = 1_700_000_000_123
DAY = 86_400_000
SETTINGS = TimerSettings()
SEC, MS, AT = "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"


def put(
    properties: dict[str, str], settings: TimerSettings = SETTINGS, **more: object
) -> AsItIs | ForTimer | Refused:
    given = {"topic": "T", "queue_id": 3, "now_ms": NOW, **more}
    return decide_put(properties, settings, **given)  # type: ignore[arg-type]


def refused(found: object) -> Refused:
    assert isinstance(found, Refused)
    return found


def test_defaults_are_those_of_rocketmq() -> None:
    numbers = (True, 1_000, 259_200, 172_800, 2_147_483_647, 104_857_600, 604_800)
    assert tuple(SETTINGS) == numbers
    assert SETTINGS.window == 172_800


@pytest.mark.parametrize("slots", [-1, 0, 1, 604_741, 1 << 31])
def test_a_window_out_of_range_is_as_large_as_the_wheel_allows(slots: int) -> None:
    assert SETTINGS._replace(roll_window_slots=slots).window == 604_740


@pytest.mark.parametrize("properties", [{}, {"KEYS": "a"}, {"__STARTDELIVERTIME": "1"}])
def test_a_message_without_a_moment_is_stored_as_it_is(properties: dict[str, str]) -> None:
    assert put(properties) == AsItIs()
    assert put(properties, SETTINGS._replace(is_enabled=False)) == AsItIs()


@pytest.mark.parametrize(
    ("properties", "out"),
    [
        ({SEC: "10"}, NOW + 9_877),
        ({MS: "10500"}, NOW + 9_877),
        ({MS: "877"}, NOW - 123),
        ({MS: "878"}, NOW + 877),
        ({MS: "1"}, NOW - 123),
        ({AT: str(NOW + 877)}, NOW - 123),
        ({AT: str(NOW + 878)}, NOW + 877),
        ({SEC: "259200"}, NOW - 123 + 3 * DAY),
    ],
)
def test_the_moment_is_rounded_down_a_whole_step_to_the_one_before(
    properties: dict[str, str], out: int
) -> None:
    found = put(properties)
    assert found == ForTimer(out, {"TIMER_OUT_MS": str(out), "REAL_TOPIC": "T", "REAL_QID": "3"})


def test_of_several_properties_seconds_count_then_milliseconds() -> None:
    every = {AT: str(NOW + 30_000), MS: "20000", SEC: "10"}
    assert isinstance(found := put(every), ForTimer)
    assert found.out_ms == NOW - 123 + 10_000
    del every[SEC]
    assert isinstance(found := put(every), ForTimer)
    assert found.out_ms == NOW - 123 + 20_000
    assert "no number" in refused(put({SEC: "x", AT: str(NOW + 1)})).text


def test_a_delay_level_counts_and_takes_the_properties_away() -> None:
    every = {AT: "x", MS: "20000", SEC: "10", "KEYS": "k"}
    assert put(every, delay_level=3) == AsItIs((SEC, MS, AT))
    assert put({MS: "1", PropertyKey.TIMER_OUT: "5"}, delay_level=1) == AsItIs((MS,))


def test_halves_and_what_the_timer_put_itself_are_stored_as_they_are() -> None:
    assert put({SEC: "10"}, is_half=True) == AsItIs()
    assert put({SEC: "10", PropertyKey.TIMER_OUT: "1"}) == AsItIs()
    assert put({SEC: "10"}, topic=TIMER_TOPIC) == AsItIs()


@pytest.mark.parametrize("properties", [{SEC: "0"}, {MS: "-5"}, {AT: str(NOW)}, {AT: "-1"}])
def test_a_moment_in_the_past_is_delivered_at_once_a_delete_is_refused(
    properties: dict[str, str],
) -> None:
    assert put(properties) == AsItIs()
    found = refused(put({**properties, PropertyKey.TIMER_DELETES: "T+k"}))
    assert found.code == ResponseCode.MESSAGE_ILLEGAL
    assert found.text.startswith(
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms;"
        " or if set del msg, the delay time should be bigger than the current time"
    )
    assert found.text.endswith(f"is over at {NOW}")


@pytest.mark.parametrize(
    "text", ["", " ", "1 ", "1_0", "0x10", "1.5", "+", "--1", "٣", "9" * 30_000, str(1 << 63)]
)
@pytest.mark.parametrize("name", [SEC, MS, AT])
def test_what_is_no_number_is_refused_and_named(name: str, text: str) -> None:
    found = refused(put({name: text}))
    assert found.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"{name} is no number" in found.text
    assert len(found.text) < 1_000


@pytest.mark.parametrize("properties", [{SEC: "259201"}, {MS: "259200001"}, {SEC: str(LONG_MAX)}])
def test_a_moment_beyond_the_maximum_is_refused(properties: dict[str, str]) -> None:
    found = refused(put(properties))
    assert found.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the max delay 259200000ms" in found.text


def test_without_a_timer_every_moment_is_refused() -> None:
    off = SETTINGS._replace(is_enabled=False)
    for properties in ({SEC: "10"}, {AT: "1"}, {MS: "x"}):
        found = refused(put(properties, off))
        assert found == (
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
        )


def test_a_full_slot_refuses_a_share_that_grows_with_it() -> None:
    settings = SETTINGS._replace(slot_messages=100)

    def share(messages: int) -> int:
        return sum(
            isinstance(put({SEC: "9"}, settings, waiting=lambda _: messages, draw=draw), Refused)
            for draw in range(DRAWS)
        )

    assert [share(each) for each in (0, 100, 125, 150, 199, 200, 900)] == [
        0, 0, 250, 500, 990, 1_000, 1_000,
    ]  # fmt: skip
    found = refused(put({SEC: "9"}, settings, waiting=lambda _: 200))
    assert found == (
        ResponseCode.SYSTEM_ERROR,
        "timer message is under flow control, max num limit is 200 or the current value is greater"
        " than 100 and less than 200, trigger random flow control",
    )


def test_the_slot_that_is_asked_for_is_that_of_the_moment() -> None:
    asked: list[int] = []
    found = put({SEC: "9"}, waiting=lambda time_ms: asked.append(time_ms) or 0)
    assert isinstance(found, ForTimer)
    assert asked == [found.out_ms]


@given(
    st.integers(0, 1 << 45),
    st.integers(-DAY, 4 * DAY),
    st.sampled_from(PRECISIONS_MS),
    st.sampled_from([MS, AT]),
)
def test_a_moment_is_never_before_and_at_most_a_step_behind(
    now: int, delay: int, precision: int, name: str
) -> None:
    text = str(delay if name == MS else now + delay)
    found = put({name: text}, SETTINGS._replace(precision_ms=precision), now_ms=now)
    if delay <= 0:
        assert found == AsItIs()
    elif delay > 3 * DAY:
        assert isinstance(found, Refused)
    else:
        assert isinstance(found, ForTimer)
        assert found.out_ms % precision == 0
        # A slot is read when its step is over.
        assert now + delay <= found.out_ms + precision < now + delay + precision


@given(st.dictionaries(st.sampled_from([SEC, MS, AT, "DELAY", "UNIQ_KEY"]), st.text()))
def test_any_text_is_stored_or_refused(properties: dict[str, str]) -> None:
    assert isinstance(put(properties), AsItIs | ForTimer | Refused)


@given(st.integers(LONG_MIN - 9, LONG_MAX + 9), st.integers(0, 30))
def test_a_long_is_read_as_java_reads_it(number: int, zeros: int) -> None:
    sign = "-" if number < 0 else "+"
    text = f"{sign}{'0' * zeros}{abs(number)}"
    assert java_long(text) == (number if LONG_MIN <= number <= LONG_MAX else None)


WAITING = {
    "KEYS": "k",
    "UNIQ_KEY": "u",
    "TIMER_OUT_MS": "1000",
    "REAL_TOPIC": "T",
    "REAL_QID": "3",
}


def test_a_delivered_message_keeps_its_place_and_its_moment() -> None:
    assert delivered(WAITING, 500, 2_000) == {
        **WAITING,
        "TIMER_ENQUEUE_MS": "500",
        "TIMER_DEQUEUE_MS": "2000",
    }
    never = delivered(WAITING, NEVER_ENQUEUED, 1)["TIMER_ENQUEUE_MS"]
    assert never == "9223372036854775807"


def test_a_rolled_message_keeps_its_place_and_counts() -> None:
    once = rolled(WAITING, 500, 2_000)
    assert once == {
        **WAITING,
        "TIMER_ROLL_TIMES": "1",
        "TIMER_ENQUEUE_MS": "500",
        "TIMER_DEQUEUE_MS": "2000",
    }
    assert rolled(once, 600, 3_000)["TIMER_ROLL_TIMES"] == "2"
    assert rolled({"TIMER_ROLL_TIMES": "x"}, 1, 2)["TIMER_ROLL_TIMES"] == "1"


@pytest.mark.parametrize(
    "changed",
    [{"REAL_TOPIC": ""}, {"REAL_QID": "-1"}, {"REAL_QID": "x"}, {"REAL_QID": "4294967296"}],
)
def test_a_message_that_no_timer_put_has_no_real_place(changed: dict[str, str]) -> None:
    assert real_place(WAITING) == RealPlace("T", 3)
    assert real_place({**WAITING, **changed}) is None
    assert real_place({}) is None


def test_the_moment_of_what_no_timer_put_is_none() -> None:
    assert out_ms(WAITING) == 1_000
    assert out_ms({}) is None
    assert out_ms({"TIMER_OUT_MS": "-1"}) is None


def test_a_delete_names_topic_and_unique_key() -> None:
    assert key_of(WAITING) == delete_key("T", "u") == "T+u"
    assert key_of({"REAL_TOPIC": "T"}) is None
    assert key_of({"UNIQ_KEY": "u"}) is None


def test_what_a_delete_names_has_a_topic_with_the_sign_or_without() -> None:
    assert unique_keys_of("T+u") == {"u"}
    assert unique_keys_of("A+B+u") == {"B+u", "u"}
    assert unique_keys_of("u") == set()
    assert unique_keys_of(delete_key("T" * TOPIC_BYTES_MAX, "u")) == {"u"}


def test_a_delete_of_many_signs_names_no_more_keys_than_topics_are_long() -> None:
    assert len(unique_keys_of("+" * 30_000)) == TOPIC_BYTES_MAX + 1
