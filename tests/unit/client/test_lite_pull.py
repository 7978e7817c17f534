"""What a lite pull consumer decides: plainly, and by random schedules against a model."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from kerolox.client.core.consuming.flow import FlowLimits
from kerolox.client.core.consuming.lite_pull import (
    UNKNOWN,
    LitePull,
    LiteQueue,
    Wait,
)
from kerolox.client.core.consuming.pull import PullResult, PullStatus
from kerolox.message import MessageExt, MessageQueue

A, B, C = (MessageQueue("T", "a", number) for number in range(3))
SCHEDULES = int(os.environ.get("KEROLOX_SCHEDULES", "1000"))

ROOMY = FlowLimits(1_000, 100, 2_000, -1, -1, 10_000, 100)


def message(offset: int, size: int = 1) -> MessageExt:
    return MessageExt(
        topic="T",
        body=bytes(size),
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=offset,
        properties={},
    )


def found(*offsets: int, following: int | None = None, size: int = 1) -> PullResult:
    end = offsets[-1] + 1 if following is None else following
    return PullResult(PullStatus.FOUND, [message(o, size) for o in offsets], end, 0, end)


def nothing(following: int, status: PullStatus = PullStatus.NO_MATCHED_MSG) -> PullResult:
    return PullResult(status, [], following, 0, following)


class Machine(LitePull):
    """One with a record of whom it woke."""

    def __init__(self, limits: FlowLimits = ROOMY) -> None:
        self.woken: list[MessageQueue] = []
        super().__init__(limits, lambda item: self.woken.append(item.queue))

    def started(self, queue: MessageQueue, offset: int = 0) -> LiteQueue:
        item = self.assign(queue)
        self.located(item, item.epoch, offset, is_stored=True)
        return item

    def polled(self, most: int | None = None) -> list[int]:
        self.count_returned()
        taken = self.take(most)
        return [m.queue_offset for m in taken[1]] if taken else []


def test_a_queue_is_pulled_from_where_it_starts_and_on() -> None:
    machine = Machine()
    item = machine.assign(A)
    assert machine.next_pull(item) is Wait.START_UNKNOWN
    machine.located(item, item.epoch, 7, is_stored=True)
    assert machine.next_pull(item) == 7
    machine.pulled(item, item.epoch, found(7, 9, following=12))
    assert machine.next_pull(item) == 12
    assert machine.polled() == [7, 9]
    assert item.position == 12


def test_what_is_returned_counts_as_consumed_with_the_next_poll() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, found(0, 1, 2))
    assert machine.polled() == [0, 1, 2]
    assert machine.to_commit() == {}
    assert machine.polled() == []
    assert machine.to_commit() == {A: 3}
    assert machine.to_commit() == {}


def test_a_start_that_no_group_has_stored_is_committed() -> None:
    machine = Machine()
    item = machine.assign(A)
    machine.located(item, item.epoch, 5, is_stored=False)
    assert machine.to_commit() == {A: 5}


def test_a_part_of_what_a_pull_found_may_be_taken() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, found(0, 4, following=9))
    assert machine.polled(1) == [0]
    assert item.position == 1
    assert machine.polled(1) == [4]
    assert (item.position, item.consumed) == (9, 1)


def test_queues_take_turns() -> None:
    machine = Machine()
    for queue in (A, B):
        item = machine.started(queue)
        for first in (0, 2):
            machine.pulled(item, item.epoch, found(first, first + 1))
    taken = [machine.take() for _ in range(4)]
    assert [queue for queue, _ in filter(None, taken)] == [A, B, A, B]
    assert machine.take() is None


def test_what_no_filter_wants_counts_as_consumed_by_itself() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, nothing(50))
    assert machine.to_commit() == {A: 50}
    machine.pulled(item, item.epoch, found(50))
    machine.pulled(item, item.epoch, nothing(80))
    assert machine.to_commit() == {}
    assert machine.polled() == [50]
    machine.pulled(item, item.epoch, nothing(90))
    assert machine.to_commit() == {}
    machine.count_returned()
    assert machine.to_commit() == {A: 90}


def test_an_offset_beyond_the_end_is_not_what_is_committed() -> None:
    machine = Machine()
    item = machine.started(A, 1_000)
    machine.pulled(item, item.epoch, nothing(10, PullStatus.OFFSET_ILLEGAL))
    assert machine.next_pull(item) == 10
    assert machine.to_commit() == {A: 10}


def test_a_seek_forgets_what_was_pulled_and_what_is_on_its_way() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, found(0, 1))
    epoch = item.epoch
    machine.seek(A, 40)
    assert machine.next_pull(item) == 40
    assert not machine.pulled(item, epoch, found(2, 3))
    assert machine.polled() == []
    assert machine.message_count == len(item.process_queue) == 0
    assert machine.to_commit() == {A: 40}
    assert machine.pulled(item, item.epoch, found(40))
    assert machine.polled() == [40]


def test_a_seek_is_stronger_than_a_start_that_is_told_later() -> None:
    machine = Machine()
    item = machine.assign(A)
    epoch = item.epoch
    machine.seek(A, 3)
    machine.located(item, epoch, 100, is_stored=True)
    assert machine.next_pull(item) == 3


def test_a_paused_queue_is_neither_pulled_nor_returned_until_it_is_resumed() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, found(0))
    machine.pause([A, B])
    assert machine.next_pull(item) is Wait.PAUSED
    assert machine.polled() == []
    machine.pulled(item, item.epoch, found(1))  # it was on its way
    assert machine.polled() == []
    machine.woken.clear()
    machine.resume([A, B])
    assert machine.woken == [A]
    assert machine.polled() + machine.polled() == [0, 1]


def test_nothing_of_a_queue_is_returned_once_it_is_withheld_or_dropped() -> None:
    machine = Machine()
    item = machine.started(A)
    machine.pulled(item, item.epoch, found(0))
    machine.withhold([A])
    assert machine.polled() == []
    assert machine.next_pull(item) is Wait.DROPPED
    assert machine.keep([A, B]) == [item]
    assert machine.polled() == [0]
    machine.pulled(item, item.epoch, found(1))
    machine.drop([A, B])
    assert not machine.pulled(item, item.epoch, found(2))
    assert machine.polled() == []
    assert (machine.next_pull(item), machine.message_count) == (Wait.DROPPED, 0)
    assert machine.to_commit() == {}


def test_commits_are_of_all_of_some_or_of_the_callers_choice() -> None:
    machine = Machine()
    for queue in (A, B):
        item = machine.started(queue)
        machine.pulled(item, item.epoch, found(0, 1))
    machine.assign(C)
    machine.take()
    assert machine.commit_returned([A]) == {A: 2}
    machine.take()
    assert machine.commit_returned(None) == {A: 2, B: 2}
    machine.commit({A: 1})
    assert machine.queues[A].consumed == 1
    assert machine.to_commit() == {}


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        (ROOMY._replace(queue_count=2), found(0, 1, 2)),
        (ROOMY._replace(queue_mib=1), found(0, 1, size=1024 * 1024)),
        (ROOMY._replace(queue_span=9), found(0, 10)),
    ],
)
def test_a_full_queue_waits_for_room(limits: FlowLimits, result: PullResult) -> None:
    machine = Machine(limits)
    item = machine.started(A)
    machine.pulled(item, item.epoch, result)
    assert machine.next_pull(item) is Wait.CAPACITY
    machine.woken.clear()
    machine.polled()
    assert machine.woken == [A]
    assert machine.next_pull(item) == item.next_offset


@pytest.mark.parametrize("limits", [ROOMY._replace(all_count=4), ROOMY._replace(all_mib=4)])
def test_queues_with_messages_wait_while_too_much_is_cached_in_all(limits: FlowLimits) -> None:
    machine = Machine(limits)
    items = {queue: machine.started(queue) for queue in (A, B)}
    machine.pulled(items[A], 0, found(0, 1, 2, 3, size=1024 * 1024))
    machine.pulled(items[B], 0, found(0, size=1024 * 1024))
    assert [machine.next_pull(item) for item in items.values()] == [Wait.TOTAL_CAPACITY] * 2
    # One that has nothing may: what is cached of queues that are paused must starve no other.
    assert machine.next_pull(machine.started(C)) == 0
    machine.woken.clear()
    machine.polled(1)
    assert machine.woken == [A]  # four are left: no room to share
    machine.pause([B])
    machine.polled(1)
    assert set(machine.woken) == {A, B}
    assert machine.next_pull(items[A]) == 4


# -- random schedules -----------------------------------------------------------------------------
class Schedule:
    """A consumer whose events come in any order, and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = Machine(FlowLimits(6, 100, 12, -1, -1, 9, -1))
        self.ends = dict.fromkeys((A, B, C), 0)
        self.wanted: dict[MessageQueue, set[int]] = {q: set() for q in self.ends}
        self.pulls: list[tuple[LiteQueue, int, int]] = []
        self.expected: dict[MessageQueue, int] = {}
        """By queue, up to where all that is wanted was returned."""
        self.done: dict[MessageQueue, int] = {}
        """By queue, up to where it counts as consumed at most."""
        self.stored: dict[MessageQueue, int] = defaultdict(int)
        for queue in self.ends:
            self.write(queue)

    def queue(self) -> MessageQueue:
        return self.random.choice(list(self.ends))

    def write(self, queue: MessageQueue) -> None:
        for _ in range(self.random.randrange(8)):
            if self.random.random() < 0.6:
                self.wanted[queue].add(self.ends[queue])
            self.ends[queue] += 1

    def assign(self, queue: MessageQueue) -> None:
        if queue not in self.machine.queues:
            item = self.machine.assign(queue)
            self.machine.located(item, item.epoch, self.stored[queue], is_stored=True)
            self.expected[queue] = self.done[queue] = self.stored[queue]

    def revoke(self, queue: MessageQueue) -> None:
        self.machine.withhold([queue])
        self.commit(self.machine.to_commit([queue]))
        self.machine.drop([queue])

    def begin_pull(self, queue: MessageQueue) -> None:
        item = self.machine.queues.get(queue)
        if item is None or any(on_way is item for on_way, _, _ in self.pulls):
            return
        step = self.machine.next_pull(item)
        if isinstance(step, int):
            assert self.machine.message_count <= 9 or not len(item.process_queue)
            assert len(item.process_queue) <= 6
            self.pulls.append((item, item.epoch, step))

    def end_pull(self) -> None:
        if not self.pulls:
            return
        item, epoch, offset = self.pulls.pop(self.random.randrange(len(self.pulls)))
        end, wanted = self.ends[item.queue], self.wanted[item.queue]
        scanned = range(offset, min(end, offset + self.random.randint(1, 6)))
        offsets = [each for each in scanned if each in wanted]
        following = scanned[-1] + 1 if scanned else offset
        is_awaited = not item.is_dropped and item.epoch == epoch
        result = found(*offsets, following=following) if offsets else nothing(following)
        assert self.machine.pulled(item, epoch, result) == is_awaited

    def poll(self) -> None:
        self.machine.count_returned()
        self.done |= {queue: self.expected[queue] for queue in self.machine.queues}
        taken = self.machine.take(self.random.choice((None, 1, 2)))
        if taken is not None:
            queue, messages = taken
            item = self.machine.queues[queue]
            assert [item.is_paused, item.is_withheld] == [False, False]
            first = self.expected[queue]
            offsets = [m.queue_offset for m in messages]
            due = sorted(o for o in self.wanted[queue] if o >= first)
            assert offsets == due[: len(offsets)]
            self.expected[queue] = offsets[-1] + 1

    def seek(self, queue: MessageQueue) -> None:
        if queue in self.machine.queues:
            offset = self.random.randint(0, self.ends[queue])
            self.machine.seek(queue, offset)
            self.expected[queue] = self.done[queue] = offset

    def commit(self, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            lost = [o for o in self.wanted[queue] if self.done[queue] <= o < offset]
            assert not lost, f"{lost} of {queue} are committed and were not done"
            self.stored[queue] = offset

    def commit_returned(self) -> None:
        self.done |= {queue: self.expected[queue] for queue in self.machine.queues}
        self.commit(self.machine.commit_returned(None))

    def step(self) -> None:
        queue, machine = self.queue(), self.machine
        self.random.choice(
            (
                *(lambda: self.begin_pull(queue), self.end_pull, self.poll) * 4,
                lambda: self.write(queue),
                lambda: self.assign(queue),
                lambda: self.revoke(queue),
                lambda: self.seek(queue),
                lambda: machine.pause([queue]),
                lambda: machine.resume([queue]),
                lambda: machine.withhold([queue]),
                lambda: machine.keep([queue]),
                lambda: self.commit(machine.to_commit()),
                self.commit_returned,
            )
        )()
        assert machine.message_count == sum(len(i.process_queue) for i in machine.queues.values())

    def finish(self) -> None:
        """Let all go on: everything that is wanted is returned."""
        for queue in self.ends:
            self.assign(queue)
        self.machine.keep(self.ends)
        self.machine.resume(self.ends)
        for _ in range(500):
            for queue in self.ends:
                self.begin_pull(queue)
            self.end_pull()
            self.poll()
            items = self.machine.queues.values()
            if all(item.consumed == self.ends[item.queue] for item in items):
                break
        for queue, item in self.machine.queues.items():
            assert item.consumed == self.ends[queue] >= self.expected[queue]
            assert not [o for o in self.wanted[queue] if o >= self.expected[queue]]
        self.commit(self.machine.to_commit())
        assert dict(self.stored) == self.ends


def test_any_order_of_events_keeps_order_and_loses_nothing() -> None:
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        for _ in range(60):
            schedule.step()
        schedule.finish()


def test_an_unknown_offset_is_never_one_to_commit() -> None:
    machine = Machine()
    machine.assign(A)
    assert machine.queues[A].position == UNKNOWN
    assert machine.commit_returned(None) == machine.to_commit() == {}


def test_many_are_taken_of_all_queues_but_those_that_are_held_back() -> None:
    machine = Machine()
    for queue in (A, B, C):
        item = machine.started(queue)
        machine.pulled(item, item.epoch, found(0, 1, 2))
        machine.pulled(item, item.epoch, found(3, 4))
    machine.pause([C])
    assert machine.ready_count == 10
    taken = machine.take_many(8)
    assert taken.keys() == {A, B}
    assert sum(map(len, taken.values())) == 8
    assert all([m.queue_offset for m in each] == list(range(len(each))) for each in taken.values())
    assert machine.ready_count == 2
    machine.resume([C])
    assert machine.ready_count == 7
    machine.withhold([A])
    left = machine.take_many(100)
    assert A not in left
    assert [m.queue_offset for m in left[C]] == [0, 1, 2, 3, 4]
    assert machine.take_many(100) == {}
