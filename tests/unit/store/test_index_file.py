from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import pytest

from kerolox.message import java_hash
from kerolox.store.index import Index, IndexFile, KeyHasher, index_hash, record_keys
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = 10
ENTRIES = 50


def make(tmp_path: Path) -> IndexFile:
    return IndexFile(str(tmp_path / "20260101000000000"), SLOTS, ENTRIES)


def found(file: IndexFile, key_hash: int, begin: int = 0, end: int = 10**15) -> list[int]:
    offsets: list[int] = []
    file.select(offsets, key_hash, 64, begin, end)
    return offsets


def test_the_layout_is_header_slots_entries(tmp_path: Path) -> None:
    file = make(tmp_path)
    file.put(23, 1_000, 50_000)
    file.put(33, 2_000, 53_999)
    file.close()
    data = (tmp_path / "20260101000000000").read_bytes()
    assert len(data) == 40 + SLOTS * 4 + ENTRIES * 20
    # Both hashes share slot 3: one used slot, as 4.9.8 counts.
    assert struct.unpack_from(">qqqqii", data) == (50_000, 53_999, 1_000, 2_000, 1, 3)
    assert struct.unpack_from(">i", data, 40 + 3 * 4) == (2,)
    at = 40 + SLOTS * 4
    assert not data[at : at + 20].strip(b"\0")
    assert struct.unpack_from(">iqii", data, at + 20) == (23, 1_000, 0, 0)
    assert struct.unpack_from(">iqii", data, at + 40) == (33, 2_000, 3, 1)


def test_a_chain_is_walked_from_the_newest(tmp_path: Path) -> None:
    file = make(tmp_path)
    for index in range(5):
        file.put(7, index, 1_000_000 + index * 1_000)
        file.put(17, 100 + index, 1_000_000 + index * 1_000)
    assert found(file, 7) == [4, 3, 2, 1, 0]
    assert found(file, 17, begin=1_002_000, end=1_003_500) == [103, 102]
    assert found(file, 8) == []
    file.close()


def test_the_first_entry_number_is_one_so_one_less_fits(tmp_path: Path) -> None:
    file = make(tmp_path)
    assert sum(file.put(index, index, 1) for index in range(ENTRIES + 5)) == ENTRIES - 1
    assert file.is_full
    file.close()


def test_an_entry_that_was_linked_but_not_counted_is_taken_back(tmp_path: Path) -> None:
    file = make(tmp_path)
    file.put(3, 10, 1_000)
    file.put(13, 20, 1_000)
    # The process dies between the slot and the header.
    file.count -= 1
    file._write_header()
    file.close()
    again = make(tmp_path)
    again.repair_last()
    assert found(again, 3) == [10]
    again.put(13, 30, 1_000)
    assert found(again, 13) == [30]
    assert found(again, 3) == [10]
    again.close()


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "20260101000000000").write_bytes(b"x")
    with pytest.raises(ValueError, match="maxHashSlotNum and maxIndexNum"):
        make(tmp_path)


@pytest.mark.parametrize(
    "key", ["", "k", "AC11000100F21234567890ABCDEF0123", "x" * 600, "schlüssel"]
)
def test_the_fast_hash_is_the_java_hash(key: str) -> None:
    hasher = KeyHasher()
    for _ in range(2):
        assert hasher.hash(b"Topic", key.encode()) == abs(java_hash(f"Topic#{key}"))


def test_the_smallest_int_hashes_to_zero() -> None:
    # "polygenelubricants" has the Java hash Integer.MIN_VALUE.
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash("polygenelubricants") == 0


def test_the_keys_of_a_record_are_its_unique_id_and_words() -> None:
    assert record_keys(b"KEYS\x01a  b\x02UNIQ_KEY\x01u") == [b"u", b"a", b"b"]
    assert record_keys(b"TAGS\x01x") == []


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, max_index_num=20)
    with opened(settings) as store:
        offsets = [
            put(store, properties=f"KEYS\x01k{index} all".encode()).physical_offset
            for index in range(30)
        ]
        _when, newest, records = store.query_key("T", "k3", 10, 0, 10**15)
        assert newest == offsets[-1]
        assert records == store.lookup(offsets[3])
        files = store.files.index.files
        assert [file.is_full for file in files] == [True, True, True, False]
        for before, after in itertools.pairwise(files):
            assert after.begin_offset >= before.end_offset
        names = sorted((tmp_path / "store" / "index").iterdir())
        assert all(len(path.name) == 17 for path in names)


def test_one_key_gives_no_more_records_than_asked(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, max_msgs_num_batch=5)) as store:
        stored = [put(store, properties=b"KEYS\x01same").physical_offset for _ in range(9)]
        for most, expected in ((3, 3), (100, 5)):
            _when, _newest, records = store.query_key("T", "same", most, 0, 10**15)
            wanted = [store.lookup(offset) or b"" for offset in stored[-expected:]]
            assert records == b"".join(wanted)


def test_a_query_keeps_to_its_time(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for now in (1_000_000, 2_000_000, 3_000_000):
            store.set_clock(now)
            put(store, body=str(now).encode(), properties=b"KEYS\x01k")
        _when, _offset, records = store.query_key("T", "k", 10, 1_500_000, 2_500_000)
        assert b"2000000" in records
        assert b"1000000" not in records
        assert b"3000000" not in records
        assert store.query_key("T", "k", 10, 4_000_000, 5_000_000) == (0, 0, b"")
        assert store.query_key("T", "other", 10, 0, 10**15) == (0, 0, b"")


def test_rolled_back_records_are_not_indexed_and_prepared_ones_are(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store, body=b"prepared", sys_flag=4, properties=b"KEYS\x01k")
        put(store, body=b"rolled back", sys_flag=12, properties=b"KEYS\x01k")
        records = store.query_key("T", "k", 10, 0, 10**15)[2]
        assert b"prepared" in records
        assert b"rolled back" not in records


def test_without_an_index_nothing_is_found_and_no_folder_made(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, message_index_enable=False)) as store:
        put(store, properties=b"KEYS\x01k")
        assert store.query_key("T", "k", 10, 0, 10**15) == (0, 0, b"")
        assert store.stats()["dispatch_behind_bytes"] == 0
    assert not (tmp_path / "store" / "index").exists()


def test_unusable_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="maxHashSlotNum 0"):
        Index(str(tmp_path), 0, 10)
