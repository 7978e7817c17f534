"""The set of ended halves against a plain set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.services.ended_halves import SPAN, EndedHalves

OFFSETS = st.lists(st.integers(0, 3 * SPAN) | st.integers(SPAN - 3, SPAN + 3))


@given(OFFSETS, OFFSETS, st.integers(0, 3 * SPAN))
def test_it_holds_what_was_added(offsets: list[int], others: list[int], first: int) -> None:
    ended, model = EndedHalves(), set[int]()
    for offset in offsets:
        assert ended.add(offset) == (offset not in model)
        model.add(offset)
    assert [each in ended for each in others] == [each in model for each in others]
    ended.drop_below(first)
    kept = [each for each in offsets if each >= first]
    assert all(each in ended for each in kept)


RUNS = st.lists(st.tuples(st.integers(0, 2 * SPAN), st.integers(0, 9) | st.integers(0, 2 * SPAN)))


@given(RUNS, st.lists(st.integers(0, 4 * SPAN), max_size=20), OFFSETS)
def test_runs_are_added_and_counted(
    runs: list[tuple[int, int]], starts: list[int], offsets: list[int]
) -> None:
    ended, model = EndedHalves(), bytearray(5 * SPAN)
    for offset in offsets:
        ended.add(offset)
        model[offset] = 1
    for first, count in runs:
        ended.add_run(first, count)
        model[first : first + count] = b"\1" * count
    for start in starts + [first + count for first, count in runs]:
        for end in (start, start + 1, start + 70, 5 * SPAN):
            inside = model[start:end]
            assert ended.count_from(start, end, is_in=True) == len(inside) - len(
                inside.lstrip(b"\1")
            )
            assert ended.count_from(start, end, is_in=False) == len(inside) - len(
                inside.lstrip(b"\0")
            )
    assert ended.add(4 * SPAN + 5)


def test_halves_that_were_ended_in_their_order_take_no_room() -> None:
    ended = EndedHalves()
    for offset in range(2 * SPAN + 10):
        assert ended.add(offset)
    assert ended.bytes_used == SPAN // 8
    assert all(offset in ended for offset in range(2 * SPAN + 10))
    assert 2 * SPAN + 10 not in ended
    assert not ended.add(5)
    ended.drop_below(3 * SPAN)
    assert ended.bytes_used == 0
    assert 5 not in ended
