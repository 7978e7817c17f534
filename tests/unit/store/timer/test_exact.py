"""Messages come at their own moments, before the end of their step, as far as one may know."""

from __future__ import annotations

import pytest

from kerolox.message import PropertyKey
from kerolox.store.timer import machine
from kerolox.store.timer.machine import AHEAD_MS, Timer
from kerolox.store.timer.steps import Deliver
from tests.unit.store.timer.disk import NOW, Disk
from tests.unit.store.timer.test_machine import begin, delete, keys, pass_time, send


def came(disk: Disk) -> dict[str, int]:
    """When each message came, from the start on."""
    return {properties["UNIQ_KEY"]: time_ms - NOW for time_ms, _, properties in disk.puts}


def at(disk: Disk, timer: Timer, milliseconds: int) -> None:
    disk.now_ms = NOW + milliseconds
    disk.work(timer)


def test_messages_of_one_step_come_one_after_the_other() -> None:
    disk, timer = begin()
    for delay_ms in (5_900, 5_001, 5_400, 5_991, 6_000):
        send(disk, str(delay_ms), delay_ms)
    disk.work(timer)
    pass_time(disk, timer, NOW + 7_000, step_ms=10)
    assert came(disk) == {"5001": 5_010, "5400": 5_400, "5900": 5_900, "5991": 6_000, "6000": 6_000}
    assert timer.waiting.total() == 0
    assert timer.counts.delivered == 5


def test_messages_of_one_group_come_together_in_the_order_of_their_sends() -> None:
    disk, timer = begin()
    for number in range(9):
        send(disk, str(number), 4_509 - number)
    disk.work(timer)
    at(disk, timer, 4_509)
    assert disk.puts == []
    at(disk, timer, 4_510)
    assert keys(disk) == [str(number) for number in range(9)]


def test_a_message_that_is_sent_within_its_step_comes_at_its_moment() -> None:
    disk, timer = begin()
    send(disk, "before", 4_700)
    disk.work(timer)
    at(disk, timer, 4_100)
    for delay_ms in (500, 300):
        send(disk, f"within {delay_ms}", delay_ms)
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    assert came(disk) == {"within 300": 4_400, "within 500": 4_600, "before": 4_700}


def test_a_message_with_an_absolute_moment_comes_then() -> None:
    disk, timer = begin()
    disk.send({"UNIQ_KEY": "a", PropertyKey.TIMER_DELIVER: str(NOW + 3_330)})
    disk.work(timer)
    pass_time(disk, timer, NOW + 4_000, step_ms=10)
    assert came(disk) == {"a": 3_330}


def test_the_next_slot_is_read_before_its_step() -> None:
    disk, timer = begin()
    send(disk, "a", 2_100)
    disk.work(timer)
    at(disk, timer, 1_500)
    assert timer.next_ms() == NOW + 2_000 - AHEAD_MS
    at(disk, timer, 2_000 - AHEAD_MS)
    assert timer.next_ms() == NOW + 2_000
    at(disk, timer, 2_000)
    # Nothing is left to be read.
    assert timer.next_ms() == NOW + 2_100
    assert timer.next_ms(is_exact=False) == NOW + 3_000


def test_a_record_that_names_no_moment_of_its_step_comes_at_the_end() -> None:
    disk, timer = begin()
    send(disk, "a", 4_300)
    disk.records[-1] = disk.records[-1]._replace(stored_ms=NOW + 9_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    assert came(disk) == {"a": 5_000}


def test_a_delete_within_the_step_counts_until_the_message_comes() -> None:
    disk, timer = begin()
    for key in ("a", "b"):
        send(disk, key, 4_600)
    disk.work(timer)
    at(disk, timer, 4_500)
    delete(disk, "a", 400)
    at(disk, timer, 4_590)
    at(disk, timer, 4_600)
    delete(disk, "b", 400)
    at(disk, timer, 6_000)
    assert came(disk) == {"b": 4_600}
    assert timer.counts.deleted == 1


def test_a_delete_that_comes_while_others_run_counts() -> None:
    disk, timer = begin()
    send(disk, "a", 4_600)
    disk.work(timer)
    at(disk, timer, 4_500)
    disk.now_ms = NOW + 4_600
    timer.move(disk.now_ms)
    steps = timer.dequeue()
    request = steps.send(None)
    while not isinstance(request, Deliver):
        request = steps.send(disk.answer(request))
    delete(disk, "a", 300)
    with pytest.raises(StopIteration) as end:
        steps.send(disk.answer(request))
    assert end.value.value is True
    at(disk, timer, 6_000)
    assert came(disk) == {}
    assert timer.counts.deleted == 1


@pytest.mark.parametrize("before", [3, 5])
def test_more_than_fit_wait_for_the_end_of_the_step(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(machine, "EXACT_UNITS_MAX", 4)
    monkeypatch.setattr(machine, "PACK_UNITS", 2)
    disk, timer = begin()
    send(disk, "early", 4_200)
    for number in range(1, before):
        send(disk, str(number), 4_500)
    disk.work(timer)
    at(disk, timer, 4_200)
    for number in range(before, 6):
        send(disk, str(number), 300)
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    early_ms = 4_200 if before == 3 else 5_000
    assert came(disk) == {"early": early_ms, **{str(number): 5_000 for number in range(1, 6)}}


def test_without_the_queue_messages_wait_for_the_end_of_the_step() -> None:
    disk, timer = begin()
    send(disk, "a", 4_300)
    disk.work(timer)
    timer.move(NOW + 4_500)
    assert disk.run(timer.dequeue(is_exact=False)) is False
    assert disk.puts == []
    timer.move(NOW + 5_000)
    assert disk.run(timer.dequeue(is_exact=False)) is True
    assert keys(disk) == ["a"]


def test_a_jump_back_amid_a_step_brings_nothing_twice_and_nothing_early() -> None:
    disk, timer = begin()
    for delay_ms in (4_200, 4_600):
        send(disk, str(delay_ms), delay_ms)
    disk.work(timer)
    at(disk, timer, 4_400)
    assert came(disk) == {"4200": 4_400}
    at(disk, timer, 1_000)
    send(disk, "new", 3_250)
    disk.work(timer)
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    assert keys(disk) == ["4200", "new", "4600"]
    assert came(disk) == {"4200": 4_400, "new": 4_250, "4600": 4_600}


def test_a_jump_ahead_amid_a_step_brings_the_rest_at_once() -> None:
    disk, timer = begin()
    for delay_ms in (4_200, 4_600):
        send(disk, str(delay_ms), delay_ms)
    disk.work(timer)
    at(disk, timer, 4_200)
    at(disk, timer, 90_000)
    assert came(disk) == {"4200": 4_200, "4600": 90_000}


def test_clocks_that_jump_back_leave_few_slots_that_are_read() -> None:
    disk, timer = begin()
    for number in range(3 * machine.EXACT_SLOTS_MAX):
        at(disk, timer, 100_000 - 2_000 * number)
        send(disk, f"{number}", 200)
        send(disk, f"later {number}", 900)
        disk.work(timer)
        at(disk, timer, 100_200 - 2_000 * number)
    assert len(timer._opened) == machine.EXACT_SLOTS_MAX
    pass_time(disk, timer, NOW + 110_000)
    assert sorted(keys(disk)) == sorted(set(keys(disk)))
    assert len(keys(disk)) == 6 * machine.EXACT_SLOTS_MAX


# -- stops --------------------------------------------------------------------------------------
def test_a_stop_passes_a_step_of_which_all_is_delivered() -> None:
    disk, timer = begin()
    disk.send({PropertyKey.TIMER_DELIVER: str(NOW + 4_200)})
    disk.work(timer)
    at(disk, timer, 4_300)
    assert timer.end_step()
    disk.flush(timer)
    timer = disk.start().timer
    disk.send({PropertyKey.TIMER_DELIVER: str(NOW + 4_700), "TAGS": "new"})
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    # Without a key no index could know it.
    assert [properties.get("TAGS") for _, _, properties in disk.puts] == [None, "new"]


def test_a_stop_waits_for_the_end_of_a_step_of_which_some_is_delivered() -> None:
    disk, timer = begin()
    for delay_ms in (4_200, 4_600):
        send(disk, str(delay_ms), delay_ms)
    disk.work(timer)
    at(disk, timer, 4_000)
    assert timer.end_step()
    at(disk, timer, 4_200)
    assert not timer.end_step()
    at(disk, timer, 5_000)
    assert timer.end_step()
    assert timer.read_ms == NOW + 5_000


def test_what_came_of_a_step_stays_known_over_a_jump_back_and_a_stop() -> None:
    disk, timer = begin()
    for delay_ms in (4_300, 4_700):
        send(disk, str(delay_ms), delay_ms)
    disk.work(timer)
    at(disk, timer, 4_300)
    at(disk, timer, 1_000)
    disk.stop(timer)
    timer = disk.start(is_clean=True).timer
    pass_time(disk, timer, NOW + 6_000, step_ms=10)
    assert came(disk) == {"4300": 4_300, "4700": 4_700}
    assert len(disk.puts) == 2
