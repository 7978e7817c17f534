"""One ordered queue, decided without I/O: whose lock it is, whose turn, what happens after a call.

A queue that is read in order has one listener call at a time, and only while the broker's lock on
it is ours (``ConsumeMessageOrderlyService``, ``ProcessQueue``). A message that fails is tried again
here, after a pause, with all behind it; no message overtakes another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.core.consuming.outcome import Action, Outcome

if TYPE_CHECKING:
    from kerolox.client.core.consuming.ordered.locks import QueueLock
    from kerolox.client.core.consuming.process_queue import ProcessQueue
    from kerolox.message import MessageExt

SLICE_MS_MAX = 60_000
"""A queue whose messages never end lets others run after so long
(``maxTimeConsumeContinuously``)."""

SLICE_PAUSE_MS = 10
"""The pause of a queue after that."""

ORDERLY_RECONSUME_TIMES_MAX = 2**31 - 1
"""Tries of an ordered message when the settings leave it to RocketMQ: for ever."""


class NextStep(NamedTuple):
    """The next step for an ordered queue."""

    messages: list[MessageExt]
    """To be given to a listener; :meth:`OrderlyQueue.settle` or ``put_back`` has to follow."""
    wait_ms: int | None = None
    """Without messages: check again after so long; None: when there is news."""
    is_over: bool = False
    """The queue is not ours any more, or about to be given up."""


class Settled(NamedTuple):
    """The outcome of the messages of a call."""

    done: list[MessageExt]
    dead: list[tuple[MessageExt, str]]
    """Dead letters, each with the reason."""


class OrderlyQueue:
    """The steps of one queue that is read in order."""

    def __init__(
        self,
        process_queue: ProcessQueue,
        lock: QueueLock | None,
        *,
        batch_max: int,
        reconsume_times_max: int,
        suspend_ms: int,
    ) -> None:
        """A queue that nobody listens to yet.

        Args:
            process_queue: its messages.
            lock: None: it needs none (broadcasting).
            batch_max: most messages of a call.
            reconsume_times_max: a message that failed so often again becomes a dead letter.
            suspend_ms: the pause after a failure.
        """
        self.process_queue = process_queue
        self.lock = lock
        self.is_leaving = False
        """It is about to be given up: no call begins any more."""
        self._batch_max = batch_max
        self._reconsume_times_max = reconsume_times_max
        self._suspend_ms = suspend_ms
        self._is_busy = False
        self._resume_ms = 0
        self._slice_begin_ms: int | None = None
        """When the listener calls of this time slice began."""

    @property
    def is_busy(self) -> bool:
        """A listener has messages of it."""
        return self._is_busy

    def next(self, now_ms: int) -> NextStep:
        """What to do now.

        Raises:
            RuntimeError: a listener has messages of it.
        """
        if self._is_busy:
            raise RuntimeError("the messages of the last turn are not settled")
        if self.is_leaving or self.process_queue.is_dropped:
            return NextStep([], is_over=True)
        if now_ms < self._resume_ms:
            self._slice_begin_ms = None
            return NextStep([], self._resume_ms - now_ms)
        if not len(self.process_queue) or not self.is_locked(now_ms):
            self._slice_begin_ms = None
            return NextStep([])
        if self._slice_begin_ms is None:
            self._slice_begin_ms = now_ms
        elif now_ms - self._slice_begin_ms > SLICE_MS_MAX:
            self._slice_begin_ms = None
            return NextStep([], SLICE_PAUSE_MS)
        self._is_busy = True
        return NextStep(self._batch())

    def is_locked(self, now_ms: int) -> bool:
        """No other member reads it."""
        return self.lock is None or self.lock.is_valid(now_ms)

    def _batch(self) -> list[MessageExt]:
        """The oldest messages; what can't be read goes alone."""
        oldest = self.process_queue.oldest(self._batch_max)
        unreadable = next((at for at, message in enumerate(oldest) if message.body_error), None)
        return oldest if unreadable is None else oldest[: max(unreadable, 1)]

    def settle(
        self, messages: list[MessageExt], failed: Mapping[int, Outcome], now_ms: int
    ) -> Settled:
        """The listener is through: what becomes of its messages.

        Those before the first that comes again are done with or dead letters. It and all behind it
        stay, after a pause; those that failed are tried once more.
        """
        self._is_busy = False
        done: list[MessageExt] = []
        dead: list[tuple[MessageExt, str]] = []
        for position, message in enumerate(messages):
            outcome = failed.get(position)
            if outcome is None:
                done.append(message)
                continue
            reason = self._end_of(message, outcome)
            if reason is None:
                self.suspend(now_ms, outcome.delay_seconds)
                for later in range(position, len(messages)):
                    if later in failed:
                        messages[later].reconsume_times += 1
                break
            dead.append((message, reason))
        return Settled(done, dead)

    def _end_of(self, message: MessageExt, outcome: Outcome) -> str | None:
        """Why a message is a dead letter; None: it comes again."""
        if outcome.action is Action.DEAD_LETTER:
            return outcome.reason
        if message.reconsume_times >= self._reconsume_times_max:
            return f"it failed {message.reconsume_times + 1} times"
        return None

    def put_back(self) -> None:
        """The messages of this iteration were not given to a listener, or nobody knows how it
        ended."""
        self._is_busy = False

    def suspend(self, now_ms: int, seconds: float | None = None) -> None:
        """Pause the queue, for ``suspend_ms`` if not told otherwise."""
        pause_ms = self._suspend_ms if seconds is None else int(seconds * 1000)
        self._resume_ms = now_ms + max(pause_ms, SLICE_PAUSE_MS)
