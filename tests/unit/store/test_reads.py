from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kerolox.kernel.status import GetMessageStatus
from kerolox.message import java_hash
from kerolox.protocol.records import decode_records
from kerolox.store.layout import ENTRY
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from pathlib import Path

    from kerolox.kernel.values import Read

A, B = java_hash("a"), java_hash("b")


def bodies(found: Read) -> list[bytes]:
    return [message.body for message in decode_records(found.records)]


def test_every_status_has_its_next_offset(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for _ in range(3):
            put(store)
        expected = {
            1: (GetMessageStatus.FOUND, 3),
            3: (GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
            4: (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
            -1: (GetMessageStatus.OFFSET_TOO_SMALL, 0),
        }
        for offset, (status, next_offset) in expected.items():
            found = store.read("T", 0, offset, 32, None)
            assert (found.status, found.next_offset) == (status, next_offset)
            assert (found.min_offset, found.max_offset) == (0, 3)
        store.files.queues.get("T", 1)
        for queue_id in (1, 2):
            assert store.read("T", queue_id, 5, 32, None) == (8, 0, 0, 0, False, 0, b"")
        assert store.read("None", 0, 5, 32, None).status == GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_a_lost_file_of_a_queue_leads_to_the_next_one(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for _ in range(25):
            put(store)
        queue = store.files.queues.get("T", 0)
        os.unlink(queue.path_of(0))
        queue.close()
        found = store.read("T", 0, 3, 32, None)
        assert (found.status, found.next_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 20)


def test_tags_are_matched_by_code(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for index in range(10):
            put(store, body=b"%d" % index, properties=b"TAGS\x01" + b"ab"[index % 2 :][:1])
        found = store.read("T", 0, 0, 3, [A])
        assert bodies(found) == [b"0", b"2", b"4"]
        assert found.next_offset == 5
        assert bodies(store.read("T", 0, 0, 32, [A, B])) == [b"%d" % index for index in range(10)]
        nothing = store.read("T", 0, 0, 32, [java_hash("c")])
        assert (nothing.status, nothing.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 10)


def test_a_deliver_time_is_matched_by_its_low_bits_and_an_address_always(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store, body=b"time", tags_code=(7 << 32) + 5)
        put(store, body=b"address", tags_code=-(2**63) + 20)
        put(store, body=b"other", tags_code=6)
        assert bodies(store.read("T", 0, 0, 32, [5])) == [b"time", b"address"]


@pytest.mark.parametrize("tags", [None, [0]])
def test_a_read_is_limited_by_count_and_bytes(tmp_path: Path, tags: list[int] | None) -> None:
    settings = small_settings(
        tmp_path,
        mapped_file_size_consume_queue=2_000,
        max_transfer_count_on_message_in_memory=5,
        max_transfer_bytes_on_message_in_memory=1_000,
    )
    with opened(settings) as store:
        for index in range(20):
            put(store, body=b"x" * (3_000 if index == 10 else 100))
        assert store.read("T", 0, 0, 32, tags).count == 5
        assert store.read("T", 0, 0, 2, tags).count == 2
        assert store.read("T", 0, 0, 0, tags).count == 1
        near = store.read("T", 0, 8, 32, tags)
        assert (near.count, near.next_offset) == (2, 10)
        large = store.read("T", 0, 10, 32, tags)
        assert (large.count, large.next_offset) == (1, 11)


@pytest.mark.parametrize("tags", [None, [0]])
def test_old_records_have_the_limits_of_the_disk(tmp_path: Path, tags: list[int] | None) -> None:
    with opened(small_settings(tmp_path)) as store:
        for _ in range(20):
            put(store)
        store.reader.memory_bytes = store.max_physical_offset // 2
        old = store.read("T", 0, 0, 32, tags)
        assert (old.count, old.suggest_slave) == (8, True)
        new = store.read("T", 0, 15, 32, tags)
        assert (new.count, new.suggest_slave) == (5, False)


def test_a_read_ends_with_the_file_of_the_queue(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for _ in range(45):
            put(store)
        counts = [store.read("T", 0, offset, 32, None).count for offset in (0, 15, 20, 40)]
        assert counts == [20, 5, 20, 5]


@pytest.mark.parametrize("tags", [None, [0]])
def test_records_over_the_end_of_a_log_file_come_together(
    tmp_path: Path, tags: list[int] | None
) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        texts = [b"%d" % index * 300 for index in range(10)]
        for index, text in enumerate(texts):
            put(store, queue_id=0, body=text)
            put(store, queue_id=1, body=b"between" * (index % 3))
        assert bodies(store.read("T", 0, 0, 32, tags)) == texts


def test_entries_whose_records_are_gone_are_skipped(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        for index in range(15):
            put(store, body=b"%d" % index * 300)
        first = store.files.log.files.pop(0)
        first.delete()
        store.files.log._reset_bounds()
        found = store.read("T", 0, 0, 3, None)
        assert found.status == GetMessageStatus.FOUND
        assert found.count == 3
        gone = store.read("T", 0, 0, 32, [1])
        assert gone.status == GetMessageStatus.NO_MATCHED_MESSAGE


def test_pre_blank_entries_are_no_messages(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store, body=b"real")
        queue = store.files.queues.get("T", 0)
        queue.fill_gap(4)
        for tags in (None, [0]):
            found = store.read("T", 0, 1, 32, tags)
            assert (found.status, found.count) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 0)
            assert found.next_offset == 4


def test_offsets_by_time_are_exact_or_nearest(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        assert store.offset_by_time("T", 0, 5) == 0
        for index in range(30):
            store.set_clock(1_000_000 + index * 100)
            put(store)
        cases = {
            0: 0, 1_000_000: 0, 1_000_100: 1, 1_000_149: 1, 1_000_150: 1, 1_000_151: 2,
            1_002_100: 21, 1_002_000: 20, 1_002_900: 29, 9_999_999: 29,
        }  # fmt: skip
        for timestamp, offset in cases.items():
            assert store.offset_by_time("T", 0, timestamp) == offset, timestamp


def test_entry_and_store_time_of_a_place_without_message(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        store.set_clock(1_234_567)
        stored = put(store)
        assert store.queue_entry("T", 0, 0) == (0, stored.size, 0)
        assert store.store_time("T", 0, 0) == 1_234_567
        for queue_id, offset in ((0, 1), (0, -1), (1, 0)):
            assert store.queue_entry("T", queue_id, offset) is None
            assert store.store_time("T", queue_id, offset) == -1
        assert store.queue_bounds("T", 1) == (0, 0)


def test_a_read_equals_the_records_that_its_entries_name(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for index in range(18):
            put(store, queue_id=index % 3, body=b"z" * (index * 11))
        found = store.read("T", 1, 0, 32, None)
        data = (tmp_path / "store" / "consumequeue" / "T" / "1" / ("0" * 20)).read_bytes()
        entries = list(ENTRY.iter_unpack(data))[:6]
        assert found.records == b"".join(store.lookup(entry[0]) or b"" for entry in entries)
