"""One invocation of mqadmin, and how it is run at a cluster."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.parity.normal import normal
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from tests.interop.parity.side import Side

__all__ = ["NOTHING", "Case", "Outcome", "run"]

Effect = Callable[["Side"], object]
NOTHING = object()
"""No effect is looked for: the command only shows something."""


@dataclass(frozen=True)
class Case:
    """One invocation.

    Args:
        words: the command with its arguments; those in braces are each cluster's own.
        effect: what there is to see afterwards.
        then: what has to be seen, at both clusters.
        lines: a command that goes on for ever is interrupted after so many.
        fails: an error is reported.
        until: asked again until its output has this.
        shown: what is compared in place of the output.
        moving: patterns; the number behind each changes with each check.
        sorted: lines come in any order.
        late: the effect shows some time later; it is looked for when all cases have run.
        only: the kind of cluster that the effect is looked for at; empty: both.
    """

    words: str
    effect: Effect | None = None
    then: object = NOTHING
    lines: int = 0
    fails: bool = False
    until: str = ""
    shown: Callable[[Side, str], str] | None = None
    moving: tuple[str, ...] = ()
    sorted: bool = False
    late: bool = False
    only: str = ""

    @property
    def command(self) -> str:
        """Its first word."""
        return self.words.split()[0]


class Outcome(NamedTuple):
    """What came of a case at one cluster."""

    lines: list[str]
    effect: object


def run(cases: tuple[Case, ...], side: Side) -> list[Outcome]:
    """Run all of them, one after the other; what goes wrong is a part of the outcome."""
    texts: list[str] = []
    effects: list[object] = []
    for case in cases:
        side.mark = len(side.got)
        try:
            texts.append(_printed(case, side))
        except Exception:
            # Never the same at both: it is no answer of mqadmin.
            texts.append(f"{side.kind}: {traceback.format_exc()}")
        effects.append(NOTHING if case.late else _seen(case, side))
    for number, case in enumerate(cases):
        if case.late:
            effects[number] = _seen(case, side)
    made = []
    for case, text, effect in zip(cases, texts, effects, strict=True):
        lines = text.splitlines()
        made.append(Outcome(sorted(lines) if case.sorted else lines, effect))
    return made


def _printed(case: Case, side: Side) -> str:
    found = ""

    def as_wanted() -> bool:
        nonlocal found
        words = (word.format_map(side.names) for word in case.words.split())
        found = side.mqadmin.ask(*words, "-n", side.namesrv, lines=case.lines)
        if case.shown is not None:
            found = case.shown(side, found)
        found = normal(found, side, case.moving)
        return re.search(case.until, found, re.MULTILINE) is not None

    wait_until(as_wanted, what=f"{case.until!r} in what {case.command} prints")
    assert "mqadmin did not end" not in found, found
    return found


def _seen(case: Case, side: Side) -> object:
    if case.effect is None or case.only not in ("", side.kind):
        return NOTHING
    try:
        return case.effect(side)
    except Exception:
        return traceback.format_exc()
