from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kerolox.store.files.mapped_file import (
    MappedFile,
    data_end,
    list_sizes,
    make_folder,
    zero_from,
)

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20


def test_a_new_file_has_its_full_size_and_is_sparse(tmp_path: Path) -> None:
    file = MappedFile(str(tmp_path), 0, SIZE, "setting")
    status = os.stat(file.path)
    file.close()
    assert file.path.endswith("/00000000000000000000")
    assert status.st_size == SIZE
    assert status.st_blocks == 0


def test_what_is_written_is_seen_through_the_map(tmp_path: Path) -> None:
    file = MappedFile(str(tmp_path), SIZE, SIZE, "setting")
    file.write(b"hello", 4094)
    assert file.view[4094:4099] == b"hello"
    file.close()


def test_a_file_of_another_size_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / ("0" * 20)).write_bytes(b"x" * 77)
    with pytest.raises(ValueError, match=r"00000 has 77 bytes, but someSize makes it 1048576"):
        MappedFile(str(tmp_path), 0, SIZE, "someSize")


def test_only_offset_names_are_files_of_the_store(tmp_path: Path) -> None:
    for name in ("00000000000000000010", "00000000000000000000", "note.txt", "123"):
        (tmp_path / name).write_bytes(bytes(10))
    sizes, others = list_sizes(str(tmp_path))
    assert sizes == {0: 10, 10: 10}
    assert sorted(others) == ["123", "note.txt"]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert list_sizes(str(tmp_path / "none")) == ({}, [])


def test_clearing_reaches_the_last_byte_and_keeps_what_is_before(tmp_path: Path) -> None:
    file = MappedFile(str(tmp_path), 0, SIZE, "setting")
    file.write(b"keep", 100)
    file.write(b"junk", 200)
    file.write(b"junk", 700_000)
    assert zero_from(file.descriptor, 104, SIZE) == 700_004 - 104
    assert file.view[:200].rstrip(b"\0").endswith(b"keep")
    assert not file.view[104:].strip(b"\0")
    assert zero_from(file.descriptor, 104, SIZE) == 0
    file.close()


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="needs a folder here"):
        make_folder(str(tmp_path / "store"))


def test_a_deleted_file_is_gone(tmp_path: Path) -> None:
    file = MappedFile(str(tmp_path), 0, SIZE, "setting")
    file.delete()
    file.close()
    assert not os.path.exists(file.path)


def test_a_sealed_file_is_still_read_and_can_be_written_again(tmp_path: Path) -> None:
    file = MappedFile(str(tmp_path), 0, SIZE, "setting")
    file.write(b"one", 0)
    file.seal()
    assert file.descriptor < 0
    file.release_pages()
    assert file.view[:3] == b"one"
    file.unseal()
    file.write(b"two", 0)
    assert file.view[:3] == b"two"
    file.close()
    file.release_pages()


def test_a_file_that_is_closed_or_deleted_stays_readable_for_whoever_holds_a_buffer(
    tmp_path: Path,
) -> None:
    file = MappedFile(str(tmp_path), 0, 4_096, "mappedFileSizeCommitLog")
    file.write(b"held", 0)
    buffer = memoryview(file.view)
    file.close()
    file.close()
    file.delete()
    assert buffer[:4] == b"held"
    buffer.release()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.view[:4]


def test_the_end_of_the_data_is_found_among_zeros_that_are_no_holes(tmp_path: Path) -> None:
    size = (8 << 20) + (512 << 10) + 1_000
    with (tmp_path / "0").open("w+b") as file:
        file.write(bytes(size))
        file.flush()
        assert data_end(file.fileno(), 7, size) == 7
        for at in (7, 300_000, (8 << 20) - 1, 8 << 20, size - 1):
            os.pwrite(file.fileno(), b"x", at)
            assert data_end(file.fileno(), 7, size) == at + 1
            assert data_end(file.fileno(), at + 1, size) == at + 1
        assert data_end(file.fileno(), 7, 8 << 20) == 8 << 20
