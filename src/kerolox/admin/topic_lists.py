"""Which topics there are: of a cluster, of a broker, with their groups, and who would read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kerolox.admin.answers import read_object, read_struct
from kerolox.admin.asking import all_answers, answers_of, nodes_of_topic
from kerolox.admin.topics import (
    TopicDescription,
    TopicKind,
    TopicRequests,
    topic_kind,
)
from kerolox.client.core.checking import checked
from kerolox.client.core.consuming.rebalance import allocate, allocate_averagely
from kerolox.client.core.routes import subscribe_queues
from kerolox.protocol.attributes import MESSAGE_TYPE, TopicMessageType
from kerolox.protocol.bodies import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import TopicHeader
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from kerolox.protocol.namesrv import ClusterHeader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.admin.cluster import ClusterInfo
    from kerolox.client.core.routes import TopicRoute
    from kerolox.errors import KeroloxError
    from kerolox.message import MessageQueue


class UnitTopics(Enum):
    """Which topics of units are meant (``topicSysFlag``)."""

    UNIT = "unit"
    """Topics of a unit."""
    SUBSCRIBED = "subscribed"
    """Topics that groups of units subscribe to."""
    SUBSCRIBED_NOT_UNIT = "subscribed_not_unit"
    """Those of them that belong to no unit."""


_UNIT_CODES = {
    UnitTopics.UNIT: RequestCode.GET_UNIT_TOPIC_LIST,
    UnitTopics.SUBSCRIBED: RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    UnitTopics.SUBSCRIBED_NOT_UNIT: RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}


@dataclass(frozen=True, slots=True)
class TopicGroups:
    """A topic, where it is and who consumes it (``topicList -c``)."""

    topic: str
    clusters: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic in a list."""

    topic: str
    kind: TopicKind
    permissions: dict[str, int]
    """By broker: 2 write, 4 read, 6 both."""
    read_queues: int
    """Of all brokers together."""
    write_queues: int
    messages: int
    """That queues lead to and that are not deleted yet."""
    last_update_ms: int
    """When the last message was stored, since the epoch; 0: never."""
    message_types: tuple[str, ...] = ()
    """What its brokers have as ``message.type``, sorted: one value, unless they differ. Empty: it
    has none, and takes all."""
    error: str = ""
    """Why nothing more is known of it."""


@checked()
class TopicListRequests(TopicRequests):
    """Lists topics by cluster, group and kind."""

    async def topic_summaries(
        self, kinds: Iterable[TopicKind], *, message_types: Iterable[str] = ()
    ) -> list[TopicSummary]:
        """The topics of some kinds with what they hold, sorted by name; two requests or more for
        each, and one for each broker (code 21).

        Args:
            kinds: their kinds.
            message_types: only topics of these (``message.type``); empty: of all. One without a
                type takes all messages, as one of type MIXED, and is listed with those.

        Raises:
            BrokerError, RemotingError: the name server does not say which topics there are; with
                ``message_types`` also a broker that does not say which types its topics have.
        """
        wanted, types = frozenset(kinds), frozenset(message_types)
        info = await self.cluster_info()
        found = {name: topic_kind(name, info) for name in await self.list_topics()}
        typed, silent = await _message_types(self, info)
        if types and silent:
            raise next(iter(silent.values()))
        names = [
            name
            for name, kind in found.items()
            if kind in wanted
            and (not types or types & set(typed.get(name) or (TopicMessageType.MIXED,)))
        ]
        described, failed = await answers_of(names, lambda name: self.describe_topic(name))
        return [
            _summary(name, found[name], described.get(name), typed.get(name, ()), failed.get(name))
            for name in names
        ]

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster as a name server knows them, sorted (code 224). Errors: see
        ``Access.ask_name_server``.
        """
        header = ClusterHeader(cluster=cluster).encode()
        response = await self.access.ask_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        answer = await read_object(response, "the topic list", "the name server")
        return sorted(answer.texts("topicList"))

    async def system_topics(self, *, broker: str = "") -> list[str]:
        """Names that users may not take, sorted: those of a broker (code 305), or the clusters and
        brokers of a name server (code 304).

        Args:
            broker: ``host:port``; empty: a name server.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        if broker:
            response = await self.access.ask(broker, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        else:
            response = await self.access.ask_name_server(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        answer = await read_object(response, "the system topics", broker or "the name server")
        return sorted(answer.texts("topicList"))

    async def unit_topics(self, which: UnitTopics | str) -> list[str]:
        """The topics of units, sorted (codes 311 to 313).

        Args:
            which: a member of ``UnitTopics``, or its value.

        Raises:
            ValueError: ``which`` is none.
            BrokerError, RemotingError: see ``Access.ask_name_server``.
        """
        response = await self.access.ask_name_server(_UNIT_CODES[UnitTopics(which)])
        answer = await read_object(response, "the topic list", "the name server")
        return sorted(answer.texts("topicList"))

    async def all_topic_settings(
        self, broker: str, *, internal: bool = True, groups: bool = True
    ) -> dict[str, TopicConfig]:
        """The topics of a broker by name, sorted (code 21).

        Args:
            broker: ``host:port``.
            internal: RocketMQ's own too.
            groups: topics of retries and dead letters too.

        Raises:
            BrokerError, RemotingError: it refused or does not answer.
        """
        response = await self.access.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await read_struct(response, TopicConfigTable, "the topics", broker)
        table = answer.topic_config_table
        hidden = set() if internal else set(await self.system_topics(broker=broker))
        return {
            name: table[name]
            for name in sorted(table)
            if name not in hidden and (groups or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
        }

    async def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic, sorted (``topicClusterList``).

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            RemotingError: none answers.
        """
        return _clusters(await self.cluster_info(), await self.access.route(topic))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume a topic, online or not, sorted (code 300), of all its brokers.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        header = TopicHeader(topic=topic).encode()

        async def ask(address: str) -> tuple[str, ...]:
            response = await self.access.ask(
                address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header
            )
            return (await read_object(response, "the groups", address)).texts("groupList")

        nodes = await nodes_of_topic(self, topic)
        found = await all_answers(nodes.values(), ask)
        return sorted({group for groups in found.values() for group in groups})

    async def topics_with_groups(self) -> list[TopicGroups]:
        """All topics but those of retries and dead letters, with their clusters and groups, sorted
        (``topicList -c``). Where the brokers of one do not answer it has no groups.

        Raises:
            RemotingError: no name server answers.
        """
        info = await self.cluster_info()
        topics = [
            topic
            for topic in await self.list_topics()
            if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

        async def query(topic: str) -> TopicGroups:
            clusters = _clusters(info, await self.access.route(topic))
            return TopicGroups(topic, tuple(clusters), tuple(await self.groups_of_topic(topic)))

        found, _ = await answers_of(topics, query)
        return [found.get(topic) or TopicGroups(topic, (), ()) for topic in topics]

    async def allocate_queues(
        self, topic: str, client_ids: Iterable[str]
    ) -> dict[str, list[MessageQueue]]:
        """Who would have which queue if these were the members of a group (``allocateMQ``), by the
        strategy AVG.

        Args:
            topic: the topic.
            client_ids: of the members; ``mqadmin`` gives IP addresses.

        Raises:
            TopicRouteNotFoundError: no name server knows the topic.
            RemotingError: none answers.
        """
        queues = subscribe_queues(topic, await self.access.route(topic))
        members = list(dict.fromkeys(client_ids))
        return {each: allocate(allocate_averagely, each, queues, members) for each in members}


async def _message_types(
    admin: TopicListRequests, info: ClusterInfo
) -> tuple[dict[str, tuple[str, ...]], dict[str, KeroloxError]]:
    """The types of all topics that have some, by topic, and the brokers that do not say."""
    addresses = [address for each in info.nodes() if (address := each.any_address())]
    tables, silent = await answers_of(addresses, lambda address: admin.all_topic_settings(address))
    types: dict[str, set[str]] = {}
    for table in tables.values():
        for name, settings in table.items():
            if settings.attributes and (value := settings.attributes.get(MESSAGE_TYPE)):
                types.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in types.items()}, silent


def _summary(
    topic: str,
    kind: TopicKind,
    description: TopicDescription | None,
    message_types: tuple[str, ...],
    error: KeroloxError | None,
) -> TopicSummary:
    parts = description.route.queues if description else ()
    queues = description.queues if description else ()
    return TopicSummary(
        topic=topic,
        kind=kind,
        permissions={each.broker_name: each.perm for each in parts},
        read_queues=sum(each.read_queues for each in parts),
        write_queues=sum(each.write_queues for each in parts),
        messages=sum(each.max_offset - each.min_offset for each in queues),
        last_update_ms=max((each.last_update_timestamp for each in queues), default=0),
        message_types=message_types,
        error=str(error or ""),
    )


def _clusters(info: ClusterInfo, route: TopicRoute) -> list[str]:
    brokers = {broker.broker_name for broker in route.brokers}
    return sorted(name for name, names in info.clusters.items() if brokers.intersection(names))
