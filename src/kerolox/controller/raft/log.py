"""The entries that a node has in memory: those after its last snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from kerolox.controller.raft.messages import Entry, Snapshot


class RaftLog:
    """Entries, and how far they are stable, committed and applied.

    ``applied <= committed <= last_index`` holds always. ``stable`` is the last index whose entry,
    as it is now, is on the disk.
    """

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        """What the disk has. ValueError: the entries do not follow the snapshot one by one."""
        for expected, entry in enumerate(entries, snapshot.index + 1):
            if entry.index != expected:
                raise ValueError(f"entry {entry.index} stands where {expected} is expected")
        self.snapshot = snapshot
        """The last one; entries up to its index are not in memory."""
        self._entries = list(entries)
        self.stable = self.last_index
        self.committed = self.applied = snapshot.index

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term_of(self, index: int) -> int | None:
        """Term of an entry; None: it is not known, since it is older than the snapshot or not
        there."""
        if index == self.snapshot.index:
            return self.snapshot.term
        position = index - self.snapshot.index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def after(self, index: int, bytes_max: int | None = None) -> tuple[Entry, ...]:
        """The entries after an index, which is in memory or that of the snapshot. ``bytes_max``:
        only so many bytes of them, and one entry at least."""
        begin = end = index - self.snapshot.index
        size = 0
        while end < len(self._entries):
            size += len(self._entries[end].data)
            if bytes_max is not None and size > bytes_max and end > begin:
                break
            end += 1
        return tuple(self._entries[begin:end])

    def between(self, index: int, last: int) -> tuple[Entry, ...]:
        """The entries after ``index`` up to ``last``."""
        first = self.snapshot.index
        return tuple(self._entries[max(0, index - first) : last - first])

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Whether a log that ends so has all that this one may have committed (paper, 5.4.1)."""
        return (term, index) >= (self.last_term, self.last_index)

    def append(self, *entries: Entry) -> None:
        """Add entries behind the last one."""
        self._entries.extend(entries)

    def merge(self, entries: Sequence[Entry]) -> None:
        """Take a leader's entries over. Those that are here already stay; from the first one that
        contradicts on, what was here is cut off. A committed entry never is: AssertionError."""
        for position, entry in enumerate(entries):
            if entry.index <= self.snapshot.index or self.term_of(entry.index) == entry.term:
                continue
            assert entry.index > self.committed, f"entry {entry.index} is committed"
            del self._entries[entry.index - self.snapshot.index - 1 :]
            self.stable = min(self.stable, entry.index - 1)
            self._entries.extend(entries[position:])
            return

    def agreement_before(self, index: int, term: int) -> int:
        """The last index up to ``index`` whose term is not above ``term``: logs may agree there.
        It skips whole terms, so that a refused leader needs few tries."""
        index = min(index, self.last_index)
        while index > self.snapshot.index and (self.term_of(index) or 0) > term:
            index -= 1
        return index

    def commit_to(self, index: int) -> None:
        """All up to ``index`` is committed, as far as it is here."""
        self.committed = max(self.committed, min(index, self.last_index))

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew after a leader's snapshot."""
        self.snapshot, self._entries = snapshot, []
        self.stable = self.committed = self.applied = snapshot.index

    def compact(self, snapshot: Snapshot) -> None:
        """Forget the entries that a snapshot of our own state machine has."""
        del self._entries[: snapshot.index - self.snapshot.index]
        self.snapshot = snapshot
