"""Where a time lies in a queue: which messages to ask for until its first message is known.

Pure. A broker's own search (code 29) gives a message near the time; which side of it, and which of
several of one millisecond, differs. So it is where the search here begins.
"""

from __future__ import annotations

__all__ = ["TimeSearch"]


class TimeSearch:
    """Finds the first offset whose message was stored at a time or later, between that of the
    queue's first message and ``end``, behind its last one.

    Ask for the message at :meth:`probe` and tell :meth:`probed` what it is, until there is no
    probe; ``result`` is the offset then, the queue's maximum when there is none. Near the hint it
    takes a few questions, from a wrong one as many as a search from both ends.

    Where the clock was set back the result has an older message before it and none itself: one of
    several such places.
    """

    def __init__(self, first: int, end: int, time_ms: int, hint: int) -> None:
        self._low, self._high = first, max(end, first)
        """Before ``low`` all is older; from ``high`` on nothing is, as far as it is known."""
        self._time = time_ms
        self._next = min(max(hint, self._low), self._high - 1)
        self._step = 1
        self._seen_older = self._seen_newer = False

    @property
    def result(self) -> int:
        """Once there is no probe: the offset."""
        return self._low

    def probe(self) -> int | None:
        """Whose store time to ask for; None: the result is known."""
        return self._next if self._low < self._high else None

    def probed(self, stored: int | None) -> None:
        """When the probed message was stored, ms; None: it is not there any more."""
        if stored is None or stored < self._time:
            self._low = self._next + 1
            self._seen_older = True
        else:
            self._high = self._next
            self._seen_newer = True
        if not self._seen_older:
            self._next = max(self._low, self._high - self._step)
            self._step *= 2
        elif not self._seen_newer:
            self._next = min(self._high - 1, self._low + self._step - 1)
            self._step *= 2
        else:
            self._next = (self._low + self._high) // 2
