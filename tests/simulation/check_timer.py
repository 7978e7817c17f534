"""What must hold of messages for a moment, beside that none is lost: no copy is stored before its
moment by its broker's clock, and none twice unless a broker or its files lost something.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.protocol.names import TIMER_TOPIC
from tests.simulation.history import CRASHED, DONE, PROMOTED, History

if TYPE_CHECKING:
    from tests.simulation.checks import Contents, Kept


def check_timer(history: History, contents: Contents) -> list[str]:
    """See the module."""
    faults = [*_early(history, contents)]
    losses = (CRASHED, PROMOTED)
    is_lost = any(event.what in losses for event in history.events) or history.has_pool
    if is_lost or history.role_changes or "tear_timer" in history.kinds:
        return faults
    faults += _taken_back(history, contents)
    # Without an index nobody knows what was delivered since the check point.
    if history.has_index:
        faults += _twice(history, contents)
    return faults


def _delivered(history: History, contents: Contents) -> Iterator[list[Kept]]:
    """The copies of each message that waited."""
    for sent in history.sent:
        found = contents.by_topic[sent.topic].get(sent.key, []) if sent.topic else []
        if found := [each for each in found if each.moment_ms]:
            yield found


def _early(history: History, contents: Contents) -> Iterator[str]:
    for copies in _delivered(history, contents):
        for each in copies:
            if each.stored_ms < each.moment_ms:
                yield f"{each} was stored {each.moment_ms - each.stored_ms} ms before its moment"


def _twice(history: History, contents: Contents) -> Iterator[str]:
    for copies in _delivered(history, contents):
        # A send whose answer was lost is sent again, and waits twice.
        waited = contents.by_topic[TIMER_TOPIC].get(copies[0].key, [])
        if len(copies) > len(waited):
            yield f"{copies} of {len(waited)} that waited"


def _taken_back(history: History, contents: Contents) -> Iterator[str]:
    for sent in history.sent:
        waited = contents.by_topic[TIMER_TOPIC].get(sent.key, [])
        copies = contents.by_topic[sent.topic].get(sent.key, [])
        if sent.recall == DONE and copies and len(waited) < 2:
            yield f"{sent.key} was taken back, and is there: {copies}"
