"""Splits of a commit log: each record once wherever they are cut, damage told and stepped over."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kerolox.protocol.records import BLANK_MAGIC
from kerolox.spark.store import scan as scanning
from kerolox.spark.store.scan import Damage, LogScan, Rows, Split, Wanted, plan_splits
from kerolox.store.layout import BLANK
from tests.support.stores.log_bytes import MemoryDisk, log_of, record

if TYPE_CHECKING:
    from kerolox.inspect.places import LogFile

FILE_BYTES = 2_000
WHERE = Wanted(columns=["commitLogOffset", "size"], window_bytes=300)

bodies = st.one_of(st.binary(max_size=60), st.sampled_from([b"x" * 500, bytes(200)]))
logs = st.lists(st.builds(dict, body=bodies, topic=st.sampled_from(["T", "Other"])), max_size=25)


def read(
    log: LogScan, splits: list[Split], wanted: Wanted = WHERE
) -> tuple[list[tuple[int, int]], list[Damage]]:
    """((physical offset, size) of the rows, damages)."""
    rows: list[tuple[int, int]] = []
    damages: list[Damage] = []
    for split in splits:
        for part in log.scan(split, wanted):
            if isinstance(part, Damage):
                damages.append(part)
                continue
            assert isinstance(part, Rows)
            offsets = struct.unpack(f"<{part.count}q", part.buffers["commitLogOffset"])
            sizes = struct.unpack(f"<{part.count}i", part.buffers["size"])
            assert all(part.start <= each < part.end for each in offsets)
            rows += zip(offsets, sizes, strict=True)
    return rows, damages


def whole(files: list[LogFile]) -> list[Split]:
    return [Split(files[0].start, files[-1].end)]


@settings(max_examples=40, deadline=None)
@given(logs, st.integers(20, 3_000), st.sampled_from([0, FILE_BYTES * 7]))
def test_each_record_is_in_one_split_wherever_they_are_cut(
    parts: list[dict[str, Any]], split_bytes: int, start: int
) -> None:
    files, contents, offsets = log_of(parts, FILE_BYTES, start=start)
    log = LogScan(MemoryDisk(contents), files)
    for splits in (whole(files), plan_splits(start, files[-1].end, files, split_bytes)):
        rows, damages = read(log, splits)
        assert [offset for offset, _ in rows] == offsets
        assert damages == []


@settings(max_examples=50, deadline=None)
@given(
    logs.filter(bool),
    st.integers(20, 3_000),
    st.lists(st.tuples(st.integers(0, 6_000), st.binary(min_size=1, max_size=90)), max_size=3),
)
@example([{"body": b"x" * 500}] * 5, 100, [(4, b"\0\0\0\0")])
def test_damage_costs_no_record_outside_of_it_and_every_cut_tells_the_same(
    parts: list[dict[str, Any]], split_bytes: int, damages: list[tuple[int, bytes]]
) -> None:
    files, contents, _ = log_of(parts, FILE_BYTES)
    before = {path: bytes(data) for path, data in contents.items()}
    intact, _ = read(LogScan(MemoryDisk(contents), files), whole(files))
    for place, change in damages:
        file = files[place // FILE_BYTES % len(files)]
        at = place % FILE_BYTES
        data = contents[file.path]
        data[at : at + len(change)] = change[: FILE_BYTES - at]
    log = LogScan(MemoryDisk(contents), files)
    rows, told = read(log, whole(files))
    untouched = [
        (offset, size)
        for offset, size in intact
        for file in [files[offset // FILE_BYTES]]
        for at in [offset - file.start]
        if contents[file.path][at : at + size] == before[file.path][at : at + size]
    ]
    assert set(untouched) <= set(rows)
    for offset, size in set(rows) - set(untouched):
        assert (offset, size) in intact
    covered = sorted(
        [(offset, offset + size) for offset, size in rows]
        + [(each.offset, each.offset + each.length) for each in told]
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(covered))
    assert read(log, plan_splits(0, files[-1].end, files, split_bytes)) == (rows, told)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=700), st.integers(1, 400))
def test_no_bytes_make_a_scan_fail(garbage: bytes, split_bytes: int) -> None:
    files, contents, _ = log_of([{}], 800)
    head = record(0)
    for data in (garbage, head[:8] + garbage, head + garbage, head[:84] + garbage):
        contents[files[0].path][:] = (data + bytes(800))[:800]
        log = LogScan(MemoryDisk(contents), files)
        assert read(log, whole(files)) == read(log, plan_splits(0, 800, files, split_bytes))


def test_what_looks_like_a_record_within_a_body_is_none_for_any_cut() -> None:
    first = len(record(0))
    inner_at = first + 84 + 4
    inner = b"".join(record(inner_at + number * first) for number in range(3))
    files, contents, offsets = log_of([{}, {"body": inner}, {}], FILE_BYTES)
    log = LogScan(MemoryDisk(contents), files)
    for cut in range(1, offsets[-1] + first):
        splits = [Split(0, cut, sees_end=True), Split(cut, FILE_BYTES, at_border=False)]
        assert [offset for offset, _ in read(log, splits)[0]] == offsets


def test_a_record_larger_than_a_window_and_two_larger_than_the_look_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "LOOKBACK_BYTES", 50)
    parts = [{"body": b"a" * 900}, {}, {"body": b"b" * 700}]
    files, contents, offsets = log_of(parts, FILE_BYTES)
    log = LogScan(MemoryDisk(contents), files)
    for split_bytes in (40, 333, 1_000):
        splits = plan_splits(0, FILE_BYTES, files, split_bytes)
        assert [offset for offset, _ in read(log, splits)[0]] == offsets


def test_a_wrong_crc_is_a_damage_or_a_row_that_says_so() -> None:
    files, contents, offsets = log_of([{}, {}, {}], FILE_BYTES)
    contents[files[0].path][offsets[1] + 88] ^= 1
    log = LogScan(MemoryDisk(contents), files)
    rows, [damage] = read(log, whole(files))
    assert [offset for offset, _ in rows] == [offsets[0], offsets[2]]
    assert (damage.offset, damage.length) == (offsets[1], offsets[2] - offsets[1])
    assert "CRC" in damage.reason
    wanted = Wanted(columns=["crcOk"], checks_crc=False)
    [part] = log.scan(whole(files)[0], wanted)
    assert isinstance(part, Rows)
    assert (part.count, part.buffers["crcOk"]) == (3, bytes([0b101]))


def test_topics_and_times_are_chosen_and_their_records_alone_are_held_to_their_crc() -> None:
    parts = [{"topic": "T" if n % 2 else "Other", "store_timestamp": 1_000 + n} for n in range(6)]
    files, contents, offsets = log_of(parts, FILE_BYTES)
    contents[files[0].path][offsets[2] + 88] ^= 1
    wanted = Wanted(
        columns=WHERE.columns, topics=lambda t: t == b"T", stored_from=1_001, stored_before=1_005
    )
    rows, damages = read(LogScan(MemoryDisk(contents), files), whole(files), wanted)
    assert [offset for offset, _ in rows] == [offsets[1], offsets[3]]
    assert damages == []


def test_a_torn_tail_is_told_and_zeros_behind_the_log_are_not() -> None:
    files, contents, offsets = log_of([{}, {}, {}], FILE_BYTES)
    log = LogScan(MemoryDisk(contents), files)
    assert log.end_of(files[0], 0) == (offsets[2] + len(record(0)), None)
    del contents[files[0].path][offsets[2] + 60 :]
    contents[files[0].path] += bytes(FILE_BYTES - len(contents[files[0].path]))
    end, tail = log.end_of(files[0], 0)
    assert end == offsets[2]
    assert tail is not None
    assert (tail.offset, tail.is_tail) == (offsets[2], True)
    assert 0 < tail.length <= 60
    bounded = LogScan(MemoryDisk(contents), files, log_end=end)
    assert read(bounded, whole(files))[1] == []


def test_a_file_that_is_gone_is_told_and_the_others_are_read() -> None:
    files, contents, offsets = log_of([{"body": b"x" * 300}] * 12, FILE_BYTES)
    assert len(files) == 3
    del contents[files[1].path]
    rows, [damage] = read(LogScan(MemoryDisk(contents), files), whole(files))
    kept = [each for each in offsets if not files[1].start <= each < files[1].end]
    assert [offset for offset, _ in rows] == kept
    assert (damage.offset, damage.length, damage.is_gone) == (files[1].start, FILE_BYTES, True)


def test_a_blank_that_does_not_fill_its_file_is_a_damage() -> None:
    files, contents, offsets = log_of([{}, {}, {}], FILE_BYTES)
    BLANK.pack_into(contents[files[0].path], offsets[1], 77, BLANK_MAGIC)
    rows, [damage] = read(LogScan(MemoryDisk(contents), files), whole(files))
    assert [offset for offset, _ in rows] == [offsets[0], offsets[2]]
    assert damage.offset == offsets[1]


def test_rows_and_bodies_of_a_part_are_bounded() -> None:
    files, contents, _ = log_of([{"body": b"x" * 50}] * 10, FILE_BYTES)
    log = LogScan(MemoryDisk(contents), files)
    for wanted in (
        Wanted(columns=["body"], rows_max=3),
        Wanted(columns=["body"], body_bytes_max=150),
    ):
        counts = [p.count for p in log.scan(whole(files)[0], wanted) if isinstance(p, Rows)]
        assert counts == [3, 3, 3, 1]
