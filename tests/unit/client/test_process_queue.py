from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kerolox.client.core.consuming.process_queue import MIB, Backlog, ProcessQueue
from kerolox.message import MessageExt


def message(offset: int, body: bytes = b"12345") -> MessageExt:
    return MessageExt(
        topic="T",
        body=body,
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=offset * 100,
        properties={},
    )


def test_the_commit_offset_is_that_of_the_oldest_unfinished_message() -> None:
    queue = ProcessQueue()
    messages = [message(offset) for offset in (5, 6, 8)]
    queue.put(messages)
    assert queue.remove([messages[2]]) == 5
    assert queue.remove([messages[0]]) == 6
    assert queue.remove([messages[1]]) == 9
    assert queue.remove([messages[1]]) == -1


def test_counts_bytes_and_span_follow_the_messages() -> None:
    queue = ProcessQueue()
    queue.put([message(3), message(4), message(10)])
    assert (len(queue), queue.message_bytes, queue.span) == (3, 15, 7)
    assert (queue.first_offset, queue.last_offset) == (3, 10)
    queue.remove([message(3)])
    assert (len(queue), queue.message_bytes, queue.span) == (2, 10, 6)


def test_a_message_that_is_here_already_is_not_taken_again() -> None:
    queue = ProcessQueue()
    assert len(queue.put([message(1), message(2)])) == 2
    assert [m.queue_offset for m in queue.put([message(2), message(3)])] == [3]
    assert (len(queue), queue.message_bytes) == (3, 15)


def test_an_older_message_takes_its_place_in_order() -> None:
    queue = ProcessQueue()
    queue.put([message(5)])
    queue.put([message(3)])
    assert (queue.first_offset, queue.last_offset, queue.span) == (3, 5, 2)
    assert queue.first is not None
    assert queue.first.queue_offset == 3


def test_whole_pulls_leave_with_the_bytes_that_they_came_with() -> None:
    everything = Backlog()
    queue = ProcessQueue((everything,))
    pulls = [[message(o) for o in range(start, start + 3)] for start in (0, 3, 6)]
    for pull in pulls:
        queue.put(pull)
    pulls[0][1].body = b"a listener wrote more than there was"
    assert queue.remove(pulls[0] + pulls[1][:1]) == 4
    assert (queue.message_bytes, everything.body_bytes, everything.messages) == (25, 25, 5)
    assert queue.remove(pulls[1][1:] + pulls[2]) == 9
    assert (queue.message_bytes, everything.body_bytes, everything.messages) == (0, 0, 0)


def test_a_pull_that_overlaps_what_is_here_adds_what_is_new() -> None:
    queue = ProcessQueue()
    queue.put([message(o) for o in (0, 1, 2)])
    assert [m.queue_offset for m in queue.put([message(o) for o in (2, 1, 3, 3)])] == [3]
    assert queue.remove([message(0), message(2)]) == 1
    assert queue.remove([message(1), message(3)]) == 4


def test_a_dropped_queue_is_empty() -> None:
    queue = ProcessQueue()
    queue.put([message(5)])
    queue.drop()
    assert (queue.is_dropped, len(queue), queue.message_bytes, queue.span) == (True, 0, 0, 0)
    assert (queue.first, queue.first_offset, queue.last_offset) == (None, None, None)


def limit(queue: ProcessQueue, count: int = 1000, mib: int = 100, span: int = 2000) -> str | None:
    return queue.flow_limit(count_max=count, mib_max=mib, span_max=span)


def test_each_limit_is_passed_by_one_more_than_it() -> None:
    queue = ProcessQueue()
    queue.put([message(offset) for offset in range(3)])
    assert limit(queue, count=3) is None
    assert "3 messages" in (limit(queue, count=2) or "")
    assert limit(queue, span=2) is None
    assert "span 2" in (limit(queue, span=1) or "")


def test_bytes_are_compared_as_whole_mib() -> None:
    queue = ProcessQueue()
    queue.put([message(0, bytes(2 * MIB - 1))])
    assert limit(queue, mib=1) is None
    queue.put([message(1, b"x")])
    assert "1 MiB" in (limit(queue, mib=1) or "")


class ProcessQueueMachine(RuleBasedStateMachine):
    """Against the plain rule: a dictionary of offsets, the smallest key, the newest ever."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue()
        self.model: dict[int, int] = {}
        self.newest = -1

    @rule(offsets=st.lists(st.integers(0, 60), max_size=8), size=st.integers(1, 9))
    def put(self, offsets: list[int], size: int) -> None:
        self.queue.put([message(offset, bytes(size)) for offset in offsets])
        for offset in offsets:
            self.model.setdefault(offset, size)
            self.newest = max(self.newest, offset)

    @rule(offsets=st.sets(st.integers(0, 60), max_size=8))
    def remove(self, offsets: set[int]) -> None:
        was_empty = not self.model
        result = self.queue.remove([message(o, bytes(self.model.get(o, 1))) for o in offsets])
        for offset in offsets:
            self.model.pop(offset, None)
        assert result == (-1 if was_empty else min(self.model, default=self.newest + 1))

    @rule(count=st.integers(0, 12), skipped=st.integers(0, 3))
    def remove_what_was_given(self, count: int, skipped: int) -> None:
        """As consumers do: the very messages that were put, mostly those of whole pulls."""
        was_empty = not self.model
        given = self.queue.oldest(count + skipped)[skipped:]
        result = self.queue.remove(given)
        for each in given:
            self.model.pop(each.queue_offset)
        assert result == (-1 if was_empty else min(self.model, default=self.newest + 1))

    @invariant()
    def sizes_agree(self) -> None:
        oldest = self.queue.oldest(100)
        assert [each.queue_offset for each in oldest] == sorted(self.model)
        first = self.queue.first
        assert first is (oldest[0] if oldest else None)
        assert len(self.queue) == len(self.model)
        assert self.queue.message_bytes == sum(self.model.values())
        assert self.queue.first_offset == min(self.model, default=None)
        assert self.queue.last_offset == max(self.model, default=None)


TestProcessQueueMachine = ProcessQueueMachine.TestCase
TestProcessQueueMachine.settings = settings(max_examples=40, stateful_step_count=25)


@given(order=st.permutations(range(12)))
def test_no_order_of_finishing_skips_an_unfinished_message(order: list[int]) -> None:
    queue = ProcessQueue()
    queue.put([message(offset) for offset in range(12)])
    left = set(range(12))
    for offset in order:
        left.discard(offset)
        assert queue.remove([message(offset)]) == min(left, default=12)
