"""A process whose wall clock is wrong."""

from __future__ import annotations

from pathlib import Path

from tests.support.built import built

__all__ = ["clock_ahead"]


def clock_ahead(seconds: int) -> dict[str, str]:
    """Variables for a process whose clock is so far ahead; negative: behind."""
    library = built(Path(__file__).with_suffix(".c"))
    return {"LD_PRELOAD": str(library), "KEROLOX_CLOCK_AHEAD": str(seconds)}
