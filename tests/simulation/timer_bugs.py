"""Deliberate bugs in the timer, as :mod:`tests.simulation.bugs` has them for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerolox.broker.services.timer_answers import TimerAnswers
from kerolox.store.timer import recovery
from kerolox.store.timer.files import TimerStore
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.steps import PutResult
from tests.simulation.patches import Patches

Install = Callable[[Patches], None]

TIMER_BUGS: dict[str, Install] = {}


def _bug(install: Install) -> Install:
    TIMER_BUGS[install.__name__.replace("_", "-")] = install
    return install


@_bug
def slot_is_read_before_its_end(patches: Patches) -> None:
    """A message comes up to a step early."""
    real = Timer.move
    patches.set(Timer, "move", lambda self, now_ms: real(self, now_ms + 1_000))


@_bug
def refused_put_counts(patches: Patches) -> None:
    """What can't be stored for now is given up."""
    real = TimerAnswers._put

    def put(self: Any, request: Any) -> PutResult:
        result = real(self, request)
        return PutResult.NEVER if result is PutResult.RETRY else result

    patches.set(TimerAnswers, "_put", put)


@_bug
def queue_goes_on_too_far(patches: Patches) -> None:
    """A start leaves out the entry behind the last unit."""
    real = recovery._queue_offset

    def queue_offset(last: Any) -> Any:
        return (yield from real(last)) + 1

    patches.set(recovery, "_queue_offset", queue_offset)


@_bug
def rolled_record_is_not_stored(patches: Patches) -> None:
    """A delay beyond the window ends with it."""
    real = TimerAnswers._put

    def put(self: Any, request: Any) -> PutResult:
        if "TIMER_ROLL_TIMES" in request.properties and request.topic.startswith("rmq_sys"):
            return PutResult.DONE
        return real(self, request)

    patches.set(TimerAnswers, "_put", put)


@_bug
def check_point_is_ahead(patches: Patches) -> None:
    """Slots count as delivered that are not."""
    real = TimerStore.write_checkpoint

    def write(self: Any, checkpoint: Any, metrics: Any) -> None:
        real(self, checkpoint._replace(last_read_ms=checkpoint.last_read_ms + 3_000), metrics)

    patches.set(TimerStore, "write_checkpoint", write)
