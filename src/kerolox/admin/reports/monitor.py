"""Watching consumer groups in rounds: what is left, what stands still, what was lost
(``startMonitoring``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from kerolox.admin.answers import Members
from kerolox.admin.asking import answers_of, nodes_of_topic
from kerolox.admin.consumers.members import ConsumerStatus
from kerolox.admin.consumers.progress import GroupProgress, ProgressRequests
from kerolox.admin.messages.reading import MessageReadRequests
from kerolox.admin.topics import QueueStatus, queue_statuses
from kerolox.client.core.checking import checked
from kerolox.errors import (
    ConsumerNotOnlineError,
    KeroloxError,
    RemoteProtocolError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.names import MONITOR_GROUP, OFFSET_MOVED_TOPIC, RETRY_PREFIX

ROUND_SECONDS = 60.0
"""Default time from the start of a round to the next one's (``MonitorConfig.roundInterval``)."""

EVENTS_MAX = 10_000
"""Most events that one round reports."""

EVENT_BYTES_MAX = 64 * 1024
"""A longer message is no such event."""


@dataclass(frozen=True, slots=True)
class UndoneMessages:
    """The messages of one topic that a group has not consumed (``UndoneMsgs``)."""

    group: str
    topic: str
    total: int
    """Messages that are left in all queues."""
    queue_max: int
    """Messages that are left in the fullest queue."""
    delay_ms_max: int
    """Most time between the last message that was stored and the last one that was consumed."""


@dataclass(frozen=True, slots=True)
class OffsetMoved:
    """A group asked for messages that are gone, and goes on behind them (``OffsetMovedEvent``)."""

    group: str
    queue: MessageQueue
    requested_offset: int
    new_offset: int
    stored_ms: int
    """When it happened, since the epoch."""


@dataclass(frozen=True, slots=True)
class MonitorRound:
    """The findings of one check of all groups."""

    started_ms: int
    """Since the epoch."""
    undone: tuple[UndoneMessages, ...]
    """Of groups that are online, sorted by group and topic."""
    statuses: Mapping[str, ConsumerStatus]
    """What the members of each group that is online say, by group."""
    offsets_moved: tuple[OffsetMoved, ...]
    """What happened since the round before."""
    failed: Mapping[str, str]
    """Why a group that is online could not be examined, by group."""


@checked()
class MonitorRequests(MessageReadRequests, ProgressRequests):
    """Examines all groups in rounds."""

    async def monitor(
        self, *, interval_seconds: float = ROUND_SECONDS
    ) -> AsyncIterator[MonitorRound]:
        """Examine all groups again and again (``startMonitoring``); the first round comes at once.

        A round that fails because no name server answers raises; the loop may be started again.

        Args:
            interval_seconds: from the start of a round to the next one's.

        Raises:
            RemotingError: no name server answers.
        """
        since_ms = time.time_ns() // 1_000_000
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval_seconds
            found = await self.monitor_round(since_ms=since_ms)
            since_ms = found.started_ms
            yield found
            await asyncio.sleep(max(due - loop.time(), 0.0))

    async def monitor_round(self, *, since_ms: int) -> MonitorRound:
        """Examine all groups once.

        Args:
            since_ms: events from then on (since the epoch).

        Raises:
            RemotingError: no name server answers.
        """
        started_ms = time.time_ns() // 1_000_000
        topics = await self.list_topics()
        groups = [
            each.removeprefix(RETRY_PREFIX) for each in topics if each.startswith(RETRY_PREFIX)
        ]
        statuses, silent = await answers_of(groups, lambda group: self.consumer_status(group))
        undone, failed = await answers_of(statuses, lambda group: self._undone(group))
        return MonitorRound(
            started_ms,
            tuple(each for one in undone.values() for each in one),
            statuses,
            await self._offsets_moved(since_ms) if OFFSET_MOVED_TOPIC in topics else (),
            {
                group: str(error)
                for group, error in (silent | failed).items()
                if not isinstance(error, ConsumerNotOnlineError)
            },
        )

    async def _undone(self, group: str) -> list[UndoneMessages]:
        """By topic, of a group that is online."""
        try:
            progress = await self.group_progress(group)
        except ConsumerNotOnlineError:  # it has consumed nothing yet
            return []
        topics = sorted({each.queue.topic for each in progress.queues})
        statuses, _ = await answers_of(topics, lambda topic: self._queues_of(topic))
        return [_undone_of(progress, topic, statuses.get(topic, {})) for topic in topics]

    async def _queues_of(self, topic: str) -> dict[MessageQueue, QueueStatus]:
        nodes = await nodes_of_topic(self, topic)
        found, _ = await answers_of(nodes.values(), lambda a: queue_statuses(self.access, a, topic))
        return {queue: status for table in found.values() for queue, status in table.items()}

    async def _offsets_moved(self, since_ms: int) -> tuple[OffsetMoved, ...]:
        found = []
        messages = self.read_messages(
            OFFSET_MOVED_TOPIC,
            begin_ms=since_ms,
            max_messages=EVENTS_MAX,
            group=MONITOR_GROUP,
        )
        try:
            async for message in messages:
                event = _offset_moved(message.body, message.store_timestamp)
                # The search by time gives the nearest message, which may be an older one.
                if event is not None and event.stored_ms >= since_ms:
                    found.append(event)
        except TopicRouteNotFoundError:  # it went meanwhile
            return ()
        except KeroloxError:
            return tuple(found)
        return tuple(found)


def _undone_of(
    progress: GroupProgress, topic: str, statuses: Mapping[MessageQueue, QueueStatus]
) -> UndoneMessages:
    queues = [each for each in progress.queues if each.queue.topic == topic]
    delays = [
        statuses[each.queue].last_update_timestamp - each.last_consumed_ms
        for each in queues
        if each.last_consumed_ms > 0 and each.queue in statuses
    ]
    return UndoneMessages(
        progress.group,
        topic,
        sum(max(each.lag, 0) for each in queues),
        max((each.lag for each in queues), default=0),
        max([0, *delays]),
    )


def _offset_moved(body: bytes, stored_ms: int) -> OffsetMoved | None:
    """None: anyone may send to that topic, and this is no event."""
    try:
        event = Members(fastjson.loads(body, lenient_bytes_max=EVENT_BYTES_MAX), "an event")
        return OffsetMoved(
            event.text("consumerGroup"),
            event.members("messageQueue").queue(),
            event.required_number("offsetRequest"),
            event.required_number("offsetNew"),
            stored_ms,
        )
    except (fastjson.FastjsonError, RemoteProtocolError):
        return None
