"""Build and download all that tests need, once for a checkout; ``make test`` does it beside them.

    python tools/prepare.py

A line for each says how long it took. Where a tool is missing its builds fail; the others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from steps import ROOT, StepOutcome

sys.path.insert(0, str(ROOT))

from tests.support.prepared import BUILDS, FIRST_BUILDS, Build, Made, prepare

__all__ = ["prepared"]

SHOWN_SECONDS = 1.0
"""What is there already takes less, and no line."""


def report(made: Made) -> None:
    """A line for a build."""
    if made.error:
        print(f"prepare: {made.name}: failed after {made.seconds:.0f} s\n{made.error}", flush=True)
    elif made.seconds >= SHOWN_SECONDS:
        print(f"prepare: {made.name}: {made.seconds:.0f} s", flush=True)


def prepared(left_out: list[str], builds: Iterable[Build] = BUILDS) -> list[StepOutcome]:
    """Make all of some builds but those of tests that are left out; one outcome."""
    started = time.monotonic()
    made = prepare(left_out, report, builds)
    failed = "\n".join(f"{each.name}: {each.error}" for each in made if each.error)
    name = "builds for the tests" if builds is BUILDS else "first builds"
    return [StepOutcome(name, not failed, time.monotonic() - started, failed)]


if __name__ == "__main__":
    outcomes = prepared([], FIRST_BUILDS) + prepared([])
    sys.exit(not all(outcome.succeeded for outcome in outcomes))
