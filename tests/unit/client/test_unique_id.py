from __future__ import annotations

import time

import pytest

from kerolox.client.core.sending.unique_id import (
    UniqueIdFactory,
    month_start_ms,
    next_month_start_ms,
)

NOVEMBER = time.struct_time((2026, 11, 21, 12, 30, 15, 0, 0, -1))
NOW_MS = int(time.mktime(NOVEMBER)) * 1000 + 123


def test_the_id_is_ip_pid_salt_elapsed_and_counter() -> None:
    factory = UniqueIdFactory("192.0.2.7", 0x1_ABCD, 0xCAFE0123)
    elapsed_ms = NOW_MS - month_start_ms(NOW_MS)
    assert factory.next(NOW_MS) == f"C0000207ABCDCAFE0123{elapsed_ms:08X}0000"
    assert factory.next(NOW_MS) == f"C0000207ABCDCAFE0123{elapsed_ms:08X}0001"


def test_an_ipv6_host_makes_a_longer_id() -> None:
    text = UniqueIdFactory("2001:db8::1", 1, 2).next(NOW_MS)
    assert len(text) == 56
    assert text.startswith("20010DB8000000000000000000000001000100000002")


def test_the_counter_wraps_at_sixteen_bits() -> None:
    factory = UniqueIdFactory("127.0.0.1", 1, 2)
    ids = [factory.next(NOW_MS) for _ in range(65_537)]
    assert len(set(ids[:65_536])) == 65_536
    assert ids[65_536] == ids[0]


def test_the_month_starts_at_local_midnight_of_its_first_day() -> None:
    start = time.localtime(month_start_ms(NOW_MS) / 1000)
    assert start[:6] == (2026, 11, 1, 0, 0, 0)
    assert time.localtime(next_month_start_ms(NOW_MS) / 1000)[:6] == (2026, 12, 1, 0, 0, 0)
    december_ms = next_month_start_ms(NOW_MS)
    assert time.localtime(next_month_start_ms(december_ms) / 1000)[:6] == (2027, 1, 1, 0, 0, 0)


def test_a_new_month_starts_the_time_anew() -> None:
    factory = UniqueIdFactory("127.0.0.1", 1, 2)
    factory.next(NOW_MS)
    assert factory.next(next_month_start_ms(NOW_MS) + 5)[20:28] == f"{5:08X}"


@pytest.mark.parametrize("step_back_ms", [1, 999_999])
def test_a_clock_that_steps_back_over_the_month_start_counts_as_the_start(
    step_back_ms: int,
) -> None:
    factory = UniqueIdFactory("127.0.0.1", 1, 2)
    start_ms = next_month_start_ms(NOW_MS)
    factory.next(start_ms)
    assert factory.next(start_ms - step_back_ms)[20:28] == "00000000"
