"""How much is put and got, by topic and by group (``BrokerStatsManager``).

The kernel counts what goes through it; what only Python knows is added here. Every ten seconds the
counters become samples. From these come sums and rates of the last minute, hour and day
(``VIEW_BROKER_STATS_DATA``), as RocketMQ tells them. A metric is there from the first message on,
and not 0 after the next sample.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Callable, Generator

from kerolox.broker.config import BrokerSettings
from kerolox.kernel.metrics import StoreMetrics
from kerolox.protocol.names import (
    GROUP_GET_NUMS,
    LMQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TOPIC_PUT_NUMS,
)
from kerolox.remoting.time_slices import TimeSlices

SAMPLE_SECONDS = 10.0
SAMPLES_PER_TEN_MINUTES, SAMPLES_PER_HOUR = 60, 360

METRICS_MAX = 200_000
"""Metrics that are kept, of some 2 KB each; what would be one more is not counted."""

COUNTERS_PER_MS = 20
"""How many of the kernel's counters are examined for requests: with 100,000 of them, once in five
seconds."""

SAMPLE_NUMBERS = 3

TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SEND_BACK_NUMS = "SNDBCK_PUT_NUMS"
SEND_BACK_DROPS = "SNDBCK_DROP_NUMS"
"""Our own."""
QUEUE_PUT_NUMS, QUEUE_PUT_SIZE = "QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS, QUEUE_GET_SIZE = "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"

SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""In whose name delayed messages are got from their queues."""

_log = logging.getLogger(__name__)

_Counters = dict[tuple[object, ...], tuple[int, ...]]


class _Window:
    """Samples of one metric, so many that a span lies between the first and the last.

    Each is three numbers: its time in milliseconds, times, value. As objects those of 200,000
    metrics would take a gigabyte after a day.
    """

    __slots__ = ("_count_max", "_interval_ms", "_samples")

    def __init__(self, interval_ms: int, count_max: int) -> None:
        self._interval_ms = interval_ms
        self._count_max = count_max
        self._samples = array("q")

    def sample(self, now_ms: int, times: int, value: int) -> None:
        """Add one; the first has a zero before it, as if the interval before it had been seen."""
        samples = self._samples
        if not samples:
            samples.extend((now_ms - self._interval_ms, 0, 0))
        samples.extend((now_ms, times, value))
        if len(samples) > self._count_max * SAMPLE_NUMBERS:
            del samples[:SAMPLE_NUMBERS]

    def snapshot(self) -> dict[str, float | int]:
        """``BrokerStatsItem``: the sum, the rate per second, and the mean of one time."""
        if not self._samples:
            return {"avgpt": 0.0, "sum": 0, "tps": 0.0}
        first_ms, first_times, first_value = self._samples[:SAMPLE_NUMBERS]
        last_ms, last_times, last_value = self._samples[-SAMPLE_NUMBERS:]
        total, times = last_value - first_value, last_times - first_times
        return {
            "avgpt": total / times if times > 0 else 0.0,
            "sum": total,
            "tps": total * 1000 / max(last_ms - first_ms, 1),
        }


class _Metric:
    """One counter and its samples (``StatsItem``)."""

    __slots__ = ("day", "hour", "minute", "times", "value")

    def __init__(self) -> None:
        self.value = self.times = 0
        self.minute = _Window(10_000, 7)
        self.hour = _Window(600_000, 7)
        self.day = _Window(3_600_000, 25)


class BrokerStats:
    """The metrics of one broker."""

    def __init__(
        self, settings: BrokerSettings, store: StoreMetrics, now_ms: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._store = store
        self._now_ms = now_ms
        self._metrics: dict[tuple[str, str], _Metric] = {}
        self._seen: _Counters = {}
        """The kernel's counters when they were last examined."""
        self._lock = asyncio.Lock()
        """Held by whoever reads the kernel's counters, or all metrics, in time slices."""
        self._sampled_ms = self._fresh_until_ms = 0
        self._samples = 0
        self._is_full = False

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Count something."""
        metric = self._metrics.get((name, key))
        if metric is None:
            if len(self._metrics) >= METRICS_MAX:
                if not self._is_full:
                    _log.warning("%d statistics are kept; further ones are not", METRICS_MAX)
                self._is_full = True
                return
            metric = self._metrics[name, key] = _Metric()
        metric.value += value
        metric.times += times

    def note_got(
        self,
        group: str,
        topic: str,
        queue_id: int,
        *,
        messages: int,
        size: int,
        milliseconds: int,
        reads: int = 1,
    ) -> None:
        """Reads of a group that found messages, which the kernel did not count."""
        key = self._key(topic, group)
        self.add(GROUP_GET_NUMS, key, messages, reads)
        self.add(GROUP_GET_SIZE, key, size, reads)
        latency_key = f"{queue_id}@{key}" if self._settings.current.enable_detail_stat else key
        self.add(GROUP_GET_LATENCY, latency_key, milliseconds, reads)
        self.add(BROKER_GET_NUMS, self._settings.current.broker_cluster_name, messages, 0)

    def note_sent_back(self, group: str, topic: str) -> None:
        """A group gave a message of a topic back."""
        self.add(SEND_BACK_NUMS, self._key(topic, group), 1)

    def note_dropped(self, group: str) -> int:
        """A group without retry queues gave a message back, which is dropped; how often it did so.
        0: there is no space to count it."""
        key = self._key(RETRY_PREFIX + group, group)
        self.add(SEND_BACK_DROPS, key, 1)
        metric = self._metrics.get((SEND_BACK_DROPS, key))
        return 0 if metric is None else metric.value

    def note_delayed(self, queue_id: int, size: int) -> None:
        """A message was put into a queue of delayed ones."""
        if self._settings.current.enable_detail_stat:
            key = f"{SCHEDULE_TOPIC}@{queue_id}"
            self.add(QUEUE_PUT_NUMS, key, 1)
            self.add(QUEUE_PUT_SIZE, key, size)

    def note_delivered(self, queue_id: int, count: int, size: int) -> None:
        """Delayed messages of that queue were put into their own topics."""
        if not self._settings.current.enable_schedule_message_stats:
            return
        key = f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}"
        self.add(GROUP_GET_NUMS, key, count)
        self.add(GROUP_GET_SIZE, key, size)
        if self._settings.current.enable_detail_stat:
            key = f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}"
            self.add(QUEUE_GET_NUMS, key, count)
            self.add(QUEUE_GET_SIZE, key, size)

    def sample(self) -> None:
        """Take the kernel's counters and make samples."""
        for _ in self._sample_in_steps():
            pass

    async def sample_in_slices(self) -> None:
        """The same, while others run; every ``SAMPLE_SECONDS``."""
        async with self._lock:
            await _take(self._sample_in_steps())

    def _sample_in_steps(self) -> Generator[None, None, None]:
        yield from self._refresh_in_steps()
        now_ms = self._now_ms()
        self._samples += 1
        is_hourly = self._samples % SAMPLES_PER_TEN_MINUTES == 0
        is_daily = self._samples % SAMPLES_PER_HOUR == 0
        for metric in list(self._metrics.values()):
            yield
            metric.minute.sample(now_ms, metric.times, metric.value)
            if is_hourly:
                metric.hour.sample(now_ms, metric.times, metric.value)
            if is_daily:
                metric.day.sample(now_ms, metric.times, metric.value)

    def view(self, name: str, key: str) -> dict[str, dict[str, float | int]] | None:
        """``BrokerStatsData``; None: nothing was counted under that name and key, up to the last
        ``refresh``."""
        metric = self._metrics.get((name, key))
        if metric is None:
            return None
        return {
            "statsDay": metric.day.snapshot(),
            "statsHour": metric.hour.snapshot(),
            "statsMinute": metric.minute.snapshot(),
        }

    def totals(self) -> list[tuple[str, str, int]]:
        """(name, key, value since the start) of all metrics, up to the last ``refresh``."""
        return [(*key, metric.value) for key, metric in self._metrics.items()]

    def got_per_second(self, group: str, topic: str) -> float:
        """Messages that a group gets of a topic, over the last minute."""
        metric = self._metrics.get((GROUP_GET_NUMS, self._key(topic, group)))
        return float(metric.minute.snapshot()["tps"]) if metric is not None else 0.0

    async def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its metrics go, if ``autoDeleteUnusedStats`` says so."""
        await self._forget(
            lambda key: key[0 if len(key) == 1 else 1] == topic,
            lambda key: key == topic or topic in key.split("@")[:-1],
        )

    async def forget_group(self, group: str) -> None:
        """The same for a group."""
        await self._forget(
            lambda key: len(key) > 1 and key[0] == group,
            lambda key: key.endswith(f"@{group}"),
        )

    def _key(self, topic: str, group: str) -> str:
        """Light message queues and their groups are too many for metrics of their own: they have
        one together (``LmqBrokerStatsManager``)."""
        if self._settings.current.enable_lmq:
            topic, group = (
                LMQ_PREFIX if name.startswith(LMQ_PREFIX) else name for name in (topic, group)
            )
        return f"{topic}@{group}"

    async def _forget(
        self, ends: Callable[[tuple[object, ...]], bool], goes: Callable[[str], bool]
    ) -> None:
        """Forget the counters of the kernel that ended, and the metrics that go."""
        async with self._lock:
            await _take(self._forget_in_steps(ends, goes))

    def _forget_in_steps(
        self, ends: Callable[[tuple[object, ...]], bool], goes: Callable[[str], bool]
    ) -> Generator[None, None, None]:
        for counted in list(self._seen):
            if ends(counted):
                del self._seen[counted]
            yield
        if not self._settings.current.auto_delete_unused_stats:
            return
        for name, key in list(self._metrics):
            if goes(key):
                del self._metrics[name, key]
            yield

    async def refresh(self) -> None:
        """Add what the kernel counted since the last time, in time slices, unless that was done
        lately (``COUNTERS_PER_MS``). To be called before a metric is examined, and before a topic
        or a group is deleted: their counters go with them."""
        async with self._lock:
            if not self._sampled_ms <= self._now_ms() < self._fresh_until_ms:
                await _take(self._refresh_in_steps())

    def _refresh_in_steps(self) -> Generator[None, None, None]:
        before, self._seen = self._seen, {}
        is_whole = False
        try:
            yield from self._add_topics(before)
            yield from self._add_groups(before)
            is_whole = True
        finally:
            if not is_whole:
                self._seen = {**before, **self._seen}
        self._sampled_ms = self._now_ms()
        self._fresh_until_ms = self._sampled_ms + len(self._seen) // COUNTERS_PER_MS

    def _add_topics(self, before: _Counters) -> Generator[None, None, None]:
        cluster = self._settings.current.broker_cluster_name
        for topic, *counters in self._store.topic_stats():
            grown = self._grown(before, (topic,), tuple(counters))
            if grown:
                messages, size = grown
                self.add(TOPIC_PUT_NUMS, topic, messages, messages)
                self.add(TOPIC_PUT_SIZE, topic, size, messages)
                self.add(BROKER_PUT_NUMS, cluster, messages, 0)
            yield

    def _add_groups(self, before: _Counters) -> Generator[None, None, None]:
        for group, topic, queue_id, *counters in self._store.group_stats():
            grown = self._grown(before, (group, topic, queue_id), tuple(counters))
            if grown:
                reads, messages, size, milliseconds = grown
                self.note_got(
                    group,
                    topic,
                    queue_id,
                    messages=messages,
                    size=size,
                    milliseconds=milliseconds,
                    reads=reads,
                )
            yield

    def _grown(
        self, before: _Counters, key: tuple[object, ...], counters: tuple[int, ...]
    ) -> tuple[int, ...]:
        """By how much counters grew, nothing if they did not; one that is smaller than before
        began anew."""
        self._seen[key] = counters
        old = before.get(key)
        if counters == old:
            return ()
        if old is None or any(b > c for b, c in zip(old, counters, strict=True)):
            return counters
        return tuple(c - b for b, c in zip(old, counters, strict=True))


async def _take(steps: Generator[None, None, None]) -> None:
    """All steps, between which others run."""
    slices = TimeSlices()
    with contextlib.closing(steps):
        for _ in steps:
            await slices.checkpoint()
