"""Lets requests come together while a loop is busy with small ones.

At some ten thousand small requests a second each one wakes the loop, is read alone and is answered
alone: system calls and wake-ups are most of what it costs. Network cards meet the same with
interrupt moderation, and so does this: after an iteration the loop rests for a fixed short time, so
that the next iteration finds several requests per socket. It costs each request about half of that
time.

Clients that wait for each answer before they send more would just be held up. So
:class:`RequestCoalescer`
tries: where less is done while the loop rests than was done before, it stops, and waits longer and
longer before it tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

EPOCH_SECONDS = 0.05
"""How long is counted before anything is decided."""

QUIET_EPOCH_SECONDS = 0.5
"""The same while next to nothing comes in."""

CHUNKS_PER_SECOND_MIN = 16_000
"""With fewer chunks a rest gathers too little to pay for its timer."""

CHUNK_BYTES_MAX = 4_096
"""With larger chunks, on average, the requests come together by themselves."""

BUSY_SECONDS_MIN = 0.5
"""A loop must have been busy for so long before the first rest."""

RATE_KEPT_MIN = 0.85
"""A loop that rests must do so much of what it did before."""

HELD_SECONDS = 2.0
"""After so long a loop that rests is examined without rests again."""

RETRY_SECONDS_MIN = 1.0
RETRY_SECONDS_MAX = 60.0
"""How long after a trial that failed the next one begins: each time twice as long."""


class RequestCoalescer:
    """Decides whether a loop rests between its iterations, from what its connections take in."""

    def __init__(self, rest_seconds: float = 0.0, done: Callable[[], int] = lambda: 0) -> None:
        """Nothing happens before ``start``. ``rest_seconds``: of each rest; 0: never rest.

        ``done``: a count of what was done so far, that is the same whether requests come in one by
        one or together: messages stored and delivered, say.
        """
        self.is_resting = False
        """Whether the loop rests after iterations that took something in: then ``arm`` is
        called."""
        self.is_armed = False
        self.chunks = 0
        self.bytes = 0
        """What the connections took in; they count here."""
        self._rest_seconds = rest_seconds
        self._done = done
        self._done_before = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._rate_before = 0.0
        self._busy_since: float | None = None
        self._rest_until = 0.0
        self._is_trial = False
        self._retry_at = 0.0
        self._retry_seconds = RETRY_SECONDS_MIN

    def start(self) -> None:
        """Start to look, in the running loop."""
        if self._rest_seconds > 0:
            self._loop = asyncio.get_running_loop()
            self._start_epoch(EPOCH_SECONDS)

    def stop(self) -> None:
        """Rest no more."""
        self.is_resting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self) -> None:
        """Rest once, when this iteration's answers are written."""
        if self._loop is not None:
            self.is_armed = True
            self._loop.call_soon(self._rest)

    def _rest(self) -> None:
        self.is_armed = False
        # Not an await: the loop itself shall not examine its sockets meanwhile.
        time.sleep(self._rest_seconds)

    def _start_epoch(self, seconds: float) -> None:
        assert self._loop is not None
        self.chunks = self.bytes = 0
        self._done_before = self._done()
        self._since = self._loop.time()
        self._timer = self._loop.call_at(self._since + seconds, self._end_epoch)

    def _end_epoch(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        seconds = max(now - self._since, EPOCH_SECONDS / 10)
        done = self._done() - self._done_before
        self.decide(now, self.chunks / seconds, self.bytes / seconds, done / seconds)
        is_quiet = self.chunks < CHUNKS_PER_SECOND_MIN * seconds / 8
        self._start_epoch(QUIET_EPOCH_SECONDS if is_quiet else EPOCH_SECONDS)

    def decide(
        self, now: float, chunks_per_second: float, bytes_per_second: float, done_per_second: float
    ) -> None:
        """Decide about the next epoch, from what came in and was done during the last one."""
        if not self.is_resting:
            is_busy = chunks_per_second >= CHUNKS_PER_SECOND_MIN
            is_small = bytes_per_second <= CHUNK_BYTES_MAX * chunks_per_second
            if not (is_busy and is_small):
                self._busy_since = None
                return
            if self._busy_since is None:
                self._busy_since = now
            if now - self._busy_since >= BUSY_SECONDS_MIN and now >= self._retry_at:
                self.is_resting = self._is_trial = True
                self._rate_before = done_per_second
                self._rest_until = now + HELD_SECONDS
        elif self._is_trial and done_per_second < RATE_KEPT_MIN * self._rate_before:
            self.is_resting = False
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)
        elif now >= self._rest_until:
            # An epoch without rests shows what comes in now.
            self.is_resting = False
        elif self._is_trial:
            self._is_trial = False
            self._retry_seconds = RETRY_SECONDS_MIN
