"""When the disk is asked to keep something, and when it is not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kerolox.kernel.status import PutMessageStatus
from kerolox.store.files import mapped_file
from kerolox.store.message_store import MessageStore
from tests.support.eventually import wait_until
from tests.support.stores.message_store import crash, opened, put, read_messages, small_settings

if TYPE_CHECKING:
    from pathlib import Path

NEVER_MS = 3_600_000
QUIET = {
    "flush_interval_commit_log": NEVER_MS,
    "flush_interval_consume_queue": NEVER_MS,
}


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each call of the system to bring a file to disk."""
    seen: list[int] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        seen.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    return seen


def test_appends_write_the_page_cache_only(tmp_path: Path, syncs: list[int]) -> None:
    with opened(small_settings(tmp_path, **QUIET)) as store:
        for index in range(200):
            put(store, properties=b"KEYS\x01k%d" % index)
        assert store.query_key("T", "k7", 1, 0, 10**15)[2]
        assert len(read_messages(store)) == 200
        assert (syncs, store.flushed_offset) == ([], 0)
    assert syncs


def test_what_is_flushed_is_not_flushed_again(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, **QUIET)) as store:
        put(store)
        end = store.flush()
        assert store.stats()["flush_count"] == 1
        assert store.flush() == end
        store.request_flush(end)
        assert store.stats()["flush_count"] == 1
        put(store)
        assert store.flush() > end
        assert store.stats()["flush_count"] == 2


def test_few_dirty_pages_wait_for_the_thorough_flush(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, flush_interval_commit_log=NEVER_MS)
    with opened(settings) as store:
        flusher = store.files.log_flusher
        assert flusher is not None
        put(store, body=b"x" * 3 * 4_096)
        flusher.run_once()
        assert store.flushed_offset == 0
        put(store, body=b"x" * 4_096)
        flusher.run_once()
        assert store.flushed_offset == store.max_physical_offset
        put(store)
        flusher.run_once()
        assert store.flushed_offset < store.max_physical_offset
        flusher._last_thorough -= 10
        flusher.run_once()
        assert store.flushed_offset == store.max_physical_offset


def test_queues_are_flushed_by_their_own_interval(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path,
        flush_interval_commit_log=NEVER_MS,
        flush_interval_consume_queue=5,
        flush_consume_queue_least_pages=0,
    )
    with opened(settings) as store:
        for queue_id in range(3):
            put(store, queue_id=queue_id)
        queues = [store.files.queues.get("T", queue_id) for queue_id in range(3)]
        wait_until(lambda: all(queue.flushed_offset == 1 for queue in queues))
        assert store.flushed_offset == 0


def test_queues_with_few_new_entries_wait_for_a_minute(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path, **QUIET)) as store:
        flusher, queue = store.files.queue_flusher, store.files.queues.get("T", 0)
        assert flusher is not None
        put(store)
        flusher.run_once()
        assert queue.flushed_offset == 0
        flusher._last_thorough -= 60
        flusher.run_once()
        assert queue.flushed_offset == 1


def test_a_file_that_can_not_be_made_is_a_status_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        put(store, body=b"x" * 800)
        with monkeypatch.context() as patch:

            def full(*_arguments: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(mapped_file.os, "ftruncate", full)  # type: ignore[attr-defined]
            refused = put(store, body=b"y" * 1_800)
            assert refused.status == PutMessageStatus.CREATE_MAPEDFILE_FAILED
            assert "No space left" in store.files.refusal
        assert put(store, body=b"z" * 1_800).queue_offset == 1
        assert [message.body[:1] for message in read_messages(store)] == [b"x", b"z"]


@pytest.mark.parametrize(("check", "left"), [(True, 1), (False, 3)])
def test_bodies_are_checked_on_recovery_only_when_that_is_wanted(
    tmp_path: Path, check: bool, left: int
) -> None:
    settings = small_settings(tmp_path, check_crc_on_recover=check)
    store = MessageStore(settings)
    store.open()
    for text in (b"one", b"two", b"three"):
        put(store, body=text)
    crash(store)
    path = tmp_path / "store" / "commitlog" / ("0" * 20)
    path.write_bytes(path.read_bytes().replace(b"two", b"TWO", 1))
    with opened(settings) as again:
        assert len(read_messages(again)) == left
