"""Which groups are stale in which queues: what comes, what goes, and how much there may be."""

from __future__ import annotations

import pytest

from kerolox.broker.tables import stale
from kerolox.broker.tables.stale import DeletedLately, Key, StaleGroups, bits_of


class Told:
    """What the kernel hears."""

    def __init__(self, queues: int = 2) -> None:
        self.queues = queues
        self.calls: list[tuple[Key, bool]] = []
        self.groups = StaleGroups(lambda _topic: self.queues, self.hear)

    def hear(self, key: Key, is_slow: bool) -> None:
        self.calls.append((key, is_slow))

    def take(self) -> list[tuple[Key, bool]]:
        calls, self.calls = self.calls, []
        return calls


def test_a_group_is_stale_in_each_queue_until_it_is_heard_there() -> None:
    told = Told()
    told.groups.begin("T", "G", bits_of(range(2)))
    assert told.take() == [(("T", "G"), True)]
    found = [told.groups.is_stale("T", "G", queue_id) for queue_id in (-1, 0, 1, 2, 1 << 40)]
    assert found == [False, True, True, False, False]
    assert not told.groups.is_stale("T", "H", 0)
    told.groups.refresh("T", "G", 0)
    assert told.take() == []
    assert [told.groups.is_stale("T", "G", queue_id) for queue_id in (0, 1)] == [False, True]
    told.groups.refresh("T", "G", 1)
    assert told.take() == [(("T", "G"), False)]
    assert not told.groups


def test_pulls_are_fast_where_a_group_is_stale_in_queues_that_are_gone() -> None:
    told = Told(queues=0)
    told.groups.begin("T", "G", bits_of([0, 5]))
    assert told.take() == [(("T", "G"), True)], "the topic may be made at any time"
    told.queues = 1
    told.groups.refresh("T", "G", 0)
    assert told.take() == [(("T", "G"), False)]
    assert told.groups.is_stale("T", "G", 5)
    told.queues = 6
    told.groups.recheck("T")
    assert told.take() == [(("T", "G"), True)]


def test_a_second_deletion_ends_held_pulls_again() -> None:
    told = Told()
    told.groups.begin("T", "G", 0b10)
    told.groups.begin("T", "G", 0b01)
    assert told.take() == [(("T", "G"), True)] * 2
    assert told.groups.queues() == {("T", "G"): 0b11}


def test_connections_are_stale_by_themselves_as_long_as_they_live() -> None:
    told = Told()
    told.groups.begin("T", "G", 1, [7, 8])
    assert [told.groups.is_stale("T", "G", 0, each) for each in (7, 8, 9)] == [True, True, False]
    assert told.groups.shown() == {}, "nobody else knows these connections"
    told.groups.refresh("T", "G", 0, 7)
    assert [told.groups.is_stale("T", "G", 0, each) for each in (7, 8)] == [False, True]
    told.groups.connection_closed(8)
    assert not told.groups
    assert told.take()[-1] == (("T", "G"), False)


def test_a_group_that_only_read_is_stale_over_every_connection_and_in_no_file() -> None:
    told = Told()
    told.groups.begin("T", "G", 1, [stale.ANYBODY])
    assert [told.groups.is_stale("T", "G", 0, each) for each in (stale.ANYBODY, 7)] == [True, True]
    assert not told.groups.is_known("T", "G", 0)
    assert told.groups.shown() == {}
    told.groups.refresh("T", "G", 0, 7)
    assert not told.groups


def test_what_is_shown_is_taken_elsewhere() -> None:
    told, other = Told(), Told()
    told.groups.begin("%RETRY%A", "A", 1 << 65_535)
    told.groups.begin("T", "G", 0b101)
    told.groups.begin("T", "a@b", 1)
    assert told.groups.shown()["T@G"] == "5"
    other.groups.begin("Old", "G", 1)
    other.take()
    other.groups.replace(told.groups.shown())
    assert other.groups.queues() == told.groups.queues()
    assert (("Old", "G"), False) in other.take()


@pytest.mark.parametrize(
    "shown",
    [{"T": "1"}, {"T@G": "x"}, {"T@G": "-1"}, {"T@G": "0"}, {"T@G": "f" * 20_000}],
)
def test_what_is_no_such_text_is_left_out(shown: dict[str, str]) -> None:
    told = Told()
    told.groups.replace(shown)
    assert not told.groups


def test_the_oldest_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "STALE_BYTES_MAX", 3 * (stale.PAIR_BYTES + 10))
    told = Told()
    forgotten = [told.groups.begin(f"T{number}", "G", 1) for number in range(4)]
    assert forgotten == [0, 0, 0, 1]
    assert not told.groups.is_stale("T0", "G", 0)
    assert told.take()[-1] == (("T0", "G"), False)
    for number in range(1, 4):
        told.groups.refresh(f"T{number}", "G", 0)
    assert not told.groups


def test_queues_that_were_deleted_are_known_as_long_as_a_member_may_be_away() -> None:
    now = 1_000
    deleted = DeletedLately(lambda: now)
    deleted.add("T", 0b01)
    now += stale.LATELY_MS
    deleted.add("U", 0b11)
    assert [deleted.queues(topic) for topic in "TUV"] == [0b01, 0b11, 0]
    assert deleted.shown() == {"T@": "1", "U@": "3"}
    now += 1
    assert [deleted.queues(topic) for topic in "TU"] == [0, 0b11]
    deleted.add("U", 0b100)
    now += stale.LATELY_MS
    assert deleted.queues("U") == 0b111


def test_queues_that_were_deleted_are_known_elsewhere_from_then_on() -> None:
    now = 1_000
    one, other = DeletedLately(lambda: now), DeletedLately(lambda: now)
    one.add("T", 0b01)
    other.add("Old", 1)
    now += stale.LATELY_MS
    other.replace({**one.shown(), "T@G": "3", "U@": "x", "V@": "0", "W": "1"})
    now += 1
    assert other.shown() == {"T@": "1"}
    told = Told()
    told.groups.replace(other.shown())
    assert not told.groups, "it is no group's"


def test_the_first_deletions_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stale, "LATELY_BYTES_MAX", 2 * (stale.PAIR_BYTES + 10))
    deleted = DeletedLately(lambda: 0)
    for topic in ("A", "B", "C", "B"):
        deleted.add(topic, 1)
    assert [deleted.queues(topic) for topic in "ABC"] == [0, 1, 1]
