"""How much goes through: metrics of brokers, topics with their groups, nodes of clusters."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.admin.answers import Members, read_object
from kerolox.admin.asking import answers_of
from kerolox.admin.brokers import BrokerRequests, BrokerRuntime
from kerolox.admin.consumers.progress import ProgressRequests
from kerolox.admin.topic_lists import TopicListRequests
from kerolox.admin.topics import TopicDescription
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import ViewBrokerStatsHeader
from kerolox.protocol.names import DLQ_PREFIX, GROUP_GET_NUMS, RETRY_PREFIX, TOPIC_PUT_NUMS

RECORDS_MEASURED = 16
"""Records of a topic whose mean size stands for all."""


@dataclass(frozen=True, slots=True)
class StatsItem:
    """A metric over a time."""

    total: int = 0
    """``sum``."""
    per_second: float = 0.0
    """``tps``."""
    mean: float = 0.0
    """``avgpt``: of one count; milliseconds or bytes, as the metric is."""


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """A metric over the last minute, hour and day (``BrokerStatsData``)."""

    minute: StatsItem
    hour: StatsItem
    day: StatsItem

    @property
    def day_total(self) -> int:
        """Of the last day, or of as much of it as the broker has (``compute24HourSum``)."""
        return self.day.total or self.hour.total or self.minute.total


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic:
    """How much goes into a topic and out to one group (``statsAll``)."""

    topic: str
    group: str = ""
    """Empty: nobody consumes the topic."""
    lag: int = 0
    """Messages that are left for the group (``Accumulation``)."""
    in_per_second: float
    out_per_second: float = 0.0
    in_day: int
    """Messages of the last day."""
    out_day: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicUsage:
    """What a topic holds, and how fast it grows."""

    topic: str
    messages: int
    """That queues lead to and that are not deleted yet."""
    bytes_about: int
    """Of these in the log: their number times the mean record among the newest of the fullest
    queue, since brokers count no bytes by topic."""
    in_per_second: float
    """Over the last minute."""
    in_day: int
    """Messages of the last day, or of as much of it as brokers count."""
    last_stored_ms: int
    """When the last message was stored, since the epoch; 0: never."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A node of a cluster with its metrics (``clusterList``)."""

    cluster: str
    broker_name: str
    broker_id: int
    """0: the master."""
    address: str
    runtime: BrokerRuntime | None
    """None: it did not answer."""
    error: str = ""


@checked()
class TrafficRequests(ProgressRequests, BrokerRequests, TopicListRequests):
    """Asks how much is sent and consumed."""

    async def broker_stats(self, broker: str, name: str, key: str) -> BrokerStats:
        """A metric of a broker over the last minute, hour and day (code 315).

        Args:
            broker: ``host:port``.
            name: for example TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, GROUP_GET_NUMS, SNDBCK_PUT_NUMS.
            key: a topic, or ``topic@group``, as the metric needs it.

        Raises:
            BrokerSystemError: the broker has no such metric (yet).
            RemotingError: it does not answer, or with something else.
        """
        header = ViewBrokerStatsHeader(stats_name=name, stats_key=key).encode()
        response = await self.access.ask(broker, RequestCode.VIEW_BROKER_STATS_DATA, header)
        answer = await read_object(response, "the metric", broker)
        return BrokerStats(
            _item(answer.members("statsMinute")),
            _item(answer.members("statsHour")),
            _item(answer.members("statsDay")),
        )

    async def traffic(self, *, topic: str = "", active_only: bool = False) -> list[TopicTraffic]:
        """How much goes into topics and out to their groups (``statsAll``), sorted by topic and
        group; metrics that a broker does not report count as 0.

        Args:
            topic: only this one; empty: all but those of retries and dead letters.
            active_only: only where there was a message in the last day.

        Raises:
            RemotingError: no name server answers.
        """
        topics = [
            name
            for name in ([topic] if topic else await self.list_topics())
            if topic or not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]
        found, failed = await answers_of(topics, lambda name: self._traffic_of(name))
        if topic and failed:
            raise failed[topic]
        return [
            each
            for name in topics
            for each in found.get(name, ())
            if not active_only or each.in_day or each.out_day
        ]

    async def topic_usage(
        self, topic: str, *, described: TopicDescription | None = None
    ) -> TopicUsage:
        """What a topic holds and how fast it grows: a question about its route, two for each of
        its masters and one for the size. What masters do not count yet is 0.

        Args:
            topic: its name.
            described: what :meth:`describe_topic` has just given of it, which is not asked for
                again then; None: it is asked for.

        Raises:
            TopicRouteNotFoundError: no name server knows it.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        described = described or await self.describe_topic(topic)
        masters = (broker.addresses.get(MASTER_ID) for broker in described.route.brokers)
        stats, _ = await answers_of(
            (address for address in masters if address),
            lambda address: self.broker_stats(address, TOPIC_PUT_NUMS, topic),
        )
        messages = sum(each.max_offset - each.min_offset for each in described.queues)
        return TopicUsage(
            topic=topic,
            messages=messages,
            bytes_about=round(messages * await self._record_bytes_mean(described)),
            in_per_second=sum(each.minute.per_second for each in stats.values()),
            in_day=sum(each.day_total for each in stats.values()),
            last_stored_ms=max(
                (each.last_update_timestamp for each in described.queues), default=0
            ),
        )

    async def _record_bytes_mean(self, described: TopicDescription) -> float:
        """Of the newest records of the fullest queue; 0: the topic is empty, or its broker does
        not say."""
        fullest = max(
            described.queues, key=lambda each: each.max_offset - each.min_offset, default=None
        )
        if fullest is None or fullest.max_offset == fullest.min_offset:
            return 0.0
        broker = described.route.broker(fullest.queue.broker_name)
        first = max(fullest.max_offset - RECORDS_MEASURED, fullest.min_offset)
        try:
            found = await self.queue_entries(
                fullest.queue,
                first,
                count=RECORDS_MEASURED,
                broker=(broker.any_address() if broker else None) or "",
            )
        except KeroloxError:
            return 0.0
        sizes = [each.size for each in found.entries]
        return sum(sizes) / len(sizes) if sizes else 0.0

    async def cluster_status(self, *, cluster: str = "") -> list[BrokerStatus]:
        """All nodes of a cluster with their metrics (``clusterList``), sorted by cluster, name and
        id.

        Args:
            cluster: its name; empty: all clusters.

        Raises:
            ClientError: there is no such cluster.
            RemotingError: no name server answers.
        """
        info = await self.cluster_info()
        clusters = [cluster] if cluster else sorted(info.clusters)
        nodes = [
            (name, broker.broker_name, broker_id, address)
            for name in clusters
            for broker in info.nodes(name)
            for broker_id, address in broker.addresses.items()
        ]
        found, failed = await answers_of(
            (address for *_, address in nodes), lambda address: self.broker_runtime(address)
        )
        return [
            BrokerStatus(
                *node, found.get(node[-1]), str(failed[node[-1]]) if node[-1] in failed else ""
            )
            for node in nodes
        ]

    async def _traffic_of(self, topic: str) -> list[TopicTraffic]:
        route = await self.access.route(topic)
        masters = [broker.addresses.get(MASTER_ID) for broker in route.brokers]
        addresses = [address for address in masters if address]

        async def total(name: str, key: str) -> tuple[float, int]:
            found, _ = await answers_of(addresses, lambda a: self.broker_stats(a, name, key))
            stats = found.values()
            return sum(each.minute.per_second for each in stats), sum(
                each.day_total for each in stats
            )

        try:
            groups = await self.groups_of_topic(topic)
        except KeroloxError:
            groups = []
        in_rate, in_day = await total(TOPIC_PUT_NUMS, topic)
        if not groups:
            return [TopicTraffic(topic=topic, in_per_second=in_rate, in_day=in_day)]
        rows = []
        for group in groups:
            out_rate, out_day = await total(GROUP_GET_NUMS, f"{topic}@{group}")
            try:
                lag = max((await self.group_progress(group, topic=topic)).lag, 0)
            except KeroloxError:
                lag = 0
            rows.append(
                TopicTraffic(
                    topic=topic,
                    group=group,
                    lag=lag,
                    in_per_second=in_rate,
                    out_per_second=out_rate,
                    in_day=in_day,
                    out_day=out_day,
                )
            )
        return rows


def _item(item: Members) -> StatsItem:
    return StatsItem(item.number("sum"), item.real("tps"), item.real("avgpt"))
