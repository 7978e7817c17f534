"""How much is put and got, by topic and by group (``BrokerStatsManager``).

The kernel counts what goes through it; what only Python knows is added here. Every ten seconds the
counters become samples, so that sums and rates of the last minute, hour and day can be told
(``VIEW_BROKER_STATS_DATA``), as RocketMQ tells them: a figure is there from the first message on,
and not 0 after the next sample.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kerolox.broker.topics import SCHEDULE_TOPIC
from kerolox.store.multi_dispatch import LMQ_PREFIX

if TYPE_CHECKING:
    from kerolox.broker.config import BrokerConfig
    from kerolox.kernel import StoreKernel

__all__ = ["SAMPLE_SECONDS", "Traffic"]

SAMPLE_SECONDS = 10.0
SAMPLES_PER_TEN_MINUTES, SAMPLES_PER_HOUR = 60, 360

FIGURES_MAX = 200_000
"""Figures that are kept, of some 2 KB each; what would be one more is not counted."""

SAMPLE_NUMBERS = 3

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SEND_BACK_NUMS = "SNDBCK_PUT_NUMS"
QUEUE_PUT_NUMS, QUEUE_PUT_SIZE = "QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS, QUEUE_GET_SIZE = "QUEUE_GET_NUMS", "QUEUE_GET_SIZE"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"

SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""In whose name delayed messages are got from their queues."""

_log = logging.getLogger(__name__)


class _Window:
    """Samples of one figure, so many that a span lies between the first and the last.

    Each is three numbers: its time in milliseconds, times, value. As objects those of 200,000
    figures would take a gigabyte after a day.
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


class _Figure:
    """One counter and its samples (``StatsItem``)."""

    __slots__ = ("day", "hour", "minute", "times", "value")

    def __init__(self) -> None:
        self.value = self.times = 0
        self.minute = _Window(10_000, 7)
        self.hour = _Window(600_000, 7)
        self.day = _Window(3_600_000, 25)


class Traffic:
    """The figures of one broker."""

    def __init__(self, config: BrokerConfig, store: StoreKernel, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._figures: dict[tuple[str, str], _Figure] = {}
        self._seen: dict[tuple[object, ...], tuple[int, ...]] = {}
        """The kernel's counters when they were last looked at."""
        self._samples = 0
        self._is_full = False

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        """Count something."""
        figure = self._figures.get((name, key))
        if figure is None:
            if len(self._figures) >= FIGURES_MAX:
                if not self._is_full:
                    _log.warning("%d statistics are kept; further ones are not", FIGURES_MAX)
                self._is_full = True
                return
            figure = self._figures[name, key] = _Figure()
        figure.value += value
        figure.times += times

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
        latency_key = f"{queue_id}@{key}" if self._config.enable_detail_stat else key
        self.add(GROUP_GET_LATENCY, latency_key, milliseconds, reads)
        self.add(BROKER_GET_NUMS, self._config.broker_cluster_name, messages, 0)

    def note_sent_back(self, group: str, topic: str) -> None:
        """A group gave a message of a topic back."""
        self.add(SEND_BACK_NUMS, self._key(topic, group), 1)

    def note_delayed(self, queue_id: int, size: int) -> None:
        """A message was put into a queue of delayed ones."""
        if self._config.enable_detail_stat:
            key = f"{SCHEDULE_TOPIC}@{queue_id}"
            self.add(QUEUE_PUT_NUMS, key, 1)
            self.add(QUEUE_PUT_SIZE, key, size)

    def note_delivered(self, queue_id: int, size: int) -> None:
        """A delayed message of that queue was put into its own topic."""
        if not self._config.enable_schedule_message_stats:
            return
        key = f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}"
        self.add(GROUP_GET_NUMS, key, 1)
        self.add(GROUP_GET_SIZE, key, size)
        if self._config.enable_detail_stat:
            key = f"{SCHEDULE_TOPIC}@{queue_id}@{SCHEDULE_GROUP}"
            self.add(QUEUE_GET_NUMS, key, 1)
            self.add(QUEUE_GET_SIZE, key, size)

    def sample(self) -> None:
        """Take the kernel's counters and make samples; every ``SAMPLE_SECONDS``."""
        for _ in self.sample_in_steps():
            pass

    def sample_in_steps(self) -> Iterator[None]:
        """The same, with a step for each figure, between which others may have their turns."""
        self.refresh()
        now_ms = self._now_ms()
        is_hourly = self._samples % SAMPLES_PER_TEN_MINUTES == 0
        is_daily = self._samples % SAMPLES_PER_HOUR == 0
        self._samples += 1
        for figure in list(self._figures.values()):
            yield
            figure.minute.sample(now_ms, figure.times, figure.value)
            if is_hourly:
                figure.hour.sample(now_ms, figure.times, figure.value)
            if is_daily:
                figure.day.sample(now_ms, figure.times, figure.value)

    def view(self, name: str, key: str) -> dict[str, dict[str, float | int]] | None:
        """``BrokerStatsData``; None: nothing was counted under that name and key."""
        self.refresh()
        figure = self._figures.get((name, key))
        if figure is None:
            return None
        return {
            "statsDay": figure.day.snapshot(),
            "statsHour": figure.hour.snapshot(),
            "statsMinute": figure.minute.snapshot(),
        }

    def got_per_second(self, group: str, topic: str) -> float:
        """Messages that a group gets of a topic, over the last minute."""
        figure = self._figures.get((GROUP_GET_NUMS, self._key(topic, group)))
        return float(figure.minute.snapshot()["tps"]) if figure is not None else 0.0

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its figures go, if ``autoDeleteUnusedStats`` says so."""
        self.refresh()
        if self._config.auto_delete_unused_stats:
            self._forget(lambda key: key == topic or topic in key.split("@")[:-1])

    def forget_group(self, group: str) -> None:
        """The same for a group."""
        self.refresh()
        if self._config.auto_delete_unused_stats:
            self._forget(lambda key: key.endswith(f"@{group}"))

    def _key(self, topic: str, group: str) -> str:
        """Light message queues and their groups are too many for figures of their own: they have
        one together (``LmqBrokerStatsManager``)."""
        if self._config.enable_lmq:
            topic, group = (
                LMQ_PREFIX if name.startswith(LMQ_PREFIX) else name for name in (topic, group)
            )
        return f"{topic}@{group}"

    def _forget(self, goes: Callable[[str], bool]) -> None:
        self._figures = {
            (name, key): figure for (name, key), figure in self._figures.items() if not goes(key)
        }

    def refresh(self) -> None:
        """Add what the kernel counted since the last time. Before a topic or a group is deleted:
        their counters go with them."""
        cluster = self._config.broker_cluster_name
        before, self._seen = self._seen, {}
        for topic, messages, size in self._new(
            before, (((topic,), (count, size)) for topic, count, size in self._store.topic_stats())
        ):
            self.add(TOPIC_PUT_NUMS, topic, messages, messages)
            self.add(TOPIC_PUT_SIZE, topic, size, messages)
            self.add(BROKER_PUT_NUMS, cluster, messages, 0)
        for group, topic, queue_id, reads, messages, size, milliseconds in self._new(
            before, ((tuple(row[:3]), tuple(row[3:])) for row in self._store.group_stats())
        ):
            self.note_got(
                group,
                topic,
                queue_id,
                messages=messages,
                size=size,
                milliseconds=milliseconds,
                reads=reads,
            )

    def _new(
        self,
        seen: dict[tuple[object, ...], tuple[int, ...]],
        rows: Iterator[tuple[tuple[Any, ...], tuple[int, ...]]],
    ) -> Iterator[tuple[Any, ...]]:
        """What grew, by how much; a counter that is smaller than before began anew."""
        for key, counters in rows:
            self._seen[key] = counters
            before = seen.get(key)
            if counters == before:
                continue
            if before is None or any(b > c for b, c in zip(before, counters, strict=True)):
                yield (*key, *counters)
            else:
                yield (*key, *(c - b for b, c in zip(before, counters, strict=True)))
