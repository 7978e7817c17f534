"""Brokers: metrics, settings, cleaning, replication, and the entries of consume queues."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kerolox.admin.answers import Members, read_object, read_properties
from kerolox.admin.asking import do_on_each, targets
from kerolox.admin.cluster import ClusterRequests
from kerolox.client.core.checking import checked
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageQueue
from kerolox.properties import format_properties
from kerolox.protocol.bodies import SubscriptionData
from kerolox.protocol.codes import (
    DISK_FULL_MS,
    KEROLOX_KERNEL,
    KEROLOX_VERSION,
    STORE_GROWTH,
    RequestCode,
    software_text,
)
from kerolox.protocol.headers import QueryConsumeQueueHeader

if TYPE_CHECKING:
    from collections.abc import Mapping


_VERSION = "brokerVersionDesc"
"""Among the metrics of each broker."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Something per second, on average over the last 10 seconds, minute and ten minutes."""

    ten_seconds: float = 0.0
    minute: float = 0.0
    ten_minutes: float = 0.0


@dataclass(frozen=True, slots=True)
class DayTotals:
    """Messages since the broker's first start, as counted at three times."""

    yesterday_morning: int = 0
    today_morning: int = 0
    now: int = 0

    @property
    def yesterday(self) -> int:
        """Messages of the last whole day."""
        return self.today_morning - self.yesterday_morning

    @property
    def today(self) -> int:
        """Messages since the last midnight."""
        return self.now - self.today_morning


@dataclass(frozen=True, slots=True)
class PoolQueue:
    """The requests that wait for a thread pool of a broker; Kerolox has no such pools."""

    size: int = 0
    capacity: int = 0
    head_wait_ms: int = 0
    """How long the first one has waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRuntime:
    """A broker's metrics (``brokerStatus``); 0 where it does not say one."""

    address: str
    version: str
    """For example ``V4_9_8``."""
    boot_ms: int
    """When it started, since the epoch."""
    put_rate: Rates
    """Messages stored per second (``putTps``)."""
    found_rate: Rates
    """Pulls per second that found messages (``getFoundTps``)."""
    missed_rate: Rates
    """Pulls per second that found none (``getMissTps``)."""
    get_rate: Rates
    """Pulls per second (``getTotalTps``)."""
    transferred_rate: Rates
    """Messages delivered per second (``getTransferedTps``)."""
    put_totals: DayTotals
    get_totals: DayTotals
    stored_messages: int
    """Since its start (``putMessageTimesTotal``)."""
    stored_bytes: int
    """Since its start (``putMessageSizeTotal``)."""
    message_bytes_mean: float
    put_ms_max: int
    get_ms_max: int
    log_min_offset: int
    """First byte of the commit log that is still there."""
    log_max_offset: int
    log_disk_ratio: float
    """Used part of the log's disk, 0 to 1 (``commitLogDiskRatio``)."""
    queue_disk_ratio: float
    dispatch_behind_bytes: int
    """Bytes of the log that are in no queue yet."""
    earliest_message_ms: int
    """When the oldest message was stored, since the epoch; -1: there is none."""
    growth_per_second: float | None = None
    """Bytes that the log grows by, over the last day or what the log has of it; None: the broker
    does not tell, or has less than an hour of it."""
    disk_full_ms: int | None = None
    """When messages go before their time, or sends are refused, if they come as they did, since the
    epoch. None: the broker does not tell; -1: never."""
    page_cache_lock_ms: int
    send_queue: PoolQueue
    pull_queue: PoolQueue
    query_queue: PoolQueue
    values: Mapping[str, str] = field(repr=False)
    """All that it said, sorted, by RocketMQ's names."""

    @property
    def kerolox_version(self) -> str:
        """The version of Kerolox that it runs; empty: a broker of RocketMQ, or one of ours that is
        too old to tell."""
        return self.values.get(KEROLOX_VERSION, "")

    @property
    def kernel(self) -> str:
        """Its kernel, ``native`` or ``python``, and why not the native one; empty as above."""
        return self.values.get(KEROLOX_KERNEL, "")

    @property
    def software(self) -> str:
        """What it runs: ``Kerolox 0.2.0``, or what a broker of RocketMQ says, as ``V4_9_8``."""
        return software_text(self.kerolox_version, self.version)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A slave that reads from a master."""

    address: str
    offset: int
    """The byte of the log up to which it has acknowledged."""
    behind_bytes: int
    is_in_sync: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """How a broker is replicated (``haStatus`` of RocketMQ 5)."""

    is_master: bool
    log_max_offset: int
    in_sync: int
    """Slaves that are in sync."""
    replicas: tuple[ReplicaStatus, ...]


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An entry of a consume queue: where a message lies in the log."""

    queue_offset: int
    log_offset: int
    size: int
    """Bytes of the record."""
    tags_code: int
    bit_map: str = ""
    """Which groups' expressions match, where the broker keeps it."""
    extension: str = ""
    """The entry of the extension file, as JSON."""
    is_match: bool = False
    """The group's expression matches, as far as the extension says."""


@dataclass(frozen=True, slots=True)
class QueueEntries:
    """A part of a consume queue (``queryCq``)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    entries: tuple[QueueEntry, ...]
    subscription: SubscriptionData | None = None
    """What the group that was asked for wants of the topic; None: it is not online."""
    filter_text: str = ""
    """How the broker would filter for that group."""


@checked()
class BrokerRequests(ClusterRequests):
    """Asks about brokers, and changes their settings."""

    async def broker_runtime(self, broker: str) -> BrokerRuntime:
        """A broker's metrics (code 28).

        Args:
            broker: ``host:port``.

        Raises:
            BrokerError: it refused.
            RemotingError: it does not answer, or with something else: a name server of Kerolox has
                metrics, too, and they are none of a broker.
        """
        response = await self.access.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await read_object(response, "the runtime info", broker)
        values = answer.text_table("table")
        if KEROLOX_VERSION in values and _VERSION not in values:
            raise RemoteProtocolError(f"what answers at {broker} speaks RocketMQ, and is no broker")
        return _runtime(broker, dict(sorted(values.items())))

    async def broker_settings(self, broker: str) -> dict[str, str]:
        """All settings of a broker, sorted by name (code 26). Errors: see
        :meth:`broker_runtime`.
        """
        response = await self.access.ask(broker, RequestCode.GET_BROKER_CONFIG)
        return read_properties(response, "the settings", broker)

    async def update_broker_settings(
        self, settings: Mapping[str, str], *, cluster: str = "", broker: str = ""
    ) -> dict[str, str]:
        """Change settings of a broker, or of all masters of a cluster (code 25); what each says of
        it, by address: a Kerolox broker says what waits for a restart.

        Args:
            settings: values by name.
            cluster: its masters; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ClientError: no such cluster; or some took it and some did not: the text says who.
            NoPermissionError: a setting that may not be changed (``configBlackList``).
            BrokerError, RemotingError: none took it.
        """
        body = format_properties(settings).encode()
        remarks: dict[str, str] = {}

        async def change(address: str) -> None:
            response = await self.access.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
            remarks[address] = response.remark or ""

        addresses = await targets(self, cluster=cluster, broker=broker)
        await do_on_each(addresses, change, "settings could not be changed")
        return remarks

    async def clean_expired_queues(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Delete consume queues whose messages are gone (``cleanExpiredCQ``, code 306); on whom.

        Args:
            cluster: its masters; empty: of the only one there is.
            broker: ``host:port`` of one broker; it alone then.

        Raises:
            ClientError: no such cluster; or some did it and some did not: the text says who.
            BrokerError, RemotingError: none did it.
        """
        return await self._clean(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster, broker)

    async def clean_unused_topics(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Delete consume queues of topics that are not there any more (``cleanUnusedTopic``,
        code 316); on whom. Arguments and errors: see :meth:`clean_expired_queues`.
        """
        return await self._clean(RequestCode.CLEAN_UNUSED_TOPIC, cluster, broker)

    async def delete_expired_log(self, *, cluster: str = "", broker: str = "") -> list[str]:
        """Delete expired files of the log whatever the hour (``deleteExpiredCommitLog``, code
        329); on whom. Arguments and errors: see :meth:`clean_expired_queues`.
        """
        return await self._clean(RequestCode.DELETE_EXPIRED_COMMITLOG, cluster, broker)

    async def replication_status(self, broker: str) -> ReplicationStatus:
        """Who replicates a broker (code 907, which brokers of RocketMQ 4 refuse).

        Raises:
            RequestCodeNotSupportedError: the broker is older than the code.
            BrokerError, RemotingError: see :meth:`broker_runtime`.
        """
        response = await self.access.ask(broker, RequestCode.GET_BROKER_HA_STATUS)
        answer = await read_object(response, "the replication status", broker)
        replicas = tuple(
            ReplicaStatus(
                each.text("addr"),
                each.number("slaveAckOffset"),
                each.number("diff"),
                each.flag("inSync"),
                each.number("transferredByteInSecond"),
            )
            for each in answer.objects("haConnectionInfo")
        )
        return ReplicationStatus(
            answer.flag("master"),
            answer.number("masterCommitLogMaxOffset"),
            answer.number("inSyncSlaveNums"),
            replicas,
        )

    async def queue_entries(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int = 10,
        group: str | None = None,
        broker: str = "",
    ) -> QueueEntries:
        """Entries of a consume queue as they are on disk (``queryCq``, code 321).

        Args:
            queue: the queue.
            offset: of the first entry.
            count: most entries.
            group: whose expression is to be tried; None: no one's.
            broker: ``host:port``; empty: the broker that the queue names.

        Raises:
            BrokerError: there is no such queue.
            ClientError: the broker is unknown.
            RemotingError: it does not answer, or with something else.
        """
        address = broker or await self.access.read_address_of(queue.topic, queue.broker_name)
        header = QueryConsumeQueueHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=offset,
            count=count,
            consumer_group=group or "",
        ).encode()
        if group is None:
            header.pop(QueryConsumeQueueHeader.wire_name("consumer_group"))
        response = await self.access.ask(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        if not response.body:  # the broker's way to say that the offset is out of range
            return QueueEntries(queue, 0, 0, ())
        answer = await read_object(response, "the queue's entries", address)
        subscription = answer.members("subscriptionData")
        return QueueEntries(
            queue,
            answer.number("minQueueIndex"),
            answer.number("maxQueueIndex"),
            tuple(_entry(offset + n, each) for n, each in enumerate(answer.objects("queueData"))),
            subscription.struct(SubscriptionData) if subscription.own_names() else None,
            answer.text("filterData"),
        )

    async def _clean(self, code: RequestCode, cluster: str, broker: str) -> list[str]:
        addresses = await targets(self, cluster=cluster, broker=broker)
        return await do_on_each(
            addresses, lambda a: self.access.ask(a, code), f"{code.name} failed"
        )


def _entry(queue_offset: int, entry: Members) -> QueueEntry:
    return QueueEntry(
        queue_offset,
        entry.number("physicOffset"),
        entry.number("physicSize"),
        entry.number("tagsCode"),
        entry.text("bitMap"),
        entry.text("extendDataJson"),
        entry.flag("eval"),
    )


class _Texts:
    """Numbers that are texts in a broker's answer."""

    def __init__(self, address: str, values: Mapping[str, str]) -> None:
        self.address = address
        self.values = values

    def real(self, name: str) -> float:
        text = self.values.get(name, "")
        try:
            number = float(text or 0)
        except ValueError:
            raise self._fault(name) from None
        return number if math.isfinite(number) else 0.0

    def whole(self, name: str) -> int:
        text = self.values.get(name, "")
        try:
            return int(text or 0)
        except ValueError:
            raise self._fault(name) from None

    def rates(self, name: str) -> Rates:
        try:
            numbers = [float(part) for part in self.values.get(name, "").split()[:3]]
        except ValueError:
            raise self._fault(name) from None
        return Rates(*(number if math.isfinite(number) else 0.0 for number in numbers))

    def totals(self, name: str) -> DayTotals:
        parts = ("YesterdayMorning", "TodayMorning", "TodayNow")
        return DayTotals(*(self.whole(name + part) for part in parts))

    def pool(self, name: str) -> PoolQueue:
        parts = ("Size", "Capacity", "HeadWaitTimeMills")
        return PoolQueue(*(self.whole(f"{name}ThreadPoolQueue{part}") for part in parts))

    def _fault(self, name: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{name} of {self.address} is no number")


def _runtime(address: str, values: Mapping[str, str]) -> BrokerRuntime:
    texts = _Texts(address, values)
    return BrokerRuntime(
        address=address,
        version=values.get(_VERSION, ""),
        boot_ms=texts.whole("bootTimestamp"),
        put_rate=texts.rates("putTps"),
        found_rate=texts.rates("getFoundTps"),
        missed_rate=texts.rates("getMissTps"),
        get_rate=texts.rates("getTotalTps"),
        transferred_rate=texts.rates("getTransferedTps"),
        put_totals=texts.totals("msgPutTotal"),
        get_totals=texts.totals("msgGetTotal"),
        stored_messages=texts.whole("putMessageTimesTotal"),
        stored_bytes=texts.whole("putMessageSizeTotal"),
        message_bytes_mean=texts.real("putMessageAverageSize"),
        put_ms_max=texts.whole("putMessageEntireTimeMax"),
        get_ms_max=texts.whole("getMessageEntireTimeMax"),
        log_min_offset=texts.whole("commitLogMinOffset"),
        log_max_offset=texts.whole("commitLogMaxOffset"),
        log_disk_ratio=texts.real("commitLogDiskRatio"),
        queue_disk_ratio=texts.real("consumeQueueDiskRatio"),
        dispatch_behind_bytes=texts.whole("dispatchBehindBytes"),
        earliest_message_ms=texts.whole("earliestMessageTimeStamp"),
        growth_per_second=texts.real(STORE_GROWTH) if STORE_GROWTH in values else None,
        disk_full_ms=texts.whole(DISK_FULL_MS) if DISK_FULL_MS in values else None,
        page_cache_lock_ms=texts.whole("pageCacheLockTimeMills"),
        send_queue=texts.pool("send"),
        pull_queue=texts.pool("pull"),
        query_queue=texts.pool("query"),
        values=values,
    )
