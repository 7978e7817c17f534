"""What must hold of pops: no message is given out again while somebody has it, nor when it is done,
except for what a broker forgot in a crash: what happened since it last wrote what is out.

A message that comes again after its time is another record, of a topic of retries. An ordered pop
gives out the same record again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.protocol.names import DLQ_PREFIX
from tests.simulation.history import (
    CRASHED,
    DIED,
    KILLED,
    PROMOTED,
    STARTED,
    STOPPED,
    Event,
    Group,
    History,
    Received,
    Rewind,
)
from tests.simulation.process import EPOCH_SECONDS

if TYPE_CHECKING:
    from tests.simulation.checks import Contents, Kept

SYNC_SECONDS = 13.0
"""A slave asks for what its master has out so often, and needs a while."""
WRITE_SECONDS = 0.7
"""So long may a write of what is out take, on a disk that is well."""
EARLY_SECONDS = 0.005
"""Brokers measure milliseconds."""
DISTURBED_WRITES = frozenset(("pause", "stall", "slow_disk", "full_disk", "failing_sync"))
"""Faults that may keep a broker from writing what is out in time."""

Place = tuple[str, str, int, int]


def check_popped(history: History, contents: Contents) -> list[str]:
    """See the module."""
    faults: list[str] = []
    for group in history.groups.values():
        if not group.is_popped:
            continue
        received = [each for each in history.received if each.group == group.name]
        received.sort(key=lambda each: each.popped_at)
        faults += [f"no broker gave out {each}" for each in received if each.popped_at < 0]
        faults += _too_often(group, received)
        if group.is_rewound:
            faults += _not_again(group, received, history, contents)
        else:
            faults += _given_twice(group, received, history)
            faults += _came_though_done(group, received, history, contents)
            faults += _forwarded_once(group, received, history, contents)
    return faults


def _forwarded_once(
    group: Group, received: list[Received], history: History, contents: Contents
) -> Iterator[str]:
    """Messages that were to be dead letters, in time, and are none, or several. A reset of offsets
    makes receipts stale, and what is forwarded by one of those is none."""
    if group.skipped:
        return
    letters = contents.by_topic[DLQ_PREFIX + group.name]
    for each in received:
        copies = contents.by_topic[each.topic].get(each.key, ())
        is_one = len(copies) == 1 and each.topic not in history.deleted_topics
        if not each.is_forwarded or not _is_in_time(each) or not is_one:
            continue
        count = len(letters.get(each.key, ()))
        if count != 1 and not history.role_changes and not _losses(history, each.broker):
            yield f"{each.consumer} had {each.key} be a dead letter, and there are {count}"


def _too_often(group: Group, received: list[Received]) -> Iterator[str]:
    """Messages that should be dead letters."""
    for each in received:
        if each.reconsume_times > group.retries_max and not group.is_ordered:
            yield (
                f"{each.consumer} got {each.key} at {each.at:.3f} with {each.reconsume_times} "
                f"retries, and {group.name} wants {group.retries_max} at the most"
            )


def _not_again(
    group: Group, received: list[Received], history: History, contents: Contents
) -> Iterator[str]:
    """Messages that were there when an operator set the offsets back, and did not come again.

    One may have been given out again without a word of its member, whose answer was lost or late:
    then it is a dead letter where the group wants no more retries.
    """
    if history.role_changes:
        return
    sent = {each.key: each for each in history.sent}
    dead = contents.by_topic[DLQ_PREFIX + group.name]
    for (topic, broker, queue_id), rewind in group.rewinds.items():
        if topic in history.deleted_topics or _losses(history, broker):
            continue
        at = rewind.at
        came = {each.key for each in received if each.at >= at}
        came |= {
            key
            for key, letters in dead.items()
            if any(_is_popped_since(rewind, x, history) for x in letters if x.broker == broker)
        }
        begin = group.skipped.get((topic, broker, queue_id), 0)
        for kept in contents.queues.get((broker, topic, queue_id), ()):
            each = sent.get(kept.key)
            was_there = each is not None and 0 <= each.ended < at
            if was_there and kept.queue_offset >= begin and kept.key not in came:
                yield f"{group.name} did not get {kept} again after {at:.3f}"


def _is_popped_since(rewind: Rewind, letter: Kept, history: History) -> bool:
    """Whether a dead letter is of a message that was popped from its queue since then; where clocks
    jump, whether it became one since then."""
    if history.clock_jumps:
        return letter.physical_offset >= rewind.log_end
    return letter.first_pop_ms / 1_000 - EPOCH_SECONDS >= rewind.at - EARLY_SECONDS


def _place(received: Received) -> Place:
    return received.broker, received.topic, received.queue_id, received.queue_offset


def _given_twice(group: Group, received: list[Received], history: History) -> Iterator[str]:
    """Records that went out while another member had them, or was done."""
    last: dict[Place, Received] = {}
    for each in received:
        place = _place(each)
        before = last.get(place)
        last[place] = each
        # After a crash another message may be at its place.
        if before is None or before.key != each.key or each.topic in history.deleted_topics:
            continue
        if group.is_ordered and not _is_in_time(before) and _is_visible(before, each):
            continue
        if group.is_ordered and history.clock_jumps and _has_started(history, before, each):
            continue
        # What a member asked for when it died its broker may have got.
        if group.is_ordered and before.result == DIED:
            continue
        # Of one that was acknowledged the broker may have forgotten that alone.
        moments = [before.popped_at, before.extended]
        if group.is_ordered:
            moments.append(before.acknowledged)
        known = [since for since in moments if since >= 0]
        if _is_set_back(group, history, before, each):
            continue
        if not any(_forgot(history, each.broker, since, each.popped_at) for since in known):
            yield (
                f"{each.consumer} got {each.key} ({each.topic} {each.queue_id}:"
                f"{each.queue_offset}) at {each.at:.3f}, given out at {each.popped_at:.3f}, which "
                f"{before.consumer} had since {before.popped_at:.3f} until "
                f"{before.visible_at:.3f}, acknowledged at {before.acknowledged:.3f}"
            )


def _is_visible(before: Received, each: Received) -> bool:
    """An ordered pop may give it out again: its time is over, or it was given back."""
    return each.popped_at >= before.visible_at - EARLY_SECONDS


def _has_started(history: History, before: Received, each: Received) -> bool:
    """A start reads what is out of an ordered group as RocketMQ keeps it, by the wall clock."""
    return any(
        event.what == STARTED and before.popped_at <= event.at <= each.popped_at
        for event in history.events
        if event.broker == each.broker
    )


def _is_set_back(group: Group, history: History, before: Received, each: Received) -> bool:
    """An operator may have had a record given out again: not when the broker sets the offsets in
    one step and goes on."""
    return any(
        before.popped_at <= reset.ended
        and reset.began <= each.popped_at
        and (
            not reset.is_at_once
            or any(reset.began <= x.at <= reset.ended for x in _losses(history, each.broker))
        )
        for reset in group.resets
    )


def _came_though_done(
    group: Group, received: list[Received], history: History, contents: Contents
) -> Iterator[str]:
    """Messages that came again, as another record, though they were acknowledged in time."""
    by_key: dict[str, list[Received]] = defaultdict(list)
    for each in received:
        by_key[each.key].append(each)
    for key, gets in by_key.items():
        first = gets[0]
        copies = contents.by_topic[first.topic].get(key, []) if first.topic else []
        is_one = len(copies) == 1 and first.topic not in history.deleted_topics
        if not is_one or _losses(history, first.broker) or history.role_changes:
            continue  # it was stored twice, or somebody forgot it
        done = next((each for each in gets if _is_in_time(each)), None)
        later = [] if done is None else [x for x in gets if x.popped_at > done.acknowledged]
        if done is None or not later or _is_set_back(group, history, done, later[0]):
            continue
        if not _forgot(history, done.broker, first.popped_at, later[0].popped_at):
            yield (
                f"{later[0].consumer} got {key} again at {later[0].at:.3f} ({later[0].topic}), "
                f"which {done.consumer} acknowledged at {done.acknowledged:.3f}, in time"
            )


def _is_in_time(received: Received) -> bool:
    return 0 <= received.acknowledged < received.visible_at - EARLY_SECONDS


def _losses(history: History, broker: str) -> list[Event]:
    kinds = (KILLED, CRASHED, PROMOTED)
    return [each for each in history.events if each.broker == broker and each.what in kinds]


def _lost_end(history: History, crash: Event) -> bool:
    """Whether the next start found a shorter log."""
    starts = (each for each in history.events if each.at > crash.at and each.node == crash.node)
    start = next((each for each in starts if each.what == STARTED), None)
    return start is not None and start.log_end < crash.log_end


def _forgot(history: History, broker: str, since: float, until: float) -> bool:
    """Whether a broker may have forgotten at some time what happened at another one before."""
    if history.role_changes and broker == "broker-0":
        return True
    is_calm = history.kinds.isdisjoint(DISTURBED_WRITES)
    bound = history.snapshot_seconds + WRITE_SECONDS if is_calm else 1_000.0
    losses = [
        each for each in _losses(history, broker) if since - EARLY_SECONDS <= each.at <= until
    ]
    if losses:
        # Of a queue whose end is lost nothing counts as done: others come in those places.
        return any(each.at <= since + bound or _lost_end(history, each) for each in losses)
    # A stop in order writes what is out, unless its disk does not take it.
    return not is_calm and any(
        since - EARLY_SECONDS <= each.at <= until and each.what in (STARTED, STOPPED)
        for each in history.events
        if each.broker == broker
    )
