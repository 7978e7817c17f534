from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from kerolox.kernel.append import RecordAppender
from kerolox.kernel.files import StoreFiles, StoreRetention
from kerolox.kernel.read import RecordReader
from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Batch
from kerolox.message import java_hash
from kerolox.protocol.records import decode_record, decode_records
from kerolox.store.message_store import MessageStore
from tests.support.stores.message_store import (
    BORN_HOST,
    STORE_HOST,
    opened,
    put,
    read_messages,
    small_settings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kerolox.store.queues.consume_queue import ConsumeQueue


def test_a_message_is_stored_as_it_was_given(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        store.set_clock(1_800_000_000_123)
        stored = put(
            store, "Topic", 2, b"hello", b"TAGS\x01a\x02KEYS\x01k", flag=9, sys_flag=1 | 32,
            reconsume_times=4, prepared_transaction_offset=77,
        )  # fmt: skip
        assert stored == (0, 0, 0, 91 + 5 + 5 + 13, 1_800_000_000_123)
        message, end = decode_record(store.lookup(0) or b"", inflate=False)
        assert end == stored.size
        assert (message.topic, message.queue_id, message.queue_offset) == ("Topic", 2, 0)
        assert (message.flag, message.sys_flag, message.reconsume_times) == (9, 1, 4)
        assert (message.body, message.prepared_transaction_offset) == (b"hello", 77)
        assert message.born_host == ("127.0.0.1", 12345)
        assert message.store_host == ("10.0.0.7", 10911)
        assert message.store_timestamp == 1_800_000_000_123
        assert store.queue_entry("Topic", 2, 0) == (0, stored.size, java_hash("a"))


def test_ipv6_hosts_set_their_bits(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        host = bytes(15) + b"\1" + (80).to_bytes(4, "big")
        put(store, born_host=host, store_host=host)
        message, _end = decode_record(store.lookup(0) or b"")
        assert message.sys_flag == 16 | 32
        assert message.born_host == ("::1", 80)
        assert store.store_time("T", 0, 0) == message.store_timestamp


def test_the_clock_never_runs_backwards(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        store.set_clock(5_000_000)
        put(store)
        store.set_clock(4_000_000)
        assert put(store).store_timestamp == 5_000_000
        store.set_clock(None)
        assert put(store).store_timestamp > 1_600_000_000_000


def test_prepared_and_rolled_back_records_get_no_queue_entry(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        offsets = [put(store, sys_flag=kind).queue_offset for kind in (0, 4, 12, 8, 0)]
        assert offsets == [0, 0, 0, 1, 2]
        assert store.queue_bounds("T", 0) == (0, 3)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"body": b"x" * 32_769}, PutMessageStatus.MESSAGE_ILLEGAL),
        ({"properties": b"x" * 32_768}, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"topic": "a/b"}, PutMessageStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 128}, PutMessageStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutMessageStatus.MESSAGE_ILLEGAL),
    ],
)
def test_what_breaks_a_limit_is_refused_with_a_reason(
    tmp_path: Path, changes: dict[str, object], status: int
) -> None:
    with opened(small_settings(tmp_path)) as store:
        assert put(store, **changes) == (status, 0, 0, 0, 0)  # type: ignore[arg-type]
        assert store.files.refusal
        assert store.max_physical_offset == 0


def test_a_record_that_no_file_can_hold_is_illegal(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        assert put(store, body=b"x" * 2_048).status == PutMessageStatus.MESSAGE_ILLEGAL
        assert "mappedFileSizeCommitLog" in store.files.refusal
        assert put(store, body=b"x" * (2_048 - 8 - 92)).status == PutMessageStatus.PUT_OK
        assert put(store, body=b"x" * (2_048 - 8 - 91)).status == PutMessageStatus.MESSAGE_ILLEGAL


def test_a_batch_lies_together_in_one_file(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=4_096)
    with opened(settings) as store:
        put(store, body=b"x" * 2_000)
        items = [(index, b"y" * 500, f"TAGS\x01t{index}".encode()) for index in range(4)]
        stored = store.append_batch(Batch(b"T", 0, 0, 1, BORN_HOST, STORE_HOST, 0, items))
        assert stored.status == PutMessageStatus.PUT_OK
        assert stored.physical_offsets[0] == 4_096
        assert stored.queue_offset == 1
        assert stored.end_offset == store.max_physical_offset
        assert [message.flag for message in read_messages(store)][1:] == [0, 1, 2, 3]
        assert store.queue_entry("T", 0, 4) == (
            stored.physical_offsets[3], stored.end_offset - stored.physical_offsets[3],
            java_hash("t3"),
        )  # fmt: skip


def test_a_batch_that_is_empty_too_large_or_a_transaction_is_illegal(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        item = (0, b"x" * 20_000, b"")
        for sys_flag, items in ((0, []), (0, [item, item]), (4, [item])):
            stored = store.append_batch(
                Batch(b"T", 0, sys_flag, 1, BORN_HOST, STORE_HOST, 0, items)
            )
            assert stored == (PutMessageStatus.MESSAGE_ILLEGAL, [], 0, 0, 0)


def test_a_chunk_is_stored_and_told_once_per_queue(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int, int, list[int]]] = []

    def hear(queue: ConsumeQueue, first: int, count: int, codes: Sequence[int]) -> None:
        heard.append((queue.topic, queue.queue_id, first, count, list(codes)))

    store = MessageStore(small_settings(tmp_path), hear)
    store.open()
    store.appender.store_host = STORE_HOST
    queues = [store.files.queues.get("A", 0), store.files.queues.get("A", 1)]
    items = [
        (queues[index % 2], index, index, 0, 123, 0, b"body%d" % index, b"K\x01v")
        for index in range(5)
    ]
    results = store.append_chunk(items, BORN_HOST)
    assert [queue_offset for _position, queue_offset in results] == [0, 0, 1, 1, 2]
    assert heard == [("A", 0, 0, 3, [0, 2, 4]), ("A", 1, 0, 2, [1, 3])]
    messages = [decode_record(store.lookup(position) or b"")[0] for position, _ in results]
    assert [message.body for message in messages] == [b"body%d" % index for index in range(5)]
    assert [message.flag for message in messages] == list(range(5))
    assert store.topic_stats() == [("A", 5, store.max_physical_offset)]
    store.close()


def test_a_chunk_gives_the_same_bytes_as_single_appends(tmp_path: Path) -> None:
    texts = [(b"x" * (index * 97 % 3_000), b"TAGS\x01t%d" % index) for index in range(100)]
    with opened(small_settings(tmp_path / "one")) as one:
        one.set_clock(1_000_000)
        for body, properties in texts:
            put(one, body=body, properties=properties, born_timestamp=5)
    with opened(small_settings(tmp_path / "two")) as two:
        two.set_clock(1_000_000)
        two.appender.store_host = STORE_HOST
        queue = two.files.queues.get("T", 0)
        items = [
            (queue, java_hash(properties[5:].decode()), 0, 0, 5, 0, body, properties)
            for body, properties in texts
        ]
        assert len(two.append_chunk(items, BORN_HOST)) == 100
    for folder in ("commitlog", "consumequeue/T/0"):
        names = sorted(os.listdir(tmp_path / "one" / "store" / folder))
        assert names == sorted(os.listdir(tmp_path / "two" / "store" / folder))
        for name in names:
            first = tmp_path / "one" / "store" / folder / name
            assert first.read_bytes() == (tmp_path / "two" / "store" / folder / name).read_bytes()


def test_a_chunk_ends_before_a_record_that_does_not_fit(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, mapped_file_size_commit_log=2_048)
    with opened(settings) as store:
        queue = store.files.queues.get("T", 0)
        items = [(queue, 0, 0, 0, 0, 0, b"x" * size, b"") for size in (10, 3_000, 10)]
        assert len(store.append_chunk(items, BORN_HOST)) == 1
        assert store.queue_bounds("T", 0) == (0, 1)
        assert put(store).queue_offset == 1


def test_deleted_queues_are_gone_and_begin_anew(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for queue_id in (0, 1, 1):
            put(store, "Gone", queue_id)
        put(store, "Stays")
        assert store.delete_queues("Gone") == 2
        assert store.delete_queues("Gone") == 0
        assert [bounds.topic for bounds in store.queues()] == ["Stays"]
        assert not (tmp_path / "store" / "consumequeue" / "Gone").exists()
        assert put(store, "Gone", 1).queue_offset == 0
        assert dict((topic, count) for topic, count, _ in store.topic_stats())["Gone"] == 1


def test_a_store_of_another_file_size_is_refused_by_name(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store)
    with pytest.raises(ValueError, match=r"commitlog/0{20} has 65536 .*mappedFileSizeCommitLog"):
        MessageStore(small_settings(tmp_path, mapped_file_size_commit_log=4_096)).open()
    with pytest.raises(ValueError, match=r"consumequeue/T/0/0{20} has 400 .*ConsumeQueue"):
        MessageStore(small_settings(tmp_path, mapped_file_size_consume_queue=800)).open()
    with opened(small_settings(tmp_path)) as store:
        assert len(read_messages(store)) == 1


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with opened(settings), pytest.raises(BlockingIOError, match="is in use by"):
        MessageStore(settings).open()
    with opened(settings):
        pass


def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, so the answer of the system is made up.
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("commitlog"))
    with pytest.raises(PermissionError, match="commitlog"):
        MessageStore(small_settings(tmp_path)).open()


def test_a_clean_stop_leaves_lock_and_checkpoint_and_no_abort_file(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        put(store)
        assert (tmp_path / "store" / "abort").exists()
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {"checkpoint", "commitlog", "consumequeue", "inventory", "lock"}
    assert stat.S_ISREG((tmp_path / "store" / "lock").stat().st_mode)


def test_a_closed_store_refuses_and_can_not_be_opened_again(tmp_path: Path) -> None:
    store = MessageStore(small_settings(tmp_path))
    assert put(store).status == PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.open()
    store.close()
    assert put(store).status == PutMessageStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(ValueError, match="make a new one"):
        store.open()


def test_counters_count(tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        size = sum(put(store).size for _ in range(3))
        store.read("T", 0, 0, 2, None)
        store.read("T", 0, 3, 2, None)
        stats = store.stats()
        assert (stats["put_count"], stats["put_bytes"]) == (3, size)
        assert (stats["get_found"], stats["get_miss"], stats["get_count"]) == (1, 1, 2)
        assert stats["get_bytes"] == size // 3 * 2


def test_the_commit_log_may_lie_elsewhere(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, store_path_commit_log=str(tmp_path / "elsewhere"))
    with opened(settings) as store:
        put(store)
    assert (tmp_path / "elsewhere" / ("0" * 20)).exists()
    with opened(settings) as store:
        assert len(decode_records(store.lookup(0) or b"")) == 1


@pytest.mark.parametrize("part", [StoreFiles, StoreRetention, RecordAppender, RecordReader])
def test_the_files_offer_what_the_interface_says_of_them(part: type, tmp_path: Path) -> None:
    said = {name for name in dir(part) if not name.startswith("_")}
    assert said
    assert said <= set(dir(MessageStore(small_settings(tmp_path))))
