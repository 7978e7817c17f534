"""Sends for a moment that the kernel stores in the timer's topic itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kerolox.message import PropertyKey, encode_properties
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.names import HALF_TOPIC, TIMER_TOPIC
from kerolox.protocol.recall_handles import RecallHandle, decode_handle
from kerolox.store.timer.puts import ForTimer, TimerSettings, decide_put
from tests.kernel.test_halves import records
from tests.support.stores.bench import (
    NOW,
    Bench,
    assert_same_as_reference,
    commands,
    properties,
    send,
    send_batch,
)

if TYPE_CHECKING:
    from pathlib import Path

ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
HOUR_MS = 3_600_000
SETTINGS = TimerSettings(precision_ms=500, max_delay_sec=3_600)


def with_timer(bench: Bench) -> Bench:
    bench.store.set_topic(TIMER_TOPIC, 1, 1, 6, False)
    bench.store.set_timer(500, HOUR_MS, "broker-a")
    return bench


@pytest.fixture
def timed(bench: Bench) -> Bench:
    """A store whose sends for a moment are fast."""
    return with_timer(bench)


FAST = {
    "seconds": {"TIMER_DELAY_SEC": "3600"},
    "milliseconds": {"TIMER_DELAY_MS": "1"},
    "leading zeros": {"TIMER_DELAY_MS": "0001500"},
    "at": {"TIMER_DELIVER_MS": str(NOW + 1)},
    "at the end of a step": {"TIMER_DELIVER_MS": str(NOW // 500 * 500 + 5_000)},
    "furthest": {"TIMER_DELIVER_MS": str(NOW + HOUR_MS)},
}


@ENCODINGS
@pytest.mark.parametrize("timer", FAST.values(), ids=FAST)
def test_a_send_for_a_moment_is_stored_as_the_handler_stores_it(
    timed: Bench, encoding: SerializeType, timer: dict[str, str]
) -> None:
    given = {"WAIT": "true", "TAGS": "t", **timer, "UNIQ_KEY": "k-1"}
    text = encode_properties(given) + "\x02"
    (answer,) = timed.connect().ask(send(b"one", e=3, i=text, encoding=encoding))
    found = decide_put(given, SETTINGS, topic="T", queue_id=3, now_ms=NOW)
    assert isinstance(found, ForTimer)
    (record,) = records(timed, TIMER_TOPIC)
    wanted = {**given, "CLUSTER": "DefaultCluster", **found.properties}
    assert list(record.properties.items()) == list(wanted.items())
    assert (record.body, record.queue_id, record.queue_offset) == (b"one", 0, 0)
    assert timed.store.queue_bounds("T", 3) == (0, 0)
    assert timed.store.queue_entry(TIMER_TOPIC, 0, 0)[2] == 116, "Java's hash of the tag"
    fields = answer.ext_fields
    assert (answer.code, fields["queueId"], fields["queueOffset"]) == (0, "3", "0")
    assert "transactionId" not in fields
    handle = decode_handle(fields["recallHandle"])
    assert handle == RecallHandle("T", "broker-a", found.out_ms + 1, "k-1")


@ENCODINGS
def test_without_a_short_key_a_message_cannot_be_taken_back(
    timed: Bench, encoding: SerializeType
) -> None:
    wire = timed.connect()
    for key, is_told in ((None, False), ("k" * 256, False), ("\u00e4" * 127, True)):
        given = {} if key is None else {"UNIQ_KEY": key}
        text = properties(TIMER_DELAY_MS="5", **given)
        (answer,) = wire.ask(send(i=text, encoding=encoding))
        assert (answer.code, "recallHandle" in answer.ext_fields) == (0, is_told)
        if key is not None and is_told:
            assert decode_handle(answer.ext_fields["recallHandle"]).unique_key == key


SLOW = {
    "over": {"i": properties(TIMER_DELIVER_MS=str(NOW))},
    "no delay": {"i": properties(TIMER_DELAY_MS="0")},
    "too far": {"i": properties(TIMER_DELAY_MS=str(HOUR_MS + 1))},
    "no number": {"i": properties(TIMER_DELAY_MS="1x")},
    "signed": {"i": properties(TIMER_DELAY_MS="+1")},
    "long": {"i": properties(TIMER_DELAY_SEC="0" * 15 + "1")},
    "two": {"i": properties(TIMER_DELAY_MS="1", TIMER_DELAY_SEC="1")},
    "a level": {"i": properties(TIMER_DELAY_MS="1", DELAY="1")},
    "has waited": {"i": properties(TIMER_DELAY_MS="1", TIMER_OUT_MS="5")},
    "has waited, said first": {"i": properties(TIMER_OUT_MS="5", TIMER_DELAY_MS="1")},
    "a command": {"i": properties(TIMER_DELAY_MS="1", TIMER_DEL_UNIQKEY="T+k")},
    "says where it goes": {"i": properties(TIMER_DELAY_MS="1", REAL_TOPIC="T")},
    "half": {"i": properties(TIMER_DELAY_MS="1", TRAN_MSG="true"), "f": 4},
    "committed": {"i": properties(TIMER_DELAY_MS="1"), "f": 8},
    "queue too high": {"i": properties(TIMER_DELAY_MS="1"), "e": 4},
    "unknown topic": {"i": properties(TIMER_DELAY_MS="1"), "b": "Unknown"},
    "too long with its target": {"i": properties(TIMER_DELAY_MS="1", a="x" * 32_700)},
}


@ENCODINGS
@pytest.mark.parametrize("changes", SLOW.values(), ids=SLOW)
def test_an_unusual_send_for_a_moment_is_slow_and_stores_nothing(
    timed: Bench, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    timed.store.set_topic(HALF_TOPIC, 1, 1, 6, False)
    timed.store.set_halves(True)
    end = timed.store.max_physical_offset
    assert timed.connect().is_cold(send(encoding=encoding, **changes))
    assert timed.store.max_physical_offset == end


@ENCODINGS
def test_a_batch_for_a_moment_is_slow(timed: Bench, encoding: SerializeType) -> None:
    text = properties(TIMER_DELAY_MS="1")
    batch = send_batch([(0, b"b", b"")], i=text, encoding=encoding)
    assert timed.connect().is_cold(batch)


def test_sends_for_a_moment_are_slow_until_the_broker_says_how(bench: Bench) -> None:
    wire = bench.connect()
    frame = send(i=properties(TIMER_DELAY_MS="5"))
    assert wire.is_cold(frame)
    with_timer(bench)
    assert wire.ask(frame)[0].code == 0
    bench.store.set_timer(0, 0, "")
    assert wire.is_cold(frame)


def test_a_send_for_a_moment_ends_a_wait_for_it(timed: Bench) -> None:
    assert timed.store.wait_for_offset(7, "", TIMER_TOPIC, 0, 0, NOW + HOUR_MS)
    timed.connect().ask(send(i=properties(TIMER_DELAY_MS="5")))
    timed.wait_notified()
    assert timed.store.drain_arrived() == [7]


def test_every_kernel_writes_the_same_timed_bytes(tmp_path: Path, kernel: Any) -> None:
    def play(bench: Bench) -> list[object]:
        with_timer(bench)
        wire = bench.connect()
        seen: list[object] = []
        for number in range(40):
            given = {
                PropertyKey.KEYS: f"k{number}",
                PropertyKey.TIMER_DELAY: str(number * 400_000 % 5_000_000),
                PropertyKey.UNIQUE_KEY: f"u\u00e4{number}",
                PropertyKey.WAIT: "true",
            }
            text = encode_properties(given) + ("\x02" if number % 3 else "")
            encoding = SerializeType.JSON if number % 2 else SerializeType.ROCKETMQ
            frames = [
                send(b"%d" % number, e=number % 4, i=text, encoding=encoding),
                send(b"plain", e=number % 4, encoding=encoding),
            ]
            answers, cold, *_ = wire.feed(*frames)
            seen.append([(a.code, a.ext_fields) for a in commands(answers)])
            seen.append(len(cold))
        return seen

    assert_same_as_reference(kernel, play, tmp_path)
