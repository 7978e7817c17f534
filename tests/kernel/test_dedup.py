"""Keys that a topic had lately: what is fast, what is found, and what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.kernel.dedup import NO_RECORD
from kerolox.protocol.names import HALF_TOPIC, TIMER_TOPIC
from tests.kernel.test_halves import records
from tests.support.stores.bench import NOW, Bench, properties, send, send_batch

if TYPE_CHECKING:
    from pathlib import Path

WINDOW_MS = 1_000


@pytest.fixture
def keyed(bench: Bench) -> Bench:
    """A store whose topic T has a window of one second."""
    bench.store.set_dedup("T", WINDOW_MS, False)
    return bench


def keyed_send(key: str, **changes: Any) -> bytes:
    return send(i=properties(UNIQ_KEY=key, KEYS=f"of {key}"), **changes)


def offset_of(bench: Bench, key: str, topic: str = "T") -> int:
    found: int = bench.store.find_key(topic, key.encode())
    return found


def test_a_key_is_found_from_its_message_on_and_its_second_send_is_slow(keyed: Bench) -> None:
    wire = keyed.connect()
    assert offset_of(keyed, "k") == NO_RECORD
    wire.ask(send(), keyed_send("k", e=2))
    (first,) = records(keyed, "T", 2)
    assert offset_of(keyed, "k") == first.commit_log_offset
    assert wire.is_cold(keyed_send("k", e=1))
    assert keyed.bodies(1) == []


@pytest.mark.parametrize("encoding", [0, 1])
@pytest.mark.parametrize("is_first", [True, False])
def test_of_one_chunk_the_second_message_with_a_key_is_slow(
    keyed: Bench, encoding: int, is_first: bool
) -> None:
    keyed.store.set_topic("U", 1, 1, 6, True)
    wire = keyed.connect()
    if not is_first:
        wire.ask(keyed_send("before"))
    twice = [keyed_send("k", opaque=number, encoding=encoding) for number in (1, 2)]
    others = [keyed_send("k", b="U", e=0), *(keyed_send(f"other {number}") for number in range(20))]
    answers, slow, _, error = wire.feed(twice[0], others[0], twice[1], *others[1:])
    assert (error, slow) == (None, [twice[1][4:]])
    assert answers
    assert len(keyed.bodies()) == 22 - is_first
    assert len(keyed.bodies(topic="U")) == 1


def test_messages_without_a_key_and_other_topics_are_fast(keyed: Bench) -> None:
    keyed.store.set_topic("U", 1, 1, 6, True)
    wire = keyed.connect()
    wire.ask(send(), send(), keyed_send("k", b="U"), keyed_send("k", b="U"))
    assert (len(keyed.bodies()), len(keyed.bodies(topic="U"))) == (2, 2)
    assert keyed.store.dedup_windows() == [("T", 0, -1, 0, 0)]


def test_the_text_of_keys_may_count_instead(bench: Bench) -> None:
    bench.store.set_dedup("T", WINDOW_MS, True)
    wire = bench.connect()
    wire.ask(send(i=properties(UNIQ_KEY="a", KEYS="x y")), send(i=properties(UNIQ_KEY="b")))
    wire.ask(send(i=properties(UNIQ_KEY="a", KEYS="x")))
    assert wire.is_cold(send(i=properties(UNIQ_KEY="c", KEYS="x y")))
    assert offset_of(bench, "x y") == 0


def test_a_key_is_new_again_when_its_window_is_over(keyed: Bench) -> None:
    wire = keyed.connect()
    wire.ask(keyed_send("k"))
    keyed.store.set_clock(NOW + WINDOW_MS - 1)
    assert offset_of(keyed, "k") == 0
    keyed.store.set_clock(NOW + WINDOW_MS)
    assert offset_of(keyed, "k") == NO_RECORD
    keyed.store.dedup_windows()
    wire.ask(keyed_send("k"))
    assert len(keyed.bodies()) == 2


def test_a_clock_that_is_set_back_makes_nothing_new(keyed: Bench) -> None:
    wire = keyed.connect()
    wire.ask(keyed_send("k"))
    keyed.store.set_clock(NOW - 3_600_000)
    assert wire.is_cold(keyed_send("k"))
    assert offset_of(keyed, "k") == 0


def test_a_batch_with_new_keys_is_fast_and_one_with_a_known_key_slow(keyed: Bench) -> None:
    wire = keyed.connect()

    def item(key: str) -> tuple[int, bytes, bytes]:
        return 0, b"b", properties(UNIQ_KEY=key).encode()

    wire.ask(send_batch([item("a"), (0, b"without", b""), item("b")]))
    a, _, b = records(keyed, "T")
    assert [offset_of(keyed, key) for key in "ab"] == [a.commit_log_offset, b.commit_log_offset]
    assert wire.is_cold(send_batch([item("c"), item("b")]))
    assert wire.is_cold(send_batch([item("c"), item("c")]))
    assert wire.is_cold(send_batch([item("c"), item("d")], i=properties(UNIQ_KEY="of all")))
    assert offset_of(keyed, "c") == NO_RECORD


def test_a_half_message_is_no_first_one(keyed: Bench) -> None:
    keyed.store.set_topic(HALF_TOPIC, 1, 1, 6, False)
    keyed.store.set_halves(True)
    wire = keyed.connect()
    half = send(f=4, i=properties(TRAN_MSG="true", PGROUP="g", UNIQ_KEY="k"))
    wire.ask(half, half)
    assert offset_of(keyed, "k") == NO_RECORD
    wire.ask(keyed_send("k"))
    wire.ask(half)
    assert len(records(keyed, HALF_TOPIC)) == 3


def test_a_message_for_a_moment_is_found_while_it_waits(keyed: Bench) -> None:
    keyed.store.set_topic(TIMER_TOPIC, 1, 1, 6, False)
    keyed.store.set_timer(500, 3_600_000, "broker-a")
    wire = keyed.connect()
    timed = send(i=properties(UNIQ_KEY="k", TIMER_DELAY_SEC="60"))
    wire.ask(timed)
    assert offset_of(keyed, "k") == 0
    assert wire.is_cold(timed)
    keyed.store.forget_key("T", b"k")
    wire.ask(timed)


def test_what_the_slow_path_stores_it_notes_and_the_first_one_stays(keyed: Bench) -> None:
    first, second = (keyed.append(text=properties(UNIQ_KEY="k")) for _ in range(2))
    keyed.store.note_keys("T", [(b"k", first.physical_offset), (b"k", second.physical_offset)])
    keyed.store.note_keys("unknown", [(b"k", first.physical_offset)])
    assert offset_of(keyed, "k") == first.physical_offset
    assert keyed.connect().is_cold(keyed_send("k"))


def test_long_keys_are_known_by_all_of_their_text(keyed: Bench) -> None:
    wire = keyed.connect()
    long = "k" * 10_000
    wire.ask(keyed_send(long + "a"), keyed_send(long + "b"))
    assert (offset_of(keyed, long + "a"), offset_of(keyed, long)) == (0, NO_RECORD)
    assert wire.is_cold(keyed_send(long + "b"))


def test_a_deleted_topic_another_property_and_no_window_forget_all(keyed: Bench) -> None:
    wire = keyed.connect()
    wire.ask(keyed_send("k"))
    keyed.store.set_dedup("T", 2 * WINDOW_MS, False)
    assert offset_of(keyed, "k") == 0
    keyed.store.set_dedup("T", WINDOW_MS, True)
    keyed.store.set_dedup("T", WINDOW_MS, False)
    assert offset_of(keyed, "k") == NO_RECORD
    wire.ask(keyed_send("k"))
    keyed.store.delete_topic("T")
    keyed.store.set_topic("T", 4, 4, 6, True)
    assert keyed.store.dedup_windows() == []
    keyed.store.set_dedup("T", WINDOW_MS, False)
    wire.ask(keyed_send("k"))
    keyed.store.set_dedup("T", 0, False)
    wire.ask(keyed_send("k"))


def test_with_too_many_keys_the_topic_with_the_most_forgets_its_oldest(keyed: Bench) -> None:
    keyed.store.set_topic("U", 1, 1, 6, True)
    keyed.store.set_dedup("U", WINDOW_MS, False)
    keyed.store.set_dedup_limit(4)
    wire = keyed.connect()
    wire.ask(*(keyed_send(f"k{number}") for number in range(6)))
    assert [offset_of(keyed, f"k{number}") >= 0 for number in range(6)] == [False] * 2 + [True] * 4
    wire.ask(keyed_send("u0", b="U"), keyed_send("u1", b="U"))
    windows = sorted(keyed.store.dedup_windows())
    assert [each[:4] for each in windows] == [("T", 2, NOW, 4), ("U", 2, NOW, 0)]
    assert all(0 < each.bytes_taken < 1_000 for each in windows)
    assert offset_of(keyed, "u0", "U") >= 0


def test_a_key_whose_record_retention_took_is_new(keyed: Bench) -> None:
    wire = keyed.connect()
    wire.ask(keyed_send("k"))
    while keyed.store.max_physical_offset < 3 * 64 * 1024:
        wire.ask(send(b"x" * 20_000))
    keyed.store.drop_log_file()
    assert offset_of(keyed, "k") == NO_RECORD


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 5), st.integers(0, 3)),
        st.tuples(st.just("chunk"), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
        st.tuples(st.just("batch"), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
        st.tuples(st.just("clock"), st.integers(-2_000, 1_500)),
        st.tuples(st.just("forget"), st.integers(0, 5)),
    ),
    max_size=30,
)


class Model:
    """A dictionary of the first place and time of each key, and the clock of the store."""

    def __init__(self) -> None:
        self.firsts: dict[str, tuple[int, int]] = {}
        self.now_ms, self.last_ms = NOW, 0

    def find(self, key: str) -> int:
        offset, time_ms = self.firsts.get(key, (NO_RECORD, 0))
        is_there = time_ms > max(self.now_ms, self.last_ms) - WINDOW_MS
        return offset if is_there else NO_RECORD

    def stored(self, key: str, offset: int) -> None:
        self.last_ms = max(self.now_ms, self.last_ms)
        assert self.find(key) == NO_RECORD
        self.firsts[key] = offset, self.last_ms


def apply(bench: Bench, wire: Any, model: Model, step: tuple[Any, ...]) -> None:
    kind, what = step[0], step[1]
    if kind == "clock":
        model.now_ms += what
        bench.store.set_clock(model.now_ms)
    elif kind == "forget":
        bench.store.forget_key("T", b"%d" % what)
        model.firsts.pop(str(what), None)
    else:
        keys = [str(each) for each in (what if isinstance(what, list) else [what])]
        if kind == "batch":
            items = [(0, b"b", properties(UNIQ_KEY=key).encode()) for key in keys]
            frames = [send_batch(items)]
        else:
            queue_id = step[2] if kind == "send" else 0
            frames = [keyed_send(key, e=queue_id) for key in keys]
        before = bench.store.max_physical_offset
        _, slow, _, error = wire.feed(*frames)
        assert error is None
        stored = stored_behind(bench, before)
        assert kind != "batch" or (not slow) == bool(stored)
        for key, offset in stored:
            model.stored(key, offset)
        for key in {*keys} - {key for key, _ in stored} if kind != "batch" else ():
            if model.find(key) == NO_RECORD:  # As the handler does it.
                appended = bench.append(text=properties(UNIQ_KEY=key))
                bench.store.note_keys("T", [(key.encode(), appended.physical_offset)])
                model.stored(key, appended.physical_offset)


def stored_behind(bench: Bench, offset: int) -> list[tuple[str, int]]:
    messages = [each for queue_id in range(4) for each in records(bench, "T", queue_id)]
    found = [(each.properties["UNIQ_KEY"], each.commit_log_offset) for each in messages]
    found = [each for each in found if each[1] >= offset]
    return sorted(found, key=lambda each: each[1])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_both_kernels_find_what_a_dictionary_finds(
    kernel: Any, tmp_path: Path, steps: list[tuple[Any, ...]]
) -> None:
    bench = Bench(kernel, tmp_path / str(len(list(tmp_path.iterdir()))))
    bench.open()
    bench.store.set_dedup("T", WINDOW_MS, False)
    wire, model = bench.connect(), Model()
    try:
        for step in steps:
            apply(bench, wire, model, step)
            for number in range(6):
                assert offset_of(bench, str(number)) == model.find(str(number))
    finally:
        bench.store.close()
