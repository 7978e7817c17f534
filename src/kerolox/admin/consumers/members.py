"""Who is online: members of consumer groups and of producer groups, and what a consumer does."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kerolox.admin.answers import Members, read_object
from kerolox.admin.asking import answers_of, nodes_of_group, nodes_of_topic
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.errors import (
    AccessDeniedError,
    BrokerSystemError,
    ClientError,
    ConsumerNotOnlineError,
    KeroloxError,
)
from kerolox.protocol.bodies import SubscriptionData
from kerolox.protocol.codes import (
    KEROLOX_VERSION,
    PROTOCOL_TYPE,
    REMOTING,
    VERSION_3_1_8,
    RequestCode,
    software_text,
    version_text,
)
from kerolox.protocol.headers import (
    ConsumerGroupHeader,
    ProducerGroupHeader,
    RunningInfoHeader,
)
from kerolox.protocol.names import CONSUME_PASSIVELY
from kerolox.text import duration_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kerolox.client.aio.network.access import Access
    from kerolox.message import MessageQueue

CALL_TIMEOUT_FACTOR = 3
"""What a broker passes on to a client may take so many times the time limit of other questions."""

BLOCKED_AFTER_MS = 60_000
"""A queue with messages of which none was consumed for so long is told of."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, order=True)
class ClientConnection:
    """A client that a broker knows (``Connection``)."""

    client_id: str
    address: str
    """``host:port`` as the broker sees it."""
    language: str
    """``JAVA``, ``PYTHON`` ..."""
    version: int
    """Number of the RocketMQ version that it says it is (``MQVersion``), for example 409."""
    protocol: str = REMOTING
    """``remoting``, or ``grpc``: a client of RocketMQ 5 at a broker of Kerolox."""
    client_version: str = ""
    """As a client by gRPC names it, for example ``5.0.6``."""

    @property
    def version_name(self) -> str:
        """For example ``V4_9_8``; of a client by gRPC as it names it."""
        return self.client_version or version_text(self.version)


@dataclass(frozen=True, slots=True)
class ConsumerConnections:
    """The members of a consumer group that are online (``consumerConnection``)."""

    group: str
    members: tuple[ClientConnection, ...]
    consume_type: str
    """CONSUME_PASSIVELY (push) or CONSUME_ACTIVELY (pull)."""
    message_model: str
    """CLUSTERING or BROADCASTING."""
    consume_from_where: str
    subscriptions: tuple[SubscriptionData, ...]

    @property
    def version_min(self) -> int:
        """The oldest member's version."""
        return min((member.version for member in self.members), default=0)


@dataclass(frozen=True, slots=True, order=True)
class ProducerInfo:
    """A producer that a broker knows (``producer``)."""

    group: str
    client_id: str
    address: str
    language: str
    version: int
    heartbeat_ms: int
    """When the broker heard of it last, since the epoch."""
    protocol: str = REMOTING
    client_version: str = ""
    """Both as those of :class:`ClientConnection`."""

    @property
    def version_name(self) -> str:
        """For example ``V4_9_8``; of a client by gRPC as it names it."""
        return self.client_version or version_text(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo:
    """A queue that a consumer has, with what it keeps of it in memory."""

    queue: MessageQueue
    committed_offset: int
    cached_messages: int
    cached_mib: int
    cached_offset_min: int
    cached_offset_max: int
    is_locked: bool
    is_dropped: bool
    unlock_tries: int
    locked_ms: int
    """When it was locked last, since the epoch."""
    pulled_ms: int
    consumed_ms: int
    """When a message was given to a listener last; 0: none was yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConsumption:
    """The consumption of a topic by one consumer, over the last minute (``ConsumeStatus``)."""

    topic: str
    pull_ms: float
    """Mean time of a pull."""
    pulled_per_second: float
    consume_ms: float
    """Mean time of a message."""
    consumed_per_second: float
    failed_per_second: float
    failed: int
    """In the last hour; of Kerolox consumers since their start."""


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """The state of a consumer, by its own report (``consumerStatus``)."""

    client_id: str
    properties: Mapping[str, str]
    """By RocketMQ's names, for example PROP_CLIENT_VERSION."""
    subscriptions: tuple[SubscriptionData, ...]
    queues: tuple[ProcessQueueInfo, ...]
    consumption: tuple[TopicConsumption, ...]
    stacks: str = field(default="", repr=False)
    """What its threads do; only where it was asked for."""

    @property
    def is_push(self) -> bool:
        """It is a push consumer."""
        return self.properties.get("PROP_CONSUME_TYPE") == CONSUME_PASSIVELY

    @property
    def is_orderly(self) -> bool:
        """It consumes each queue in order."""
        return self.properties.get("PROP_CONSUMEORDERLY") == "true"

    @property
    def protocol(self) -> str:
        """As that of :class:`ClientConnection`."""
        return self.properties.get(PROTOCOL_TYPE, REMOTING)

    @property
    def kerolox_version(self) -> str:
        """The version of Kerolox that it runs; empty: another client, or one of ours that is too
        old to tell."""
        return self.properties.get(KEROLOX_VERSION, "")


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The states of all members of a group, by their own reports (``consumerStatus``)."""

    connections: ConsumerConnections
    members: tuple[RunningInfo, ...]
    silent: Mapping[str, str]
    """By client id: why a member said nothing."""
    has_same_subscriptions: bool
    """False: members of one group subscribe to different things, so some messages get lost."""
    findings: tuple[str, ...]
    """Queues that stand still, as ``mqadmin`` reports them."""

    @property
    def software(self) -> dict[str, str]:
        """What each member runs, by client id: ``Kerolox 0.2.0``, or the version of RocketMQ that
        it says it is, as ``V4_9_8``."""
        ours = {each.client_id: each.kerolox_version for each in self.members}
        return {
            each.client_id: software_text(ours.get(each.client_id, ""), each.version_name)
            for each in self.connections.members
        }


@checked()
class MemberRequests(ClusterRequests):
    """Asks about members of groups, and producers."""

    async def consumer_connections(self, group: str, *, broker: str = "") -> ConsumerConnections:
        """The members of a consumer group that are online (code 203).

        Args:
            group: its name.
            broker: ``host:port``; empty: all of its retry topic. A member by gRPC may be at one of
                them alone.

        Raises:
            ConsumerNotOnlineError: no broker knows a member.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        header = ConsumerGroupHeader(consumer_group=group).encode()

        async def ask(address: str) -> ConsumerConnections:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            response = await self.access.ask(address, code, header)
            answer = await read_object(response, "the group's members", address)
            return _consumer_connections(group, answer)

        nodes = {} if broker else await nodes_of_group(self, group)
        answers, failed = await answers_of([broker] if broker else nodes.values(), ask)
        found = [each for each in answers.values() if each.members]
        if found:
            return _joined(found)
        for error in failed.values():
            raise error
        raise ConsumerNotOnlineError(f"no member of consumer group {group!r} is online")

    async def producer_connections(
        self, group: str, *, topic: str = "", broker: str = ""
    ) -> tuple[ClientConnection, ...]:
        """The members of a producer group that are online, sorted (code 204).

        Args:
            group: its name.
            topic: one that it sends to; its brokers in turn.
            broker: ``host:port`` of a broker to ask instead.

        Raises:
            ClientError: neither a topic nor a broker is given, or no broker knows the group.
            TopicRouteNotFoundError: no name server knows the topic.
            RemotingError: a broker does not answer.
        """
        if not topic and not broker:
            raise ClientError("give a topic that the group sends to, or a broker")
        header = ProducerGroupHeader(producer_group=group).encode()

        async def ask(address: str) -> tuple[ClientConnection, ...] | None:
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            try:
                response = await self.access.ask(address, code, header)
            except AccessDeniedError:
                raise
            except BrokerSystemError:  # its way to say that it knows no such group
                return None
            answer = await read_object(response, "the group's members", address)
            return _connections(answer) or None

        found = await _first(self.access, broker, partial(nodes_of_topic, self, topic), ask)
        if found is None:
            raise ClientError(f"no member of producer group {group!r} is online")
        return found

    async def all_producers(self, broker: str) -> list[ProducerInfo]:
        """All producers that a broker knows, sorted (``producer``, code 328).

        Raises:
            RequestCodeNotSupportedError: the broker is older than 4.9.3.
            BrokerError, RemotingError: it refused or does not answer.
        """
        response = await self.access.ask(broker, RequestCode.GET_ALL_PRODUCER_INFO)
        answer = await read_object(response, "the producers", broker)
        return sorted(
            ProducerInfo(
                group,
                each.text("clientId"),
                each.text("remoteIP").removeprefix("/"),
                each.text("language"),
                each.number("version"),
                each.number("lastUpdateTimestamp"),
                each.text(PROTOCOL_TYPE, REMOTING),
                each.text("clientVersion"),
            )
            for group, members in answer.lists("data").items()
            for each in members
        )

    async def consumer_running_info(
        self, group: str, client_id: str, *, stacks: bool = False, broker: str = ""
    ) -> RunningInfo:
        """What one consumer says of itself (code 307, which a broker passes on to it).

        Args:
            group: the consumer's.
            client_id: the consumer's.
            stacks: what its threads do, too.
            broker: ``host:port`` of the broker that passes it on; empty: one of the retry topic.

        Raises:
            BrokerSystemError: the consumer is not online.
            ConsumeTimeoutError: it does not answer.
            RemotingError: the broker does not answer, or with something else.
        """
        header = RunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=stacks)

        async def ask(address: str) -> RunningInfo | None:
            response = await self.access.ask(
                address,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                header.encode(),
                timeout_seconds=self.access.timeout_seconds * CALL_TIMEOUT_FACTOR,
            )
            answer = await read_object(response, f"the state of {client_id}", address)
            return _running_info(client_id, answer)

        found = await _first(self.access, broker, partial(nodes_of_group, self, group), ask)
        if found is None:
            raise ConsumerNotOnlineError(f"no broker of group {group!r} has an address")
        return found

    async def consumer_status(
        self, group: str, *, stacks: bool = False, broker: str = ""
    ) -> ConsumerStatus:
        """What all members of a group say of themselves, and whether they fit together.

        Args:
            group: its name.
            stacks: what their threads do, too.
            broker: ``host:port`` of the broker that passes it on; empty: one of the retry topic.

        Raises:
            ConsumerNotOnlineError: it has no member.
            BrokerError, RemotingError: no broker says who its members are.
        """
        connections = await self.consumer_connections(group, broker=broker)
        askable = [each for each in connections.members if each.version >= VERSION_3_1_8]
        found, failed = await answers_of(
            sorted(each.client_id for each in askable),
            lambda client: self.consumer_running_info(group, client, stacks=stacks, broker=broker),
        )
        silent = {client: str(error) for client, error in failed.items()}
        for each in connections.members:
            if each.version < VERSION_3_1_8:
                silent[each.client_id] = f"version {each.version_name} can't be asked"
        members = tuple(found.values())
        subscriptions = {frozenset(map(_subscribed, each.subscriptions)) for each in members}
        now_ms = time.time_ns() // 1_000_000
        findings = tuple(text for each in members for text in _findings(each, now_ms))
        return ConsumerStatus(connections, members, silent, len(subscriptions) <= 1, findings)


async def _first(
    access: Access,
    broker: str,
    nodes: Callable[[], Awaitable[dict[str, str]]],
    ask: Callable[[str], Awaitable[_Found | None]],
) -> _Found | None:
    """What the first broker says that has something to say.

    Raises:
        KeroloxError: none has, and this is why.
    """
    addresses = [broker] if broker else list((await nodes()).values())
    last: KeroloxError | None = None
    for address in addresses:
        try:
            found = await ask(address)
        except KeroloxError as error:
            last = error
            continue
        if found is not None:
            return found
    if last is not None:
        raise last
    return None


def _consumer_connections(group: str, answer: Members) -> ConsumerConnections:
    table = answer.table("subscriptionTable")
    return ConsumerConnections(
        group,
        _connections(answer),
        answer.text("consumeType"),
        answer.text("messageModel"),
        answer.text("consumeFromWhere"),
        tuple(table[topic].struct(SubscriptionData) for topic in sorted(table)),
    )


def _joined(answers: Sequence[ConsumerConnections]) -> ConsumerConnections:
    """What several brokers say, the first one first: those that only another knows are added."""
    members = list(answers[0].members)
    known = {each.client_id for each in members}
    for answer in answers[1:]:
        members += [each for each in answer.members if each.client_id not in known]
        known.update(each.client_id for each in answer.members)
    return replace(answers[0], members=tuple(sorted(members)))


def _connections(answer: Members) -> tuple[ClientConnection, ...]:
    return tuple(
        sorted(
            ClientConnection(
                each.text("clientId"),
                each.text("clientAddr"),
                each.text("language"),
                each.number("version"),
                each.text(PROTOCOL_TYPE, REMOTING),
                each.text("clientVersion"),
            )
            for each in answer.objects("connectionSet")
        )
    )


def _running_info(client_id: str, answer: Members) -> RunningInfo:
    subscriptions = [each.struct(SubscriptionData) for each in answer.objects("subscriptionSet")]
    return RunningInfo(
        client_id,
        answer.text_table("properties"),
        tuple(sorted(subscriptions, key=lambda each: each.topic)),
        tuple(_process_queue(queue, each) for queue, each in answer.queues("mqTable").items()),
        tuple(_consumption(topic, each) for topic, each in answer.table("statusTable").items()),
        answer.text("jstack"),
    )


def _process_queue(queue: MessageQueue, info: Members) -> ProcessQueueInfo:
    return ProcessQueueInfo(
        queue=queue,
        committed_offset=info.number("commitOffset"),
        cached_messages=info.number("cachedMsgCount"),
        cached_mib=info.number("cachedMsgSizeInMiB"),
        cached_offset_min=info.number("cachedMsgMinOffset"),
        cached_offset_max=info.number("cachedMsgMaxOffset"),
        is_locked=info.flag("locked"),
        is_dropped=info.flag("droped"),
        unlock_tries=info.number("tryUnlockTimes"),
        locked_ms=info.number("lastLockTimestamp"),
        pulled_ms=info.number("lastPullTimestamp"),
        consumed_ms=info.number("lastConsumeTimestamp"),
    )


def _consumption(topic: str, status: Members) -> TopicConsumption:
    return TopicConsumption(
        topic=topic,
        pull_ms=status.real("pullRT"),
        pulled_per_second=status.real("pullTPS"),
        consume_ms=status.real("consumeRT"),
        consumed_per_second=status.real("consumeOKTPS"),
        failed_per_second=status.real("consumeFailedTPS"),
        failed=status.number("consumeFailedMsgs"),
    )


def _subscribed(subscription: SubscriptionData) -> tuple[str, str, str]:
    """What counts when subscriptions are compared: versions differ in any case."""
    kind = subscription.expression_type or "TAG"
    return subscription.topic, kind, subscription.sub_string or ""


def _findings(info: RunningInfo, now_ms: int) -> list[str]:
    """Queues that stand still (``analyzeProcessQueue``)."""
    found = []
    for each in info.queues if info.is_push else ():
        where = (
            f"{info.client_id} {each.queue.topic} {each.queue.broker_name}/{each.queue.queue_id}"
        )
        if info.is_orderly and not each.is_locked:
            since = f"for {duration_text(now_ms - each.locked_ms)}" if each.locked_ms else "yet"
            found.append(f"{where} is not locked {since}")
        elif info.is_orderly and each.is_dropped and each.unlock_tries > 0:
            found.append(f"{where} could not be unlocked in {each.unlock_tries} tries")
        idle_ms = now_ms - each.consumed_ms
        if not info.is_orderly and idle_ms > BLOCKED_AFTER_MS and each.cached_messages > 0:
            since = f"for {duration_text(idle_ms)}" if each.consumed_ms else "yet"
            found.append(f"{where} has {each.cached_messages} messages, none done {since}")
    return found
