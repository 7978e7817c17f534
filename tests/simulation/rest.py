"""Whether a cluster is at rest: everything consumed, delivered, resolved and replicated."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kerolox.broker.broker import Broker
from kerolox.broker.context import Context
from kerolox.protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from kerolox.protocol.pop_names import pop_retry_topic
from tests.simulation.scenario import GroupPlan


def unrest_of(
    broker: Broker,
    slaves: Iterable[Broker],
    groups: Iterable[GroupPlan],
    gone: Collection[str] = (),
) -> str:
    """What of a master is not done; empty: nothing. ``gone``: topics that nobody reads."""
    parts = broker.parts
    # No queue has it yet: a half that was stored again counts neither here nor there.
    if uncommitted := parts.store.stats()["uncommitted_bytes"]:
        return f"{uncommitted} bytes wait in the pool"
    if parts.writing.transactions.open_halves:
        return f"{parts.writing.transactions.open_halves} transactions are open"
    if left := _delayed(parts):
        return f"{left} delayed messages wait"
    if left := _timed(parts):
        return f"{left} messages for a moment wait"
    for group in groups:
        own = [RETRY_PREFIX + group.name]
        if group.is_popped:
            # Nobody pops the retries of a topic that is gone.
            there = (topic for topic in group.topics if topic not in gone)
            names = (pop_retry_topic(topic, group.name) for topic in there)
            own = [each for each in names if each in parts.tables.topics]
        for topic in (*group.topics, *own):
            if topic not in gone and (lag := _lag(parts, group.name, topic)):
                return f"{group.name} is {lag} behind in {topic}"
    end = parts.store.max_physical_offset
    for slave in slaves:
        broker_id = slave.parts.role.current.broker_id
        if (reached := slave.parts.store.max_physical_offset) != end:
            return f"slave {broker_id} is at {reached}, its master at {end}"
        # Until it follows, what its master writes next would be missing at the end.
        if not slave.parts.roles.status().is_following:
            return f"slave {broker_id} does not follow"
    return ""


def _delayed(parts: Context) -> int:
    """Delayed messages that are not delivered."""
    offsets = parts.writing.schedule.offsets
    left = 0
    for level in range(1, len(parts.config.delay_levels_ms) + 1):
        low, high = parts.store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        left += high - max(low, offsets.get(level, 0))
    return left


def _timed(parts: Context) -> int:
    """Messages for a moment that are not delivered, or not known to the timer yet."""
    timer = parts.writing.timer.timer
    high = parts.store.queue_bounds(TIMER_TOPIC, 0)[1]
    if timer is None:
        return high
    return timer.due + timer.ahead([1 << 62])[0] + max(high - timer.queue_offset, 0)


def _lag(parts: Context, group: str, topic: str) -> int:
    """Messages that a group has not consumed, or that it has committed beyond the end of a queue:
    what a crash took away, of which it hears with its next pull."""
    config = parts.tables.topics.get(topic)
    if config is not None:
        queue_ids: Iterable[int] = range(config.read_queue_nums)
    elif topic.startswith(RETRY_PREFIX):
        # A crash may take the topic and leave the offsets: its members look there all the same.
        queue_ids = parts.tables.offsets.of_topic(group, topic)
    else:
        return 0
    lag = 0
    for queue_id in queue_ids:
        low, high = parts.store.queue_bounds(topic, queue_id)
        lag += abs(high - max(low, parts.tables.offsets.query(group, topic, queue_id), 0))
    return lag
