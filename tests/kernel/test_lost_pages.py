"""What a loss of power leaves of queue and index files: zeros where something was not flushed.

Each of these was found by ``tests/model``.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.bench import NOW, Bench, properties

FILE_BYTES = 64 * 1024
QUEUE_FILE_BYTES, PER_FILE = 20 * 100, 100


@pytest.fixture
def lost(bench: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]) -> Bench:
    """A copy of the bench's folder in which the machine was restarted, not opened yet."""
    copy = Bench(kernel, tmp_path / "copy")
    closing.append(copy)
    return copy


def lose_power(bench: Bench, lost: Bench) -> None:
    """Copy the files, of another boot."""
    bench.wait_indexed()
    shutil.copytree(bench.path, lost.path)
    (lost.path / "abort").write_bytes(b"")
    (lost.path / "boot").unlink(missing_ok=True)


def fill(bench: Bench, count: int) -> list[int]:
    """Messages of queue 0 with a key each; where they stand in the log."""
    text = [properties(KEYS=f"k{number}", UNIQ_KEY=f"U{number}") for number in range(count)]
    return [bench.append(b"%d" % at, text[at])[1] for at in range(count)]


def queue_file(bench: Bench, number: int) -> Path:
    return bench.path / "consumequeue/T/0" / f"{number * QUEUE_FILE_BYTES:020d}"


def clear_from(path: Path, at: int) -> None:
    """Zeros from a position to the end of a file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size - at))


def end_log_at(bench: Bench, offset: int) -> None:
    """What is behind in the log never reached the disk."""
    for path in sorted((bench.path / "commitlog").iterdir()):
        start = int(path.name)
        if start + path.stat().st_size > offset:
            clear_from(path, max(0, offset - start))


def test_a_queue_file_that_holds_nothing_is_not_part_of_the_queue(
    bench: Bench, lost: Bench
) -> None:
    offsets = fill(bench, PER_FILE + 50)
    lose_power(bench, lost)
    end_log_at(lost, offsets[60])
    clear_from(queue_file(lost, 0), 60 * 20)
    clear_from(queue_file(lost, 1), 0)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (0, 60)
    assert lost.store.expire_queue("T", 0, 9) == 0
    assert not queue_file(lost, 1).exists()
    assert lost.append(b"next")[2] == 60


def test_a_queue_ends_before_a_gap_however_many_empty_files_follow(
    bench: Bench, lost: Bench
) -> None:
    offsets = fill(bench, 4 * PER_FILE + 10)
    lose_power(bench, lost)
    end_log_at(lost, offsets[50])
    clear_from(queue_file(lost, 0), 50 * 20)
    for number in (1, 2, 4):
        clear_from(queue_file(lost, number), 0)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (0, 50)
    assert lost.bodies() == [b"%d" % number for number in range(50)]
    assert lost.append(b"next")[2] == 50


def test_a_queue_ends_with_the_log_though_its_first_file_was_lost(
    bench: Bench, lost: Bench
) -> None:
    offsets = fill(bench, 2 * PER_FILE)
    lose_power(bench, lost)
    end_log_at(lost, offsets[30])
    clear_from(queue_file(lost, 0), 0)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (0, 30)
    assert lost.bodies() == [b"%d" % number for number in range(30)]


def test_a_queue_without_an_entry_begins_where_the_log_does(bench: Bench, lost: Bench) -> None:
    bench.append(b"old")
    while bench.store.max_physical_offset < FILE_BYTES:
        bench.append(b"x" * 3_000, queue_id=1)
    bench.append(b"last of its queue")
    Path(bench.store.drop_log_file()).unlink()
    lose_power(bench, lost)
    clear_from(queue_file(lost, 0), 0)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (1, 2)
    assert lost.bodies() == [b"last of its queue"]


def test_a_queue_goes_on_behind_messages_that_went_with_the_log_s_first_file(
    bench: Bench, lost: Bench
) -> None:
    for body in (b"old", b"lost"):
        bench.append(body)
    while bench.store.max_physical_offset < FILE_BYTES:
        bench.append(b"x" * 3_000, queue_id=1)
    bench.append(b"last of its queue")
    Path(bench.store.drop_log_file()).unlink()
    lose_power(bench, lost)
    clear_from(queue_file(lost, 0), 20)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (2, 3)
    assert lost.bodies() == [b"last of its queue"]


def test_entries_of_an_earlier_life_that_came_back_are_not_those_of_the_new_one(
    bench: Bench, lost: Bench
) -> None:
    fill(bench, 5)
    while bench.store.max_physical_offset < FILE_BYTES:
        bench.append(b"x" * 3_000, queue_id=1)
    Path(bench.store.drop_log_file()).unlink()
    before = queue_file(bench, 0).read_bytes()
    assert bench.store.delete_queue("T", 0)
    for body in (b"new", b"newer"):
        bench.append(body)
    lose_power(bench, lost)
    queue_file(lost, 0).write_bytes(before)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (0, 2)
    assert lost.bodies() == [b"new", b"newer"]
    assert lost.append(b"next")[2] == 2


BLANK = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
"""An entry that only fills its place."""


def put_entry(bench: Bench, queue_offset: int, entry: bytes) -> None:
    """Overwrite one of queue 0."""
    with queue_file(bench, queue_offset // PER_FILE).open("r+b") as file:
        file.seek(queue_offset % PER_FILE * 20)
        file.write(entry)


@pytest.mark.parametrize("has_lost", [False, True], ids=["nothing", "an entry that is cut off"])
def test_a_queue_ends_with_its_last_message_and_not_with_blanks(
    bench: Bench, lost: Bench, has_lost: bool
) -> None:
    offsets = fill(bench, 20)
    lose_power(bench, lost)
    end_log_at(lost, offsets[4])
    clear_from(queue_file(lost, 0), 15 * 20 + 20 * has_lost)
    for number in range(4, 15):
        put_entry(lost, number, BLANK)
    lost.open()
    assert lost.store.queue_bounds("T", 0) == (0, 4)
    assert lost.append(b"next")[2] == 4
    assert lost.bodies() == [b"0", b"1", b"2", b"3", b"next"]


@pytest.mark.parametrize("is_header_there", [False, True], ids=["lost", "just made"])
def test_an_empty_index_file_behind_the_others_brings_no_key_twice(
    bench: Bench, lost: Bench, is_header_there: bool
) -> None:
    fill(bench, 40)
    bench.store.flush()
    bench.store.set_clock(NOW + 10)
    bench.append(b"later", properties(KEYS="late"))
    lose_power(bench, lost)
    last = max((lost.path / "index").iterdir())
    header = last.read_bytes()[:40]
    begin_ms, end_ms, begin, end = struct.unpack_from(">qqqq", header)
    assert begin_ms < end_ms
    empty = struct.pack(">qqqqii", end_ms, end_ms, end, end, 0, 1) if is_header_there else b""
    data = empty.ljust(last.stat().st_size, b"\0")
    (last.parent / f"{int(last.name) + 1:017d}").write_bytes(data)
    assert begin < end
    lost.open()
    lost.wait_indexed()
    for key in ("k0", "U0", "k39", "late"):
        assert len(lost.store.query_key("T", key, 32, 0, NOW * 2)[2]) in range(1, 300), key
        found = lost.store.query_key("T", key, 32, 0, NOW * 2)[2]
        assert found.count(b"\xda\xa3\x20\xa7") == 1, key


@pytest.mark.parametrize("has_record", [False, True])
def test_a_record_behind_zeros_that_are_no_hole_is_kept_and_nothing_else(
    bench: Bench, lost: Bench, has_record: bool
) -> None:
    offsets = fill(bench, 300)
    lose_power(bench, lost)
    [path] = (lost.path / "commitlog").glob(f"{0:020d}")
    data, last = path.read_bytes(), offsets[299]
    end, behind = offsets[9], data[last : last + 400] if has_record else b""
    # Written, hence blocks of zeros.
    path.write_bytes((data[:end].ljust(last, b"\0") + behind).ljust(len(data), b"\0"))
    report = lost.open()
    assert (report.max_offset, report.set_aside_files) == (end, int(has_record))
    assert report.truncated_bytes == (len(behind.rstrip(b"\0")) + last - end if has_record else 0)
    assert any(path.read_bytes()[:end])
    assert not any(path.read_bytes()[end:])
    assert lost.path.joinpath("commitlog-cut").exists() == has_record
    assert lost.append(b"next")[1] == end
