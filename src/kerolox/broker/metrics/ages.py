"""When the oldest messages of a store were stored."""

from __future__ import annotations

from kerolox.kernel.read import RecordReader
from kerolox.protocol.records import store_time_of


def earliest_of_queue(store: RecordReader, topic: str, queue_id: int) -> int:
    """``getEarliestMessageTime`` of a queue, in ms since the epoch: -1 when there is no message."""
    low, high = store.queue_bounds(topic, queue_id)
    return store.store_time(topic, queue_id, low) if low < high else -1


def earliest_of_log(store: RecordReader) -> int:
    """``getEarliestMessageTime`` of all, in ms since the epoch: -1 when there is no message."""
    record = store.lookup(store.min_physical_offset)
    if record is not None:
        return store_time_of(record)
    times = [earliest_of_queue(store, topic, queue_id) for topic, queue_id, *_ in store.queues()]
    return min((each for each in times if each >= 0), default=-1)
