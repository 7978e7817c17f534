"""What must hold of messages for a moment, beside that none is lost: no copy is stored before its
moment by its broker's clock, none much later while all is well, and none twice unless a broker or
its files lost something.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.broker.services.timer import GATHER_SECONDS
from kerolox.protocol.names import TIMER_TOPIC
from kerolox.store.timer.open_slot import GROUP_MS
from tests.simulation.history import CRASHED, DONE, KILLED, PROMOTED, History, Sent

LATE_MS_MAX = round(GATHER_SECONDS * 1_000) + 2 * GROUP_MS
"""So late a message may come: those of one group come together, and what is new gathers before."""
HARMLESS = frozenset(("kill_client", "leave_client", "kill_name_server", "partition", "reset"))
"""Faults that hold no broker up."""

if TYPE_CHECKING:
    from tests.simulation.checks import Contents, Kept


def check_timer(history: History, contents: Contents) -> list[str]:
    """See the module."""
    faults = [*_early(history, contents)]
    # What is in a transient store pool, the timer sees when it is committed.
    if history.kinds <= HARMLESS and not history.has_pool:
        faults += _late(history, contents)
    losses = (CRASHED, PROMOTED)
    is_lost = any(event.what in losses for event in history.events) or history.has_pool
    if is_lost or history.role_changes or "tear_timer" in history.kinds:
        return faults
    faults += _taken_back(history, contents)
    # Without an index nobody knows what was delivered since the check point; nor where a full disk
    # keeps it behind the log.
    is_behind = "full_disk" in history.kinds and any(x.what == KILLED for x in history.events)
    if history.has_index and not is_behind:
        faults += _twice(history, contents)
    return faults


def _delivered(history: History, contents: Contents) -> Iterator[tuple[Sent, list[Kept]]]:
    """The copies of each message that waited."""
    for sent in history.sent:
        found = contents.by_topic[sent.topic].get(sent.key, []) if sent.topic else []
        if found := [each for each in found if each.out_ms]:
            yield sent, found


def _moment(history: History, sent: Sent, copy: Kept, waited: list[Kept]) -> int:
    """When a copy was due, by its broker's clock; where it was stored again on its way, or sent
    again, the begin of its step. So it is where a clock was set back since: a log's times of
    storage wait for it, and give a moment behind the step."""
    if len(waited) != 1:
        return copy.out_ms
    moment = sent.moment_ms or waited[0].stored_ms + sent.delay_ms
    return moment if copy.out_ms < moment <= copy.out_ms + history.timer_step_ms else copy.out_ms


def _early(history: History, contents: Contents) -> Iterator[str]:
    for sent, copies in _delivered(history, contents):
        waited = contents.by_topic[TIMER_TOPIC].get(sent.key, [])
        for each in copies:
            moment = _moment(history, sent, each, waited)
            # What was due comes though the clock is set back before there is room for it.
            came_ms = max(each.stored_ms, each.dequeued_ms)
            if came_ms < moment:
                yield f"{each} was stored {moment - came_ms} ms before its moment"


def _late(history: History, contents: Contents) -> Iterator[str]:
    for sent, copies in _delivered(history, contents):
        waited = contents.by_topic[TIMER_TOPIC].get(sent.key, [])
        if len(waited) > 1:
            continue  # It was stored again on its way, or sent again.
        for each in copies:
            late_ms = each.stored_ms - _moment(history, sent, each, waited)
            if late_ms > LATE_MS_MAX:
                yield f"{each} was stored {late_ms} ms behind its moment"


def _twice(history: History, contents: Contents) -> Iterator[str]:
    for _, copies in _delivered(history, contents):
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
