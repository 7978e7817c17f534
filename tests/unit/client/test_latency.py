"""Brokers that are slow or fail are avoided for a while, when that is switched on."""

from __future__ import annotations

import pytest

from kerolox.client import ProducerSettings
from kerolox.client.core.sending.queue_choice import (
    BROKERS_MAX,
    LatencyFaults,
    QueueChooser,
    avoid_ms,
)
from kerolox.message import MessageQueue

QUEUES = [MessageQueue("T", broker, queue_id) for broker in "abc" for queue_id in range(2)]


class Clock:
    now_ms = 1_000.0

    def __call__(self) -> float:
        return self.now_ms


def chosen(faults: LatencyFaults, chooser: QueueChooser, count: int = 12) -> list[MessageQueue]:
    return [faults.choose(chooser) for _ in range(count)]


def test_it_is_off_unless_it_is_switched_on() -> None:
    assert ProducerSettings().latency_fault_enable is False


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [
        (0, 0), (50, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (2_000, 120_000),
        (3_000, 180_000), (14_999, 180_000), (15_000, 600_000), (30_000, 600_000),
    ],
)  # fmt: skip
def test_a_latency_has_its_time_of_being_avoided(latency_ms: int, expected: int) -> None:
    assert avoid_ms(latency_ms) == expected


def test_queues_of_a_slow_broker_are_left_out_until_its_time_is_over() -> None:
    clock = Clock()
    faults, chooser = LatencyFaults(clock), QueueChooser(QUEUES, start=0)
    assert sorted(chosen(faults, chooser, 6)) == QUEUES
    faults.note("b", 600)
    faults.note("c", 90)
    assert {queue.broker_name for queue in chosen(faults, chooser)} == {"a", "c"}
    clock.now_ms += 29_999
    assert not faults.is_available("b")
    clock.now_ms += 1
    assert {queue.broker_name for queue in chosen(faults, chooser)} == {"a", "b", "c"}


def test_a_failed_send_counts_as_a_very_slow_one_and_a_fast_one_forgives() -> None:
    clock = Clock()
    faults = LatencyFaults(clock)
    faults.note("b", 1, failed=True)
    clock.now_ms += 599_999
    assert not faults.is_available("b")
    faults.note("b", 1)
    assert faults.is_available("b")


def test_when_all_are_avoided_the_better_half_is_taken() -> None:
    faults, chooser = LatencyFaults(Clock()), QueueChooser(QUEUES, start=0)
    for broker, latency_ms in (("a", 3_000), ("b", 700), ("c", 900), ("gone", 20_000)):
        faults.note(broker, latency_ms)
    taken = chosen(faults, chooser)
    assert {queue.broker_name for queue in taken} == {"b", "c"}


def test_a_least_bad_broker_without_a_queue_of_the_topic_is_forgotten() -> None:
    faults, chooser = LatencyFaults(Clock()), QueueChooser(QUEUES, start=0)
    for broker, latency_ms in (("gone", 600), ("a", 700), ("b", 800), ("c", 900)):
        faults.note(broker, latency_ms)
    assert {queue.topic for queue in chosen(faults, chooser)} == {"T"}
    assert faults.is_available("gone")


def test_the_table_of_brokers_is_bounded() -> None:
    faults = LatencyFaults(Clock())
    for index in range(BROKERS_MAX + 1):
        faults.note(f"b{index}", 600)
    assert faults.is_available("b0")
    assert not faults.is_available(f"b{BROKERS_MAX}")
