"""A planned partition: what Spark carries from the process that plans to the one that reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from kerolox.message import MessageQueue
from kerolox.spark.positions.offsets import Known, QueueRange

PlainRange = tuple[str, tuple[tuple[str, str, int], int, int], tuple[tuple[int, int] | None, bool]]
"""A broker's address, a range of a queue, and what is known of the queue, without our classes."""


class QueuePartition(InputPartition):  # type: ignore[misc]
    """Ranges that one Spark task reads, each with the address of its broker."""

    def __init__(
        self,
        ranges: Sequence[tuple[str, QueueRange]],
        known: Mapping[MessageQueue, Known] | None = None,
    ) -> None:
        super().__init__(tuple(ranges))
        self.known = {
            each.queue: known[each.queue] for _, each in ranges if known and each.queue in known
        }

    def __reduce__(self) -> tuple[object, ...]:
        # A worker without Kerolox must be able to unpickle it, so that it can say what it lacks.
        return InputPartition, (self.plain(),)

    def plain(self) -> list[PlainRange]:
        """All of it without a class of ours."""
        plain: list[PlainRange] = []
        for address, each in self.value:
            queue = each.queue
            mark, from_minimum = self.known.get(queue, Known())
            plain_known = ((mark.end, mark.time) if mark else None, from_minimum)
            plain.append(
                (
                    address,
                    ((queue.topic, queue.broker_name, queue.queue_id), each.start, each.end),
                    plain_known,
                )
            )
        return plain
