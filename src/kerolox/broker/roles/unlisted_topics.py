"""Topics, and queues of topics, that a log speaks of and the table of topics lacks.

A slave has its master's log at once, and its table of topics every 10 s. When the master is gone,
the log alone knows of a topic that is younger than the table: by messages in its queues, by halves
of open transactions, and by delayed messages. A commit or a delivery would bring the last two kinds
to a topic that no client finds.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator

from kerolox.broker.tables.topics import QUEUES_MAX
from kerolox.kernel import RecordReader
from kerolox.message import PropertyKey, property_value
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from kerolox.protocol.records import parse_record

WAITING_TOPICS = frozenset((HALF_TOPIC, SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC))
"""Whose messages are for another topic (REAL_TOPIC)."""

SCANNED_MAX = 100_000
"""Messages of one of their queues that are examined, the newest ones: clients wait meanwhile."""

SCANNED_PER_SLICE = 500
"""Before other work of the loop runs."""


async def unlisted_topics(
    store: RecordReader,
    has_queue: Callable[[str, int], bool],
    complete_below: int,
    passed_below: Callable[[str, int], int],
) -> dict[str, int]:
    """Topics that the log has messages of, or for, in queues that nobody knows.

    Args:
        store: the log and its queues.
        has_queue: whether the table has a topic with such a queue.
        complete_below: messages that begin below this offset of the log speak of topics and queues
            that are in the table, or were deleted.
        passed_below: topic and queue of ``WAITING_TOPICS`` → the queue offset below which messages
            wait for nothing any more.

    Returns:
        Topic → how many queues it has at least.
    """
    found: dict[str, int] = {}

    def add(topic: str, queue_id: int) -> None:
        found[topic] = max(found.get(topic, 0), queue_id + 1)

    for topic, queue_id, low, high, *_ in store.queues():
        if high == low:
            continue
        if not has_queue(topic, queue_id):
            entry = store.queue_entry(topic, queue_id, high - 1)
            # Others are those of topics that were deleted.
            if entry is not None and entry[0] >= complete_below:
                add(topic, queue_id)
        if topic in WAITING_TOPICS:
            first = max(low, passed_below(topic, queue_id), high - SCANNED_MAX)
            for number, place in enumerate(
                _places(store, topic, queue_id, range(first, high), complete_below)
            ):
                for_topic, for_queue = _destination(store.lookup(place))
                if for_topic and not has_queue(for_topic, for_queue):
                    add(for_topic, for_queue)
                if number % SCANNED_PER_SLICE == SCANNED_PER_SLICE - 1:
                    await asyncio.sleep(0)
    return found


def _places(
    store: RecordReader, topic: str, queue_id: int, offsets: range, begin: int
) -> Iterator[int]:
    """Where in the log the messages of a queue are, from an offset of the log on."""

    def place(offset: int) -> int:
        entry = store.queue_entry(topic, queue_id, offset)
        return -1 if entry is None else entry[0]

    for offset in offsets[bisect_left(offsets, begin, key=place) :]:
        if (found := place(offset)) >= 0:
            yield found


def _destination(data: bytes | None) -> tuple[str, int]:
    """Topic and queue that a record is for; an empty name: it does not say."""
    record = None if data is None else parse_record(data, 0, len(data))
    if record is None:
        return "", 0
    topic = property_value(record.properties, PropertyKey.REAL_TOPIC) or b""
    queue = property_value(record.properties, PropertyKey.REAL_QUEUE_ID) or b"0"
    # Halves of a log that another broker wrote may say anything.
    is_number = queue.isdigit() and len(queue) <= len(str(QUEUES_MAX))
    return topic.decode(errors="replace"), min(int(queue), QUEUES_MAX - 1) if is_number else 0
