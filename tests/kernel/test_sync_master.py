"""Sends that wait for a slave: held until it has their record, and not for ever."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.kernel.feed import FED_WAITS
from kerolox.protocol.codes import ResponseCode, SerializeType
from tests.support.stores.bench import NOW, Bench, commands, properties, pull, send, send_batch

TIMEOUT = 3_000
FAR = 1 << 40
HALF = properties(TRAN_MSG="true", PGROUP="PG")

OK = int(ResponseCode.SUCCESS)
NO_SLAVE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
SLAVE_LATE = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


def with_slave(bench: Bench, **more: Any) -> Bench:
    bench.open(**more)
    bench.store.set_topic("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1, 6, True)
    bench.store.set_halves(True)
    bench.store.set_slave_timeout(TIMEOUT)
    bench.store.set_replicated(0, FAR)
    return bench


@pytest.fixture
def bench(closed_bench: Bench) -> Bench:
    return with_slave(closed_bench)


@pytest.fixture
def both(closed_bench: Bench) -> Bench:
    """Sends wait for the disk, too."""
    return with_slave(closed_bench, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=TIMEOUT + 500)


def codes(ready: dict[int, list[Any]]) -> dict[int, int]:
    """Code by opaque."""
    return {answer.opaque: answer.code for answers in ready.values() for answer in answers}


def flushed(bench: Bench) -> None:
    while bench.store.flushed_offset < bench.store.max_physical_offset:
        bench.wait_notified()


def each_kind(encoding: SerializeType = SerializeType.JSON) -> list[bytes]:
    return [
        send(b"1", opaque=1, encoding=encoding),
        send_batch([(0, b"2", b""), (0, b"3", b"")], opaque=2, encoding=encoding),
        send(b"4", opaque=3, encoding=encoding, f=4, i=HALF),
    ]


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_sends_batches_and_halves_are_answered_when_a_slave_has_them(
    bench: Bench, encoding: SerializeType
) -> None:
    wire = bench.connect()
    answers, cold, flags, _ = wire.feed(*each_kind(encoding))
    assert (answers, cold, flags) == (b"", [], FED_WAITS)
    end = bench.store.max_physical_offset
    assert not bench.store.set_replicated(end - 1, FAR) or 3 not in codes(bench.drain_ready())
    assert bench.store.set_replicated(end, FAR)
    ((connection_id, found),) = bench.drain_ready().items()
    assert connection_id == wire.connection_id
    assert (found[-1].opaque, found[-1].code, found[-1].serialize_type) == (3, OK, encoding)


def test_the_answer_is_the_one_of_a_broker_that_waits_for_nothing(
    bench: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    plain = Bench(kernel, tmp_path / "plain")
    closing.append(plain)
    with_slave(plain).store.set_slave_timeout(None)
    wanted, _, flags, _ = plain.connect().feed(*each_kind())
    assert len(commands(wanted)) == 3
    assert flags == 0
    wire = bench.connect()
    wire.feed(*each_kind())
    bench.store.set_replicated(FAR, 2 * FAR)
    ((_, data),) = bench.store.drain_ready()
    assert data == wanted


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_what_is_safe_already_is_answered_at_once(bench: Bench, encoding: SerializeType) -> None:
    bench.store.set_replicated(FAR, 2 * FAR)  # as a controller says where nobody is waited for
    answers, cold, flags, _ = bench.connect().feed(*each_kind(encoding))
    assert (cold, flags) == ([], 0)
    assert [(each.opaque, each.code) for each in commands(answers)] == [(1, OK), (2, OK), (3, OK)]


def test_a_slave_releases_what_it_has_and_no_more(bench: Bench) -> None:
    wires = [bench.connect() for _ in range(2)]
    ends = []
    for opaque in range(4):
        wires[opaque % 2].feed(send(opaque=opaque))
        ends.append(bench.store.max_physical_offset)
    assert not bench.store.set_replicated(ends[0] - 1, FAR)
    for opaque, end in enumerate(ends):
        assert bench.store.set_replicated(end, FAR)
        assert codes(bench.drain_ready()) == {opaque: OK}


def test_one_chunk_may_be_on_a_slave_in_part(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send(opaque=1))
    first = bench.store.max_physical_offset
    wire.feed(send(opaque=2), send(opaque=3))
    bench.store.set_replicated(2 * first, FAR)
    assert codes(bench.drain_ready()) == {1: OK, 2: OK}


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_without_a_slave_that_is_near_the_answer_says_so_at_once(
    bench: Bench, encoding: SerializeType
) -> None:
    bench.store.set_replicated(0, 0)
    answers, cold, flags, _ = bench.connect().feed(*each_kind(encoding))
    assert (cold, flags) == ([], 0)
    assert [(each.opaque, each.code) for each in commands(answers)] == [
        (opaque, NO_SLAVE) for opaque in (1, 2, 3)
    ]
    assert len(bench.bodies()) == 3


def test_a_record_that_ends_where_a_slave_is_too_far_behind_does_not_wait(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send(opaque=1))
    end = bench.store.max_physical_offset
    bench.store.set_replicated(0, 2 * end + 1)
    answers, _, _, _ = wire.feed(send(opaque=2), send(opaque=3))
    assert [(each.opaque, each.code) for each in commands(answers)] == [(3, NO_SLAVE)]
    bench.store.set_replicated(2 * end, FAR)
    assert codes(bench.drain_ready()) == {1: OK, 2: OK}


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_a_slave_that_is_late_is_answered_with_code_12(
    bench: Bench, encoding: SerializeType
) -> None:
    wire = bench.connect()
    wire.feed(*each_kind(encoding))
    assert not bench.store.tick(NOW + TIMEOUT - 1)
    assert bench.store.tick(NOW + TIMEOUT)
    assert codes(bench.drain_ready()) == {1: SLAVE_LATE, 2: SLAVE_LATE, 3: SLAVE_LATE}
    assert not bench.store.set_replicated(FAR, 2 * FAR)


@pytest.mark.parametrize("wait", ["false", "no"])
def test_a_producer_that_does_not_wait_is_answered_at_once(bench: Bench, wait: str) -> None:
    for below in (FAR, 0):
        bench.store.set_replicated(0, below)
        answers, _, flags, _ = bench.connect().feed(
            send(opaque=1, i=properties(WAIT=wait)),
            send_batch([(0, b"2", b"")], opaque=2, i=properties(WAIT=wait)),
            send(opaque=3, oneway=True),
        )
        assert [(each.opaque, each.code) for each in commands(answers)] == [(1, OK), (2, OK)]
        assert flags == 0


def test_an_answer_waits_for_the_disk_and_the_slave(both: Bench) -> None:
    wire = both.connect()
    wire.feed(send(opaque=1))
    flushed(both)
    assert both.drain_ready() == {}
    both.store.set_replicated(both.store.max_physical_offset, FAR)
    assert codes(both.drain_ready()) == {1: OK}
    wire.feed(send(opaque=2))
    both.store.set_replicated(both.store.max_physical_offset, FAR)
    flushed(both)
    assert codes(both.drain_ready()) == {2: OK}


def test_a_late_slave_is_told_of_when_the_disk_has_the_record(both: Bench) -> None:
    wire = both.connect()
    wire.feed(send(opaque=1))
    flushed(both)
    both.store.tick(NOW + TIMEOUT)
    assert codes(both.drain_ready()) == {1: SLAVE_LATE}


def test_without_a_slave_the_answer_waits_for_the_disk(both: Bench) -> None:
    both.store.set_replicated(0, 0)
    wire = both.connect()
    answers, _, flags, _ = wire.feed(send(opaque=1))
    assert (answers, flags) == (b"", 0)
    flushed(both)
    assert codes(both.drain_ready()) == {1: NO_SLAVE}


def test_a_master_that_waits_no_more_ends_the_waits(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send(opaque=1))
    bench.store.set_slave_timeout(None)
    answers, _, flags, _ = wire.feed(send(opaque=2))
    assert ([each.opaque for each in commands(answers)], flags) == ([2], 0)
    bench.store.tick(NOW)
    assert codes(bench.drain_ready()) == {1: SLAVE_LATE}


def test_a_closed_connection_gets_no_answer(bench: Bench) -> None:
    gone, stays = bench.connect(), bench.connect()
    gone.feed(send(opaque=1))
    stays.feed(send(opaque=2))
    gone.connection.close()
    bench.store.set_replicated(FAR, 2 * FAR)
    assert list(bench.drain_ready()) == [stays.connection_id]


def test_a_record_can_be_pulled_before_a_slave_has_it(bench: Bench) -> None:
    answers, _, _, _ = bench.connect().feed(send(b"1"), pull(opaque=2))
    (answer,) = commands(answers)
    assert (answer.opaque, answer.code) == (2, OK)


def test_sends_are_counted_by_the_time_that_they_waited(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send(opaque=1), send(opaque=2, i=properties(WAIT="false")))
    bench.store.set_clock(NOW + 40)
    bench.store.set_replicated(FAR, 2 * FAR)
    assert sorted(bench.store.drain_put_times()) == [(0, 1), (40, 1)]


def test_pulls_of_a_slave_leave_offsets_alone(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(pull(sysFlag=5, commitOffset=7))
    assert bench.store.drain_commits() == [("G", "T", 0, 7)]
    bench.store.set_commits(False)
    wire.ask(pull(sysFlag=5, commitOffset=8))
    wire.feed(pull(sysFlag=7, commitOffset=9))
    assert bench.store.stats()["held_pulls"] == 1
    assert bench.store.drain_commits() == []


class Model:
    """When each send is answered, and with which code: what the slow path does, one by one."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int, int]] = deque()
        self.replicated, self.below, self.now = 0, FAR, NOW
        self.answered: list[tuple[int, int]] = []

    def sent(self, opaque: int, end: int, waits: bool) -> None:
        if not waits or end >= self.below:
            self.answered.append((opaque, NO_SLAVE if waits else OK))
        else:
            self.waiting.append((opaque, end, self.now + TIMEOUT))

    def acknowledged(self, offset: int, below: int) -> None:
        self.replicated, self.below = offset, below
        while self.waiting and self.waiting[0][1] <= offset:
            self.answered.append((self.waiting.popleft()[0], OK))

    def passed(self, milliseconds: int) -> None:
        self.now += milliseconds
        while self.waiting and self.waiting[0][2] <= self.now:
            self.answered.append((self.waiting.popleft()[0], SLAVE_LATE))


folders = itertools.count()
steps = st.one_of(
    st.tuples(st.just("send"), st.lists(st.sampled_from(("true", "false", "batch")), max_size=4)),
    st.tuples(st.just("acknowledge"), st.integers(0, 100)),
    st.tuples(st.just("behind"), st.integers(0, 3_000)),
    st.tuples(st.just("pass"), st.sampled_from((1, 500, 1_500, TIMEOUT))),
)


@given(script=st.lists(steps, max_size=25))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_send_is_answered_as_the_model_says(
    kernel: Any, tmp_path: Path, script: list[tuple[str, Any]]
) -> None:
    bench, model = Bench(kernel, tmp_path / str(next(folders))), Model()
    with_slave(bench)
    wire = bench.connect()
    opaque = 0
    for what, value in script:
        answers = b""
        if what == "send":
            for kind in value:
                # Each by itself, since the next one's place says where it ends.
                opaque += 1
                made = send(opaque=opaque, i=properties(WAIT=kind))
                if kind == "batch":
                    made = send_batch([(0, b"x", b""), (0, b"y", b"")], opaque=opaque)
                answers += wire.feed(made)[0]
                model.sent(opaque, bench.store.max_physical_offset, kind != "false")
        elif what == "acknowledge":
            end = bench.store.max_physical_offset
            offset = max(model.replicated, end * value // 100)
            model.acknowledged(offset, model.below)
            bench.store.set_replicated(offset, model.below)
        elif what == "behind":
            below = model.replicated + value
            model.acknowledged(model.replicated, below)
            bench.store.set_replicated(model.replicated, below)
        else:
            model.passed(value)
            bench.store.set_clock(model.now)
            bench.store.tick(model.now)
        found = commands(answers) + [each for all in bench.drain_ready().values() for each in all]
        assert [(each.opaque, each.code) for each in found] == model.answered
        model.answered.clear()
    bench.store.close()
