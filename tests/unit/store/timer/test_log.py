"""Units of the timer log: RocketMQ's layout, ends of files, chains and damage."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.store.timer.log import (
    BLANK,
    FILE_BYTES,
    FILE_BYTES_MIN,
    UNIT,
    TimerLogFile,
    TimerUnit,
    UnitMagic,
    last_unit_at,
    place,
    unit_at,
)

UNIT_OF_ROCKETMQ = TimerUnit(
    previous=-1,
    magic=UnitMagic.DEFAULT | UnitMagic.ROLL,
    write_ms=1_700_000_000_000,
    delay_ms=5_000,
    offset=1 << 40,
    size=321,
    topic_hash=-84,
)


def unit(previous: int = -1, **more: int) -> TimerUnit:
    return UNIT_OF_ROCKETMQ._replace(previous=previous, **more)


class Files:
    """A log in memory, written as a broker writes it."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.end = 0
        self.data = bytearray()

    def append(self, one: TimerUnit) -> int:
        position, blank = place(self.end, self.file_bytes)
        for at, data in ((self.end, blank), (position, one.pack())):
            missing = at + len(data) - len(self.data)
            if data and missing > 0:
                self.data += bytes(-(-missing // self.file_bytes) * self.file_bytes)
            self.data[at : at + len(data)] = data
        self.end = position + UNIT.size
        return position

    def files(self) -> list[TimerLogFile]:
        return [
            TimerLogFile(memoryview(self.data)[start : start + self.file_bytes], start)
            for start in range(0, len(self.data), self.file_bytes)
        ]

    def read(self, position: int) -> TimerUnit | None:
        return unit_at(self.data, position, position)


def test_a_unit_has_the_layout_of_rocketmq() -> None:
    assert UNIT.size == 52
    expected = struct.pack(">iqiqiqiiq", 52, -1, 3, 1_700_000_000_000, 5_000, 1 << 40, 321, -84, 0)
    assert UNIT_OF_ROCKETMQ.pack() == expected
    assert unit_at(expected, 0, 0) == UNIT_OF_ROCKETMQ
    assert UNIT_OF_ROCKETMQ.time_ms == 1_700_000_005_000
    assert UNIT_OF_ROCKETMQ.weight == 1
    assert unit(magic=UnitMagic.DEFAULT | UnitMagic.DELETE).weight == -1


def test_a_file_ends_with_the_blank_of_rocketmq() -> None:
    size = 52 * 3 + 20
    assert place(104, size) == (104, b"")
    assert place(156, size) == (size, struct.pack(">iqi", 20, 0, -875_286_124))
    # One byte less than a unit and a blank.
    assert place(52, 119) == (119, struct.pack(">iqi", 67, 0, -875_286_124))
    assert place(52, 120) == (52, b"")


def test_the_last_unit_of_a_full_file_is_where_rocketmq_looks_for_it() -> None:
    assert last_unit_at() == FILE_BYTES - (FILE_BYTES - 16) % 52 - 16 - 52
    for size in range(FILE_BYTES_MIN, 400):
        files = Files(size)
        while len(files.data) <= size:
            last, at = files.end, files.append(unit())
        assert at == size
        assert last - UNIT.size == last_unit_at(size)


def test_each_file_gives_its_units_and_says_whether_the_log_goes_on() -> None:
    files = Files(52 * 3 + 20)
    positions = [files.append(unit(offset=number)) for number in range(8)]
    assert positions == [0, 52, 104, 176, 228, 280, 352, 404]
    read = files.files()
    found = [(position, each.offset) for file in read for position, each in file]
    assert found == list(zip(positions, range(8), strict=True))
    assert [file.is_full for file in read] == [True, True, False]
    assert [file.end for file in read] == [156, 332, 456]


def test_a_file_without_a_unit_ends_where_it_begins() -> None:
    for data in (b"", bytes(176), bytes(51)):
        file = TimerLogFile(data, 352)
        assert list(file) == []
        assert file.end == 352
    assert TimerLogFile(bytes(176), 352).is_full is False


@pytest.mark.parametrize(
    "damage",
    [
        {"magic": 0},
        {"magic": 16},
        {"magic": -1},
        {"previous": 104},
        {"previous": 1_000},
        {"previous": -2},
        {"size": 0},
        {"size": -5},
        {"offset": -1},
        {"write_ms": 0},
    ],
    ids=str,
)
def test_a_unit_that_can_t_be_one_ends_the_log(damage: dict[str, int]) -> None:
    files = Files(1_000)
    for number in range(5):
        files.append(unit(offset=number) if number != 2 else unit()._replace(**damage))
    [file] = files.files()
    assert [position for position, _ in file] == [0, 52]
    assert (file.end, file.is_full) == (104, False)


_SIZES = st.integers(FILE_BYTES_MIN, 400)


@given(_SIZES, st.integers(0, 60), st.randoms(use_true_random=False))
def test_what_was_written_is_read_at_whatever_length_of_files(
    size: int, count: int, draw: random.Random
) -> None:
    files, last, written = Files(size), {0: -1, 1: -1, 2: -1}, []
    for number in range(count):
        slot = draw.randrange(3)
        one = unit(last[slot], offset=number, delay_ms=draw.randrange(-(1 << 31), 1 << 31))
        last[slot] = files.append(one)
        written.append((last[slot], one))
    read = files.files()
    assert [found for file in read for found in file] == written
    assert all(file.is_full for file in read[:-1])
    assert all(files.read(position) == one for position, one in written)


@given(st.integers(0, 6), st.integers(0, 51), st.binary(max_size=60))
def test_a_torn_end_gives_the_units_before_it_alone(whole: int, torn: int, garbage: bytes) -> None:
    files = Files(1_000)
    for number in range(whole + 1):
        files.append(unit(offset=number))
    cut = whole * UNIT.size + torn
    files.data[cut:] = garbage[: 1_000 - cut].ljust(1_000 - cut, b"\0")
    [file] = files.files()
    read = [each.offset for _, each in file]
    assert read[:whole] == list(range(whole))
    assert file.end >= whole * UNIT.size


@given(st.binary(max_size=300))
def test_any_bytes_are_units_or_an_end(data: bytes) -> None:
    file = TimerLogFile(data, 0)
    for position, each in file:
        assert each.previous < position
    assert file.end <= len(data)
    assert BLANK.size == 16
