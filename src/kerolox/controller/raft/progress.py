"""What a leader knows of each member, and a candidate of its votes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """How far one follower is.

    One APPEND or SNAPSHOT is in flight to it at most. That needs no window and no reordering, and
    gives 64 KiB of entries for each round trip, where all of the metadata is some KiB.
    """

    next: int
    """Index of the entry that is sent next."""
    match: int = 0
    """Last index that is known to be durable there."""
    is_waiting: bool = False
    """Something is in flight to it."""
    snapshot_ticks: int = 0
    """Ticks until a snapshot in flight counts as lost."""
    is_active: bool = True
    """It answered since the leader last looked (check-quorum)."""
    refusals: int = 0
    """Times in a row that it refused what it had acknowledged. One may be late, many are not: its
    log was put back to an older state."""
    round: int = 0
    """The last round of reads that it confirmed."""

    def acknowledge(self, index: int) -> None:
        """It has all up to ``index``."""
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        self.is_waiting, self.snapshot_ticks, self.refusals = False, 0, 0

    def forget(self, hint: int) -> None:
        """It begins anew, with what it has up to ``hint`` at most."""
        self.match, self.next = 0, hint + 1
        self.is_waiting, self.refusals = False, 0

    def refuse(self, index: int, hint: int) -> bool:
        """It has no such entry at ``index``; False: that answers something older."""
        if index != self.next - 1 or index <= self.match:
            self.refusals += index == self.match and hint < index
            return False
        self.next = max(self.match, min(index - 1, hint)) + 1
        self.is_waiting = False
        return True


def quorum(members: int) -> int:
    """How many of so many members are a majority."""
    return members // 2 + 1


def agreed(values: Iterable[int]) -> int:
    """The highest number that a majority of the members has reached."""
    ordered = sorted(values, reverse=True)
    return ordered[quorum(len(ordered)) - 1] if ordered else 0


def outcome(votes: Mapping[str, bool], members: Iterable[str]) -> bool | None:
    """Whether an election is won or lost; None: not decided yet."""
    given = [votes.get(each) for each in members]
    needed = quorum(len(given))
    if given.count(True) >= needed:
        return True
    return False if given.count(False) > len(given) - needed else None
