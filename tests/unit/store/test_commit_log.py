from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.store.log.commit_log import CommitLog
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 2_048


def test_a_new_log_has_no_file_until_it_rolls(tmp_path: Path) -> None:
    log = CommitLog(str(tmp_path), SIZE)
    assert log.load() == []
    assert (log.min_offset, log.max_offset, log.limit) == (0, 0, 0)
    log.roll()
    log.write(b"x" * 100)
    assert (log.max_offset, log.limit) == (100, SIZE - 8)
    log.close()


def test_the_end_of_a_file_holds_a_blank_of_eight_bytes(tmp_path: Path) -> None:
    log = CommitLog(str(tmp_path), SIZE)
    log.load()
    log.roll()
    log.write(b"x" * 100)
    log.roll()
    assert log.max_offset == SIZE
    data = (tmp_path / ("0" * 20)).read_bytes()
    assert data[100:108] == (SIZE - 100).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not data[108:].strip(b"\0")
    log.close()


def test_a_read_stays_within_the_log_and_a_file(tmp_path: Path) -> None:
    log = CommitLog(str(tmp_path), SIZE)
    log.load()
    log.roll()
    log.write(b"abcdef")
    assert log.read(2, 3) == b"cde"
    assert log.read(2, 5) is None
    assert log.read(-1, 2) is None
    assert log.read(0, 0) is None
    log.close()


def test_records_are_walked_over_the_end_of_a_file(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, mapped_file_size_commit_log=SIZE)) as store:
        offsets = [put(store, body=b"x" * 500).physical_offset for _ in range(10)]
        log = store.files.log
        walked = [offset for offset, _record in log.records_from(0, log.max_offset)]
        assert walked == offsets
        assert len(log.files) == 4
        assert [log.store_time(offset) > 0 for offset in offsets] == [True] * 10


def test_only_the_start_of_a_record_can_be_looked_up(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        stored = put(store)
        assert store.lookup(stored.physical_offset) is not None
        for offset in (1, stored.size - 1, stored.size, 10**9, -5):
            assert store.lookup(offset) is None


def test_what_is_no_file_of_the_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{2 * SIZE:020d}").write_bytes(b"x" * SIZE)
    (tmp_path / "readme").write_bytes(b"")
    log = CommitLog(str(tmp_path), SIZE)
    notes = log.load()
    assert (log.min_offset, log.max_offset) == (2 * SIZE, 3 * SIZE)
    assert len(notes) == 1
    log.close()


def test_a_tiny_file_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mappedFileSizeCommitLog is 100"):
        CommitLog(str(tmp_path), 100)


def test_truncating_gives_the_files_behind(tmp_path: Path) -> None:
    log = CommitLog(str(tmp_path), SIZE)
    log.load()
    for _ in range(3):
        log.roll()
        log.write(b"x" * 10)
    behind = log.truncate(SIZE + 5)
    assert [file.start for file in behind] == [2 * SIZE]
    assert log.max_offset == SIZE + 5
    for file in behind:
        file.delete()
    log.close()
