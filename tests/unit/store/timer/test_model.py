"""The timer against what a timer is for: each message comes once and never early, and none is lost.
Drawn are sends, deletes, clocks that jump, kills at each write, power failures and torn files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.names import TIMER_TOPIC
from kerolox.store.timer.machine import Timer
from kerolox.store.timer.open_slot import GROUP_MS
from kerolox.store.timer.puts import AsItIs, ForTimer
from kerolox.store.timer.steps import PutResult
from tests.unit.store.timer.disk import SETTINGS, Crash, Disk

ROLLED_MS = (SETTINGS.window - 1) * SETTINGS.precision_ms
"""A longer delay may be rolled: the window begins with the step of now."""


@dataclass
class Waiting:
    deliver_ms: int
    delay_ms: int
    is_deleted: bool = False


@dataclass
class Run:
    """One run: a store, its process, and what it owes."""

    disk: Disk = field(default_factory=Disk)
    owed: dict[str, Waiting] = field(default_factory=dict)
    crashes: int = 0
    jumps: int = 0
    has_lost: bool = False
    """Power failed: what was deleted may be what nobody waited for."""

    def __post_init__(self) -> None:
        self.timer: Timer = self.disk.start().timer

    def do(self, name: str, *arguments: int) -> None:
        try:
            getattr(self, name)(*arguments)
        except Crash:
            self.start_again()

    # -- what happens ---------------------------------------------------------------------------
    def send(self, delay_ms: int) -> None:
        disk = self.disk
        key = str(len(self.owed))
        self.owed[key] = Waiting(disk.now_ms + delay_ms, delay_ms)
        found = disk.send({"UNIQ_KEY": key, "TIMER_DELAY_MS": str(delay_ms)})
        assert isinstance(found, ForTimer)

    def delete(self, which: int) -> None:
        if not self.owed:
            return
        key = str(which % len(self.owed))
        found = self.owed[key]
        left_ms = found.deliver_ms - self.disk.now_ms
        if 0 < left_ms <= 60_000:
            properties = {"TIMER_DELIVER_MS": str(found.deliver_ms), "UNIQ_KEY": key}
            put = self.disk.send({**properties, "TIMER_DEL_UNIQKEY": f"T+{key}"})
            assert not isinstance(put, AsItIs)
            found.is_deleted = True

    def tick(self, milliseconds: int) -> None:
        self.disk.now_ms += milliseconds
        self.disk.work(self.timer)
        if not self.crashes and not self.jumps:
            self.check_late()

    def jump(self, milliseconds: int) -> None:
        self.jumps += 1
        self.tick(milliseconds)

    def enqueue(self, number: int) -> None:
        self.timer.move(self.disk.now_ms)
        for _ in range(number):
            self.disk.run(self.timer.enqueue())

    def mix(self, requests: int, milliseconds: int) -> None:
        """Read a slot, and enqueue amid that."""
        disk, timer = self.disk, self.timer
        timer.move(disk.now_ms)
        while disk.run(timer.enqueue()):
            pass
        steps = timer.dequeue()
        answer = None
        try:
            for _ in range(requests):
                answer = disk.answer(steps.send(answer))
            disk.now_ms += milliseconds
            timer.move(disk.now_ms)
            while disk.run(timer.enqueue()):
                pass
            while True:
                answer = disk.answer(steps.send(answer))
        except StopIteration:
            pass

    def refuse(self, number: int) -> None:
        self.disk.put_results = [PutResult.RETRY] * number

    def flush(self) -> None:
        self.disk.flush(self.timer)

    def sync(self) -> None:
        self.disk.sync()

    def stop(self, stop_ms: int) -> None:
        self.disk.stop(self.timer)
        self.disk.now_ms += stop_ms
        self.disk.crash_in = -1
        self.timer = self.disk.start(is_clean=not self.timer.has_doubts).timer

    def kill(self, writes: int) -> None:
        self.disk.crash_in = writes

    def cut_power(self, units_kept: int, slots_kept: int) -> None:
        self.has_lost = True
        kept = self.disk.flushed[0]
        lost = [record for record in self.disk.records[kept:] if record.topic == TIMER_TOPIC]
        for record in lost:
            key = record.properties["UNIQ_KEY"]
            if key in self.owed and "TIMER_ROLL_TIMES" not in record.properties:
                # What a producer did not wait for.
                self.owed[key].is_deleted = True
        self.disk.lose_power(units_kept, slots_kept)
        self.start_again()

    def tear(self, wheel: int, log: int, stop_ms: int) -> None:
        if wheel:
            self.disk.wheel = bytearray()
        files = sorted(self.disk.log)
        if log and files:
            at = log % (len(files) * 280)
            for position, data in self.disk.log.items():
                begin = max(0, at - position)
                data[begin:] = bytes(max(0, len(data) - begin))
        self.disk.now_ms += stop_ms
        self.start_again()

    def start_again(self) -> None:
        self.disk.crash_in = -1
        self.crashes += 1
        self.timer = self.disk.start().timer

    def check_late(self) -> None:
        """All whose moments are over are there."""
        came = {properties["UNIQ_KEY"] for _, _, properties in self.disk.puts}
        for key, found in self.owed.items():
            # What was rolled is no more known to the millisecond.
            step_ms = SETTINGS.precision_ms if found.delay_ms > ROLLED_MS else GROUP_MS
            due_ms = -(-found.deliver_ms // step_ms) * step_ms
            if due_ms <= self.disk.now_ms and not found.is_deleted:
                assert key in came, f"{key} is late"

    # -- what was owed --------------------------------------------------------------------------
    def check(self) -> None:
        disk = self.disk
        disk.crash_in = -1
        # A clock that is set back may leave what was sent before that a long way off.
        last = max((each.deliver_ms for each in self.owed.values()), default=disk.now_ms)
        end = max(last, disk.now_ms) + 10_000
        while disk.now_ms < end:
            self.tick(700)
        for time_ms, _, properties in disk.puts:
            assert time_ms >= self.owed[properties["UNIQ_KEY"]].deliver_ms, "early"
        came = Counter(
            record.properties["UNIQ_KEY"] for record in disk.records if record.topic == "T"
        )
        for key, found in self.owed.items():
            if not found.is_deleted:
                assert came[key] >= 1, f"{key} is lost"
            elif not self.jumps and not self.has_lost:
                assert came[key] == 0, f"{key} was deleted"
            assert came[key] <= 1, f"{key} came twice"
        counts = self.timer.counts
        assert counts.gone == counts.unusable == counts.broken_chains == 0


DELAYS = st.integers(1, 8_000) | st.integers(1, 60_000)
CALM = (
    st.tuples(st.just("send"), DELAYS)
    | st.tuples(st.just("send"), st.sampled_from([3_000, 5_000]))
    | st.tuples(st.just("delete"), st.integers(0, 50))
    | st.tuples(st.just("tick"), st.integers(0, 4_000))
    | st.tuples(st.just("enqueue"), st.integers(0, 4))
    | st.tuples(st.just("mix"), st.integers(0, 12), st.integers(0, 9_000))
    | st.tuples(st.just("refuse"), st.integers(1, 4))
    | st.tuples(st.just("flush"))
    | st.tuples(st.just("stop"), st.integers(0, 9_000))
    | st.tuples(st.just("sync"))
)
JUMPS = st.tuples(st.just("jump"), st.integers(-30_000, 30_000) | st.integers(-400_000, 400_000))
KILLS = st.tuples(st.just("kill"), st.integers(0, 20))
POWER = st.tuples(
    st.just("cut_power"), st.integers(0, (1 << 61) - 1), st.integers(0, (1 << 61) - 1)
)
TEARS = st.tuples(st.just("tear"), st.integers(0, 1), st.integers(0, 5_000), st.integers(0, 30_000))
Events = list[tuple[str, int]]


def run(events: Events) -> None:
    case = Run()
    for event in events:
        case.do(*event)
    case.check()


@given(st.lists(CALM, max_size=40))
def test_without_faults_each_message_comes_once_and_deletes_count(events: Events) -> None:
    run(events)


@given(st.lists(CALM | JUMPS, max_size=40))
def test_with_clocks_that_jump_each_message_comes_once(events: Events) -> None:
    run(events)


@given(st.lists(CALM | JUMPS | KILLS, max_size=40))
def test_a_kill_at_any_write_loses_nothing(events: Events) -> None:
    run(events)


@given(st.lists(CALM | KILLS | POWER, max_size=40))
def test_a_power_failure_loses_nothing_that_is_on_the_disk(events: Events) -> None:
    run(events)


@given(st.lists(CALM | JUMPS | KILLS | POWER | TEARS, max_size=40))
def test_with_all_faults_nothing_is_lost_or_early(events: Events) -> None:
    run(events)


def test_a_delay_that_is_rolled_since_the_clock_jumped_back_ends_not_early() -> None:
    run([("send", 3_000), ("jump", -10_301)])


def test_a_delay_a_millisecond_shorter_than_the_window_comes_in_its_step() -> None:
    run([("tick", 2), ("send", 8_999)])


def test_what_no_check_point_knows_comes_after_a_jump_ahead() -> None:
    run([("send", 3_000), ("tick", 0), ("kill", 0), ("jump", 23_000)])


def test_a_kill_between_a_jump_back_and_its_check_point_loses_nothing() -> None:
    run([("send", 3_000), ("flush",), ("kill", 1), ("jump", -6_001)])  # type: ignore[list-item]


def test_a_stop_soon_after_a_power_failure_leaves_what_it_has_not_read_in_doubt() -> None:
    run(
        [
            *(("send", 3_000), ("tick", 0)),
            *(("flush",), ("mix", 0, 3_000), ("sync",)),  # type: ignore[list-item]
            *(("cut_power", 0, 0), ("stop", 0)),  # type: ignore[list-item]
        ]
    )


def test_a_copy_stored_at_once_is_not_taken_for_done_where_the_power_failed_since() -> None:
    all_kept = (1 << 61) - 1
    run(
        [
            *(("send", delay) for delay in (1_500, 30_000)),
            ("sync",),  # type: ignore[list-item]
            ("tear", 0, 0, 4_000),  # type: ignore[list-item]
            ("tick", 0),
            ("cut_power", all_kept, all_kept),  # type: ignore[list-item]
        ]
    )


@pytest.mark.parametrize("writes", range(60))
def test_a_kill_at_each_write_of_a_run_with_rolls_and_deletes(writes: int) -> None:
    run(
        [
            ("kill", writes),
            *(("send", delay) for delay in (1_500, 4_000, 4_000, 12_000, 20_000, 4_500)),
            ("delete", 1),
            ("tick", 1_000),
            ("flush",),  # type: ignore[list-item]
            *(("tick", 1_500) for _ in range(6)),
            ("flush",),  # type: ignore[list-item]
        ]
    )
