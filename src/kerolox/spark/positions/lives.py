"""Whether the queues are still those that a checkpoint knows: lives of a topic.

A topic that is deleted and created again has the same name and queues, and new messages at the old
offsets. What tells them apart is the store time of one message, the last that there was when the
checkpoint was written (:class:`~kerolox.spark.positions.offsets.Mark`). A queue that has not grown
since shows its life by its last store time, which comes with its bounds. Of those that have grown,
the planner asks one per topic and broker for that message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerolox.message import MessageQueue
    from kerolox.spark.positions.offsets import Bounds
    from kerolox.spark.positions.position import SourcePosition


class Replaced(NamedTuple):
    """A queue that is another one now."""

    what: str
    """For people."""
    new_start: int
    """The first offset whose message is newer than those that the checkpoint knows."""


class Store(Protocol):
    """What is asked of the brokers."""

    def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        """When a message was stored, ms; None when it is not there."""

    def first_after(self, queue: MessageQueue, held: Bounds, time_ms: int, group: str) -> int:
        """The offset of the first message that was stored later."""


def replaced_queues(
    position: SourcePosition, held: Mapping[MessageQueue, Bounds], store: Store, group: str
) -> dict[MessageQueue, Replaced]:
    """The queues of ``held`` that are not those of ``position``."""
    suspects: dict[MessageQueue, str] = {}
    grown: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue, now in held.items():
        offset, mark = position.offsets.get(queue, 0), position.marks.get(queue)
        seen = max(offset, mark.end if mark else 0)
        if now.maximum < seen:
            suspects[queue] = (
                f"ends before {now.maximum}, but the query has seen it end before {seen}"
            )
        elif mark is None:
            continue
        elif now.maximum > mark.end:
            # A message that retention has deleted can't be compared.
            if mark.end > now.minimum:
                grown.setdefault((queue.topic, queue.broker_name), []).append(queue)
        elif now.last_time not in (0, mark.time):
            suspects[queue] = _other_message(mark.end - 1, now.last_time, mark.time)
    replaced_topics = {(queue.topic, queue.broker_name) for queue in suspects}
    for topic, queues in grown.items():
        for queue in queues:
            mark = position.marks[queue]
            stored = store.store_time(queue, mark.end - 1, group)
            if stored == mark.time:
                if topic not in replaced_topics:
                    break
                continue
            suspects[queue] = _other_message(mark.end - 1, stored, mark.time)
            replaced_topics.add(topic)
    return {
        queue: _replaced(queue, what, position, held[queue], store, group)
        for queue, what in suspects.items()
    }


def _other_message(offset: int, stored: int | None, known: int) -> str:
    now = "is not there" if stored is None else f"was stored at {stored}"
    return f"has another message at {offset}: it {now}, and the one that was read at {known} (ms)"


def _replaced(
    queue: MessageQueue,
    what: str,
    position: SourcePosition,
    held: Bounds,
    store: Store,
    group: str,
) -> Replaced:
    mark = position.marks.get(queue)
    new_start = held.minimum if mark is None else store.first_after(queue, held, mark.time, group)
    return Replaced(
        f"{queue.topic} queue {queue.queue_id} on {queue.broker_name} {what}; the topic was "
        "deleted and created again, or the store was lost or restored",
        new_start,
    )
