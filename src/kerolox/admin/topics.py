"""Topics: list, create, describe.

Brokers own topics; name servers only repeat what brokers registered. So a topic is created on the
masters of a cluster.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.answers import read_object, read_struct
from kerolox.admin.asking import all_answers, ask_each, beside, listed
from kerolox.admin.cluster import ClusterInfo, ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID, BrokerAddresses, TopicRoute
from kerolox.client.core.validate import check_new_topic
from kerolox.errors import (
    ClientError,
    ConfigError,
    KeroloxError,
    MessageRejectedError,
    NotFoundError,
    RequestCodeNotSupportedError,
    TopicExistsError,
    TopicNotFoundError,
    TopicRouteNotFoundError,
)
from kerolox.message import MessageQueue
from kerolox.protocol.attributes import AttributesError, format_changes
from kerolox.protocol.bodies import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import Perm, RequestCode
from kerolox.protocol.names import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, is_system_topic
from kerolox.protocol.namesrv import ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kerolox.client.aio.network.access import Access

QUEUES_DEFAULT = 8
"""Read and write queues on each broker of a topic that is created without a number."""


class TopicKind(Enum):
    """The purpose of a topic."""

    NORMAL = "normal"
    RETRY = "retry"
    """What a group failed to consume and gets again."""
    DEAD_LETTERS = "dlq"
    """What a group gave up."""
    SYSTEM = "system"
    """RocketMQ's own, and the topics named after clusters and brokers."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue: offsets, and when its last message was stored (milliseconds, 0: never)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's route and the state of its queues, sorted by broker and queue id."""

    topic: str
    route: TopicRoute
    queues: tuple[QueueStatus, ...]


@checked()
class TopicRequests(ClusterRequests):
    """Asks about topics, and makes them."""

    async def list_topics(self) -> list[str]:
        """All topic names that the name server knows, sorted (code 206).

        Raises:
            RemotingError: no name server answers.
        """
        response = await self.access.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = await read_object(response, "the topic list", "the name server")
        return sorted(answer.texts("topicList"))

    async def create_topic(
        self,
        topic: str,
        *,
        cluster: str = "",
        broker: str = "",
        queues: int = QUEUES_DEFAULT,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> list[str]:
        """Create a topic that is not there (code 17); the addresses of the brokers that have it
        now. Code 17 itself would change one that is there, and the queues it then lacks are not
        read any more: see :meth:`update_topic`.

        Args:
            topic: its name.
            cluster: create it on all masters of this one; empty: of the only one there is.
            broker: create it on the broker of this address only.
            queues: read and write queues on each broker.
            perm: 2 write, 4 read, 6 both.
            order: write ORDER_TOPIC_CONFIG too, so that producers keep to fixed queues.
            attributes: of RocketMQ 5, by name, for example ``{"message.type": "FIFO"}``.
            dry_run: change nothing; the brokers that would have it.

        Raises:
            MessageRejectedError: the name is illegal or RocketMQ's own.
            ConfigError: the attributes have characters that they can't have.
            TopicExistsError: all of those brokers have it, or one has it with other settings.
            ClientError: no such cluster, or several to choose from; or not all that was to be done
                could be: the text says what is done, what is not and why. Another run finishes it.
                Or a broker made it and keeps no attributes, as those of 4.9.
            BrokerError, RemotingError: no broker made it: it refused, or does not answer.
        """
        check_new_topic(topic)
        changes = changes_text(attributes or {}, None)
        info = await self.cluster_info()
        addresses = [broker] if broker else info.masters(cluster or info.only_cluster())
        wanted = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(perm),
            order=order,
            attributes=dict(attributes) if attributes else None,
        )
        await self._check_absent(wanted, addresses)
        if dry_run:
            return addresses
        if order:
            # Before the brokers: a run that ends here has made no topic, and the next one finishes
            # it.
            names = [n for n, b in info.brokers.items() if b.addresses.get(MASTER_ID) in addresses]
            await _note_order(self.access, topic, names, queues)
        await self._make(wanted, addresses, changes)
        await check_attributes(self, topic, addresses, attributes or {})
        return addresses

    async def _make(self, wanted: TopicConfig, addresses: list[str], changes: str) -> None:
        made, failed = await ask_each(
            addresses, lambda address: self.access.put_topic(address, wanted, changes)
        )
        if not made:
            raise next(iter(failed.values()))
        if failed:
            raise ClientError(
                f"topic {wanted.topic_name!r} could not be made on broker {listed(failed)}"
                f"{beside('it is on', made)}; run the command again when all answer"
            )

    async def topic_attributes(self, topic: str) -> dict[str, dict[str, str]]:
        """The attributes of a topic by broker name, sorted (code 351); nothing of a broker without
        any. Slaves count where a master is not there.

        Raises:
            TopicRouteNotFoundError: no name server knows it.
            BrokerError, RemotingError: a name server or broker refused or does not answer.
        """
        route = await self.describe_route(topic)
        addresses = {each.broker_name: each.any_address() for each in route.brokers}
        found = await all_answers(
            sorted(name for name, address in addresses.items() if address),
            lambda name: self.topic_settings(str(addresses[name]), topic),
        )
        return {
            name: dict(settings.attributes)
            for name, settings in found.items()
            if settings is not None and settings.attributes
        }

    async def topic_settings(self, address: str, topic: str) -> TopicConfig | None:
        """What a broker has of a topic (code 351); None: it has none of that name.

        Raises:
            BrokerError: it refused.
            RemotingError: it does not answer, or with something else.
        """
        try:
            response = await self.access.ask(
                address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}
            )
            settings = await read_struct(response, TopicConfig, "the topic", address)
            # RocketMQ 5 writes an empty map where there are none.
            return msgspec.structs.replace(settings, attributes=settings.attributes or None)
        except (TopicNotFoundError, NotFoundError):
            return None
        except RequestCodeNotSupportedError:
            # Before RocketMQ 5 there are only all topics together.
            response = await self.access.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            table = await read_struct(response, TopicConfigTable, "the topic", address)
            return table.topic_config_table.get(topic)

    async def _check_absent(self, wanted: TopicConfig, addresses: list[str]) -> None:
        """Whether something is to be made and nothing would be changed. A run that was cut short
        may have left the topic on some of the brokers as it is wanted; the next one goes on with
        the rest.

        Raises:
            TopicExistsError: it is not so.
        """
        found = {
            address: settings
            for address in addresses
            if (settings := await self.topic_settings(address, wanted.topic_name)) is not None
        }
        if not found or (len(found) < len(addresses) and all(s == wanted for s in found.values())):
            return
        there = "; ".join(
            f"{s.read_queue_nums} read, {s.write_queue_nums} write queues, perm {s.perm}"
            f" on {address}"
            for address, s in found.items()
        )
        raise TopicExistsError(
            f"topic {wanted.topic_name!r} is there already: {there}; nothing was changed. "
            f"'kerolox topic update {wanted.topic_name}' changes it"
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Where a topic is and what its queues hold (codes 105 and 202).

        Raises:
            TopicRouteNotFoundError: no name server knows it.
            BrokerError: a broker refused.
            RemotingError: a name server or master does not answer.
        """
        route = await self.describe_route(topic)
        queues: list[QueueStatus] = []
        for broker in route.brokers:
            address = broker.any_address()
            if address is None:
                continue
            queues += (await queue_statuses(self.access, address, topic)).values()
        queues.sort(key=lambda status: status.queue)
        return TopicDescription(topic, route, tuple(queues))

    async def describe_route(self, topic: str) -> TopicRoute:
        """Where a topic is, as the first name server that answers has it (code 105).

        Raises:
            TopicRouteNotFoundError: it knows no such topic.
            RemotingError: none answers.
        """
        route = await self.access.fetch_route(topic)
        if route is None:
            raise _no_such_topic(self.access, topic)
        return route


def topic_kind(topic: str, info: ClusterInfo) -> TopicKind:
    """What a topic is for, by its name."""
    if topic.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if topic.startswith(DLQ_PREFIX):
        return TopicKind.DEAD_LETTERS
    is_system = (
        is_system_topic(topic)
        or topic in info.clusters
        or topic in info.brokers
        or topic.removesuffix(REPLY_TOPIC_SUFFIX) in info.clusters
    )
    return TopicKind.SYSTEM if is_system else TopicKind.NORMAL


def is_internal_topic(topic: str, info: ClusterInfo) -> bool:
    """RocketMQ's own: system topics, retry and dead-letter topics, and the topics that are named
    after clusters and brokers."""
    return topic_kind(topic, info) is not TopicKind.NORMAL


def changes_text(wanted: Mapping[str, str | None], old: Mapping[str, str] | None) -> str:
    """The field of a request that gives a topic its attributes (``format_changes``).

    Raises:
        ConfigError: they have characters that they can't have.
    """
    try:
        return format_changes(wanted, old)
    except AttributesError as error:
        raise ConfigError(str(error)) from None


async def check_attributes(
    admin: TopicRequests, topic: str, addresses: Iterable[str], wanted: Mapping[str, str | None]
) -> None:
    """Whether brokers took the attributes that they were given; those of 4.9 pass over them.

    Raises:
        ClientError: some have others; the text says who.
        BrokerError, RemotingError: one does not say what it has.
    """
    given = list(addresses) if wanted else []
    found = await all_answers(given, lambda address: admin.topic_settings(address, topic))
    lacking = []
    for address, settings in found.items():
        has = (settings.attributes if settings is not None else None) or {}
        if any(has.get(name) != value for name, value in wanted.items()):
            lacking.append(address)
    if lacking:
        raise ClientError(
            f"topic {topic!r} is on {', '.join(lacking)} without the attributes: a broker of "
            "RocketMQ 4.9 keeps none"
        )


async def _note_order(access: Access, topic: str, names: list[str], queues: int) -> None:
    """Have the name servers know that a topic is ordered, and its queues on each broker."""
    value = ";".join(f"{name}:{queues}" for name in sorted(names))
    entry = {**order_entry(topic), "value": value}
    noted, failed = await ask_each(
        access.name_servers, lambda a: access.ask(a, RequestCode.PUT_KV_CONFIG, entry)
    )
    if failed:
        raise ClientError(
            f"topic {topic!r} is not made on any broker: its order could not be written to "
            f"name server {listed(failed)}{beside('it is at', noted)}; run the command again "
            "when all answer, or name only those that do (-n)"
        )


async def brokers_of(
    access: Access, topic: str
) -> tuple[list[BrokerAddresses], dict[str, KeroloxError]]:
    """The brokers of a topic, as all name servers together know them, and those that did not
    answer. A run that was cut short may have left a topic, or only its order, at one of them.

    Raises:
        TopicRouteNotFoundError: no name server has anything of it.
        RemotingError: none answers.
    """
    found: dict[str, tuple[BrokerAddresses, ...]] = {}

    async def query(name_server: str) -> None:
        route = await access.fetch_route_from(name_server, topic)
        if route is not None:
            found[name_server] = route.brokers
            return
        with contextlib.suppress(NotFoundError):
            await access.ask(name_server, RequestCode.GET_KV_CONFIG, order_entry(topic))
            found[name_server] = ()

    _, silent = await ask_each(access.name_servers, query)
    if not found and len(silent) < len(access.name_servers):
        raise _no_such_topic(access, topic)
    if not found:
        raise next(iter(silent.values()), ClientError("no name server is given"))
    return [broker for brokers in found.values() for broker in brokers], silent


def order_entry(topic: str) -> dict[str, str]:
    """Where name servers keep the order of a topic among their key-values."""
    return {"namespace": ORDER_TOPIC_CONFIG, "key": topic}


def check_not_internal(topic: str) -> None:
    """Refuse to change or delete what RocketMQ needs.

    Raises:
        MessageRejectedError: the topic is RocketMQ's own.
    """
    if is_system_topic(topic):
        raise MessageRejectedError(f"topic {topic!r} belongs to RocketMQ itself; it must stay")


def _no_such_topic(access: Access, topic: str) -> TopicRouteNotFoundError:
    return TopicRouteNotFoundError(
        f"there is no topic {topic!r} at {'; '.join(access.name_servers)}"
    )


async def queue_statuses(
    access: Access, address: str, topic: str
) -> dict[MessageQueue, QueueStatus]:
    """The state of a topic's queues on one broker, by queue (code 202).

    Raises:
        TopicNotFoundError: the broker does not have the topic.
        BrokerError, RemotingError: it refused or does not answer.
    """
    response = await access.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    answer = await read_object(response, "the topic status", address)
    return {
        queue: QueueStatus(
            queue,
            status.required_number("minOffset"),
            status.required_number("maxOffset"),
            status.required_number("lastUpdateTimestamp"),
        )
        for queue, status in sorted(answer.queues("offsetTable").items(), key=lambda item: item[0])
    }
