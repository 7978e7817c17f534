"""The broker's metrics for Prometheus: names of RocketMQ 5 where it has the metric
(``BrokerMetricsConstant``, ``DefaultStoreMetricsConstant``), else names of our own.

Counters of topics and groups begin anew with the broker, and go with their topic or group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kerolox.broker.metrics.ages import earliest_of_log
from kerolox.broker.metrics.broker_stats import (
    GROUP_GET_SIZE,
    SEND_BACK_DROPS,
    TOPIC_PUT_SIZE,
)
from kerolox.kernel.metrics import LATENCY_ENDS_MS, Latencies
from kerolox.metrics.requests import measure_requests
from kerolox.protocol.codes import version_text
from kerolox.protocol.extensions.dead_letter_marks import DoneOffsets, is_marks_group
from kerolox.protocol.names import (
    CONSUME_ACTIVELY,
    DLQ_PREFIX,
    GROUP_GET_NUMS,
    RETRY_PREFIX,
    TOPIC_PUT_NUMS,
    is_system_group,
)
from kerolox.remoting.time_slices import TimeSlices

if TYPE_CHECKING:
    from kerolox.broker.context import Context
    from kerolox.broker.grpc.port import GrpcPort
    from kerolox.broker.tables.clients import Client
    from kerolox.metrics.families import Families

_CLIENT_LABELS = ("language", "version", "protocol_type")
_TOPIC_LABELS = ("topic", "is_system")
_GROUP_LABELS = ("topic", "consumer_group", "is_retry", "is_system")
_QUEUE_LABELS = (*_GROUP_LABELS, "queue_id")
TIMER_BOUNDS_SECONDS = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""``timerDist`` of RocketMQ 5."""
LATENCY_ENDS_SECONDS = tuple(end / 1000 for end in LATENCY_ENDS_MS)


class BrokerExposition:
    """The metrics of a broker, from those of its parts that have some."""

    def __init__(
        self,
        parts: Context,
        kept_bytes: Callable[[], int],
        grpc: Callable[[], GrpcPort | None] = lambda: None,
    ) -> None:
        """``kept_bytes``: of connections (:attr:`~kerolox.broker.ports.Ports.kept_bytes`);
        ``grpc``: the port for gRPC, if it is open."""
        self._parts = parts
        self._kept_bytes = kept_bytes
        self._grpc = grpc

    @property
    def shared_labels(self) -> Mapping[str, str]:
        """As RocketMQ 5 labels all series of a broker."""
        config = self._parts.config
        return {
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
        }

    @property
    def build_labels(self) -> Mapping[str, str]:
        """Which kernel runs."""
        return {"kernel": self._parts.kernel.name}

    def unready(self) -> list[str]:
        """Why no client should be sent here: the store is in trouble, or a name server that is
        named does not know this broker."""
        reasons = [self._parts.store.trouble] if self._parts.store.trouble else []
        if not self._parts.role.current.is_slave and not self._parts.writing.gate.writable:
            reasons.append("no message can be stored: the disk is full or failing")
        if self._parts.config.namesrv_addr and not self._parts.peers.registration.registered:
            reasons.append("no name server knows this broker yet")
        return reasons

    async def measure(self, families: Families) -> None:
        """See :class:`~kerolox.metrics.role.MeasuredRole`."""
        await self._parts.broker_stats.refresh()
        self._measure_broker(families)
        self._measure_store(families)
        slices = TimeSlices()
        await self._measure_traffic(families, slices)
        await self._measure_connections(families, slices)
        await self._measure_lag(families, slices)
        if not self._parts.role.current.is_slave:
            # A slave has its master's, and both together would count them twice.
            await self._measure_dead_letters(families, slices)
            await self._measure_duplicates(families, slices)
            await self._measure_paused(families, slices)
            await self._measure_pops(families, slices)

    def _measure_broker(self, families: Families) -> None:
        families.gauge(
            "rocketmq_broker_permission",
            "brokerPermission: 2 write, 4 read, 6 both",
            self._parts.config.broker_permission,
        )
        families.gauge("rocketmq_topic_number", "Topics", len(self._parts.tables.topics.names))
        families.gauge(
            "rocketmq_consumer_group_number", "Groups", len(self._parts.tables.groups.names)
        )
        families.gauge(
            "rocketmq_half_messages",
            "Open transactions",
            self._parts.writing.transactions.open_halves,
        )
        self._measure_timer(families)
        measure_requests(
            families,
            self._parts.guards.limits.counts,
            self._parts.audit,
            self._kept_bytes(),
        )
        port = self._grpc()
        if port is not None:
            port.measure(families)
        replication = self._parts.peers.replication
        if self._parts.role.current.is_slave:
            is_following = replication.follower is not None and replication.follower.is_following
            families.gauge("kerolox_slave_is_following", "The master sends", int(is_following))
        else:
            replicated = replication.waits.replicated
            families.gauge("kerolox_slaves", "Slaves that are connected", replicated.slaves)
            if replicated.slaves:
                families.gauge(
                    "kerolox_replication_lag_bytes",
                    "Bytes of the log that are on no slave",
                    max(self._parts.store.max_physical_offset - replicated.offset, 0),
                )

    def _measure_timer(self, families: Families) -> None:
        """Of messages for a moment, once there was one."""
        service = self._parts.writing.timer
        timer = service.timer
        if timer is None:
            return
        lag, lag_ms = service.queue_lag()
        for name, text, value in (
            ("enqueue_lag", "Messages for a moment that are not in the wheel yet", lag),
            ("enqueue_latency", "How long the first of them has waited, in milliseconds", lag_ms),
            ("dequeue_lag", "Messages that are due and not delivered", timer.due),
            ("dequeue_latency", "How far delivery is behind, in milliseconds", timer.lag_ms),
        ):
            families.gauge(f"rocketmq_timer_{name}", text, value)
        families.gauge(
            "kerolox_timer_lag_seconds", "How far delivery is behind", timer.lag_ms / 1000
        )
        self._measure_delays(families, timer.counts.delays)
        counts = timer.counts
        families.counter(
            "rocketmq_timer_enqueue_total", "Messages taken into the wheel", counts.enqueued
        )
        families.counter(
            "rocketmq_timer_dequeue_total", "Messages delivered at their moment", counts.delivered
        )
        families.counter(
            "kerolox_timer_lost_total", "Messages for a moment that will not come", counts.lost
        )
        waiting = families.gauges("rocketmq_timing_messages", "Messages that wait", ("topic",))
        for topic, count in timer.waiting.items():
            waiting.add((topic,), max(count, 0))
        snapshot = families.gauges(
            "rocketmq_timer_message_snapshot",
            "Messages that are due within so many seconds, and not within the bound before",
            ("timer_bound_s",),
        )
        bounds_ms = [bound * 1_000 for bound in TIMER_BOUNDS_SECONDS]
        for bound, count in zip(TIMER_BOUNDS_SECONDS, timer.ahead(bounds_ms), strict=True):
            snapshot.add((str(bound),), count)

    def _measure_delays(self, families: Families, delays: dict[str, Latencies]) -> None:
        from kerolox.store.timer.machine import DELAY_ENDS_MS

        for topic, found in list(delays.items()):
            if topic not in self._parts.tables.topics:
                del delays[topic]
                continue
            counts, total_us = found.get()
            families.histogram(
                "rocketmq_delay_message_latency",
                "How long it was until their moment when messages were taken, in seconds",
                [end / 1_000 for end in DELAY_ENDS_MS],
                counts,
                total_us / 1_000_000,
                {"topic": topic},
            )

    def _measure_store(self, families: Families) -> None:
        store, stats = self._parts.store, self._parts.store.stats()
        labels = {"storage_type": "local", "storage_medium": "disk"}
        end = store.max_physical_offset
        for name, text, value in (
            ("rocketmq_storage_size", "Bytes of the log", end - store.min_physical_offset),
            (
                "rocketmq_storage_flush_behind_bytes",
                "Bytes of the log that are not on disk",
                max(end - store.flushed_offset, 0),
            ),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Bytes of the log that are not in the index",
                stats.get("dispatch_behind_bytes", 0),
            ),
            (
                "rocketmq_storage_message_reserve_time",
                "Age of the oldest message, in milliseconds",
                self._reserve_ms(),
            ),
        ):
            families.gauge(name, text, value, labels)
        for folder, ratio in self._parts.writing.cleaner.log_ratios().items():
            families.gauge(
                "kerolox_store_disk_used_ratio",
                "Used part of the log's disk, 0 to 1",
                ratio,
                {"folder": folder},
            )
        self._forecast_disk(families)
        families.gauge("kerolox_held_pulls", "Pulls that wait", stats.get("held_pulls", 0))
        families.gauge(
            "kerolox_transient_store_pool_bytes",
            "Bytes of records that are in memory alone (transientStorePoolEnable)",
            stats.get("uncommitted_bytes", 0),
        )
        families.counter("kerolox_store_flushes_total", "Flushes", stats.get("flush_count", 0))
        for result, key in (("found", "get_found"), ("missed", "get_miss")):
            families.counter(
                "kerolox_reads_total", "Reads of queues", stats.get(key, 0), {"result": result}
            )
        for name, text, (counts, total_us) in (
            (
                "kerolox_send_latency_seconds",
                "From a send's arrival to its answer, flush and slaves included",
                self._parts.store_stats.send_times(),
            ),
            ("kerolox_flush_latency_seconds", "Flushes of the log", store.flush_times()),
            (
                "kerolox_delivery_latency_seconds",
                "How long the first message of a consumer's read had been stored",
                self._parts.store_stats.delivery_times(),
            ),
        ):
            families.histogram(name, text, LATENCY_ENDS_SECONDS, counts, total_us / 1_000_000)

    def _forecast_disk(self, families: Families) -> None:
        expected = self._parts.writing.cleaner.forecast(earliest_of_log(self._parts.store))
        if expected.bytes_per_second is not None:
            families.gauge(
                "kerolox_store_growth_bytes_per_second",
                "Bytes that the log grows by, over the last day or what the log has of it",
                expected.bytes_per_second,
            )
        if expected.full_ms is not None:
            families.gauge(
                "kerolox_store_disk_full_timestamp_seconds",
                "When the disk will be full at this rate, since the epoch",
                expected.full_ms / 1_000,
            )

    def _reserve_ms(self) -> int:
        earliest = earliest_of_log(self._parts.store)
        return max(self._parts.now_ms() - earliest, 0) if earliest > 0 else 0

    async def _measure_traffic(self, families: Families, slices: TimeSlices) -> None:
        counters = families.counters
        of_topic = {
            TOPIC_PUT_NUMS: counters(
                "rocketmq_messages_in_total", "Messages stored", _TOPIC_LABELS
            ),
            TOPIC_PUT_SIZE: counters(
                "rocketmq_throughput_in_total", "Bytes of records stored", _TOPIC_LABELS
            ),
        }
        dead = counters(
            "rocketmq_send_to_dlq_messages_total",
            "Messages that a group gave up",
            ("consumer_group",),
        )
        dropped = counters(
            "kerolox_given_back_dropped_total",
            "Messages that a group without retry queues gave back, which were dropped",
            ("consumer_group",),
        )
        of_group = {
            GROUP_GET_NUMS: counters("rocketmq_messages_out_total", "Delivered", _GROUP_LABELS),
            GROUP_GET_SIZE: counters(
                "rocketmq_throughput_out_total", "Bytes delivered", _GROUP_LABELS
            ),
        }
        for name, key, value in self._parts.broker_stats.totals():
            await slices.checkpoint()
            if family := of_topic.get(name):
                family.add((key, _flag(self._parts.tables.topics.is_system(key))), value)
                if name == TOPIC_PUT_NUMS and key.startswith(DLQ_PREFIX):
                    dead.add((key.removeprefix(DLQ_PREFIX),), value)
            elif family := of_group.get(name):
                topic, _, group = key.partition("@")
                family.add(self._of_group(group, topic), value)
            elif name == SEND_BACK_DROPS:
                dropped.add((key.rpartition("@")[2],), value)

    async def _measure_connections(self, families: Families, slices: TimeSlices) -> None:
        clients = self._parts.tables.clients
        producers: Counter[tuple[str, str, str]] = Counter()
        seen = set()
        for members in list(clients.producer_groups.values()):
            await slices.checkpoint()
            for member in members:
                if member.client_id not in seen:
                    seen.add(member.client_id)
                    producers[_kind(member)] += 1
        online = families.gauges(
            "rocketmq_producer_connections", "Producers that are online", _CLIENT_LABELS
        )
        for kind, count in sorted(producers.items()):
            online.add(kind, count)
        online = families.gauges(
            "rocketmq_consumer_connections",
            "Consumers that are online",
            ("consumer_group", *_CLIENT_LABELS, "consume_mode"),
        )
        for group in clients.groups():
            await slices.checkpoint()
            mode = _mode(group.consume_type)
            for kind, count in sorted(Counter(map(_kind, group.members.values())).items()):
                online.add((group.name, *kind, mode), count)

    async def _measure_lag(self, families: Families, slices: TimeSlices) -> None:
        """Of each group and topic, and of each queue. What is deleted meanwhile is left out."""
        gauges = families.gauges
        queue_lags = gauges(
            "kerolox_consumer_queue_lag_messages",
            "Messages of a queue that a group has not consumed",
            _QUEUE_LABELS,
        )
        queue_ages = gauges(
            "kerolox_consumer_queue_lag_seconds",
            "How long the next message of a queue has waited for a group",
            _QUEUE_LABELS,
        )
        lags = gauges("rocketmq_consumer_lag_messages", "Messages not consumed", _GROUP_LABELS)
        delays = gauges(
            "rocketmq_consumer_lag_latency",
            "How long the next message has waited, in milliseconds",
            _GROUP_LABELS,
        )
        for group, topics in self._parts.tables.offsets.topics_by_group().items():
            if is_marks_group(group):
                continue
            for topic in topics:
                await slices.checkpoint()
                labels = self._of_group(group, topic)
                queues = list(self._queue_lags(group, topic))
                rows = [(*labels, str(queue_id)) for queue_id, _, _ in queues]
                queue_lags.extend(rows, [lag for _, lag, _ in queues])
                queue_ages.extend(rows, [delay_ms / 1000 for _, _, delay_ms in queues])
                lags.add(labels, sum([lag for _, lag, _ in queues]))
                delays.add(labels, max([delay_ms for _, _, delay_ms in queues], default=0))

    async def _measure_dead_letters(self, families: Families, slices: TimeSlices) -> None:
        waiting = families.gauges(
            "kerolox_dead_letters_waiting",
            "Dead letters that were neither sent again nor marked as done",
            ("consumer_group",),
        )
        for topic in self._parts.tables.topics.names:
            if topic.startswith(DLQ_PREFIX):
                await slices.checkpoint()
                waiting.add((topic.removeprefix(DLQ_PREFIX),), self._dead_letters_waiting(topic))

    def _dead_letters_waiting(self, topic: str) -> int:
        config, count = self._parts.tables.topics.get(topic), 0
        queues = max(config.read_queue_nums, config.write_queue_nums) if config else 0
        for queue_id in range(queues):
            low, high = self._parts.store.queue_bounds(topic, queue_id)

            def offset_of(group: str, queue_id: int = queue_id) -> int:
                return self._parts.tables.offsets.query(group, topic, queue_id)

            count += DoneOffsets.read(offset_of, high).waiting(low, high)
        return count

    async def _measure_duplicates(self, families: Families, slices: TimeSlices) -> None:
        """Of topics that store no key twice."""
        now_ms = self._parts.now_ms()
        labels = ("topic",)
        answered = families.counters(
            "kerolox_duplicates_answered_total",
            "Messages that were not stored again, and answered with the place of the first",
            labels,
        )
        keys = families.gauges("kerolox_dedup_keys", "Keys that are kept", labels)
        taken = families.gauges("kerolox_dedup_bytes", "Memory that they take", labels)
        reach = families.gauges(
            "kerolox_dedup_window_seconds", "How old the oldest of them is", labels
        )
        cut = families.counters(
            "kerolox_dedup_keys_cut_total",
            "Keys that were forgotten before their time: more came than dedupMaxKeys",
            labels,
        )
        for window in self._parts.store.dedup_windows():
            await slices.checkpoint()
            of_it = (window.topic,)
            answered.add(of_it, self._parts.writing.duplicates.answered[window.topic])
            keys.add(of_it, window.keys)
            taken.add(of_it, window.bytes_taken)
            age_ms = max(now_ms - window.oldest_ms, 0) if window.oldest_ms >= 0 else 0
            reach.add(of_it, age_ms / 1000)
            cut.add(of_it, window.cut)

    async def _measure_paused(self, families: Families, slices: TimeSlices) -> None:
        paused = families.gauges(
            "kerolox_group_paused",
            "1: the group gets no messages here (consumeEnable=false)",
            ("consumer_group",),
        )
        for name in self._parts.tables.groups.names:
            await slices.checkpoint()
            settings = None if is_system_group(name) else self._parts.tables.groups.get(name)
            if settings is not None:
                paused.add((name,), int(not settings.consume_enable))

    async def _measure_pops(self, families: Families, slices: TimeSlices) -> None:
        """Of those that have something out, per group and topic."""
        pops, popping = self._parts.tables.pops, self._parts.popping
        revival = popping.revival
        families.gauge("kerolox_held_pops", "Pops and notifications that wait", len(popping.held))
        families.counter(
            "rocketmq_pop_revive_retry_messages_total",
            "Popped messages that were not acknowledged, copied to the retries",
            revival.copied,
        )
        families.counter(
            "kerolox_pop_dead_letters_total",
            "Popped messages that were not acknowledged, copied to the dead letters",
            revival.dead,
        )
        families.counter(
            "kerolox_pop_copies_failed_total",
            "Copies of them that could not be stored, and are tried again",
            revival.failed,
        )
        next_end = pops.state.queues.next_end
        late_ms = 0 if next_end is None else max(pops.now().steady_ms - next_end, 0)
        families.gauge(
            "rocketmq_pop_revive_latency",
            "How long a message is overdue that is to be copied, in milliseconds",
            late_ms,
        )
        counts: Counter[tuple[str, str]] = Counter()
        since: dict[tuple[str, str], int] = {}
        for key in list(pops.state.held_queues()):
            await slices.checkpoint()
            out = pops.state.in_flight(key)
            if out is not None:
                place = key.group, key.topic
                counts[place] += out.messages
                since[place] = min(since.get(place, out.pop_time), out.pop_time)
        in_flight = families.gauges(
            "rocketmq_consumer_inflight_messages",
            "Messages that a group popped and did not acknowledge",
            _GROUP_LABELS,
        )
        ages = families.gauges(
            "kerolox_consumer_inflight_seconds",
            "How long the lowest of them has been out",
            _GROUP_LABELS,
        )
        now_ms = self._parts.now_ms()
        for place, count in counts.items():
            in_flight.add(self._of_group(*place), count)
            ages.add(self._of_group(*place), max(now_ms - since[place], 0) / 1000)

    def _queue_lags(self, group: str, topic: str) -> Iterable[tuple[int, int, int]]:
        """(queue id, messages left, milliseconds that the next one has waited)."""
        store, now_ms = self._parts.store, self._parts.now_ms()
        for queue_id, consumed in sorted(self._parts.tables.offsets.of_topic(group, topic).items()):
            try:
                low, high = store.queue_bounds(topic, queue_id)
                at = consumed if consumed > low else low
                stored = store.store_time(topic, queue_id, at) if at < high else 0
            except ValueError:
                continue
            lag = high - at if at < high else 0
            yield queue_id, lag, max(now_ms - stored, 0) if stored > 0 else 0

    def _of_group(self, group: str, topic: str) -> tuple[str, str, str, str]:
        """Values of ``_GROUP_LABELS``."""
        return (
            topic,
            group,
            _flag(topic.startswith(RETRY_PREFIX)),
            _flag(is_system_group(group) or self._parts.tables.topics.is_system(topic)),
        )


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _kind(client: Client) -> tuple[str, str, str]:
    """Values of ``_CLIENT_LABELS``."""
    version = client.connection.client_version or version_text(client.version)
    return client.language.name.lower(), version, client.connection.protocol_type


def _mode(consume_type: str) -> str:
    """``consume_mode`` of RocketMQ 5."""
    return "pull" if consume_type == CONSUME_ACTIVELY else "push"
