"""Deliberate bugs in the timer, as :mod:`tests.simulation.bugs` has them for the rest."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from kerolox._pykernel.store import Store
from kerolox.broker.services.timer import TimerService
from kerolox.broker.services.timer_answers import TimerAnswers
from kerolox.broker.services.writer import FlushWaits
from kerolox.store.timer import machine, recovery
from kerolox.store.timer.files import TimerStore
from kerolox.store.timer.log import TimerUnit
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.steps import PutResult
from tests.simulation.bugs import SeededBug, seeded
from tests.simulation.patches import Patches

TIMER_BUGS: dict[str, SeededBug] = {}
_bug = functools.partial(seeded, TIMER_BUGS)


@_bug(0)
def slot_is_read_before_its_end(patches: Patches) -> None:
    """A message comes up to a step early."""
    real = Timer.move
    patches.set(Timer, "move", lambda self, now_ms: real(self, now_ms + 1_000))


@_bug(2)
def refused_put_counts(patches: Patches) -> None:
    """What can't be stored for now is given up."""
    real = TimerAnswers._put

    def put(self: Any, request: Any) -> PutResult:
        result = real(self, request)
        return PutResult.NEVER if result is PutResult.RETRY else result

    patches.set(TimerAnswers, "_put", put)


@_bug(0)
def queue_goes_on_too_far(patches: Patches) -> None:
    """A start leaves out the entry behind the last unit."""
    real = recovery._queue_offset

    def queue_offset(last: Any) -> Any:
        return (yield from real(last)) + 1

    patches.set(recovery, "_queue_offset", queue_offset)


@_bug(2)
def rolled_record_is_not_stored(patches: Patches) -> None:
    """A delay beyond the window ends with it."""
    real = TimerAnswers._put

    def put(self: Any, request: Any) -> PutResult:
        if "TIMER_ROLL_TIMES" in request.properties and request.topic.startswith("rmq_sys"):
            return PutResult.DONE
        return real(self, request)

    patches.set(TimerAnswers, "_put", put)


@_bug(0)
def check_point_is_ahead(patches: Patches) -> None:
    """Slots count as delivered that are not."""
    real = TimerStore.write_checkpoint

    def write(self: Any, checkpoint: Any, metrics: Any) -> None:
        real(self, checkpoint._replace(last_read_ms=checkpoint.last_read_ms + 3_000), metrics)

    patches.set(TimerStore, "write_checkpoint", write)


@_bug(48)
def check_point_does_not_wait_for_log(patches: Patches) -> None:
    """What counts as delivered may still be lost, as in RocketMQ."""

    async def wait(self: Any, physical_offset: int) -> bool:
        return True

    patches.set(FlushWaits, "wait", wait)
    real = Timer.ready
    patches.set(Timer, "ready", lambda self, commit_flushed: real(self, 1 << 62))


@_bug(8)
def what_was_read_is_forgotten(patches: Patches) -> None:
    """After the clock was set back all of a slot is delivered again."""
    real = Timer.move

    def move(self: Any, now_ms: int) -> None:
        real(self, now_ms)
        self._passed = []

    patches.set(Timer, "move", move)


@_bug(0)
def chain_is_cut(patches: Patches) -> None:
    """A unit does not lead to the one before it."""
    real = TimerUnit.pack
    patches.set(TimerUnit, "pack", lambda self: real(self._replace(previous=-1)))


@_bug(0)
def without_check_point_nothing_is_due(patches: Patches) -> None:
    """A start without a check point begins with what is to come, whatever the units say."""
    real = recovery._read_ms

    def read_ms(checkpoint: Any, settings: Any, now_ms: int) -> int:
        if not checkpoint.last_read_ms:
            return int(settings.step(now_ms))
        return real(checkpoint, settings, now_ms)

    patches.set(recovery, "_read_ms", read_ms)
    patches.set(recovery._Units, "_is_unread", lambda self, position, moment: False)


@_bug(1)
def failed_unit_counts(patches: Patches) -> None:
    """A unit that could not be written counts as written."""
    real = TimerStore.append
    calls = itertools.count(1)

    def append(self: Any, position: int, data: bytes) -> None:
        if next(calls) % 5:
            real(self, position, data)

    patches.set(TimerStore, "append", append)


@_bug(34)
def nothing_is_in_doubt(patches: Patches) -> None:
    """After a kill nobody looks for what was delivered since the check point."""
    patches.set(Timer, "doubt", lambda self, **_: None)


@_bug(2)
def rolled_message_is_delivered(patches: Patches) -> None:
    """At the end of its window a message counts as due."""
    patches.set(machine, "ROLL", 0)
    real = TimerAnswers._deliver

    def deliver(self: Any, request: Any) -> Any:
        return real(self, request._replace(before_ms=1 << 62))

    patches.set(TimerAnswers, "_deliver", deliver)


@_bug(0)
def slots_are_left_out_after_a_jump(patches: Patches) -> None:
    """When the clock jumps ahead what was due in between does not come."""
    real = Timer.move

    def move(self: Any, now_ms: int) -> None:
        before = self.write_ms
        real(self, now_ms)
        if self.write_ms - before > 2_000 and not self._is_reading:
            self.read_ms = self.write_ms

    patches.set(Timer, "move", move)


@_bug(2)
def queue_is_not_read_again(patches: Patches) -> None:
    """Messages whose units a torn log lost count as known."""
    real = recovery.recover

    def recover(wheel: Any, settings: Any, found: Any, **more: Any) -> Any:
        recovered = yield from real(wheel, settings, found, **more)
        if found.checkpoint is not None:
            timer = recovered.timer
            timer.queue_offset = max(timer.queue_offset, found.checkpoint.queue_offset)
        return recovered

    patches.set(recovery, "recover", recover)


@_bug(163)
def pool_is_not_waited_for(patches: Patches) -> None:
    """The check point waits for what readers see, and not for a transient store pool."""
    real = Store.stats

    def stats(self: Any) -> dict[str, int]:
        return {**real(self), "uncommitted_bytes": 0}

    patches.set(Store, "stats", stats)


@_bug(130)
def what_is_built_again_is_not_kept(patches: Patches) -> None:
    """A wheel that knows lost units stays on the disk, while others come to their positions."""

    async def keep(self: Any, opened: Any, timer: Any) -> None:
        return None

    patches.set(TimerService, "_keep", keep)
