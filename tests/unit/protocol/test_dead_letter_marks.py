"""Which dead letters are done, as offsets of groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.extensions.dead_letter_marks import DoneOffsets, is_marks_group
from kerolox.protocol.names import is_system_group

END = 40
RANGES = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: tuple(sorted(pair)))


def offsets_in(done: DoneOffsets, least: int = 0) -> set[int]:
    return {offset for offset in range(least, END) if offset in done}


@given(st.lists(st.tuples(RANGES, st.integers(0, 3)), max_size=12))
def test_what_is_done_is_read_as_it_was_written(steps: list[tuple[tuple[int, int], int]]) -> None:
    stored: dict[str, int] = {}
    model: set[int] = set()
    least = 0
    for (begin, end), expired in steps:
        least = min(least + expired, END)
        done = DoneOffsets.read(lambda group: stored.get(group, -1), END)
        new = done.with_done(begin, end, least)
        model |= set(range(begin, end)) | set(range(least))
        for group, offset in done.changes_to(new):
            stored[group] = offset
            assert is_marks_group(group)
            assert is_system_group(group)
            half = DoneOffsets.read(lambda group: stored.get(group, -1), END)
            assert offsets_in(half) <= model, "a crash here would lose a letter"
        read = DoneOffsets.read(lambda group: stored.get(group, -1), END)
        assert read == new
        assert offsets_in(read) == model
        assert new.waiting(least, END) == len(set(range(least, END)) - model)
        gaps = {at for first, end in new.gaps(least, END) for at in range(first, end)}
        assert gaps == set(range(least, END)) - model
        assert all(first < end for first, end in new.gaps(least, END))


def test_letters_that_meet_become_one_run_and_then_none() -> None:
    done = DoneOffsets()
    for offset in (7, 3, 5, 6):
        done = done.with_done(offset, offset + 1, 0)
    assert (done.before, sorted(done.runs)) == (0, [(3, 4), (5, 8)])
    for offset in (4, 0, 2, 1):
        done = done.with_done(offset, offset + 1, 0)
    assert done == DoneOffsets(8)


def test_one_more_letter_in_order_is_one_change() -> None:
    done = DoneOffsets(5, ((9, 10),))
    assert len(done.changes_to(done.with_done(5, 6, 0))) == 1
    assert len(done.changes_to(done.with_done(10, 11, 0))) == 1
    assert len(done.changes_to(done.with_done(20, 21, 0))) == 2


def test_marks_of_a_topic_that_was_made_again_count_for_nothing() -> None:
    assert DoneOffsets.of(9, [], 8) == DoneOffsets()
    assert DoneOffsets.of(3, [(5, 9)], 8) == DoneOffsets()
    assert DoneOffsets.of(3, [(5, 8)], 8) == DoneOffsets(3, ((5, 8),))
    assert DoneOffsets.of(-1, [], 0) == DoneOffsets()
