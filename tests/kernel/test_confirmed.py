"""What the sync state set has not confirmed is in the log, and no consumer sees it."""

from __future__ import annotations

import pytest

from kerolox.kernel.status import GetMessageStatus
from tests.support.stores.bench import Bench, commands, holding_pull, messages, pull, send

READY = 1


def fill(bench: Bench, *bodies: bytes) -> list[int]:
    """Store messages in one queue; where the log ends behind each."""
    ends = []
    for body in bodies:
        bench.append(body)
        ends.append(bench.store.max_physical_offset)
    return ends


def bodies_of(bench: Bench) -> list[bytes]:
    [answer] = commands(bench.connect().feed(pull())[0])
    return [message.body for message in messages(answer)]


def test_queues_end_at_what_is_confirmed(bench: Bench) -> None:
    first, *_, last = fill(bench, b"1", b"2", b"3")
    store = bench.store
    store.set_confirmed(first)
    assert bodies_of(bench) == [b"1"]
    assert store.queue_bounds("T", 0) == (0, 1)
    read = store.read("T", 0, 1, 32, None)
    assert (read.status, read.next_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 1)
    assert store.read("T", 0, 0, 32, None).max_offset == 1
    store.set_confirmed(last)
    assert bodies_of(bench) == [b"1", b"2", b"3"]
    store.set_confirmed(None)
    assert store.queue_bounds("T", 0) == (0, 3)


def test_a_record_that_is_confirmed_in_part_is_not_seen(bench: Bench) -> None:
    first, second = fill(bench, b"1", b"2")
    bench.store.set_confirmed(second - 1)
    assert bodies_of(bench) == [b"1"]
    bench.store.set_confirmed(first + 1)
    assert bodies_of(bench) == [b"1"]


def test_the_log_itself_has_all(bench: Bench) -> None:
    first, second = fill(bench, b"1", b"2")
    store = bench.store
    store.set_confirmed(first)
    assert store.max_physical_offset == second
    assert len(store.read_log(0, second)) == second
    assert store.queue_entry("T", 0, 1) is not None
    assert [each[3] for each in store.queues()] == [2]


def test_a_held_pull_waits_for_the_confirmation(bench: Bench) -> None:
    waiting, sending = bench.connect(), bench.connect()
    store = bench.store
    store.set_confirmed(0)
    assert waiting.ask(holding_pull(opaque=7)) == []
    answers, _, flags, _ = sending.feed(send(b"1"))
    assert [answer.code for answer in commands(answers)] == [0]
    assert not flags & READY
    assert not store.set_confirmed(store.max_physical_offset - 1)
    assert bench.drain_ready() == {}
    assert store.set_confirmed(store.max_physical_offset)
    ((answer,),) = bench.drain_ready().values()
    assert (answer.opaque, [each.body for each in messages(answer)]) == (7, [b"1"])


@pytest.mark.parametrize("ends_by", ["no limit", "a later offset"])
def test_a_wait_for_an_offset_waits_for_the_confirmation(bench: Bench, ends_by: str) -> None:
    store = bench.store
    store.set_confirmed(0)
    assert store.wait_for_offset(1, "G", "T", 0, 0, 1 << 60)
    fill(bench, b"1")
    assert store.drain_arrived() == []
    is_ready = store.set_confirmed(None if ends_by == "no limit" else store.max_physical_offset)
    assert is_ready or bench.wait_notified() is None
    assert store.drain_arrived() == [1]


def test_a_slave_shows_what_its_master_confirmed(bench: Bench, closing: list[Bench]) -> None:
    first, second = fill(bench, b"1", b"2")
    data = bench.store.read_log(0, second)
    other = Bench(bench.kernel, bench.path.parent / "slave")
    closing.append(other)
    other.open()
    other.store.set_confirmed(0)
    wire = other.connect()
    assert wire.ask(holding_pull()) == []
    assert other.store.append_log(0, data) == second
    assert other.drain_ready() == {}
    other.store.set_confirmed(first)
    assert bodies_of(other) == [b"1"]
    # Pulls that are held wake up for all that came together.
    assert other.store.set_confirmed(second)
    ((answer,),) = other.drain_ready().values()
    assert [each.body for each in messages(answer)] == [b"1", b"2"]
