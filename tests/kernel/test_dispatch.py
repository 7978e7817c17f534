"""Dispatch: records and their queue entries come and go together."""

from __future__ import annotations

from pathlib import Path

from kerolox.kernel.status import PutMessageStatus
from tests.support.stores.bench import Bench, properties

REFUSED = int(PutMessageStatus.SERVICE_NOT_AVAILABLE)


def block(bench: Bench, topic: str) -> Path:
    """Put a file where the folder of a topic's queues would be made."""
    folder = bench.path / "consumequeue"
    folder.mkdir(exist_ok=True)
    (folder / topic).write_text("in the way")
    return folder / topic


def test_without_its_queue_entry_no_record_is_stored_and_the_next_write_tries_again(
    bench: Bench,
) -> None:
    bench.append(b"one")
    end = bench.store.max_physical_offset
    obstacle = block(bench, "Q")
    for _ in range(3):
        assert bench.append(b"refused", topic=b"Q")[0] == REFUSED
    assert bench.store.max_physical_offset == end
    assert bench.append(b"two")[0] == 0
    obstacle.unlink()
    assert bench.append(b"three", topic=b"Q")[2] == 0
    assert bench.bodies(0, "Q") == [b"three"]


def test_where_one_of_many_queues_can_not_be_written_none_is(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(enable_multi_dispatch=True)
    obstacle = block(bench, "Q")
    text = properties(INNER_MULTI_DISPATCH="fine,Q")
    assert bench.append(b"refused", text)[0] == REFUSED
    assert bench.store.max_physical_offset == 0
    assert bench.store.queue_bounds("T", 0) == bench.store.queue_bounds("fine", 0) == (0, 0)
    bench.append(b"between", topic=b"fine")
    obstacle.unlink()
    assert bench.append(b"stored", text)[2] == 0
    assert bench.bodies(0, "fine") == [b"between", b"stored"]
    assert bench.bodies(0, "Q") == bench.bodies(0) == [b"stored"]
    bench.store.close()
    bench.open(enable_multi_dispatch=True)
    assert bench.bodies(0, "fine") == [b"between", b"stored"]
    assert bench.bodies(0, "Q") == bench.bodies(0) == [b"stored"]


def test_a_full_queue_file_was_changed_when_its_last_message_came_or_later(
    closed_bench: Bench,
) -> None:
    """RocketMQ looks for a time in the first file that was changed at it or later."""
    bench = closed_bench
    bench.open(now=None)
    for _ in range(250):
        bench.append(b"x")
    names = sorted((bench.path / "consumequeue" / "T" / "0").iterdir())
    for number in range(2):
        last_ms = bench.store.store_time("T", 0, number * 100 + 99)
        assert names[number].stat().st_mtime_ns // 1_000_000 >= last_ms
