"""How far consumer groups are: offsets of each queue, what is left, how fast they go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kerolox.admin.answers import Members, read_object
from kerolox.admin.asking import all_answers, answers_of, nodes_of_group, nodes_of_topic
from kerolox.admin.consumers.members import (
    ConsumerConnections,
    MemberRequests,
)
from kerolox.admin.topics import TopicRequests
from kerolox.client.core.checking import checked
from kerolox.errors import ConsumerNotOnlineError, KeroloxError
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import (
    ConsumerStatsHeader,
    ConsumeStatsInBrokerHeader,
    GroupTopicHeader,
)
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable


STATS_TIMEOUT_FACTOR = 3
"""The progress of a group may take so many times the time limit of other questions."""

BROKER_STATS_SECONDS = 50.0
"""Default time limit for the progress of all groups of a broker, as in ``brokerConsumeStats``."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue."""

    queue: MessageQueue
    broker_offset: int
    """That of the next message that comes."""
    consumer_offset: int
    """That of the next message that the group consumes."""
    last_consumed_ms: int
    """When the last message that it consumed was stored, since the epoch; 0: none was."""
    client_id: str = ""
    """Who of the group has the queue; only where it was asked for."""
    in_flight: int = 0
    """Messages that members popped and did not acknowledge; brokers of RocketMQ say none."""
    in_flight_ms: int = 0
    """How long the lowest of them has been out."""

    @property
    def lag(self) -> int:
        """Messages that are left (``Diff``)."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is in all queues, or in those of one topic; sorted by queue."""

    group: str
    queues: tuple[QueueProgress, ...]
    consumed_per_second: float
    """``Consume TPS``: messages delivered to the group."""

    @property
    def lag(self) -> int:
        """Messages that are left in all queues (``Diff Total``)."""
        return sum(queue.lag for queue in self.queues)

    @property
    def in_flight(self) -> int:
        """Messages that members popped and did not acknowledge."""
        return sum(queue.in_flight for queue in self.queues)

    @property
    def in_flight_ms(self) -> int:
        """How long the message has been out that is out for longest, of those that hold up the
        offset of a queue."""
        return max((queue.in_flight_ms for queue in self.queues), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A line of ``consumerProgress`` about one group."""

    group: str
    members: int
    """How many are online."""
    version: int = 0
    """That of the oldest member (``MQVersion``)."""
    consume_type: str = ""
    """CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull); empty: nobody is online."""
    message_model: str = ""
    consumed_per_second: float = 0.0
    lag: int = 0
    is_progress_known: bool = True
    """False: a broker that has offsets of the group refused or does not answer, and the lag and
    the rate are 0 for that. A group without an offset has a lag of 0."""


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """How far all groups are on one broker (``brokerConsumeStats``)."""

    address: str
    lag: int
    """Messages that are left for all groups together (``Diff Total``)."""
    groups: tuple[GroupProgress, ...]
    """One for each group and topic."""


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """From when to when the messages of a queue are, and where a group stands. Milliseconds since
    the epoch; -1: the queue has no message."""

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int
    """How long the next message has waited for the group."""


@checked()
class ProgressRequests(MemberRequests, TopicRequests):
    """Asks how far consumer groups are."""

    async def group_progress(
        self, group: str, *, topic: str = "", clients: bool = False
    ) -> GroupProgress:
        """How far a group is (``consumerProgress -g``, code 208).

        Args:
            group: its name.
            topic: only in this one; empty: in all that it has offsets of.
            clients: who of the group has each queue, too, which members say.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            ConsumerNotOnlineError: no broker has an offset of it.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        nodes = await nodes_of_group(self, group, topic=topic)
        header = ConsumerStatsHeader(consumer_group=group, topic=topic).encode()

        async def ask(address: str) -> GroupProgress:
            response = await self.access.ask(
                address,
                RequestCode.GET_CONSUME_STATS,
                header,
                timeout_seconds=self.access.timeout_seconds * STATS_TIMEOUT_FACTOR,
            )
            return _progress(group, await read_object(response, "the group's progress", address))

        answers = (await all_answers(nodes.values(), ask)).values()
        queues = sorted(
            (each for one in answers for each in one.queues), key=lambda each: each.queue
        )
        if not queues:
            raise ConsumerNotOnlineError(
                f"no broker has an offset of group {group!r}; it has consumed nothing yet"
            )
        found = GroupProgress(group, tuple(queues), sum(one.consumed_per_second for one in answers))
        return await self._with_clients(found) if clients else found

    async def all_group_progress(self) -> list[GroupSummary]:
        """All groups that were ever online, sorted by name (``consumerProgress``). What could not
        be learnt of one is 0 or empty.

        Raises:
            RemotingError: no name server answers.
        """
        topics = await self.list_topics()
        groups = [
            each.removeprefix(RETRY_PREFIX) for each in topics if each.startswith(RETRY_PREFIX)
        ]
        return await self.group_summaries(groups)

    async def group_summaries(self, groups: Iterable[str]) -> list[GroupSummary]:
        """Those of the groups named, in that order. What could not be learnt of one is 0 or
        empty.
        """
        found, _ = await answers_of(groups, lambda group: self._summary(group))
        return list(found.values())

    async def broker_progress(
        self,
        broker: str,
        *,
        ordered_only: bool = False,
        lag_min: int = 0,
        timeout_seconds: float = BROKER_STATS_SECONDS,
    ) -> BrokerProgress:
        """How far all groups are on a broker (``brokerConsumeStats``, code 317).

        Args:
            broker: ``host:port``.
            ordered_only: ordered topics alone.
            lag_min: only queues in which so many messages are left.
            timeout_seconds: the time limit.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        header = ConsumeStatsInBrokerHeader(is_order=ordered_only).encode()
        response = await self.access.ask(
            broker, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout_seconds=timeout_seconds
        )
        answer = await read_object(response, "the progress of all groups", broker)
        groups = [
            _progress(group, each)
            for one in answer.objects("consumeStatsList")
            for group in one.own_names()
            for each in one.objects(group)
        ]
        shown = [
            replace(group, queues=tuple(each for each in group.queues if each.lag >= lag_min))
            for group in groups
        ]
        return BrokerProgress(
            answer.text("brokerAddr") or broker,
            answer.number("totalDiff"),
            tuple(group for group in shown if group.queues),
        )

    async def consume_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """From when to when the messages of each queue are, and where a group stands (code 303);
        sorted by queue.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        header = GroupTopicHeader(topic=topic, group=group).encode()

        async def ask(address: str) -> list[QueueTimeSpan]:
            response = await self.access.ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            answer = await read_object(response, "the time spans", address)
            return [
                QueueTimeSpan(
                    each.members("messageQueue").queue(),
                    each.number("minTimeStamp"),
                    each.number("maxTimeStamp"),
                    each.number("consumeTimeStamp"),
                    each.number("delayTime"),
                )
                for each in answer.objects("consumeTimeSpanSet")
            ]

        nodes = await nodes_of_topic(self, topic)
        found = await all_answers(nodes.values(), ask)
        return sorted(
            (span for spans in found.values() for span in spans), key=lambda span: span.queue
        )

    async def _with_clients(self, progress: GroupProgress) -> GroupProgress:
        """The same with the owner of each queue, as far as members say it."""
        try:
            members = (await self.consumer_connections(progress.group)).members
        except KeroloxError:
            return progress
        found, _ = await answers_of(
            [member.client_id for member in members],
            lambda client: self.consumer_running_info(progress.group, client),
        )
        owners = {each.queue: client for client, info in found.items() for each in info.queues}
        queues = (replace(each, client_id=owners.get(each.queue, "")) for each in progress.queues)
        return replace(progress, queues=tuple(queues))

    async def _summary(self, group: str) -> GroupSummary:
        async def query() -> tuple[GroupProgress | None, bool]:
            try:
                return await self.group_progress(group), True
            except ConsumerNotOnlineError:
                return None, True
            except KeroloxError:
                return None, False

        async def members() -> ConsumerConnections | None:
            try:
                return await self.consumer_connections(group)
            except KeroloxError:
                return None

        (progress, is_known), online = await asyncio.gather(query(), members())
        return GroupSummary(
            group=group,
            members=len(online.members) if online else 0,
            version=online.version_min if online else 0,
            consume_type=online.consume_type if online else "",
            message_model=online.message_model if online else "",
            consumed_per_second=progress.consumed_per_second if progress else 0.0,
            lag=progress.lag if progress else 0,
            is_progress_known=is_known,
        )


def _progress(group: str, answer: Members) -> GroupProgress:
    queues = [
        QueueProgress(
            queue,
            each.required_number("brokerOffset"),
            each.required_number("consumerOffset"),
            each.number("lastTimestamp"),
            in_flight=each.number("inFlight"),
            in_flight_ms=each.number("inFlightMillis"),
        )
        for queue, each in answer.queues("offsetTable").items()
    ]
    queues.sort(key=lambda each: each.queue)
    return GroupProgress(group, tuple(queues), answer.real("consumeTps"))
