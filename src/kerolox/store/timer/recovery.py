"""The timer after a start: wheel and timer log are made to fit what is on the disk, and built again
from the queue of the timer's topic where they do not (``TimerMessageStore.recover``)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kerolox.store.timer.checkpoint import TimerCheckpoint
from kerolox.store.timer.log import TimerLogFile, TimerUnit
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.puts import BLANK_SLOTS, TimerSettings
from kerolox.store.timer.steps import Pause, ReadFile, ReadQueueOffset, Step, Truncate
from kerolox.store.timer.wheel import TimerWheel

UNITS_PER_SLICE = 1_024
"""Units that are read before other work runs."""


class Recovered(NamedTuple):
    """The timer, and what its start had to do."""

    timer: Timer
    units: int
    """Units that were read."""
    why: str
    """Why more was read than after any stop, as part of a sentence; empty: it was not."""
    waiting: Counter[int] | None
    """By the hash of their topics, how many messages of the units wait. None: as many as at the
    check point."""


class TimerFiles(NamedTuple):
    """What a start finds."""

    checkpoint: TimerCheckpoint | None
    """None: it is missing, or no check point."""
    log_begin: int
    """Position of the first file of the timer log; 0 without any."""
    commit_end: int
    """Where the commit log ends."""
    has_wheel: bool
    """False: there is none, or it has another length, and a wheel of zeros was made."""
    is_clean: bool = False
    """The last run wrote a check point when it stopped."""
    has_messages: bool = False
    """The queue of the timer's topic has some from a run before."""
    former_precision_ms: int = 0
    """How long a step was in the wheel that was found, where that is not ``timerPrecisionMs``; else
    0."""


def recover(
    wheel: TimerWheel,
    settings: TimerSettings,
    found: TimerFiles,
    *,
    now_ms: int,
    is_active: bool = True,
) -> Step[Recovered]:
    """Make the timer.

    Units behind the check point are cut off, and their messages come from the queue again: between
    them may be messages that were delivered at once, without a unit, and a power failure takes
    those copies, and not the units. So are units that lead behind the end of the commit log, and
    all without a usable check point.
    """
    read_ms = _read_ms(found.checkpoint, settings, now_ms)
    checkpoint = found.checkpoint
    if checkpoint is None or read_ms != settings.step(checkpoint.last_read_ms):
        checkpoint = TimerCheckpoint(log_end=found.log_begin)
    units = _Units(wheel, settings, found.commit_end, read_ms, checkpoint.log_end)
    end = yield from _read(units, found, settings)
    yield Truncate(end)
    # Lost units come again, at positions from the end on.
    passed = [(until_ms, min(log_end, end)) for until_ms, log_end in checkpoint.passed]
    lost = wheel.forget_lost(end)
    if lost is not None and lost < end:
        yield from units.read(max(found.log_begin, lost - lost % settings.log_file_bytes))
    queue_offset = yield from _queue_offset(units.last)
    if units.last is None and is_active:
        # The wheel is empty: there is no slot to be looked for.
        read_ms = max(read_ms, settings.step(now_ms))
    # An entry behind the last unit was due at once when it was enqueued, unless units are lost.
    is_whole = end >= checkpoint.log_end
    timer = Timer(
        wheel,
        settings,
        checkpoint,
        read_ms=read_ms,
        log_end=end,
        queue_offset=queue_offset,
        done_ms=settings.step(now_ms) if is_whole else checkpoint.last_read_ms,
        passed=passed,
        is_active=is_active,
    )
    # A part may be delivered of the slot that is read first, and of those that were under way when
    # the clock was set back.
    amid_ms = max([read_ms, *(until_ms for until_ms, _ in passed)])
    timer.doubt(until_ms=amid_ms + settings.precision_ms)
    if not found.is_clean or end < checkpoint.log_end:
        timer.doubt(commit_end=found.commit_end, now_ms=now_ms)
    timer.move(now_ms)
    why = _why(found, checkpoint, end, lost)
    if units.has_shorter_steps:
        why = "its steps were shorter (timerPrecisionMs)"
    is_known = is_whole and found.has_wheel and found.checkpoint is checkpoint
    return Recovered(timer, units.number, why, None if is_known else units.waiting)


def _read(units: _Units, found: TimerFiles, settings: TimerSettings) -> Step[int]:
    """Read the units that may not be in the wheel. Gives the end of the log."""
    begin = end = found.log_begin
    if found.has_wheel and found.checkpoint is not None:
        # What was flushed last may be torn, whatever the check point says of it.
        file_bytes = settings.log_file_bytes
        begin = max(begin, units.log_end // file_bytes * file_bytes - file_bytes)
    if not found.former_precision_ms:
        end = yield from units.read(begin)
        if units.last is None and begin > found.log_begin:
            end = yield from units.read(found.log_begin)
    if found.former_precision_ms or units.has_shorter_steps or units.last is None:
        # Units of a longer step are no chain: all comes from the queue.
        units.forget()
        end = found.log_begin
    return end


def _queue_offset(last: TimerUnit | None) -> Step[int]:
    """Behind the entry of the message of the last unit; 0 where there is none."""
    if last is None:
        return 0
    offset: int | None = yield ReadQueueOffset(last.offset, last.size)
    return 0 if offset is None else offset + 1


def _read_ms(checkpoint: TimerCheckpoint | None, settings: TimerSettings, now_ms: int) -> int:
    """The first slot that may hold something to deliver. Without one, or with one that no clock can
    have been at, half a wheel ago: rather twice than never."""
    half = settings.slots * settings.precision_ms
    if checkpoint is not None and 0 < checkpoint.last_read_ms <= now_ms + 2 * half:
        return settings.step(checkpoint.last_read_ms)
    return max(0, settings.step(now_ms) - half + BLANK_SLOTS * settings.precision_ms)


def _why(found: TimerFiles, checkpoint: TimerCheckpoint, end: int, lost: int | None) -> str:
    if found.checkpoint is None:
        is_new = end == found.log_begin and not found.has_messages
        return "" if is_new else "there is no check point"
    if found.checkpoint is not checkpoint:
        return "no clock had the time of its check point"
    if found.former_precision_ms:
        return f"its steps had {found.former_precision_ms} ms (timerPrecisionMs)"
    if not found.has_wheel:
        return "there is no wheel, or it has another length"
    if end < checkpoint.log_end:
        return f"the timer log ends at {end}, and the check point says {checkpoint.log_end}"
    return "" if lost is None else f"the wheel knows units behind its check point, {end}"


class _Units:
    """The units of the timer log, read into the wheel."""

    def __init__(
        self,
        wheel: TimerWheel,
        settings: TimerSettings,
        commit_end: int,
        read_ms: int,
        log_end: int,
    ) -> None:
        """``read_ms``: the first slot that is to be read; ``log_end``: units count up to there."""
        self.last: TimerUnit | None = None
        """The last one of all."""
        self.number = 0
        self.has_shorter_steps = False
        """A moment is none of a step: ``timerPrecisionMs`` was less."""
        self.waiting: Counter[int] = Counter()
        self.log_end = log_end
        self._wheel = wheel
        self._settings = settings
        self._commit_end = commit_end
        self._read_ms = read_ms

    def read(self, begin: int) -> Step[int]:
        """Read from a file on. Gives the end of the log."""
        position = begin
        while True:
            data: bytes | memoryview | None = yield ReadFile(position)
            if data is None or position >= self.log_end:
                return position
            units = TimerLogFile(data, position, self._settings.log_file_bytes)
            for at, unit in units:
                if at >= self.log_end or unit.offset + unit.size > self._commit_end:
                    return at
                self._take(at, unit)
                if self.number % UNITS_PER_SLICE == 0:
                    yield Pause()
            if not units.is_full:
                return units.end
            position += self._settings.log_file_bytes

    def forget(self) -> None:
        """Empty the wheel: no unit counts."""
        self._wheel.clear()
        self.waiting.clear()
        self.last = None

    def _take(self, position: int, unit: TimerUnit) -> None:
        self.last = unit
        self.number += 1
        moment = self._settings.step(unit.time_ms)
        if unit.time_ms != moment:
            self.has_shorter_steps = True
        if self._read_ms <= moment:
            self.waiting[unit.topic_hash] += unit.weight
            if self._wheel.is_free(moment, self._read_ms):
                self._wheel.revise(moment, position, unit.weight)
