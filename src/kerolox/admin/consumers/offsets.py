"""Offsets of consumer groups: reset to a time, skip what is left, copy, set, examine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.admin.answers import read_object
from kerolox.admin.asking import all_answers, do_on_each, masters_of_topic, nodes_of_topic
from kerolox.admin.consumers.members import MemberRequests
from kerolox.admin.topics import queue_statuses
from kerolox.client.aio.network.lookups import number_of, queue_number
from kerolox.client.core.checking import checked
from kerolox.errors import (
    AccessDeniedError,
    BrokerSystemError,
    ClientError,
    ConsumerNotOnlineError,
    NotFoundError,
    RequestCodeNotSupportedError,
)
from kerolox.message import MessageQueue
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import (
    CloneGroupOffsetHeader,
    ConsumerStatsHeader,
    ConsumerStatusHeader,
    GroupHeader,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from kerolox.protocol.names import RETRY_PREFIX

if TYPE_CHECKING:
    from kerolox.client.aio.network.access import Access

END = -1
"""The time that means the end of each queue (``resetOffsetByTime -s now``)."""

CLONE_TIMEOUT_FACTOR = 3
"""Copying offsets may take so many times the time limit of other questions."""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The result of a reset of a group's offset in one queue."""

    queue: MessageQueue
    offset: int
    """Where the group goes on."""
    is_online: bool
    """True: its members were notified and go on there. False: nobody was online, so the broker
    was."""


@checked()
class OffsetRequests(MemberRequests):
    """Reads and sets offsets of consumer groups."""

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> list[OffsetReset]:
        """Have a group go on at another time (``resetOffsetByTime``, code 222); sorted by queue.

        It goes on at the message nearest to the time, which may be older, as brokers understand
        code 222. :meth:`move_offsets` takes the first message from then on.

        On brokers where no member is online the offsets themselves are set (codes 202, 29 and 15),
        as RocketMQ's tool does, and also where the group lacks the offset of a queue, which that
        tool refuses. Members that start meanwhile may set them again.

        Args:
            group: its name.
            topic: the topic.
            timestamp_ms: since the epoch; ``END`` (-1): the end of each queue.
            force: also forward. False: a queue in which the group is not yet there stays as it is.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            ClientError: a broker of the topic has no master now; nothing was changed.
            BrokerError: a broker refused: it has no offset of a group that is online.
            RemotingError: a broker does not answer. The offsets of other brokers may be reset by
                then.
        """
        header = ResetOffsetHeader(topic=topic, group=group, timestamp=timestamp_ms, is_force=force)
        # Tools of 4.x do not name a queue.
        fields = header.encode()
        for name in ("queue_id", "offset"):
            fields.pop(ResetOffsetHeader.wire_name(name))

        async def ask(broker: tuple[str, str]) -> list[OffsetReset]:
            address = broker[1]
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            try:
                response = await self.access.ask(address, code, fields)
            except ConsumerNotOnlineError:
                return await self._reset_offline(group, topic, address, timestamp_ms, force=force)
            except AccessDeniedError:
                raise
            except BrokerSystemError:
                # So it refuses a group that lacks the offset of a queue, before it looks for
                # members.
                try:
                    await self.consumer_connections(group, broker=address)
                except ConsumerNotOnlineError:
                    return await self._reset_offline(
                        group, topic, address, timestamp_ms, force=force
                    )
                raise
            if not response.body:
                return []
            answer = await read_object(response, "the offsets", address)
            return [OffsetReset(q, o, True) for q, o in answer.queue_numbers("offsetTable").items()]

        nodes = await masters_of_topic(self, topic)
        found = await all_answers(nodes.items(), ask)
        return sorted((each for one in found.values() for each in one), key=lambda each: each.queue)

    async def skip_backlog(self, group: str, topic: str) -> list[OffsetReset]:
        """Have a group go on at the end of each queue (``skipAccumulatedMessage``): what it has
        not consumed it will not get. Errors: see :meth:`reset_offsets`.
        """
        return await self.reset_offsets(group, topic, END)

    async def clone_offsets(
        self,
        source_group: str,
        target_group: str,
        *,
        topic: str = "",
        offline: bool = True,
        dry_run: bool = False,
    ) -> list[str]:
        """Give a group the offsets of another one (``cloneGroupOffset``, code 314); on which
        brokers.

        Args:
            source_group: whose offsets.
            target_group: who gets them.
            topic: only of this one; empty: of all.
            offline: also of topics that the source does not subscribe to right now. A RocketMQ 4
                broker does not tell them so long as the source is online: name such a topic.
            dry_run: change nothing; the brokers where it would be done.

        Raises:
            TopicRouteNotFoundError: the source has no retry topic: it was never online.
            ClientError: a broker has no master now; or some brokers did it and some did not: the
                text says who.
            BrokerError, RemotingError: none did it.
        """
        nodes = await masters_of_topic(self, RETRY_PREFIX + source_group)
        if dry_run:
            return list(nodes.values())

        async def copy(address: str) -> None:
            # Each topic by its name: asked for all, a RocketMQ broker says that it did it, and does
            # nothing.
            topics = [topic] if topic else await _topics_of(self.access, address, source_group)
            for name in topics:
                header = CloneGroupOffsetHeader(
                    src_group=source_group, dest_group=target_group, topic=name, offline=offline
                )
                await self.access.ask(
                    address,
                    RequestCode.CLONE_GROUP_OFFSET,
                    header.encode(),
                    timeout_seconds=self.access.timeout_seconds * CLONE_TIMEOUT_FACTOR,
                )

        return await do_on_each(
            nodes.values(), copy, f"offsets of group {source_group!r} could not be copied"
        )

    async def get_offset(self, group: str, queue: MessageQueue, *, broker: str = "") -> int:
        """A group's offset of a queue, as its broker has it (code 14); -1: it has none.

        Args:
            group: its name.
            queue: the queue.
            broker: ``host:port``; empty: the broker that the queue names.

        Raises:
            TopicRouteNotFoundError, ClientError: the queue's broker is unknown.
            BrokerError, RemotingError: it refused or does not answer.
        """
        address = broker or await self.access.read_address_of(queue.topic, queue.broker_name)
        header = QueryConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            response = await self.access.ask(
                address, RequestCode.QUERY_CONSUMER_OFFSET, header.encode()
            )
            return number_of(response, "offset", address)
        except NotFoundError:
            return -1

    async def set_offset(
        self, group: str, queue: MessageQueue, offset: int, *, broker: str = ""
    ) -> None:
        """Set a group's offset of a queue at its broker (code 15). A member that has the queue sets
        it again with its next commit: use :meth:`reset_offsets` where the group is online.

        Args:
            group: its name.
            queue: the queue.
            offset: of the next message that the group consumes.
            broker: ``host:port``; empty: the broker that the queue names.

        Raises:
            ClientError: the offset is negative, or the queue's broker is unknown.
            BrokerError, RemotingError: it refused or does not answer.
        """
        if offset < 0:
            raise ClientError(f"offset {offset} is none; the first message has offset 0")
        address = broker or await self.access.read_address_of(queue.topic, queue.broker_name)
        await _commit(self.access, address, group, queue, offset)

    async def consumer_offsets(
        self, group: str, topic: str, *, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """The offsets that members hold in memory, by client id and queue (``getConsumerStatus``,
        code 223, which a broker passes on to them).

        Args:
            group: its name.
            topic: the topic.
            client_id: of this member alone; empty: of all.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError: no member is online.
            RemotingError: a broker does not answer.
        """
        header = ConsumerStatusHeader(topic=topic, group=group, client_addr=client_id).encode()

        async def ask(address: str) -> dict[str, dict[MessageQueue, int]]:
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            response = await self.access.ask(
                address,
                code,
                header,
                timeout_seconds=self.access.timeout_seconds * CLONE_TIMEOUT_FACTOR,
            )
            answer = await read_object(response, "the members' offsets", address)
            table = answer.members("consumerTable")
            return {client: table.queue_numbers(client) for client in table.own_names()}

        # Each member holds a connection to every broker, and tells all of its queues to each.
        nodes = await nodes_of_topic(self, topic)
        address = next(iter(nodes.values()), None)
        if address is None:
            raise ClientError(f"topic {topic!r} has no broker")
        return await ask(address)

    async def _reset_offline(
        self, group: str, topic: str, address: str, timestamp_ms: int, *, force: bool
    ) -> list[OffsetReset]:
        """Set the offsets of a group that is not online (``resetOffsetByTimestampOld``)."""
        statuses = await queue_statuses(self.access, address, topic)

        async def reset(queue: MessageQueue) -> OffsetReset:
            if timestamp_ms == END:
                target = statuses[queue].max_offset
            else:
                code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
                target = await queue_number(
                    self.access,
                    queue,
                    code,
                    "offset",
                    address=address,
                    more={"timestamp": timestamp_ms},
                )
            old = await self.get_offset(group, queue, broker=address)
            # A group without an offset stands at the first message, as far as the tool is
            # concerned.
            stands = statuses[queue].min_offset if old < 0 else old
            if not force and target > stands:
                return OffsetReset(queue, stands, False)
            await _commit(self.access, address, group, queue, max(target, 0))
            return OffsetReset(queue, max(target, 0), False)

        # One after the other: of two first offsets of a group at once a Java broker may lose one.
        return [await reset(queue) for queue in statuses]


async def topics_with_offsets(access: Access, broker: str, group: str) -> set[str]:
    """The topics that a group has offsets of on a broker (code 343).

    Raises:
        RequestCodeNotSupportedError: the broker is one before RocketMQ 5.
        BrokerError, RemotingError: the broker refused or does not answer.
    """
    header = GroupHeader(group=group).encode()
    response = await access.ask(broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
    return set((await read_object(response, "the topics", broker)).texts("topicList"))


async def _topics_of(access: Access, broker: str, group: str) -> list[str]:
    """The topics that a group has offsets of on a broker, but its retries, sorted. Brokers before
    RocketMQ 5 do not tell that: there those of its progress (code 208), which are those that it
    subscribes to where it is online.
    """
    try:
        found = await topics_with_offsets(access, broker, group)
    except RequestCodeNotSupportedError:
        header = ConsumerStatsHeader(consumer_group=group, topic="").encode()
        response = await access.ask(broker, RequestCode.GET_CONSUME_STATS, header)
        answer = await read_object(response, "the group's progress", broker)
        found = {queue.topic for queue in answer.queues("offsetTable")}
    return sorted(found - {RETRY_PREFIX + group})


async def _commit(
    access: Access, address: str, group: str, queue: MessageQueue, offset: int
) -> None:
    header = UpdateConsumerOffsetHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    await access.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
