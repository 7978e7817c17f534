"""Handles and commands of a recall, as RocketMQ 5.3.3 makes them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.recall_handles import RecallError, RecallHandle, decode_handle
from kerolox.store.timer.puts import ForTimer, Refused, TimerSettings, decide_put
from kerolox.store.timer.recall import Recall, decide_recall, handle_of

NOW = 1_700_000_000_123
SETTINGS = TimerSettings()
HANDLE = RecallHandle("T", "broker-a", NOW + 5_000, "7F0000010001")
OF_ROCKETMQ = "djEgVCBicm9rZXItYSAxNzAwMDAwMDA1MTIzIDdGMDAwMDAxMDAwMQ=="
"""``HandleV1.buildHandle`` of the same."""


def recall(handle: str, **more: str) -> Refused | Recall:
    given = {"topic": "T", "broker_name": "broker-a", "group": "G", **more}
    return decide_recall(handle, SETTINGS, now_ms=NOW, **given)


def test_a_handle_is_that_of_rocketmq() -> None:
    assert HANDLE.encode() == OF_ROCKETMQ
    assert decode_handle(OF_ROCKETMQ) == HANDLE
    assert decode_handle(OF_ROCKETMQ.rstrip("=")) == HANDLE


WORDS = st.text(min_size=1).filter(lambda text: " " not in text)


@given(WORDS, WORDS, st.integers(0, 1 << 62), WORDS)
def test_a_handle_is_read_as_it_was_made(topic: str, broker: str, time_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, time_ms, key)
    assert decode_handle(handle.encode()) == handle


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    found = recall(text)
    assert isinstance(found, Refused)
    assert found.text.startswith(("recall handle is invalid: ", "recall failed, "))


@given(st.integers(0, len(OF_ROCKETMQ) - 1))
def test_a_handle_that_is_cut_recalls_no_other_message(length: int) -> None:
    try:
        found = decode_handle(OF_ROCKETMQ[:length])
    except RecallError:
        return
    assert found[:3] == HANDLE[:3]
    assert HANDLE.unique_key.startswith(found.unique_key)


@pytest.mark.parametrize("text", ["", "v1", "é", "a b", "v2 T b 1 k", "v1 T b 1", "v1 T b 1 "])
def test_what_is_no_handle_is_refused(text: str) -> None:
    handle = base64.urlsafe_b64encode(text.encode()).decode()
    found = recall(handle)
    assert isinstance(found, Refused)
    assert found.code == ResponseCode.ILLEGAL_OPERATION == 604
    assert found.text.startswith("recall handle is invalid")


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        (HANDLE._replace(topic="U"), "recall failed, topic not match"),
        (HANDLE._replace(broker_name="b"), "recall failed, broker service not available"),
        (HANDLE._replace(time_ms=NOW - 123), "its moment is over"),
        (HANDLE._replace(time_ms=-1), "its moment is over"),
        (HANDLE._replace(time_ms=NOW + 259_200_000), "no message waits for so long"),
    ],
)
def test_too_late_and_another_topic_or_broker_are_told_apart(
    handle: RecallHandle, text: str
) -> None:
    found = recall(handle.encode())
    assert isinstance(found, Refused)
    assert found.code == ResponseCode.ILLEGAL_OPERATION
    assert text in found.text


@given(st.integers(1_100, 259_000_000))
def test_a_command_comes_into_the_slot_of_its_message(delay_ms: int) -> None:
    sent = {"UNIQ_KEY": "k", "TIMER_DELAY_MS": str(delay_ms)}
    message = decide_put(sent, SETTINGS, topic="T", queue_id=2, now_ms=NOW)
    assert isinstance(message, ForTimer)
    handle = handle_of({**sent, **message.properties}, "broker-a")
    assert handle is not None
    found = recall(handle.encode())
    assert isinstance(found, Recall)
    properties = found.properties
    assert properties["TIMER_DEL_UNIQKEY"] == "T+k"
    command = decide_put(properties, SETTINGS, topic="T", queue_id=0, now_ms=NOW)
    assert isinstance(command, ForTimer)
    assert command.out_ms == message.out_ms


@given(st.integers(1, 1_000), st.integers(1, 999))
def test_a_command_within_the_step_of_its_message_comes_into_its_slot(late: int, on: int) -> None:
    out_ms = NOW // 1_000 * 1_000
    handle = HANDLE._replace(time_ms=out_ms + 1).encode()
    given = {"topic": "T", "broker_name": "broker-a", "group": "G"}
    found = decide_recall(handle, SETTINGS, now_ms=out_ms + on, **given)
    assert isinstance(found, Recall)
    properties = found.properties
    command = decide_put(properties, SETTINGS, topic="T", queue_id=0, now_ms=out_ms + on)
    assert isinstance(command, ForTimer)
    assert command.out_ms == out_ms
    without = decide_recall(handle, SETTINGS, now_ms=out_ms + on, has_index=False, **given)
    assert isinstance(without, Refused)
    now_ms = out_ms + 999 + late
    assert isinstance(decide_recall(handle, SETTINGS, now_ms=now_ms, **given), Refused)


def test_what_waits_for_no_moment_has_no_handle() -> None:
    waiting = {"UNIQ_KEY": "k", "TIMER_OUT_MS": "5000", "REAL_TOPIC": "T"}
    assert handle_of(waiting, "b") == RecallHandle("T", "b", 5_001, "k")
    for name in waiting:
        assert handle_of({key: text for key, text in waiting.items() if key != name}, "b") is None
    assert handle_of({**waiting, "REAL_TOPIC": "%RETRY%G"}, "b") is None
