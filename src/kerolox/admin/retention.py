"""How long messages of a topic are kept, by broker: what settings promise, and what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.asking import answers_of
from kerolox.protocol.attributes import RESERVE_TIME

if TYPE_CHECKING:
    from kerolox.admin.admin import Admin
    from kerolox.admin.topics import TopicDescription

__all__ = ["TopicRetention", "topic_retentions"]

QUEUES_ASKED_MAX = 256
"""Queues of a topic whose oldest message is asked for, those with the most messages first."""
OWN_OF_BROKER = ("", "-1")
"""Values of ``reserve.time`` by which a topic wants what its broker has."""


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """Of a topic on one broker. One log has the messages of all topics, and goes by whole files."""

    broker: str
    hours: int | None
    """For so long its messages are kept at least, unless the disk is too full
    (``fileReservedTime``); None: the broker does not tell."""
    oldest_ms: int
    """When its oldest message was stored, since the epoch; 0: there is none, or it is not known."""
    wanted: str = ""
    """Its attribute ``reserve.time``, which brokers with one log keep and do not follow; empty: it
    wants what the broker has."""

    @property
    def text(self) -> str:
        """What is promised, on one line, without the time of the oldest message."""
        kept = "not told" if self.hours is None else f"at least {self.hours} h"
        return f"{kept} (reserve.time={self.wanted} is not followed)" if self.wanted else kept


async def topic_retentions(
    admin: Admin, described: TopicDescription, attributes: Mapping[str, Mapping[str, str]]
) -> list[TopicRetention]:
    """By broker; those without a master are left out.

    Args:
        admin: asks.
        described: the topic.
        attributes: its attributes by broker.
    """
    masters = described.route.masters
    settings, _ = await answers_of(masters, lambda name: admin.broker_settings(masters[name]))
    filled = sorted(
        (each for each in described.queues if each.max_offset > each.min_offset),
        key=lambda each: each.min_offset - each.max_offset,
    )[:QUEUES_ASKED_MAX]
    oldest, _ = await answers_of(
        [each.queue for each in filled if each.queue.broker_name in masters],
        admin.earliest_store_time,
    )
    found = []
    for name in masters:
        wanted = attributes.get(name, {}).get(RESERVE_TIME, "")
        hours = settings.get(name, {}).get("fileReservedTime", "")
        found.append(
            TopicRetention(
                name,
                int(hours) if hours.isascii() and hours.isdigit() else None,
                _first(each for queue, each in oldest.items() if queue.broker_name == name),
                "" if wanted in OWN_OF_BROKER else wanted,
            )
        )
    return found


def _first(times: Iterable[int]) -> int:
    return min((each for each in times if each > 0), default=0)
