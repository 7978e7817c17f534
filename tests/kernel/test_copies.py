"""Records stored again where their properties say, and properties of a queue, in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kerolox.kernel.append import COPY_MARK
from kerolox.kernel.values import Copied, Copies
from kerolox.message import decode_properties, java_hash
from kerolox.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tests.kernel.test_halves import records
from tests.support.stores.bench import (
    NOW,
    Bench,
    assert_same_as_reference,
    holding_pull,
    messages,
    properties,
)

if TYPE_CHECKING:
    from pathlib import Path

REAL = {"REAL_TOPIC": "T", "REAL_QID": "1"}
TEXT = properties(TAGS="t", KEYS="k", UNIQ_KEY="u", TIMER_OUT_MS="1000", **REAL)
TOPIC = TIMER_TOPIC.encode()


def fill(bench: Bench, *texts: str, sys_flag: int = 0) -> list[int]:
    """Store a record for each property text, its body the number; where they are."""
    return [
        bench.append(b"%d" % number, text, topic=TOPIC, sys_flag=sys_flag).physical_offset
        for number, text in enumerate(texts)
    ]


def test_a_copy_has_all_that_its_record_has_and_what_is_added(bench: Bench) -> None:
    [offset] = fill(bench, TEXT)
    added = properties(TIMER_ENQUEUE_MS="5", TIMER_DEQUEUE_MS="7").encode()
    done = bench.store.copy_records(Copies([offset], [added], names_source=True))
    [source], [copy] = records(bench, TIMER_TOPIC), records(bench, "T", 1)
    assert done == Copied(1, copy.store_size, [("T", 1)])
    for name in ("body", "born_timestamp", "born_host", "store_host", "flag", "sys_flag"):
        assert getattr(copy, name) == getattr(source, name)
    wanted = decode_properties(TEXT + "\x02" + added.decode())
    assert list(copy.properties.items()) == list(wanted.items())
    assert copy.prepared_transaction_offset == offset + COPY_MARK
    assert bench.store.queue_entry("T", 1, 0)[2] == java_hash("t")


def test_a_copy_may_name_no_record_and_get_nothing(bench: Bench) -> None:
    done = bench.store.copy_records(Copies(fill(bench, TEXT, properties(**REAL))))
    assert (done.count, done.topics) == (2, [("T", 2)])
    copies = records(bench, "T", 1)
    assert [copy.prepared_transaction_offset for copy in copies] == [0, 0]
    assert copies[1].properties == REAL


ODD = {
    "no target": properties(TAGS="t"),
    "no queue": properties(REAL_TOPIC="T"),
    "queue no number": properties(REAL_TOPIC="T", REAL_QID="+1"),
    "queue too high": properties(REAL_TOPIC="T", REAL_QID="4"),
    "unknown topic": properties(REAL_TOPIC="Unknown", REAL_QID="0"),
    "half topic": properties(REAL_TOPIC=HALF_TOPIC, REAL_QID="0"),
    "schedule topic": properties(REAL_TOPIC=SCHEDULE_TOPIC, REAL_QID="0"),
    "several queues": properties(**REAL, INNER_MULTI_DISPATCH="q"),
    "twice": TEXT + "\x02" + properties(TAGS="t"),
    "separator at the end": TEXT + "\x02",
    "empty": "",
    "many": properties(**REAL, **{f"n{number}": "v" for number in range(63)}),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_copies_stop_before_a_record_that_is_not_plain(bench: Bench, text: str) -> None:
    bench.store.set_topic(HALF_TOPIC, 1, 1, 6, False)
    bench.store.set_topic(SCHEDULE_TOPIC, 18, 18, 6, False)
    offsets = fill(bench, TEXT, text, TEXT)
    assert bench.store.copy_records(Copies(offsets)).count == 1
    assert bench.bodies(1) == [b"0"]


@pytest.mark.parametrize("kind", [4, 12])
def test_copies_stop_before_a_record_that_no_queue_gets(bench: Bench, kind: int) -> None:
    assert bench.store.copy_records(Copies(fill(bench, TEXT, sys_flag=kind))).count == 0


def test_copies_stop_before_what_the_caller_calls_odd(bench: Bench) -> None:
    offsets = fill(bench, TEXT, properties(X="1", **REAL), properties(UNIQ_KEY="v", **REAL))
    copy = bench.store.copy_records
    assert copy(Copies(offsets, odd_names=[b"Y", b"X"])).count == 1
    assert copy(Copies(offsets, odd_names=[b"TAGS"])).count == 0
    assert copy(Copies(offsets, odd_keys=[b"v", b"w"])).count == 2
    assert copy(Copies(offsets, odd_keys=[b"u"])).count == 0
    assert copy(Copies(offsets)).count == 3


@pytest.mark.parametrize(
    ("moment", "below", "count"),
    [("999", 1_000, 1), ("1000", 1_000, 0), ("", 1_000, 0), ("1x", 9, 0), ("-1", 9, 0),
     ("0" * 18, 9, 1), ("0" * 19, 9, 0)],
)  # fmt: skip
def test_copies_stop_before_a_moment_to_come(
    bench: Bench, moment: str, below: int, count: int
) -> None:
    offsets = fill(bench, properties(TIMER_OUT_MS=moment, **REAL))
    assert bench.store.copy_records(Copies(offsets, moment_below=below)).count == count


def test_copies_stop_where_no_record_is_and_when_the_store_refuses(bench: Bench) -> None:
    offsets = fill(bench, TEXT)
    end = 2 * bench.store.max_physical_offset
    assert bench.store.copy_records(Copies([*offsets, end, *offsets])).count == 1
    assert bench.store.copy_records(Copies([offsets[0] + 1])).count == 0
    long = [b"x\x01" + b"y" * 32_760]
    assert bench.store.copy_records(Copies(offsets, long)) == Copied(0, 0, [])
    bench.store.set_max_message_size(0)
    assert bench.store.copy_records(Copies(offsets)).count == 0


def test_copies_wake_the_pulls_that_wait_for_them(bench: Bench) -> None:
    offsets = fill(bench, TEXT)
    wire = bench.connect()
    pull = holding_pull(queueId=1, queueOffset=0, suspendTimeoutMillis=5_000)
    assert wire.feed(pull)[:2] == (b"", [])
    bench.store.copy_records(Copies(offsets))
    bench.wait_notified()
    (answer,) = bench.drain_ready()[wire.connection_id]
    assert [message.body for message in messages(answer)] == [b"0"]


def test_the_properties_of_a_queue_are_read_in_bulk(bench: Bench) -> None:
    first, second = fill(bench, "A\x011\x02B\x012\x02A\x013", "A\x01\x02\x01x\x02B\x01a\x01b")
    read = bench.store.queue_properties
    size = [bench.store.queue_entry(TIMER_TOPIC, 0, number)[1] for number in (0, 1)]
    one, two = (0, first, size[0], (b"3", b"2")), (1, second, size[1], (None, b"a\x01b"))
    assert read(TIMER_TOPIC, 0, 0, 9, [b"A", b"B"]) == [one, two]
    assert read(TIMER_TOPIC, 0, -5, 6, [b"A", b"B"]) == [one]
    assert read(TIMER_TOPIC, 0, 1, 1, []) == [(1, second, size[1], ())]
    assert read(TIMER_TOPIC, 0, 2, 9, [b"A"]) == []
    assert read("Unknown", 0, 0, 9, [b"A"]) == []


def test_every_kernel_writes_the_same_copies(tmp_path: Path, kernel: Any) -> None:
    def play(bench: Bench) -> list[object]:
        texts = [
            properties(TAGS="ä", UNIQ_KEY=f"u{number}", REAL_TOPIC="T", REAL_QID=str(number % 5))
            for number in range(40)
        ]
        offsets = fill(bench, *texts)
        seen: list[object] = []
        at = 0
        while at < len(offsets):
            done = bench.store.copy_records(Copies(offsets[at:], names_source=True))
            seen.append(done)
            at += done.count + 1
        seen.append(bench.store.queue_properties(TIMER_TOPIC, 0, 3, 30, [b"UNIQ_KEY", b"TAGS"]))
        return seen

    assert_same_as_reference(kernel, play, tmp_path)


MOMENTS: dict[str, tuple[dict[str, str], int | None]] = {
    "absolute": ({"TIMER_DELIVER_MS": "1234"}, 1_234),
    "milliseconds": ({"TIMER_DELAY_MS": "12"}, NOW + 12),
    "seconds": ({"TAGS": "t", "TIMER_DELAY_SEC": "0012", **REAL}, NOW + 12_000),
    "as long as may be": ({"TIMER_DELIVER_MS": "9" * 15}, 10**15 - 1),
    "too long": ({"TIMER_DELIVER_MS": "9" * 16}, None),
    "two": ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "1"}, None),
    "signed": ({"TIMER_DELAY_MS": "+1"}, None),
    "empty": ({"TIMER_DELAY_MS": ""}, None),
    "none": (REAL, None),
}


@pytest.mark.parametrize(("given", "moment"), MOMENTS.values(), ids=MOMENTS)
def test_a_record_says_when_its_message_is_due(
    bench: Bench, given: dict[str, str], moment: int | None
) -> None:
    [offset] = fill(bench, properties(**given))
    assert bench.store.moments([offset, offset + 1, offset, -5, 1 << 62]) == [
        moment, None, moment, None, None
    ]  # fmt: skip
    assert bench.store.moments([]) == []
