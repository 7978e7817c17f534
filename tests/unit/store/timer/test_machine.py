"""The timer's steps on a store in memory: each thing that can happen to it."""

from __future__ import annotations

import contextlib

import pytest

from kerolox.protocol.names import TIMER_TOPIC
from kerolox.store.timer import machine
from kerolox.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint
from kerolox.store.timer.log import UnitMagic, unit_at
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.puts import ForTimer
from kerolox.store.timer.steps import (
    Append,
    Deliver,
    Hold,
    Put,
    PutResult,
    ReadChain,
    ReadEntries,
    Request,
)
from tests.unit.store.timer.disk import NOW, RECORD_BYTES, SETTINGS, Crash, Disk


def begin() -> tuple[Disk, Timer]:
    disk = Disk()
    return disk, disk.start().timer


def send(disk: Disk, key: str, delay_ms: int, **more: str) -> None:
    found = disk.send({"UNIQ_KEY": key, "TIMER_DELAY_MS": str(delay_ms), **more})
    assert isinstance(found, ForTimer)


def delete(disk: Disk, key: str, delay_ms: int) -> None:
    send(disk, key, delay_ms, TIMER_DEL_UNIQKEY=f"T+{key}")


def keys(disk: Disk) -> list[str]:
    return [properties["UNIQ_KEY"] for _, _, properties in disk.puts]


def pass_time(disk: Disk, timer: Timer, until_ms: int, step_ms: int = 500) -> None:
    while disk.now_ms < until_ms:
        disk.now_ms += step_ms
        disk.work(timer)


def test_a_message_comes_when_its_moment_is_there_and_not_before() -> None:
    disk, timer = begin()
    send(disk, "a", 5_300)
    disk.work(timer)
    disk.now_ms = NOW + 5_299
    disk.work(timer)
    assert disk.puts == []
    assert timer.next_ms() == NOW + 5_300
    disk.now_ms = NOW + 5_300
    disk.work(timer)
    [(time_ms, topic, properties)] = disk.puts
    assert (time_ms, topic) == (NOW + 5_300, "T")
    assert properties == {
        "UNIQ_KEY": "a",
        "TIMER_DELAY_MS": "5300",
        "TIMER_OUT_MS": str(NOW + 5_000),
        "REAL_TOPIC": "T",
        "REAL_QID": "0",
        "TIMER_ENQUEUE_MS": str(NOW),
        "TIMER_DEQUEUE_MS": str(NOW + 5_300),
    }
    assert timer.counts.enqueued == timer.counts.delivered == 1
    assert timer.lag_ms == 0


def test_messages_of_a_slot_come_in_the_order_of_their_sends() -> None:
    disk, timer = begin()
    for number in range(13):
        send(disk, str(number), 4_000 + number)
    disk.work(timer)
    pass_time(disk, timer, NOW + 6_000)
    assert keys(disk) == [str(number) for number in range(13)]


def test_a_deleted_message_never_comes_others_of_its_slot_do() -> None:
    disk, timer = begin()
    send(disk, "a", 4_000)
    send(disk, "b", 4_000)
    delete(disk, "a", 4_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 6_000)
    assert keys(disk) == ["b"]
    assert timer.counts.deleted == 1


def test_a_delete_of_a_slot_that_is_due_but_not_read_still_counts() -> None:
    disk, timer = begin()
    send(disk, "a", 4_000)
    delete(disk, "a", 4_000)
    disk.run(timer.enqueue())
    disk.now_ms += 9_000
    timer.move(disk.now_ms)
    disk.run(timer.enqueue())
    disk.work(timer)
    assert keys(disk) == []


def test_a_delete_that_is_too_late_is_counted_and_nothing_else() -> None:
    disk, timer = begin()
    send(disk, "a", 1_500)
    disk.work(timer)
    delete(disk, "a", 1_500)
    pass_time(disk, timer, NOW + 1_000)
    disk.records.append(disk.records[-1]._replace(queue_offset=2))
    pass_time(disk, timer, NOW + 3_000)
    disk.records.append(disk.records[-1]._replace(topic=TIMER_TOPIC, queue_offset=3))
    disk.records[-1].properties.update(REAL_TOPIC="T", REAL_QID="0", TIMER_DEL_UNIQKEY="T+a")
    disk.work(timer)
    assert timer.counts.late_deletes == 1
    assert keys(disk) == []


def test_what_is_due_when_the_timer_comes_to_it_is_delivered_at_once() -> None:
    disk, timer = begin()
    send(disk, "a", 1_500)
    disk.now_ms += 10_000
    timer.move(disk.now_ms)
    disk.run(timer.dequeue())
    disk.work(timer)
    assert disk.puts[0][2]["TIMER_ENQUEUE_MS"] == str((1 << 63) - 1)
    assert disk.log == {}


@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("characters", [machine.DELETE_CHARACTERS_MAX, 0])
def test_a_delete_behind_a_message_that_is_late_counts(
    has_files: bool, characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer was away, or had lost its files, while their moment passed."""
    monkeypatch.setattr(machine, "DELETE_CHARACTERS_MAX", characters)
    disk, timer = begin()
    for key in ("a", "b"):
        send(disk, key, 1_500)
    delete(disk, "a", 1_400)
    if not has_files:
        disk.work(timer)
        disk.log.clear()
        disk.wheel = bytearray()
    disk.now_ms += 10_000
    timer = disk.start().timer
    disk.work(timer)
    assert keys(disk) == ["b"]
    assert timer.counts.deleted == 1


def test_a_long_delay_is_rolled_and_comes_once() -> None:
    disk, timer = begin()
    send(disk, "a", 40_000)
    disk.work(timer)
    first = unit_at(disk.log[0], 0, 0)
    assert first is not None
    assert first.magic == UnitMagic.DEFAULT | UnitMagic.ROLL
    assert first.delay_ms == 7_000
    pass_time(disk, timer, NOW + 39_500)
    assert disk.puts == []
    pass_time(disk, timer, NOW + 50_000)
    [(time_ms, _, properties)] = disk.puts
    assert time_ms == NOW + 40_000
    assert int(properties["TIMER_ROLL_TIMES"]) == timer.counts.rolled == 4


def test_a_roll_leaves_time_for_the_next_one() -> None:
    disk, timer = begin()
    send(disk, "a", 11_000)
    disk.work(timer)
    unit = unit_at(disk.log[0], 0, 0)
    assert unit is not None
    assert unit.delay_ms == 6_000


def test_a_put_that_cannot_be_done_is_tried_until_it_can() -> None:
    disk, timer = begin()
    send(disk, "a", 2_000)
    disk.work(timer)
    disk.now_ms += 3_000
    timer.move(disk.now_ms)
    disk.put_results = [PutResult.RETRY]
    steps = timer.dequeue()
    request = steps.send(None)
    while not isinstance(request, Put):
        request = steps.send(disk.answer(request))
    disk.put_results = []
    for _ in range(20):
        assert steps.send(PutResult.RETRY) == Hold()
        request = steps.send(None)
        while isinstance(request, ReadEntries):
            request = steps.send(disk.answer(request))
        assert isinstance(request, Put)
    assert timer.counts.delivered == 0
    steps.close()
    disk.work(timer)
    assert keys(disk) == ["a"]


def test_a_delete_counts_while_its_message_can_not_be_put() -> None:
    disk, timer = begin()
    send(disk, "a", 300)
    send(disk, "b", 300)
    disk.work(timer)
    disk.now_ms += 300
    timer.move(disk.now_ms)
    disk.put_results = [PutResult.RETRY]
    steps, answer = timer.dequeue(), None
    while not isinstance(request := steps.send(answer), Hold):
        answer = disk.answer(request)
    delete(disk, "a", 500)
    with contextlib.suppress(StopIteration):
        while True:
            request = steps.send(disk.answer(request))
    disk.work(timer)
    assert keys(disk) == ["b"]
    assert timer.counts.deleted == 1


def test_a_put_that_is_refused_for_ever_is_counted_and_others_go_on() -> None:
    disk, timer = begin()
    disk.put_results = [PutResult.NEVER]
    send(disk, "a", 2_000)
    send(disk, "b", 2_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 3_000)
    assert keys(disk) == ["b"]
    assert timer.counts.refused == 1


@pytest.mark.parametrize(
    "properties",
    [{}, {"TIMER_OUT_MS": "x"}, {"TIMER_OUT_MS": str(NOW + 5_000)}, {"REAL_TOPIC": "T"}],
)
def test_what_no_timer_put_into_its_topic_stops_nothing(properties: dict[str, str]) -> None:
    disk, timer = begin()
    disk.store(TIMER_TOPIC, properties)
    send(disk, "a", 2_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 6_000)
    assert keys(disk) == ["a"]
    assert timer.counts.unusable == 1


def test_a_record_that_retention_deleted_is_counted() -> None:
    disk, timer = begin()
    send(disk, "a", 2_000)
    send(disk, "b", 2_000)
    disk.work(timer)
    disk.retained = 1
    pass_time(disk, timer, NOW + 3_000)
    assert keys(disk) == ["b"]
    assert timer.counts.gone == 1


@pytest.mark.parametrize("previous", [None, 156, 5_200])
def test_a_chain_that_ends_early_gives_what_is_behind_and_others(previous: int | None) -> None:
    """A unit in the middle is gone, or leads forward: that goes round nowhere."""
    disk, timer = begin()
    for number in range(4):
        send(disk, str(number), 4_000)
    send(disk, "later", 6_000)
    disk.work(timer)
    unit = unit_at(disk.log[0], 104, 104)
    assert unit is not None
    assert unit.previous == 52
    data = bytes(52) if previous is None else unit._replace(previous=previous).pack()
    disk.log[0][104:156] = data
    pass_time(disk, timer, NOW + 8_000)
    assert keys(disk) == ["3", "later"]
    assert timer.counts.broken_chains == 1


def test_after_a_long_stop_all_that_was_due_comes_first() -> None:
    disk, timer = begin()
    send(disk, "a", 5_000)
    disk.work(timer)
    disk.flush(timer)
    disk.now_ms += 1_000_000
    timer = disk.start().timer
    timer.move(disk.now_ms)
    # Half a wheel ahead of what is read: no slot is needed for two turns.
    assert timer.write_ms - timer.read_ms == 80_000
    send(disk, "b", 3_000)
    disk.work(timer)
    pass_time(disk, timer, disk.now_ms + 4_000)
    assert keys(disk) == ["a", "b"]


def test_a_jump_ahead_delivers_what_is_due_then_and_a_jump_back_nothing_twice() -> None:
    disk, timer = begin()
    send(disk, "a", 20_000)
    send(disk, "b", 5_000)
    disk.work(timer)
    disk.now_ms += 30_000
    disk.work(timer)
    assert sorted(keys(disk)) == ["a", "b"]
    disk.now_ms = NOW + 1_000
    send(disk, "c", 3_000)
    disk.work(timer)
    assert sorted(keys(disk)) == ["a", "b"]
    pass_time(disk, timer, NOW + 60_000)
    assert keys(disk)[2:] == ["c"]
    assert disk.puts[2][0] == NOW + 4_000


def test_a_jump_back_waits_for_the_slot_that_is_read() -> None:
    disk, timer = begin()
    send(disk, "a", 2_000)
    disk.work(timer)
    disk.now_ms += 9_000
    timer.move(disk.now_ms)
    steps = timer.dequeue()
    request = steps.send(None)
    assert isinstance(request, ReadChain)
    disk.now_ms = NOW
    timer.move(disk.now_ms)
    assert timer.write_ms == NOW + 9_000
    send(disk, "b", 1_500)
    assert disk.run(timer.enqueue()) is False
    answer = disk.answer(request)
    while True:
        try:
            answer = disk.answer(steps.send(answer))
        except StopIteration:
            break
    timer.move(disk.now_ms)
    assert timer.read_ms == timer.write_ms == NOW
    disk.work(timer)
    assert keys(disk) == ["a"]
    pass_time(disk, timer, NOW + 12_000)
    assert keys(disk) == ["a", "b"]
    assert disk.puts[1][0] == NOW + 1_500


def test_a_slot_that_a_later_turn_has_taken_is_left_to_it() -> None:
    disk, timer = begin()
    disk.now_ms = NOW + 160_000
    send(disk, "late", 5_000)
    disk.work(timer)
    disk.now_ms = NOW
    send(disk, "early", 5_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 170_000)
    assert keys(disk) == ["early", "late"]
    assert [time_ms - NOW for time_ms, _, _ in disk.puts] == [6_000, 165_000]


def test_empty_slots_are_passed_a_bounded_number_in_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.store.timer.machine.EMPTY_SLOTS_MAX", 3)
    _, timer = begin()
    timer.move(NOW + 10_000)
    assert list(timer.dequeue()) == []
    assert timer.read_ms == NOW + 3_000


# -- check points -------------------------------------------------------------------------------
def test_a_check_point_waits_for_the_records_that_were_delivered_before() -> None:
    disk, timer = begin()
    send(disk, "a", 2_000)
    disk.work(timer)
    first = timer.prepare(1_000)
    assert timer.ready(999) is None
    send(disk, "b", 2_000)
    disk.work(timer)
    assert timer.prepare(5_000) == first
    assert timer.ready(1_000) == first
    assert (first.log_end, first.queue_offset, first.master_queue_offset) == (52, 1, 1)
    assert timer.prepare(5_000).queue_offset == 2
    assert timer.ready(5_000) is not None
    assert timer.ready(5_000) is None


def test_the_version_counts_the_check_points_that_differ() -> None:
    disk, timer = begin()
    disk.flush(timer)
    first = decode_checkpoint(disk.checkpoint or b"")
    disk.flush(timer)
    assert decode_checkpoint(disk.checkpoint or b"") == first
    send(disk, "a", 2_000)
    disk.work(timer)
    disk.flush(timer)
    second = decode_checkpoint(disk.checkpoint or b"")
    assert second.version_counter == first.version_counter + 1
    assert second.version_ms == NOW


# -- recovery -----------------------------------------------------------------------------------
def waiting() -> tuple[Disk, Timer]:
    """Twenty messages of four files; those before the tenth second are delivered."""
    disk = Disk(settings=SETTINGS._replace(roll_window_slots=20))
    timer = disk.start().timer
    for number in range(20):
        send(disk, str(number), 8_000 + 400 * number)
    disk.work(timer)
    pass_time(disk, timer, NOW + 10_000)
    disk.flush(timer)
    return disk, timer


def all_keys(disk: Disk, timer: Timer) -> list[str]:
    pass_time(disk, timer, NOW + 50_000)
    return sorted(keys(disk), key=int)


EACH_ONCE = [str(number) for number in range(20)]


def test_a_clean_stop_changes_nothing() -> None:
    disk, _ = waiting()
    again = disk.start()
    assert again.why == ""
    assert again.units < 20
    assert all_keys(disk, again.timer) == EACH_ONCE


def test_what_was_due_at_once_does_not_come_again_after_a_clean_stop() -> None:
    disk, timer = begin()
    send(disk, "a", 1_500)
    disk.now_ms += 20_000
    timer.move(disk.now_ms)
    disk.run(timer.dequeue())
    disk.work(timer)
    assert disk.log == {}
    disk.flush(timer)
    again = disk.start().timer
    disk.work(again)
    assert keys(disk) == ["a"]


@pytest.mark.parametrize("length", [0, 32, 5_119, 5_121])
def test_a_wheel_that_is_missing_or_torn_is_built_again_from_the_log(length: int) -> None:
    disk, _ = waiting()
    disk.wheel = bytearray(length)
    again = disk.start()
    assert again.why == "there is no wheel, or it has another length"
    assert again.units == 20
    assert all_keys(disk, again.timer) == EACH_ONCE


def test_a_timer_log_that_is_missing_is_built_again_from_the_queue() -> None:
    disk, _ = waiting()
    disk.log.clear()
    again = disk.start()
    assert again.why == "the timer log ends at 0, and the check point says 1100"
    assert all_keys(disk, again.timer) == EACH_ONCE


def test_what_was_due_during_a_stop_comes_though_the_timer_log_is_lost() -> None:
    disk, _ = waiting()
    disk.log.clear()
    disk.now_ms += 30_000
    assert all_keys(disk, disk.start().timer) == EACH_ONCE


@pytest.mark.parametrize("at", [0, 52, 280, 600, 1_000, 1_068])
@pytest.mark.parametrize("has_wheel", [True, False])
def test_a_timer_log_that_is_torn_goes_on_from_its_last_unit(at: int, has_wheel: bool) -> None:
    disk, _ = waiting()
    start = at // 280 * 280
    for position, data in disk.log.items():
        if position >= start:
            data[max(0, at - position) :] = bytes(len(data) - max(0, at - position))
    if not has_wheel:
        disk.wheel = bytearray()
    assert all_keys(disk, disk.start().timer) == EACH_ONCE


def test_files_of_the_timer_log_that_are_missing_at_its_end_are_read_again() -> None:
    disk, _ = waiting()
    for position in list(disk.log)[1:]:
        del disk.log[position]
    assert all_keys(disk, disk.start().timer) == EACH_ONCE


def test_without_wheel_log_and_check_point_nothing_is_lost() -> None:
    disk, _ = waiting()
    disk.log.clear()
    disk.wheel, disk.checkpoint = bytearray(), None
    assert set(all_keys(disk, disk.start().timer)) == set(EACH_ONCE)


def test_a_check_point_no_clock_can_have_been_at_counts_as_none() -> None:
    disk, _ = waiting()
    checkpoint = decode_checkpoint(disk.checkpoint or b"")
    disk.checkpoint = checkpoint._replace(last_read_ms=1 << 62).file()
    found = disk.start()
    assert found.why == "no clock had the time of its check point"
    assert all_keys(disk, found.timer) == EACH_ONCE


def test_a_unit_whose_record_a_power_failure_took_leads_to_no_other() -> None:
    disk, timer = begin()
    send(disk, "a", 5_000)
    disk.work(timer)
    disk.flush(timer)
    send(disk, "lost", 5_000)
    disk.work(timer)
    disk.records.pop()
    timer = disk.start().timer
    assert timer.log_end == 52
    send(disk, "other", 9_000)
    disk.work(timer)
    pass_time(disk, timer, NOW + 20_000)
    assert [
        (key, time_ms - NOW) for key, (time_ms, _, _) in zip(keys(disk), disk.puts, strict=True)
    ] == [
        ("a", 5_000),
        ("other", 9_000),
    ]


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("later_ms", [0, 30_000])
def test_a_kill_after_a_jump_back_loses_nothing(writes: int, later_ms: int) -> None:
    disk, timer = begin()
    send(disk, "a", 4_000)
    disk.work(timer)
    disk.now_ms += 20_000
    disk.work(timer)
    disk.flush(timer)
    disk.now_ms = NOW
    send(disk, "b", 4_000)
    disk.crash_in = writes
    with contextlib.suppress(Crash):
        disk.work(timer)
    disk.crash_in = -1
    disk.now_ms += later_ms
    timer = disk.start().timer
    disk.work(timer)
    pass_time(disk, timer, NOW + 40_000)
    assert keys(disk) == ["a", "b"]


def test_what_waits_behind_a_turn_of_the_wheel_is_found_without_a_wheel() -> None:
    disk, timer = begin()
    disk.now_ms = NOW + 400_000
    send(disk, "late", 5_000)
    disk.work(timer)
    disk.now_ms = NOW
    disk.work(timer)
    disk.flush(timer)
    disk.wheel = bytearray()
    timer = disk.start().timer
    pass_time(disk, timer, NOW + 410_000, 5_000)
    assert set(keys(disk)) == {"late"}
    assert disk.puts[0][0] >= NOW + 405_000


def test_a_new_broker_begins_at_now_and_says_nothing() -> None:
    found = Disk().start()
    assert (found.timer.read_ms, found.units, found.why) == (NOW, 0, "")


# -- slaves -------------------------------------------------------------------------------------
def start_slave(disk: Disk, entries: int, read_ms: int = NOW) -> Timer:
    """One that has taken what its master has, which is at a moment."""
    slave = disk.start(is_active=False).timer
    disk.run(slave.follow(TimerCheckpoint(read_ms, 0, entries, entries)))
    disk.work(slave)
    return slave


def test_a_slave_goes_as_far_as_its_master_and_delivers_nothing() -> None:
    disk = Disk()
    for number in range(4):
        send(disk, str(number), 3_000)
    slave = disk.start(is_active=False).timer
    disk.work(slave)
    assert slave.queue_offset == 0
    disk.run(slave.follow(TimerCheckpoint(NOW, 0, 3, 3)))
    disk.work(slave)
    assert slave.queue_offset == 3
    pass_time(disk, slave, NOW + 9_000)
    assert disk.puts == []
    assert slave.prepare(0)[:4] == (NOW, 156, 3, 3)


def test_a_planned_promotion_delivers_what_the_master_has_not() -> None:
    disk = Disk()
    for number in range(4):
        send(disk, str(number), 3_000 + 2_000 * number)
    slave = start_slave(disk, 4)
    disk.now_ms += 5_500
    disk.run(slave.follow(TimerCheckpoint(NOW + 5_000, 0, 4, 4)))
    slave.activate(True)
    pass_time(disk, slave, NOW + 20_000)
    assert keys(disk) == ["2", "3"]


def test_a_slave_with_a_clock_behind_its_master_delivers_nothing_twice() -> None:
    disk = Disk()
    send(disk, "a", 3_000)
    slave = start_slave(disk, 1)
    disk.run(slave.follow(TimerCheckpoint(NOW + 5_000, 0, 1, 1)))
    slave.activate(True)
    pass_time(disk, slave, NOW + 20_000)
    assert keys(disk) == []


def test_a_slave_with_a_clock_behind_its_master_loses_no_message_that_is_rolled() -> None:
    disk = Disk()
    send(disk, "a", 25_000)
    slave = start_slave(disk, 1, NOW + 20_000)
    slave.activate(True)
    pass_time(disk, slave, NOW + 24_500)
    assert "T" not in {topic for _, topic, _ in disk.puts}
    pass_time(disk, slave, NOW + 26_000)
    assert disk.puts[-1][1] == "T"
    assert keys(disk)[-1] == "a"


@pytest.mark.parametrize("late_ms", range(0, 4_001, 1_000))
def test_a_slave_loses_no_message_that_its_master_has_not_rolled(
    late_ms: int,
) -> None:
    disk = Disk()
    send(disk, "a", 13_000)
    master = disk.start().timer
    disk.run(master.enqueue())
    rolled_ms = master.latest_ms
    disk.log, disk.wheel = {}, bytearray()
    disk.now_ms += late_ms
    slave = start_slave(disk, 1)
    disk.now_ms = rolled_ms
    disk.run(slave.follow(TimerCheckpoint(rolled_ms, 0, 1, 1)))
    slave.activate(True)
    pass_time(disk, slave, NOW + 14_000)
    assert disk.puts[-1][1] == "T"


def test_a_slave_keeps_what_a_later_master_has_in_a_later_slot() -> None:
    """Who takes a message later rolls it later, or not at all."""
    disk = Disk()
    send(disk, "a", 13_000)
    send(disk, "b", 12_500)
    slave = start_slave(disk, 2)
    assert slave.latest_ms < NOW + 10_000, "both are to be rolled"
    disk.now_ms += 11_000
    for passed_ms in (9_000, 10_000, 11_000):
        disk.run(slave.follow(TimerCheckpoint(NOW + passed_ms, 0, 2, 2)))
    assert slave.waiting == {"T": 2}
    slave.activate(True)
    pass_time(disk, slave, NOW + 14_000)
    assert sorted(keys(disk)) == ["a", "b"]
    assert {topic for _, topic, _ in disk.puts} == {"T"}


def test_a_slave_gives_out_once_what_its_master_has_rolled() -> None:
    disk = Disk()
    send(disk, "a", 13_000)
    send(disk, "taken back", 13_000)
    slave = start_slave(disk, 2)
    own = disk.log, disk.wheel
    disk.log, disk.wheel = {}, bytearray()
    master = disk.start().timer
    pass_time(disk, master, NOW + 10_000)
    rolls = [each for each in disk.records if each.source >= 0]
    assert len(rolls) == 2, "both are rolled"
    disk.log, disk.wheel = own
    disk.run(slave.follow(TimerCheckpoint(NOW + 10_000, 0, 4, 4)))
    disk.work(slave)
    slave.activate(True, len(disk.records) * RECORD_BYTES)
    pass_time(disk, slave, NOW + 14_000)
    assert sorted(keys(disk)) == ["a", "taken back"]


# -- what is asked for --------------------------------------------------------------------------
def test_the_wheel_knows_a_unit_after_the_log_has_it() -> None:
    disk, timer = begin()
    send(disk, "a", 3_000)
    steps = timer.enqueue()
    request = steps.send(None)
    assert isinstance(request, ReadEntries)
    assert request.queue_offset == 0
    while not isinstance(request, Append):
        request = steps.send(disk.answer(request))
    assert not any(disk.wheel)
    steps.close()
    assert (timer.queue_offset, timer.log_end) == (0, 0)


def test_after_a_kill_what_waits_comes_at_once_but_for_what_was_delivered() -> None:
    disk, timer = begin()
    for number in range(9):
        send(disk, str(number), 4_500)
    disk.work(timer)
    disk.flush(timer)
    disk.now_ms += 5_000
    disk.crash_in = 6  # Of the copies three are made.
    with pytest.raises(Crash):
        disk.work(timer)
    came = keys(disk)
    assert 0 < len(came) < 9
    disk.crash_in = -1
    timer = disk.start().timer
    ways: list[type] = []
    answer = disk.answer

    def noted(request: Request) -> object:
        ways.append(type(request))
        return answer(request)

    disk.answer = noted  # type: ignore[method-assign]
    disk.work(timer)
    assert sorted(keys(disk)) == [str(number) for number in range(9)]
    assert timer.counts.known == len(came)
    assert (ways.count(Deliver), ways.count(Put)) == (1, 0)
