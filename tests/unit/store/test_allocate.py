"""Files made ahead by a thread: asked once, waited for a while, made by whoever needs them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kerolox.kernel.status import AppendMessageStatus, PutMessageStatus
from kerolox.store.log import preallocate
from kerolox.store.log.preallocate import FileAllocator, FileLateError
from tests.support.eventually import wait_until
from tests.support.stores.message_store import opened, put, read_messages, small_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kerolox.store.files.mapped_file import MappedFile

SIZE = 64 * 1024


class Gate:
    """Lets the thread make files when the test says so; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[int] = []
        self.begun = threading.Event()
        self.may_go = threading.Event()
        real = FileAllocator._make

        def make(allocator: FileAllocator, request: preallocate._Request) -> MappedFile:
            self.begun.set()
            assert self.may_go.wait(60)
            self.made.append(request.start)
            return real(allocator, request)

        monkeypatch.setattr(FileAllocator, "_make", make)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.may_go.set()


def test_asking_twice_makes_once_and_in_order(tmp_path: Path, gate: Gate) -> None:
    allocator = FileAllocator(small_settings(tmp_path), "mappedFileSizeCommitLog")
    allocator.start()
    files = [(start, str(tmp_path)) for start in (0, SIZE)]
    allocator.ask(files)
    allocator.ask(files)
    gate.may_go.set()
    wait_until(lambda: len(gate.made) == 2, what="the files")
    file = allocator.take(0, str(tmp_path))
    assert file is not None
    assert (file.start, file.size) == (0, SIZE)
    file.close()
    assert allocator.stop()
    allocator.remove_unused()
    assert gate.made == [0, SIZE]
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020d}"]


def test_a_file_that_was_not_begun_is_left_to_whoever_needs_it(tmp_path: Path) -> None:
    allocator = FileAllocator(small_settings(tmp_path), "mappedFileSizeCommitLog")
    allocator.ask([(0, str(tmp_path))])
    assert allocator.take(0, str(tmp_path)) is None
    allocator.run_once()
    assert list(tmp_path.iterdir()) == []


def test_nobody_waits_longer_than_five_seconds(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preallocate.WAIT_SECONDS_MAX == 5.0
    monkeypatch.setattr(preallocate, "WAIT_SECONDS_MAX", 0.01)
    allocator = FileAllocator(small_settings(tmp_path), "mappedFileSizeCommitLog")
    allocator.start()
    allocator.ask([(0, str(tmp_path))])
    assert gate.begun.wait(60)
    with pytest.raises(FileLateError, match="still being made"):
        allocator.take(0, str(tmp_path))
    gate.may_go.set()
    assert allocator.stop()
    allocator.remove_unused()


def test_whoever_waits_for_a_file_in_vain_makes_the_others_find_the_store_busy(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preallocate, "WAIT_SECONDS_MAX", 0.01)
    settings = small_settings(tmp_path, os_page_cache_busy_time_out_mills=20)
    with opened(settings) as store:
        for _ in range(2):
            put(store, body=b"x" * 20_000)
        assert gate.begun.wait(60)
        assert store.files.log.space_for(30_000) == AppendMessageStatus.END_OF_FILE
        late = put(store, body=b"y" * 30_000)
        assert late.status == PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert "still being made" in store.files.refusal
        wait_until(lambda: store.stats()["file_wait_ms"] > 20, what="the time")
        # Whoever waited now would wait for longer than the test may take.
        monkeypatch.setattr(preallocate, "WAIT_SECONDS_MAX", 3_600.0)
        assert put(store, body=b"y" * 30_000).status == PutMessageStatus.OS_PAGECACHE_BUSY
        assert put(store, body=b"small").status == PutMessageStatus.PUT_OK
        gate.may_go.set()
        wait_until(lambda: len(gate.made) == 2, what="the files")
        assert put(store, body=b"z" * 30_000).status == PutMessageStatus.PUT_OK
        assert store.stats()["file_wait_ms"] == 0
        assert [message.body[:1] for message in read_messages(store)] == [b"x", b"x", b"s", b"z"]


def test_the_log_tells_what_an_append_of_a_size_needs(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store)
        room = store.files.log.limit - store.files.log.max_offset
        assert store.files.log.space_for(room) == AppendMessageStatus.PUT_OK
        assert store.files.log.space_for(room + 1) == AppendMessageStatus.END_OF_FILE
        assert store.files.log.space_for(SIZE - 8) == AppendMessageStatus.END_OF_FILE
        assert store.files.log.space_for(SIZE - 7) == AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
    assert [status.name for status in AppendMessageStatus] == [
        "PUT_OK",
        "END_OF_FILE",
        "MESSAGE_SIZE_EXCEEDED",
        "PROPERTIES_SIZE_EXCEEDED",
        "UNKNOWN_ERROR",
    ]
