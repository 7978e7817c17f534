from __future__ import annotations

import errno
import os
import select
import shutil
import threading
from typing import TYPE_CHECKING

from kerolox.kernel.status import PutMessageStatus
from kerolox.store.message_store import MessageStore
from tests.support.eventually import wait_until
from tests.support.stores.message_store import crash, opened, put, small_settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_requested_flush_moves_the_offset_and_wakes_the_loop(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=60_000
    )
    with opened(settings) as store:
        for _ in range(3):
            put(store)
            end = store.max_physical_offset
            store.request_flush(end)
            readable, _, _ = select.select([store.notify_fd], [], [], 10)
            assert readable
            os.read(store.notify_fd, 8)
            assert store.flushed_offset == end
        assert store.stats()["flush_count"] == 3


def test_a_flush_that_is_asked_for_more_than_is_written_comes_to_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    settings = small_settings(
        tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=60_000
    )
    with opened(settings) as store:
        for _ in range(3):
            put(store, body=b"x" * 20_000)
        written = store.max_physical_offset
        monkeypatch.setattr(store.files.log, "write", write)
        # The file has no room for it: the log goes on in the next one, which takes nothing.
        assert put(store, body=b"x" * 20_000).status != PutMessageStatus.PUT_OK
        assert store.max_physical_offset > written

        store.request_flush(store.max_physical_offset)
        wait_until(lambda: store.flushed_offset == written)
        assert store.files.log_flusher is not None
        assert store.files.log_flusher.pause_seconds() > 0


def test_a_record_that_was_written_in_part_is_not_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body is whole, so that its CRC fits."""
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        if len(data) < 1_000 and position > 1_000:
            monkeypatch.undo()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:-30] if len(data) > 1_000 else data, position)

    settings = small_settings(tmp_path)
    with opened(settings) as store:
        put(store, body=b"x" * 2_000)
        written = store.max_physical_offset
        monkeypatch.setattr(os, "pwrite", pwrite)
        refused = put(store, body=b"x" * 2_000, properties=b"KEYS\x01" + b"k" * 40)
        assert refused.status != PutMessageStatus.PUT_OK
        assert os.pwrite is real
        assert not store.files.failure
    with opened(settings) as store:
        assert store.max_physical_offset == written


def test_unrequested_pages_are_flushed_by_the_interval(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, flush_interval_commit_log=5, flush_commit_log_least_pages=2)
    with opened(settings) as store:
        put(store, body=b"x" * 10_000)
        wait_until(lambda: store.flushed_offset == store.max_physical_offset)


def test_a_flush_crosses_files_of_the_log(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, flush_interval_commit_log=60_000)
    with opened(settings) as store:
        for _ in range(20):
            put(store, body=b"x" * 20_000)
        assert store.flush() == store.max_physical_offset
        assert len(store.files.log.files) > 5
        checkpoint = (tmp_path / "store" / "checkpoint").read_bytes()
        times = {int.from_bytes(checkpoint[at : at + 8], "big") for at in (0, 8)}
        assert times == {store.files.last_store_timestamp}


def test_a_file_that_expires_while_it_is_about_to_be_flushed_ends_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path, flush_interval_commit_log=60_000)
    with opened(settings) as store:
        for _ in range(10):
            put(store, body=b"x" * 20_000)

        def expire(folder: str) -> None:
            monkeypatch.undo()
            first = store.files.log.drop_first()
            assert first is not None
            os.unlink(first.path)
            first.close()

        monkeypatch.setattr("kerolox.store.flush.sync_path", expire)
        assert store.flush() == store.max_physical_offset
        assert store.min_physical_offset > 0
        assert not store.files.failure
        assert put(store).status == PutMessageStatus.PUT_OK


def test_a_file_of_the_log_that_somebody_took_away_ends_the_writes(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path, flush_interval_commit_log=60_000))
    store.open()
    put(store)
    os.unlink(next(iter(store.files.log.files.values())).path)
    store.flush()
    assert "No such file" in store.files.failure
    store.close()


def test_an_error_of_the_disk_ends_the_writes_and_keeps_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path, flush_interval_commit_log=60_000)
    store = MessageStore(settings)
    store.open()
    put(store, body=b"before")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    store.request_flush(store.max_physical_offset)
    wait_until(lambda: store.files.failure)
    monkeypatch.undo()
    assert "Input/output error" in store.files.failure
    assert "takes no more writes" in store.files.failure
    assert store.flushed_offset == 0
    assert put(store).status == PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert (
        store.append_chunk([(store.files.queues.get("T", 0), 0, 0, 0, 0, 0, b"", b"")], bytes(8))
        == []
    )
    assert store.read("T", 0, 0, 1, None).count == 1
    store.close()
    assert (tmp_path / "store" / "abort").exists()


def test_a_failed_write_stores_nothing_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store, body=b"one")
        real = os.pwrite

        def full(_descriptor: int, _data: bytes, _position: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        assert put(store, body=b"two").status == PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "No space left" in store.files.refusal
        queue = store.files.queues.get("T", 0)
        assert store.append_chunk([(queue, 0, 0, 0, 0, 0, b"", b"")] * 3, bytes(8)) == []
        monkeypatch.setattr(os, "pwrite", real)
        assert put(store, body=b"three").queue_offset == 1
        assert store.queue_bounds("T", 0) == (0, 2)


def test_a_failed_queue_write_stores_nothing_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        put(store, body=b"one")
        queue = store.files.queues.get("T", 0)
        end = store.max_physical_offset
        real = os.pwrite
        descriptor = queue._tail_descriptor

        def full(target: int, data: bytes, position: int) -> int:
            if target == descriptor:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(target, data, position)

        monkeypatch.setattr(os, "pwrite", full)
        assert put(store, body=b"two").status == PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "consumequeue" in store.files.refusal
        assert "No space left" in store.files.refusal
        monkeypatch.undo()
        assert not store.files.failure
        assert (store.max_physical_offset, store.queue_bounds("T", 0)) == (end, (0, 1))
        assert put(store, body=b"two").queue_offset == 1
    with opened(settings) as again:
        assert again.queue_bounds("T", 0) == (0, 2)


def test_entries_of_records_that_were_not_stored_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    with opened(settings) as store:
        put(store, body=b"one")

        def full(data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(store.files.log, "write", full)
        assert put(store, body=b"two").status == PutMessageStatus.SERVICE_NOT_AVAILABLE
        monkeypatch.undo()
        assert not any((tmp_path / "store/consumequeue/T/0" / f"{0:020d}").read_bytes()[20:])
        put(store, queue_id=1, body=b"three")
    with opened(settings) as again:
        assert again.queue_bounds("T", 0) == (0, 1)


def test_no_thread_outlives_its_store(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = MessageStore(small_settings(tmp_path))
    store.open()
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert names == {
        "kerolox-allocate",
        "kerolox-flush-log",
        "kerolox-flush-queues",
        "kerolox-index",
    }
    store.close()
    store.close()
    assert set(threading.enumerate()) <= before


def test_the_index_follows_by_itself(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for index in range(200):
            put(store, properties=f"KEYS\x01k{index}".encode())
        wait_until(lambda: store.stats()["dispatch_behind_bytes"] == 0)
        assert store.stats()["index_pending"] == 0


def resident_file_kib() -> int:
    """Of files, on a disk or in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = [line for line in status if line.startswith(("RssFile:", "RssShmem:"))]
    return sum(int(line.split()[1]) for line in lines)


def test_what_was_indexed_at_the_opening_does_not_hide_what_is_not_yet(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for _ in range(20):
            put(store, properties=b"KEYS\x01k")
        crash(store)
    shutil.rmtree(tmp_path / "store" / "index", ignore_errors=True)
    with opened(small_settings(tmp_path)) as store:
        assert store.files.index_follower is not None
        store.files.index_follower.stop()
        put(store, properties=b"KEYS\x01late")
        assert store.stats()["index_pending"] >= 1
        store.query_key("T", "late", 1, 0, 10**15)
        assert store.stats()["index_pending"] == 0


def test_what_was_read_does_not_stay_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The thread would do it by itself before this test has looked.
    monkeypatch.setattr("kerolox.store.flush.RELEASE_INTERVAL_SECONDS", 3_600.0)
    settings = small_settings(
        tmp_path, mapped_file_size_commit_log=64 << 20, max_message_size=4 << 20
    )
    with opened(settings) as store:
        for _ in range(15):
            put(store, body=b"x" * (4 << 20))
        for offset in range(15):
            store.read("T", 0, offset, 1, None)
        grown = resident_file_kib()
        flusher = store.files.queue_flusher
        assert flusher is not None
        flusher.release_pages()
        assert resident_file_kib() < grown - 40 * 1024
