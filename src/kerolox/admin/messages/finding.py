"""Finding a message, and what became of it: by id, by key, by place; who consumed it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kerolox.admin.answers import read_object
from kerolox.admin.asking import answers_of
from kerolox.admin.consumers.members import CALL_TIMEOUT_FACTOR
from kerolox.admin.consumers.progress import ProgressRequests
from kerolox.admin.topic_lists import TopicListRequests
from kerolox.client.aio.network.lookups import (
    END_OF_TIME_MS,
    find_message,
    message_trace,
    search_messages,
    view_message,
)
from kerolox.client.core.checking import checked
from kerolox.errors import (
    ClientError,
    ConsumerNotOnlineError,
    KeroloxError,
)
from kerolox.message import ALL_TAGS, MessageExt, MessageId
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import ConsumeDirectlyHeader, ResumeCheckHeader
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, CONSUME_PASSIVELY, HALF_TOPIC, TRACE_TOPIC

if TYPE_CHECKING:
    from kerolox.admin.consumers.members import ConsumerConnections
    from kerolox.client.core.tracing.trace import TraceView

KEY_MATCHES_MAX = 64
"""Default number of messages per broker that a search by key finds, as in ``queryMsgByKey``."""


class TrackType(Enum):
    """The outcome of a message in a group (``TrackType``)."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group is past it, and its tag is none that the group wants."""
    PULL = "PULL"
    """The group pulls, so nobody but itself knows."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    """Nobody of the group is online, and no broker has an offset of it."""
    UNKNOWN = "UNKNOWN"
    """The group could not be asked; the error says why."""


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The outcome of a message in one group, and why."""

    group: str
    type: TrackType
    error: str = ""
    is_online: bool = True
    """False: nobody of it is online. Its offsets say whether it is past the message; it may have
    filtered that."""


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult:
    """The result of a message that a consumer consumed on request."""

    result: str
    """CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL."""
    remark: str
    """The error, where there was one."""
    spent_ms: int
    is_orderly: bool
    is_auto_commit: bool


@checked()
class MessageQueryRequests(ProgressRequests, TopicListRequests):
    """Finds messages and what became of them."""

    async def message_by_id(self, message_id: str, *, topic: str = "") -> MessageExt:
        """The message with an id (``queryMsgById``, ``queryMsgByUniqueKey``; codes 33 and 12).

        Args:
            message_id: the broker's (offset) id, or the producer's unique id.
            topic: its topic. Without one it takes the broker's id alone, and asks the broker that
                the id names, whoever that is.

        Raises:
            NotFoundError: no broker has it.
            ClientError: it is no id of a broker, and there is no topic.
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        if topic:
            return await find_message(self.access, topic, message_id)
        try:
            located = MessageId.parse(message_id)
        except ValueError as error:
            raise ClientError(
                f"{error}; if it is a producer's id, say in which topic it is (--topic TOPIC)"
            ) from None
        if not 0 < located.port < 65_536:
            raise ClientError(
                f"{message_id} is a producer's id, which names no broker; say in which topic it is "
                "(kerolox message get ID --topic TOPIC; in programs topic=...)"
            )
        return await view_message(self.access, located)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = KEY_MATCHES_MAX,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
    ) -> list[MessageExt]:
        """Messages with a key, oldest first (``queryMsgByKey``, code 12); empty when there is none.

        Args:
            topic: where to look.
            key: one of a message's keys, or its unique id.
            max_messages: most per broker.
            begin_ms: stored at or after (ms since the epoch).
            end_ms: stored at or before.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        return await search_messages(
            self.access, topic, key, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms
        )

    async def messages_by_unique_key(self, topic: str, unique_key: str) -> list[MessageExt]:
        """All messages with a producer's id, oldest first (``queryMsgByUniqueKey -a``): retries
        and dead letters have that of the first one. Errors: see :meth:`messages_by_key`.
        """
        return await search_messages(self.access, topic, unique_key, unique=True)

    async def message_traces(
        self,
        message_id: str,
        *,
        topic: str = TRACE_TOPIC,
        max_messages: int = KEY_MATCHES_MAX,
    ) -> list[TraceView]:
        """What clients told of a message, oldest first (``queryMsgTraceById``).

        Args:
            message_id: the producer's id.
            topic: the topic that has the traces.
            max_messages: most trace messages per broker that are read.

        Raises:
            TopicRouteNotFoundError: there is no such topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        return await message_trace(self.access, message_id, topic=topic, max_messages=max_messages)

    async def message_tracks(self, message: MessageExt) -> list[MessageTrack]:
        """What each group that consumes the topic did with a message (``messageTrackDetail``).

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker of the topic refused or does not answer.
        """
        groups = await self.groups_of_topic(message.topic)
        found, _ = await answers_of(groups, lambda group: self._track(message, group))
        return list(found.values())

    async def consume_directly(
        self, group: str, client_id: str, message_id: str, *, topic: str = ""
    ) -> ConsumeDirectlyResult:
        """Have one consumer handle a stored message now (``queryMsgById -g -d``, code 309, which a
        broker passes on to it). Its offset stays as it is.

        Args:
            group: the consumer's.
            client_id: the consumer's.
            message_id: the broker's id, or the producer's with the topic.
            topic: the message's.

        Raises:
            NotFoundError: there is no such message.
            BrokerSystemError: the consumer is not online.
            ConsumeTimeoutError: it does not answer.
            RemotingError: the broker does not answer, or with something else.
        """
        message = await self.message_by_id(message_id, topic=topic)
        address = f"{message.store_host[0]}:{message.store_host[1]}"
        header = ConsumeDirectlyHeader(
            consumer_group=group, client_id=client_id, msg_id=message.offset_message_id
        ).encode()
        response = await self.access.ask(
            address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_seconds=self.access.timeout_seconds * CALL_TIMEOUT_FACTOR,
        )
        answer = await read_object(response, f"the result of {client_id}", address)
        return ConsumeDirectlyResult(
            answer.text("consumeResult"),
            answer.text("remark"),
            answer.number("spentTimeMills"),
            answer.flag("order"),
            answer.flag("autoCommit"),
        )

    async def resume_check(self, message_id: str, *, topic: str = "") -> None:
        """Have a broker ask again how a transaction ended (``resumeCheckHalfMessage``, code 323),
        of one that it has given up.

        Args:
            message_id: of the half message: the broker's id, or the producer's with the topic.
            topic: the topic of half messages, where the producer's id is given.

        Raises:
            NotFoundError: there is no such message.
            ClientError: it is no half message; RocketMQ's broker would make one of it.
            BrokerError: the broker could not do it.
            RemotingError: it does not answer.
        """
        message = await self.message_by_id(message_id, topic=topic)
        if message.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
            raise ClientError(f"message {message_id} of topic {message.topic!r} is no half message")
        address = f"{message.store_host[0]}:{message.store_host[1]}"
        header = ResumeCheckHeader(msg_id=message.offset_message_id).encode()
        await self.access.ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def _track(self, message: MessageExt, group: str) -> MessageTrack:
        try:
            online = await self.consumer_connections(group)
        except ConsumerNotOnlineError as error:
            return await self._track_offline(message, group, error)
        except KeroloxError as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))
        try:
            if online.consume_type != CONSUME_PASSIVELY:
                return MessageTrack(group, TrackType.PULL)
            if not await self._is_past(message, group):
                return MessageTrack(group, TrackType.NOT_CONSUME_YET)
        except ConsumerNotOnlineError as error:
            return MessageTrack(group, TrackType.NOT_ONLINE, str(error))
        except KeroloxError as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))
        wanted = _wants(online, message)
        return MessageTrack(
            group, TrackType.CONSUMED if wanted else TrackType.CONSUMED_BUT_FILTERED
        )

    async def _track_offline(
        self, message: MessageExt, group: str, offline: ConsumerNotOnlineError
    ) -> MessageTrack:
        """By its offsets, which brokers keep; what it subscribes to they do not report."""
        try:
            is_past = await self._is_past(message, group)
        except ConsumerNotOnlineError:
            return MessageTrack(group, TrackType.NOT_ONLINE, str(offline), is_online=False)
        except KeroloxError as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error), is_online=False)
        done = TrackType.CONSUMED if is_past else TrackType.NOT_CONSUME_YET
        return MessageTrack(group, done, is_online=False)

    async def _is_past(self, message: MessageExt, group: str) -> bool:
        """The group's offset is behind the message (``consumed``)."""
        progress = await self.group_progress(group, topic=message.topic)
        route = await self.access.route(message.topic)
        stored_at = f"{message.store_host[0]}:{message.store_host[1]}"
        names = {each.broker_name for each in route.brokers if stored_at in each.addresses.values()}
        return any(
            each.queue.queue_id == message.queue_id
            and each.queue.topic == message.topic
            and each.queue.broker_name in names
            and each.consumer_offset > message.queue_offset
            for each in progress.queues
        )


def _wants(online: ConsumerConnections, message: MessageExt) -> bool:
    for each in online.subscriptions:
        if each.topic == message.topic and each.is_tag_type and each.tags_set:
            return message.tags in each.tags_set or ALL_TAGS in each.tags_set
    return True
