"""What a cluster is made of and does, in one piece each: topics and groups, settings, metrics.

Each has ``to_json``, the text that ``mqadmin`` writes into a file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kerolox.admin.asking import all_answers, answers_of, targets
from kerolox.admin.brokers import BrokerRuntime
from kerolox.admin.cluster import ClusterInfo
from kerolox.admin.consumers.groups import GroupRequests
from kerolox.admin.consumers.members import ClientConnection
from kerolox.admin.reports.traffic import BrokerStats, StatsItem, TrafficRequests
from kerolox.client.core.checking import checked
from kerolox.client.core.routes import MASTER_ID
from kerolox.errors import AccessDeniedError, BrokerSystemError
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig, wire_value
from kerolox.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TOPIC_PUT_NUMS

if TYPE_CHECKING:
    from collections.abc import Mapping


EXPORTED_SETTINGS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
"""The settings that ``exportConfigs`` writes."""

_NONE = BrokerStats(StatsItem(), StatsItem(), StatsItem())


@dataclass(frozen=True, slots=True)
class Metadata:
    """Topics and consumer groups, without RocketMQ's own (``exportMetadata``)."""

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    exported_ms: int
    """When they were read, since the epoch."""

    def to_json(self) -> bytes:
        """As ``metadata.json`` of ``mqadmin``."""
        return fastjson.dumps_pretty(
            {
                "exportTime": self.exported_ms,
                "subscriptionGroupTable": wire_value(dict(self.groups)),
                "topicConfigTable": wire_value(dict(self.topics)),
            }
        )


@dataclass(frozen=True, slots=True)
class ConfigsExport:
    """The size of a cluster and the main settings of its masters (``exportConfigs``)."""

    brokers: Mapping[str, Mapping[str, str]]
    """By broker name."""
    name_servers: int
    masters: int
    slaves: int

    def to_json(self) -> bytes:
        """As ``configs.json`` of ``mqadmin``."""
        scale = {
            "masterBrokerSize": self.masters,
            "namesrvSize": self.name_servers,
            "slaveBrokerSize": self.slaves,
        }
        return fastjson.dumps_pretty({"brokerConfigs": self.brokers, "clusterScale": scale})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMetrics:
    """How much a master is used. Messages per second are of the last 10 seconds where they are of
    all topics, else of the last minute; ``day`` is the last whole day, else the last 24 hours."""

    runtime: BrokerRuntime
    cpus: int
    """0: it does not say how many."""
    topics: int
    groups: int
    half_messages: BrokerStats
    delayed_messages: BrokerStats
    clients: tuple[ClientConnection, ...]
    """Members of consumer groups that are online, each language and version once."""

    @property
    def rates(self) -> dict[str, float]:
        """Messages per second, by ``mqadmin``'s names."""
        return {
            "normalInTps": self.runtime.put_rate.ten_seconds,
            "normalOutTps": self.runtime.transferred_rate.ten_seconds,
            "scheduleInTps": self.delayed_messages.minute.per_second,
            "transInTps": self.half_messages.minute.per_second,
        }

    @property
    def day(self) -> dict[str, int]:
        """Messages of a day, by ``mqadmin``'s names."""
        return {
            "normalOneDayInNum": self.runtime.put_totals.yesterday,
            "normalOneDayOutNum": self.runtime.get_totals.yesterday,
            "scheduleOneDayInNum": self.delayed_messages.day_total,
            "transOneDayInNum": self.half_messages.day_total,
        }


@dataclass(frozen=True, slots=True)
class MetricsExport:
    """How much the masters of a cluster are used (``exportMetrics``)."""

    brokers: Mapping[str, BrokerMetrics]
    """By broker name."""

    @property
    def rates(self) -> dict[str, float]:
        """Messages per second of all brokers, by the names of a broker's."""
        names = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
        return {name: sum(each.rates[name] for each in self.brokers.values()) for name in names}

    @property
    def day(self) -> dict[str, int]:
        """Messages of a day of all brokers, by the names of a broker's."""
        names = (
            *("normalOneDayInNum", "normalOneDayOutNum"),
            *("transOneDayInNum", "scheduleOneDayInNum"),
        )
        return {name: sum(each.day[name] for each in self.brokers.values()) for name in names}

    def to_json(self) -> bytes:
        """As ``metrics.json`` of ``mqadmin``."""
        rates = {f"total{name[:1].upper()}{name[1:]}": rate for name, rate in self.rates.items()}
        return fastjson.dumps_pretty(
            {
                "evaluateReport": {name: _report(each) for name, each in self.brokers.items()},
                "totalData": {"totalOneDayNum": self.day, "totalTps": rates},
            }
        )


@checked()
class ExportRequests(TrafficRequests, GroupRequests):
    """Exports settings and metrics of a cluster."""

    async def export_metadata(
        self,
        *,
        cluster: str = "",
        broker: str = "",
        topics: bool = True,
        groups: bool = True,
        special: bool = False,
    ) -> Metadata:
        """The topics and groups of a broker, or of all masters of a cluster together
        (``exportMetadata``): queues of a topic, and retry queues of a group, are then those of
        all.

        Args:
            cluster: its name; empty: the only one there is.
            broker: ``host:port`` of one broker; it alone then.
            topics: the topics.
            groups: the groups.
            special: topics of retries and dead letters too.

        Raises:
            ClientError: no such cluster, or several to choose from.
            BrokerError, RemotingError: a broker refused or does not answer.
        """
        addresses = await targets(self, cluster=cluster, broker=broker)
        all_topics: dict[str, TopicConfig] = {}
        all_groups: dict[str, SubscriptionGroupConfig] = {}
        for address in addresses:
            if topics:
                settings = await self.all_topic_settings(address, internal=False, groups=special)
                for name, topic in settings.items():
                    all_topics[name] = _with_queues(topic, all_topics.get(name))
            if groups:
                for name, group in (await self.all_group_settings(address)).items():
                    all_groups[name] = _with_retry_queues(group, all_groups.get(name))
        return Metadata(all_topics, all_groups, time.time_ns() // 1_000_000)

    async def export_configs(self, *, cluster: str = "") -> ConfigsExport:
        """The size of a cluster and the main settings of its masters (``exportConfigs``).

        Args:
            cluster: its name; empty: the only one there is.

        Raises:
            ClientError: no such cluster, or several to choose from.
            BrokerError, RemotingError: a master refused or does not answer.
        """
        info = await self.cluster_info()
        cluster = cluster or info.only_cluster()
        masters = _masters(info, cluster)
        found = await all_answers(masters.values(), lambda address: self.broker_settings(address))
        slaves = sum(len(node.addresses.keys() - {MASTER_ID}) for node in info.nodes(cluster))
        brokers = {
            name: {key: found[address].get(key, "") for key in EXPORTED_SETTINGS}
            for name, address in masters.items()
        }
        return ConfigsExport(brokers, len(self.access.name_servers), len(masters), slaves)

    async def export_metrics(self, *, cluster: str = "") -> MetricsExport:
        """How much the masters of a cluster are used (``exportMetrics``).

        Args:
            cluster: its name; empty: the only one there is.

        Raises:
            ClientError: no such cluster, or several to choose from.
            BrokerError, RemotingError: a master refused or does not answer.
        """
        info = await self.cluster_info()
        masters = _masters(info, cluster or info.only_cluster())
        found = await all_answers(masters.values(), lambda address: self._metrics(address))
        return MetricsExport({name: found[address] for name, address in masters.items()})

    async def _metrics(self, address: str) -> BrokerMetrics:
        settings = await self.broker_settings(address)
        groups = await self.all_group_settings(address)
        online, _ = await answers_of(groups, lambda group: self.consumer_connections(group))
        kinds = {
            (member.language, member.version): member
            for connections in online.values()
            for member in connections.members
        }
        cpus = settings.get("clientCallbackExecutorThreads", "")
        return BrokerMetrics(
            runtime=await self.broker_runtime(address),
            cpus=int(cpus) if cpus.isdecimal() else 0,
            topics=len(await self.all_topic_settings(address, internal=False, groups=False)),
            groups=len(groups),
            half_messages=await self._stored(address, HALF_TOPIC),
            delayed_messages=await self._stored(address, SCHEDULE_TOPIC),
            clients=tuple(kinds[kind] for kind in sorted(kinds)),
        )

    async def _stored(self, address: str, topic: str) -> BrokerStats:
        try:
            return await self.broker_stats(address, TOPIC_PUT_NUMS, topic)
        except AccessDeniedError:
            raise
        except BrokerSystemError:  # it has never had such a message
            return _NONE


def _masters(info: ClusterInfo, cluster: str) -> dict[str, str]:
    """Broker name → address of the master."""
    nodes = info.nodes(cluster)
    return {
        node.broker_name: node.addresses[MASTER_ID] for node in nodes if MASTER_ID in node.addresses
    }


def _with_queues(topic: TopicConfig, other: TopicConfig | None) -> TopicConfig:
    if other is None:
        return topic
    return msgspec.structs.replace(
        topic,
        read_queue_nums=topic.read_queue_nums + other.read_queue_nums,
        write_queue_nums=topic.write_queue_nums + other.write_queue_nums,
    )


def _with_retry_queues(
    group: SubscriptionGroupConfig, other: SubscriptionGroupConfig | None
) -> SubscriptionGroupConfig:
    if other is None:
        return group
    queues = group.retry_queue_nums + other.retry_queue_nums
    return msgspec.structs.replace(group, retry_queue_nums=queues)


def _report(metrics: BrokerMetrics) -> dict[str, object]:
    """``evaluateReport`` of one broker."""
    runtime = metrics.runtime
    environment = {"cpuNum": str(metrics.cpus)}
    if memory := runtime.values.get("totalMemKBytes"):
        environment["totalMemKBytes"] = memory
    return {
        "runtimeEnv": environment,
        "runtimeQuota": {
            "diskRatio": {
                "commitLogDiskRatio": runtime.values.get("commitLogDiskRatio", ""),
                "consumeQueueDiskRatio": runtime.values.get("consumeQueueDiskRatio", ""),
            },
            "groupSize": metrics.groups,
            "messageAverageSize": runtime.values.get("putMessageAverageSize", ""),
            "oneDayNum": metrics.day,
            "topicSize": metrics.topics,
            "tps": metrics.rates,
        },
        "runtimeVersion": {
            "clientInfo": [f"{each.language}%{each.version_name}" for each in metrics.clients],
            "rocketmqVersion": runtime.version,
        },
    }
