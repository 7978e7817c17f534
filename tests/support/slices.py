"""Long work whose time slices have one step each, whatever the machine's pace is."""

from __future__ import annotations

import pytest

__all__ = ["each_step_is_a_turn"]


def each_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works in time slices waits for its turn after each step."""
    monkeypatch.setattr("kerolox.remoting.time_slices.SLICE_SECONDS_MAX", 0.0)
    monkeypatch.setattr("kerolox.remoting.time_slices.START_SECONDS_MAX", 0.0)
