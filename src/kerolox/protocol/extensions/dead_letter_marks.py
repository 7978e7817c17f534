"""Which dead letters are done: sent again, or purged.

RocketMQ has no mark for that, and no message can be taken out of a queue. So it is kept where a
broker keeps how far groups are, and survives, reaches slaves and is seen by every tool as those
do: as offsets of groups that never consume. One group has the offset before which all is done; what
was done beyond it, out of order, are runs of offsets, each of two further groups. All are offsets
of a queue of ``%DLQ%group``, so the offsets of a topic that is deleted take them with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kerolox.protocol.names import SYSTEM_GROUP_PREFIX

__all__ = ["DONE_GROUP", "RUNS_MAX", "DoneOffsets", "is_marks_group", "run_groups"]

DONE_GROUP = f"{SYSTEM_GROUP_PREFIX}DEAD_LETTERS_DONE"
"""Its offset of a queue: all before is done."""

RUNS_MAX = 1_000
"""Runs beyond that offset, of one queue."""


def run_groups(number: int) -> tuple[str, str]:
    """The groups whose offsets are the beginning and the end (exclusive) of a run, from 1 on. The
    first number without an end, or with 0, ends the list."""
    return f"{DONE_GROUP}_FROM_{number}", f"{DONE_GROUP}_TO_{number}"


def is_marks_group(group: str) -> bool:
    """Whether a group is one of those that keep what is done."""
    return group.startswith(DONE_GROUP)


@dataclass(frozen=True, slots=True)
class DoneOffsets:
    """The offsets of a queue that are done."""

    before: int = 0
    """All before is done."""
    runs: tuple[tuple[int, int], ...] = ()
    """Beginning and end (exclusive) of each run, as they are stored: in no order."""

    @classmethod
    def read(cls, offset_of: Callable[[str], int], max_offset: int) -> DoneOffsets:
        """As a broker has it: ``offset_of`` gives the offset of a group in the queue, -1 where
        there is none. Marks behind ``max_offset`` are those of a topic that is gone, and count for
        nothing.
        """
        runs: list[tuple[int, int]] = []
        for number in range(1, RUNS_MAX + 1):
            first, end = run_groups(number)
            if (behind := offset_of(end)) <= 0:
                break
            runs.append((offset_of(first), behind))
        return cls.of(offset_of(DONE_GROUP), runs, max_offset)

    @classmethod
    def of(cls, before: int, runs: Iterable[tuple[int, int]], max_offset: int) -> DoneOffsets:
        """See :meth:`read`."""
        kept = tuple(runs)
        if max([before, *(end for _, end in kept)]) > max_offset:
            return cls()
        return cls(max(before, 0), kept)

    def __contains__(self, offset: int) -> bool:
        return offset < self.before or any(first <= offset < end for first, end in self.runs)

    def gaps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """What is not done of a range: beginning and end (exclusive), in order."""
        at = max(begin, self.before)
        for first, behind in sorted(self.runs):
            if at < min(first, end):
                yield at, min(first, end)
            at = max(at, behind)
        if at < end:
            yield at, end

    def waiting(self, min_offset: int, max_offset: int) -> int:
        """How many offsets of a queue are not done."""
        return sum(end - begin for begin, end in self.gaps(min_offset, max_offset))

    def with_done(self, begin: int, end: int, min_offset: int) -> DoneOffsets:
        """The same with a further range; what is before the first message counts as done. Runs that
        meet become one, and runs that did not change stay in their places."""
        before = max(self.before, min_offset)
        runs: list[list[int]] = []
        for first, behind in sorted((*self.runs, (begin, end))):
            if first >= behind:
                continue
            if first <= before:
                before = max(before, behind)
            elif runs and first <= runs[-1][1]:
                runs[-1][1] = max(runs[-1][1], behind)
            else:
                runs.append([first, behind])
        new = {(first, behind) for first, behind in runs}
        places: list[tuple[int, int] | None] = [
            each if each in new else None for each in self.runs[: len(new)]
        ]
        places += [None] * (len(new) - len(places))
        left = iter(sorted(new - {each for each in places if each is not None}))
        # A run that stands beyond the shorter list moves into a place that is free.
        return DoneOffsets(before, tuple(next(left) if each is None else each for each in places))

    def changes_to(self, new: DoneOffsets) -> list[tuple[str, int]]:
        """The group offsets to set, in order: at no moment is anything done that is not."""
        changes: list[tuple[str, int]] = []
        if new.before != self.before:
            changes.append((DONE_GROUP, new.before))
        for number in range(1, max(len(self.runs), len(new.runs)) + 1):
            old = self.runs[number - 1] if number <= len(self.runs) else (0, 0)
            put = new.runs[number - 1] if number <= len(new.runs) else (0, 0)
            first, end = run_groups(number)
            if put == (0, 0):
                changes.append((end, 0))
            else:
                pair = [(first, put[0])] if put[0] != old[0] else []
                pair += [(end, put[1])] if put[1] != old[1] else []
                changes += pair if put[0] >= old[0] else pair[::-1]
        return changes
