"""Either kernel opens the other's store, after a clean stop and after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol.records import decode_records
from tests.support.stores.bench import NOW, Bench, files, properties, send, send_batch

COUNT = 120


def fill(bench: Bench) -> list[bytes]:
    """Messages in three log files and two queues; the bodies of queue 0."""
    wire = bench.connect()
    for index in range(COUNT):
        bench.store.set_clock(NOW + index)
        text = properties(KEYS=f"key-{index}", TAGS=f"t{index % 3}")
        wire.ask(send(b"%d" % index + bytes(1_000), opaque=index, e=index % 2, i=text))
    wire.ask(send_batch([(0, b"batch", b"KEYS\x01batch")] * 5, e=1))
    return [b"%d" % index + bytes(1_000) for index in range(0, COUNT, 2)]


def check(bench: Bench, bodies: list[bytes]) -> None:
    """All is there, in dense queues, and found by key; and it goes on from there."""
    assert bench.bodies() == bodies
    assert bench.store.queue_bounds("T", 0) == (0, len(bodies))
    assert bench.bodies(1)[-5:] == [b"batch"] * 5
    bench.wait_indexed()
    for key in ("key-0", f"key-{COUNT - 1}"):
        records = bench.store.query_key("T", key, 32, 0, NOW + 10**6)[2]
        assert len(decode_records(records)) == 1, key
    assert bench.append(b"next")[2] == len(bodies)
    assert bench.bodies() == [*bodies, b"next"]


def test_a_clean_store_is_taken_over(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer, reader = Bench(kernel, tmp_path), Bench(other_kernel, tmp_path)
    closing += [writer, reader]
    writer.open()
    bodies = fill(writer)
    end = writer.store.max_physical_offset
    writer.store.close()
    report = reader.open()
    assert report[0] is True
    assert (report[2], report[4]) == (end, 0)
    assert reader.store.flushed_offset == reader.store.max_physical_offset == end
    check(reader, bodies)


def crash(bench: Bench, target: Path) -> None:
    """What a crash would leave: the folder as it is now, the abort file in it."""
    shutil.copytree(bench.path, target)
    assert (target / "abort").exists()


def test_a_crashed_store_is_recovered(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open()
    bodies = fill(writer)
    crash(writer, reader.path)
    report = reader.open()
    assert report[0] is False
    assert report[2] == writer.store.max_physical_offset
    check(reader, bodies)


def test_a_crashed_store_without_its_queues_and_index_is_recovered(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open()
    bodies = fill(writer)
    crash(writer, reader.path)
    shutil.rmtree(reader.path / "consumequeue")
    shutil.rmtree(reader.path / "index", ignore_errors=True)
    (reader.path / "checkpoint").unlink(missing_ok=True)
    report = reader.open()
    assert report[5] == COUNT + 5
    check(reader, bodies)


@pytest.mark.parametrize("lost", [100, 600, 1_110, 1_200])
def test_a_torn_tail_is_cut_at_the_last_whole_record(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench], lost: int
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open()
    wire = writer.connect()
    wire.ask(*(send(b"x" * 1_000) for _ in range(80)))
    end = writer.store.max_physical_offset
    size = writer.store.queue_entry("T", 0, 79)[1]
    crash(writer, reader.path)
    file_size = 64 * 1024
    log = reader.path / "commitlog" / f"{end // file_size * file_size:020d}"
    with log.open("r+b") as opened:
        opened.seek(end % file_size - lost)
        opened.write(bytes(lost))
    report = reader.open()
    left = 79 if lost <= size else 78
    assert report[2] == end - (80 - left) * size
    assert reader.store.queue_bounds("T", 0) == (0, left)
    assert len(reader.bodies()) == left
    assert reader.append(b"next")[2] == left
    assert reader.bodies()[-1] == b"next"


def test_a_damaged_body_ends_the_log_there(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open()
    writer.connect().ask(*(send(bytes(100)) for _ in range(10)))
    offset = writer.store.queue_entry("T", 0, 7)[0]
    crash(writer, reader.path)
    with (reader.path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(offset + 100)
        log.write(b"\xff")
    report = reader.open()
    assert report[2] == offset
    assert reader.store.queue_bounds("T", 0) == (0, 7)
    assert report[8]


def test_a_clean_stop_twice_over_changes_nothing(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer = Bench(kernel, tmp_path)
    closing.append(writer)
    writer.open()
    bodies = fill(writer)
    writer.store.close()
    before = files(tmp_path)
    for _ in range(2):
        reader = Bench(other_kernel, tmp_path)
        closing.append(reader)
        assert reader.open()[0]
        reader.store.close()
    assert files(tmp_path) == before
    last = Bench(kernel, tmp_path)
    closing.append(last)
    last.open()
    check(last, bodies)


@pytest.mark.parametrize("level", ["1", "2", "3", "40", "0", "x"])
def test_delayed_records_get_the_time_that_their_level_says(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench], level: str
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    levels = {"message_delay_level": "7s 2h 1d"}
    writer.open(**levels)
    text = properties(DELAY=level, TAGS="a", REAL_TOPIC="T")
    writer.append(b"given", text, topic=b"SCHEDULE_TOPIC_XXXX", tags_code=NOW + 7_000)
    writer.append(b"computed", text, topic=b"SCHEDULE_TOPIC_XXXX")
    delays = {"1": 7_000, "2": 7_200_000, "3": 86_400_000, "40": 86_400_000}
    expected = NOW + delays[level] if level in delays else 97
    assert writer.store.queue_entry("SCHEDULE_TOPIC_XXXX", 0, 1)[2] == expected
    crash(writer, reader.path)
    shutil.rmtree(reader.path / "consumequeue")
    assert reader.open(**levels)[5] == 2
    codes = [reader.store.queue_entry("SCHEDULE_TOPIC_XXXX", 0, offset)[2] for offset in (0, 1)]
    assert codes == [expected, expected]


@pytest.mark.parametrize("levels", ["1s 5", "1w", "5ss", "s"])
def test_malformed_delay_levels_are_refused(kernel: Any, tmp_path: Path, levels: str) -> None:
    with pytest.raises(ValueError, match="messageDelayLevel"):
        Bench(kernel, tmp_path).open(message_delay_level=levels)


@pytest.mark.parametrize("lost", [1, 5, 14])
def test_a_record_whose_last_bytes_never_reached_the_disk_is_cut(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench], lost: int
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open()
    writer.connect().ask(*(send(b"x" * 100) for _ in range(10)))
    end = writer.store.max_physical_offset
    size = writer.store.queue_entry("T", 0, 9)[1]
    crash(writer, reader.path)
    # The CRC covers the body, not the properties behind it.
    with (reader.path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(end - lost)
        log.write(bytes(lost))
    assert reader.open()[2] == end - size
    assert reader.store.queue_bounds("T", 0) == (0, 9)
    assert reader.append(b"next")[2] == 9
