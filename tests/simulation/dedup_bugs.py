"""Deliberate bugs in the windows of keys, as :mod:`tests.simulation.bugs` has them for the rest."""

from __future__ import annotations

import functools
from typing import Any

from kerolox._pykernel.dedup import Window, Windows
from tests.simulation.bugs import SeededBug, seeded
from tests.simulation.patches import Patches

DEDUP_BUGS: dict[str, SeededBug] = {}
_bug = functools.partial(seeded, DEDUP_BUGS)


@_bug(12)
def keys_of_fast_sends_are_forgotten(patches: Patches) -> None:
    """What the fast path stored is not noted."""
    real = Window.settle

    def settle(self: Any, offsets: Any, time_ms: int) -> None:
        real(self, offsets, time_ms)
        for _ in range(len(self)):
            if len(self):
                self.pop()

    patches.set(Window, "settle", settle)


@_bug(12)
def window_is_a_moment(patches: Patches) -> None:
    """A key is new again a millisecond later."""
    real = Windows.set

    def set_window(self: Any, topic: str, window_ms: int, *, by_keys: bool) -> None:
        real(self, topic, min(window_ms, 1), by_keys=by_keys)

    patches.set(Windows, "set", set_window)
