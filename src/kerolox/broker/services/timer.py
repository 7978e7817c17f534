"""Messages for a moment: the task that takes them from the timer's topic and delivers them
(``TimerMessageStore``). ``docs/design/timer.md`` says what is where.

What it decides is in :mod:`kerolox.store.timer.machine`, as steps that ask for what they need. One
task runs them one after the other, in time slices. Nothing is opened before the topic has a
message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kerolox.broker.base import Base
from kerolox.broker.services.timed_puts import TimedPuts
from kerolox.broker.services.writer import RecordWriter, WriteGate
from kerolox.broker.tables.tables import Tables
from kerolox.errors import StoreError
from kerolox.message import java_hash
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.remoting.time_slices import SLICE_SECONDS_MAX
from kerolox.store.layout import TIMER_LOG, TIMER_WHEEL
from kerolox.text import duration_text

if TYPE_CHECKING:
    from kerolox.broker.services.filtered_pull import Arrivals
    from kerolox.broker.services.timer_answers import TimerAnswers
    from kerolox.store.timer.checkpoint import TimerCheckpoint
    from kerolox.store.timer.files import TimerStore
    from kerolox.store.timer.machine import Timer
    from kerolox.store.timer.steps import Step

GATHER_SECONDS = 0.1
"""For so long messages gather that are then taken into the wheel together."""
AGAIN_SECONDS = 1.0
"""After this time files that can't be used are tried again."""
WATCH_MS = 3_600_000
"""For so long the queue is watched at a time."""
JUMP_MS = 5_000
"""From so much on a jump of the clock is told."""
HOLD_SECONDS = 0.1
"""After this time a put that could not be done is tried again."""
STOP_SECONDS_MAX = 2.0
"""For so long a stop waits for the end of the slot that is read."""
CLEAN_SECONDS = 30.0
"""How often files of the timer log are looked for that lead to nothing any more."""
IDLE_CHECKPOINT_MS = 60_000
"""How old the check point gets while only the time goes on."""

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

_LOST = {
    "gone": "their records are not in the log any more: retention was faster, or they are damaged",
    "unusable": "their records name no moment or no topic",
    "refused": "the store takes them never",
    "broken_chains": "units of the timer log that lead to them are damaged (slots)",
}
"""What of :class:`~kerolox.store.timer.machine.TimerCounts` is a loss."""


class _RoleChanged(Exception):
    """The step under way is not this broker's to end any more."""


@dataclass
class _Opened:
    """What there is once the files are opened."""

    files: TimerStore
    answers: TimerAnswers
    timer: Timer | None = None
    """None: the files are still read."""


class TimerService:
    """The timer of one broker."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        gate: WriteGate,
        writer: RecordWriter,
        timed: TimedPuts,
        arrivals: Arrivals,
    ) -> None:
        """Nothing is read before :meth:`open`. While ``gate`` is closed what is due waits.
        ``timed`` is told how many messages a slot has. ``arrivals`` say when one comes.
        """
        self._base = base
        self._store = base.store
        self.is_enabled = base.config.timer_wheel_enable
        """``timerWheelEnable`` at the start."""
        self._tables = tables
        self._gate = gate
        self._writer = writer
        self._timed = timed
        self._arrivals = arrivals
        self._news = asyncio.Event()
        """Something may be to be done, whatever time it is."""
        self._news.set()
        base.role.subscribe(lambda old, new: self._news.set())
        base.settings.subscribe(lambda old, new: self._news.set())
        self._opened: _Opened | None = None
        self._seen: tuple[int, float] | None = None
        """The clock when it was asked last, and the loop's time then."""
        self._is_clean = self._had_messages = False
        self._is_stopping = False
        self._slice_end = 0.0
        """Of the time slice that the task has, over all its steps."""
        self._is_working = asyncio.Lock()
        self._is_flushing = asyncio.Lock()
        self._master: TimerCheckpoint | None = None
        self._written: tuple[object, ...] = ()
        self._preparing: tuple[object, ...] | None = None
        self._written_ms = 0
        self._told: dict[str, int] = {}
        self._failed: dict[str, str] = {}

    @property
    def timer(self) -> Timer | None:
        """The machine; None: no message has ever been for a moment, or its files are read."""
        return None if self._opened is None else self._opened.timer

    # -- life -------------------------------------------------------------------------------------
    def open(self, *, is_clean: bool) -> None:
        """Open the files that an earlier run has left; what they say is read later. ``is_clean``:
        that run stopped, and was not killed. StoreError: a file has another length than the
        settings say, or can't be read.
        """
        self._is_clean = is_clean
        root = self._base.config.store_path_root_dir
        self._had_messages = self._store.queue_bounds(TIMER_TOPIC, 0)[1] > 0
        if not self.is_enabled:
            if self._had_messages:
                _log.warning(
                    "timerWheelEnable=false: messages for a moment that wait in %s stay there",
                    TIMER_TOPIC,
                )
            return
        # What reads them is imported only then.
        if self._had_messages or any((root / name).exists() for name in (TIMER_LOG, TIMER_WHEEL)):
            self._open_files()

    def _open_files(self) -> _Opened:
        from kerolox.broker.services.timer_answers import TimerAnswers
        from kerolox.store.timer.files import TimerStore

        config = self._base.config
        root = config.store_path_root_dir
        try:
            files = TimerStore(root, config.timer_settings, self._store.max_physical_offset)
        except (OSError, ValueError) as error:
            raise StoreError(f"the timer's files in {root} can't be used: {error}") from error
        answers = TimerAnswers(self._base, self._tables, self._writer, files)
        self._opened = _Opened(files, answers)
        return self._opened

    async def stop(self) -> None:
        """End the slot that is read, and write a check point, in bounded time. Idempotent."""
        self._is_stopping = True
        opened = self._opened
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX), self._is_working:
                if self.timer is not None:
                    await self._end_step(self.timer)
        except _RoleChanged:
            pass
        except (OSError, StoreError) as error:
            self._log_failure("written or read", str(error))
        except TimeoutError:
            _log.warning("the timer stops amid a slot")
        if opened is not None and opened.timer is not None:
            await self.flush(is_last=True)
            if self._written != self._state(opened.timer):
                # It was one that was under way.
                await self.flush(is_last=True)

    async def _end_step(self, timer: Timer) -> None:
        """Deliver what is left of a step of which some is delivered. Another run would deliver that
        again, where no index knows it."""
        while self._is_active and not self._base.config.timer_stop_dequeue:
            timer.move(self._base.now_ms())
            while await self._drive(timer.enqueue()):
                pass
            left_ms = timer.end_ms - self._base.now_ms()
            if timer.end_step() or left_ms > STOP_SECONDS_MAX * 1_000:
                return
            await asyncio.sleep(max(0, left_ms) / 1_000)
            timer.move(self._base.now_ms())
            await self._drive(timer.dequeue(is_exact=False))

    def close(self) -> None:
        """Close the files; a step under way is over."""
        if self._opened is not None:
            self._opened.files.close()
            self._opened = None

    # -- turns ------------------------------------------------------------------------------------
    async def turn(self) -> None:
        """Do what there is to do now."""
        if not self.is_enabled or self._is_stopping:
            return
        if self._opened is None and not self._store.queue_bounds(TIMER_TOPIC, 0)[1]:
            return
        async with self._is_working:
            try:
                opened = self._opened or self._open_files()
                if opened.timer is None:
                    opened.timer = await self._recovered(opened)
                    self._timed.waiting = opened.timer.slot_messages
                await self._work(opened.timer)
            except _RoleChanged:
                pass
            except (OSError, StoreError) as error:
                self._log_failure("written or read", str(error))
            else:
                self._log_failure("written or read", "")

    async def pause(self) -> None:
        """Wait until there may be something to do: a message came, a step of time is over for whose
        end messages wait, or role or settings changed. Nothing runs meanwhile."""
        if not self._news.is_set():
            seconds = self._seconds_left()
            watch = self._watch()
            if watch is None and self._is_active:
                seconds = min(seconds or AGAIN_SECONDS, AGAIN_SECONDS)
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                pass
            finally:
                if watch is not None:
                    self._arrivals.unwatch(watch)
        if self._news.is_set():
            self._news.clear()
            await asyncio.sleep(min(GATHER_SECONDS, self._seconds_left() or GATHER_SECONDS))

    def _watch(self) -> int | None:
        """Have the next entry of the queue told; None: it can't be, or is not to be taken."""
        if not self._is_active or self._base.config.timer_stop_enqueue or self._has_failed:
            return None
        offset = 0 if self.timer is None else self.timer.queue_offset
        until_ms = self._base.now_ms() + WATCH_MS
        return self._arrivals.watch(TIMER_TOPIC, 0, offset, until_ms, self._news.set)

    def _seconds_left(self) -> float | None:
        """When to look again, though nothing came; None: not before."""
        timer = self.timer
        if self._has_failed:
            return AGAIN_SECONDS
        if timer is None or not timer.is_active or timer.is_empty:
            return None
        left_ms = timer.next_ms(is_exact=self._is_exact) - self._base.now_ms()
        return max(1, left_ms) / 1_000

    @property
    def _is_exact(self) -> bool:
        """Messages may come before the end of their step: a command to delete one would be
        known."""
        return not self._base.config.timer_stop_enqueue

    @property
    def _has_failed(self) -> bool:
        return any(self._failed.values())

    async def _recovered(self, opened: _Opened) -> Timer:
        from kerolox.store.timer.recovery import recover

        began = time.monotonic()
        opened.files.open_checkpoint()
        found = opened.files.found
        steps = recover(
            opened.files.wheel,
            self._base.config.timer_settings,
            found._replace(
                is_clean=self._is_clean and found.is_clean, has_messages=self._had_messages
            ),
            now_ms=self._base.now_ms(),
            is_active=self._is_active,
        )
        recovered = await self._drive(steps)
        timer = recovered.timer
        if recovered.waiting is None:
            for topic, number in opened.files.read_metrics().items():
                timer.count(topic, number)
        else:
            names = {java_hash(topic): topic for topic in self._tables.topics.names}
            for hash_code, number in recovered.waiting.items():
                timer.count(names.get(hash_code, ""), number)
        if recovered.why:
            await self._keep(opened, timer)
            await self._enqueue(timer)
            _log.warning(
                "the timer's wheel was built again in %.0f ms, since %s: it read %d units of the "
                "timer log, and %d messages of %s behind them",
                (time.monotonic() - began) * 1_000,
                recovered.why,
                recovered.units,
                timer.counts.enqueued,
                TIMER_TOPIC,
            )
        return timer

    def _note_jump(self, now_ms: int) -> None:
        """Say that the clock was set: messages for a moment go by it."""
        seconds = asyncio.get_running_loop().time()
        if self._seen is not None:
            jump_ms = now_ms - self._seen[0] - round((seconds - self._seen[1]) * 1_000)
            if abs(jump_ms) >= JUMP_MS:
                way, what = ("ahead", "what was due between comes now")
                if jump_ms < 0:
                    way, what = ("back", "what waits comes when it is there; nothing comes twice")
                text = duration_text(round(abs(jump_ms), -3))
                _log.warning(
                    "the clock jumped %s by %s; of messages for a moment %s", way, text, what
                )
        self._seen = now_ms, seconds

    async def _keep(self, opened: _Opened, timer: Timer) -> None:
        """Bring to the disk what was built again. Other units are about to come to the positions of
        lost ones, and a start after a kill must not take those for these. OSError: it can't be
        written.
        """
        timer.prepare(0)
        await self._sync(opened.files)
        # Nothing was delivered yet that could be lost.
        checkpoint = timer.ready(0)
        if checkpoint is not None:
            checkpoint = checkpoint._replace(is_open=True)
            metrics = timer.metrics(self._base.now_ms())
            await asyncio.to_thread(opened.files.write_checkpoint, checkpoint, metrics)

    async def _work(self, timer: Timer) -> None:
        self._note_jump(self._base.now_ms())
        timer.move(self._base.now_ms())
        if timer.is_active != self._is_active:
            timer.activate(self._is_active, self._store.max_physical_offset)
        if self._is_active:
            self._master = None
        elif self._master is not None:
            await self._drive(timer.follow(self._master))
        more = True
        while more and not self._is_stopping and timer.is_active == self._is_active:
            timer.move(self._base.now_ms())
            await self._enqueue(timer)
            timer.move(self._base.now_ms())
            more = not self._base.config.timer_stop_dequeue and await self._drive(
                timer.dequeue(is_exact=self._is_exact)
            )
            if time.monotonic() >= self._slice_end:
                # Passing slots without messages asks for nothing.
                await self._let_others_run(0)

    async def _enqueue(self, timer: Timer) -> None:
        """Take the queue to its end."""
        while not self._is_stopping and not self._base.config.timer_stop_enqueue:
            if not await self._drive(timer.enqueue()):
                return

    async def _drive(self, step: Step[_Result]) -> _Result:
        """Run a step to its end. Where it waits, the role may change: then it ends there."""
        from kerolox.store.timer.steps import Append, Hold, Pause

        assert self._opened is not None
        answers = self._opened.answers
        is_active = self._is_active
        answer: object = None
        try:
            while True:
                try:
                    request = step.send(answer)
                except StopIteration as end:
                    result: _Result = end.value
                    return result
                is_held = type(request) is Hold
                answer = None
                if not is_held and type(request) is not Pause:
                    answer = answers.answer(request)
                if not is_held and time.monotonic() < self._slice_end:
                    continue
                if type(request) is Append:
                    continue  # What was written is to be taken into the wheel.
                await self._let_others_run(HOLD_SECONDS if is_held else 0)
                if is_active != self._is_active or (self._is_stopping and self._is_over):
                    raise _RoleChanged
        finally:
            step.close()

    async def _let_others_run(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._slice_end = time.monotonic() + SLICE_SECONDS_MAX

    @property
    def _is_over(self) -> bool:
        """Nothing that is put will be stored any more."""
        return not self._gate.writable

    # -- roles ------------------------------------------------------------------------------------
    @property
    def _is_active(self) -> bool:
        return not self._base.role.current.is_slave

    def follow(self, master: TimerCheckpoint) -> None:
        """Take over what a slave's master says that it is at."""
        self._master = master
        self._news.set()

    def checkpoint(self) -> TimerCheckpoint:
        """What it is at, for slaves (GET_TIMER_CHECK_POINT)."""
        from kerolox.store.timer.checkpoint import TimerCheckpoint

        return TimerCheckpoint() if self.timer is None else self.timer.checkpoint

    def queue_lag(self) -> tuple[int, int]:
        """Messages that are not in the wheel yet, and how long the first of them has waited, in
        milliseconds."""
        timer = self.timer
        if timer is None:
            return 0, 0
        low, high = self._store.queue_bounds(TIMER_TOPIC, 0)
        first = max(low, timer.queue_offset)
        if first >= high:
            return 0, 0
        stored_ms = self._store.store_time(TIMER_TOPIC, 0, first)
        return high - first, max(0, self._base.now_ms() - stored_ms) if stored_ms > 0 else 0

    # -- the disk ---------------------------------------------------------------------------------
    async def flush(self, *, is_last: bool = False) -> None:
        """Bring units and wheel to the disk, then the check point, as far as the log is there."""
        opened = self._opened
        if opened is None or opened.timer is None:
            return
        if self._is_flushing.locked() and not is_last:
            return
        async with self._is_flushing:
            self._report(opened.timer)
            if not self._has_news(opened.timer) and not is_last:
                return
            # What was delivered may still be in a transient store pool, where no reader sees it.
            uncommitted = self._store.stats()["uncommitted_bytes"]
            commit_end = self._store.max_physical_offset + uncommitted
            if self._preparing is None:
                self._preparing = self._state(opened.timer)
            opened.timer.prepare(commit_end)
            try:
                await self._sync(opened.files)
            except OSError as error:
                self._log_failure("flushed", str(error))
                return
            await self._writer.flush_waits.wait(commit_end)
            checkpoint = opened.timer.ready(self._store.flushed_offset)
            if checkpoint is None:
                return
            is_all = is_last and self._preparing == self._state(opened.timer)
            is_all = is_all and not opened.timer.has_doubts
            checkpoint = checkpoint._replace(is_open=not is_all)
            metrics = opened.timer.metrics(self._base.now_ms())
            try:
                await asyncio.to_thread(opened.files.write_checkpoint, checkpoint, metrics)
            except OSError as error:
                self._log_failure("flushed", str(error))
            else:
                self._log_failure("flushed", "")
                self._written, self._written_ms = self._preparing, self._base.now_ms()
            self._preparing = None

    async def _sync(self, files: TimerStore) -> None:
        """Bring units and wheel to the disk. OSError: they can't be, and are the next call's."""
        unsynced = files.take_unsynced()
        try:
            await asyncio.to_thread(files.sync, unsynced)
        except OSError:
            files.give_back(unsynced)
            raise

    def _has_news(self, timer: Timer) -> bool:
        """Not only the time went on, or much of it did."""
        age_ms = abs(self._base.now_ms() - self._written_ms)
        return self._state(timer) != self._written or age_ms >= IDLE_CHECKPOINT_MS

    def _state(self, timer: Timer) -> tuple[object, ...]:
        return timer.log_end, timer.queue_offset, *vars(timer.counts).values()

    def _log_failure(self, what: str, text: str) -> None:
        """Say that files can't be used, and that they can again, once each."""
        if text != self._failed.get(what, ""):
            self._failed[what] = text
            if text:
                _log.error("the timer's files can't be %s: %s; tried again", what, text)
            else:
                _log.warning("the timer's files can be %s again", what)

    def _report(self, timer: Timer) -> None:
        """Say what was lost."""
        counts = dict(vars(timer.counts))
        for name, why in _LOST.items():
            more = counts[name] - self._told.get(name, 0)
            if more:
                _log.error("%d messages for a moment will not come: %s", more, why)
        self._told = counts

    async def clean(self) -> None:
        """Remove files of the timer log that lead to nothing any more."""
        if self._opened is not None and self._opened.timer is not None:
            count = self._opened.files.clean(self._store.min_physical_offset)
            if count:
                _log.info("deleted %d files of the timer log", count)
