"""The sync state set of a master: what it confirms, who it wants in the set."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.replication.sync_set import SyncSet

SLOW_MS = 15_000
OWN, FIRST, SECOND = 1, 2, 3


def of_three() -> SyncSet:
    """All three are in the set and connected, and have a log of 100 bytes."""
    found = SyncSet(OWN, (OWN, FIRST, SECOND), 5, 50, SLOW_MS)
    for each in (FIRST, SECOND):
        found.connected(each, 0)
        found.acknowledged(each, 100, 100, 0)
    return found


def test_what_each_broker_of_the_set_has_is_confirmed() -> None:
    found = SyncSet(OWN, (OWN, FIRST, SECOND), 5, 50, SLOW_MS)
    found.connected(FIRST, 0)
    assert not found.acknowledged(FIRST, 100, 100, 0), "the second is not there"
    found.connected(SECOND, 0)
    assert found.acknowledged(SECOND, 80, 100, 0)
    assert found.confirmed == 80
    found.gone(SECOND)
    assert not found.acknowledged(FIRST, 200, 200, 0), "the controller may elect it"
    assert found.learn((OWN, FIRST), 6, 200)
    assert found.confirmed == 200


def test_a_master_alone_confirms_its_log() -> None:
    found = SyncSet(OWN, (OWN,), 5, 50, SLOW_MS)
    assert found.confirm(70)
    assert found.confirmed == 70
    assert not found.confirm(60)
    assert found.confirmed == 70


def test_brokers_that_have_a_record_are_counted() -> None:
    found = of_three()
    found.acknowledged(SECOND, 120, 150, 0)
    assert [found.held_by(each, 150) for each in (1, 2, 3, 4)] == [150, 120, 100, -1]
    found.gone(SECOND)
    assert [found.held_by(each, 150) for each in (1, 2, 3)] == [150, 100, -1]


def test_a_slave_leaves_when_it_is_gone_or_has_not_all_for_too_long() -> None:
    found = of_three()
    assert found.wish(100, 0, SLOW_MS * 9) is None, "it has all, however long ago that was sent"
    found.sent(FIRST, 120, 1_000)
    found.sent(FIRST, 140, 9_000)
    found.acknowledged(FIRST, 110, 140, 9_000)
    assert found.wish(140, 0, SLOW_MS) is None
    found.acknowledged(SECOND, 140, 140, SLOW_MS)
    assert found.wish(140, 0, SLOW_MS + 1) == {OWN, SECOND}
    # It had at 9,000 what the log had when 120 was sent.
    found.acknowledged(FIRST, 120, 140, 9_000)
    assert found.wish(140, 0, SLOW_MS + 1_000) is None
    assert found.wish(140, 0, SLOW_MS + 1_001) == {OWN, SECOND}
    found.gone(SECOND)
    assert found.wish(140, 0, SLOW_MS + 1_001) == {OWN}


def test_a_slave_comes_in_with_all_that_is_confirmed_and_older_than_this_master() -> None:
    found = SyncSet(OWN, (OWN,), 5, 50, SLOW_MS)
    found.connected(FIRST, 0)
    found.connected(SECOND, 0, is_learner=True)
    found.acknowledged(SECOND, 60, 60, 0)
    found.acknowledged(FIRST, 60, 60, 0)
    assert found.confirmed == 60
    assert found.wish(60, 61, 0) is None
    found.acknowledged(FIRST, 61, 99, 0)
    assert found.confirmed == 99
    assert found.wish(99, 61, 0) is None
    found.acknowledged(FIRST, 99, 99, 0)
    assert found.wish(99, 61, 0) == {OWN, FIRST}
    assert not found.confirm(120), "it may be in the set by now"
    assert not found.learn((OWN,), 5, 120), "an answer from before the wish"
    assert found.confirmed == 99
    found.refused(120)
    assert found.confirmed == 120


def test_a_wish_without_an_answer_is_made_again_when_its_slave_is_gone() -> None:
    found = SyncSet(OWN, (OWN,), 5, 50, SLOW_MS)
    found.connected(FIRST, 0)
    found.acknowledged(FIRST, 60, 60, 0)
    assert found.wish(60, 0, 0) == {OWN, FIRST}
    found.gone(FIRST)
    assert found.wish(60, 0, 0) == {OWN, FIRST}
    found.learn((OWN, FIRST), 6, 60)
    assert found.wish(60, 0, 0) == {OWN}


@dataclass
class Controller:
    """What it counts, and answers that are on their way to the master."""

    members: frozenset[int] = frozenset((OWN,))
    epoch: int = 5
    answers: list[tuple[frozenset[int], int]] = field(default_factory=list)

    def alter(self, members: frozenset[int], epoch: int, alive: set[int]) -> bool:
        if epoch != self.epoch or members == self.members or not members <= alive:
            return False
        self.members, self.epoch = members, epoch + 1
        return True


ACTIONS = ("write", "copy", "connect", "leave", "wish", "wish unheard", "wish lost", "ask", "hear")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from((FIRST, SECOND)), st.integers(0, 9)),
    min_size=6,
    max_size=30,
)


@given(STEPS)
def test_whomever_the_controller_may_elect_has_all_that_was_confirmed(
    steps: list[tuple[str, int, int]],
) -> None:
    controller, found = Controller(), SyncSet(OWN, (OWN,), 5, 0, SLOW_MS)
    logs = {OWN: 0, FIRST: 0, SECOND: 0}
    alive = {OWN, FIRST, SECOND}
    for each in (FIRST, SECOND):
        found.connected(each, 0)
        found.acknowledged(each, 0, 0, 0)
    now_ms = 0
    for action, slave, count in steps:
        now_ms += count * 1_000
        end = logs[OWN]
        if action == "write":
            logs[OWN] += count
            found.confirm(logs[OWN])
        elif action == "copy" and slave in alive:
            found.sent(slave, end, now_ms)
            logs[slave] = min(logs[slave] + count * 5, end)
            found.acknowledged(slave, logs[slave], end, now_ms)
        elif action == "connect":
            alive.add(slave)
            found.connected(slave, now_ms)
        elif action == "leave":
            alive.discard(slave)
            found.gone(slave)
        elif action.startswith("wish"):
            wanted, epoch = found.wish(end, 0, now_ms), found.epoch
            if wanted is not None and action != "wish lost":
                is_granted = controller.alter(wanted, epoch, alive)
                if action == "wish" and is_granted:
                    found.learn(controller.members, controller.epoch, end)
                elif action == "wish" and epoch == controller.epoch:
                    found.refused(end)
        elif action == "ask":
            controller.answers.append((controller.members, controller.epoch))
        elif action == "hear" and controller.answers:
            answer = controller.answers.pop(count % len(controller.answers))
            found.learn(*answer, end)
        assert all(logs[each] >= found.confirmed for each in controller.members)
