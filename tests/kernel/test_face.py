"""The store's own methods: life cycle, appends and reads of the cold path, counters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kerolox.kernel.feed import ConnectionKernel
from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.store import StoreKernel
from kerolox.kernel.values import Batch
from kerolox.message import java_hash, pack_host, tags_code
from kerolox.protocol.records import decode_record, decode_records
from tests.support.eventually import wait_until
from tests.support.stores.bench import (
    BORN_HOST,
    NOW,
    SMALL_FILES,
    STORE_HOST,
    Bench,
    properties,
    send,
)

FOUND, NO_MATCHED, REMOVING, FOUND_NULL, BADLY, ONE, TOO_SMALL, _, NO_MESSAGE = range(9)


def test_the_face_is_complete(bench: Bench) -> None:
    assert isinstance(bench.store, StoreKernel)
    assert isinstance(bench.connect().connection, ConnectionKernel)


def test_a_store_that_is_made_touches_no_file(kernel: Any, tmp_path: Path) -> None:
    kernel.Store(StoreSettings(store_path_root_dir=str(tmp_path / "store"), **SMALL_FILES))
    assert not (tmp_path / "store").exists()


def test_a_new_store_is_empty(closed_bench: Bench) -> None:
    report = closed_bench.open()
    assert tuple(report)[:8] == (True, 0, 0, 0, 0, 0, 0, 0)
    store = closed_bench.store
    assert (store.min_physical_offset, store.max_physical_offset, store.flushed_offset) == (0, 0, 0)
    assert store.queues() == []
    assert store.queue_bounds("T", 0) == (0, 0)
    assert store.lookup(0) is None
    assert store.query_key("T", "k", 32, 0, NOW)[2] == b""
    assert (closed_bench.path / "abort").exists()


def test_close_leaves_a_clean_store_and_can_be_repeated(bench: Bench) -> None:
    bench.append()
    bench.store.close()
    bench.store.close()
    assert not (bench.path / "abort").exists()
    again = Bench(bench.kernel, bench.path)
    report = again.open()
    assert report[0]
    assert again.bodies() == [b"b"]
    again.store.close()


def test_a_store_in_use_is_refused(bench: Bench) -> None:
    other = Bench(bench.kernel, bench.path)
    with pytest.raises(BlockingIOError, match=str(bench.path)):
        other.open()
    assert bench.append()[0] == 0


def test_a_folder_that_is_a_file_is_refused(kernel: Any, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(OSError, match=str(tmp_path / "store")):
        Bench(kernel, tmp_path / "store").open()


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("mapped_file_size_commit_log", "mappedFileSizeCommitLog"),
        ("mapped_file_size_consume_queue", "mappedFileSizeConsumeQueue"),
    ],
)
def test_files_of_another_size_are_refused(bench: Bench, setting: str, name: str) -> None:
    bench.append()
    bench.store.close()
    other = Bench(bench.kernel, bench.path)
    with pytest.raises(ValueError, match=name) as caught:
        other.open(**{setting: SMALL_FILES[setting] * 2})
    assert "00000000000000000000" in str(caught.value)
    assert str(SMALL_FILES[setting]) in str(caught.value)
    again = Bench(bench.kernel, bench.path)
    again.open()
    assert again.bodies() == [b"b"]
    again.store.close()


def test_flush_reaches_the_end(bench: Bench) -> None:
    bench.append()
    assert bench.store.flush() == bench.store.max_physical_offset
    assert bench.store.flushed_offset == bench.store.max_physical_offset


def test_append_gives_what_it_did(bench: Bench) -> None:
    first = bench.append(b"one", queue_id=3)
    second = bench.append(b"two", queue_id=3)
    assert tuple(first)[:3] == (0, 0, 0)
    assert tuple(second) == (0, first[3], 1, first[3], NOW)
    message, size = decode_record(bench.store.lookup(second[1]))
    assert size == second[3]
    assert (message.body, message.queue_offset) == (b"two", 1)
    assert bench.store.queue_bounds("T", 3) == (0, 2)


def test_append_stores_its_arguments(bench: Bench) -> None:
    born, store_host = pack_host("2001:db8::7", 1), pack_host("10.9.8.7", 2)
    appended = bench.append(
        bytes(1_000),
        "a\x01b",
        flag=-3,
        sys_flag=8 | 32,
        born_timestamp=17,
        born_host=born,
        store_host=store_host,
        reconsume_times=4,
        prepared_transaction_offset=99,
        tags_code=1 << 40,
    )
    message, _ = decode_record(bench.store.lookup(appended[1]))
    assert (message.flag, message.sys_flag) == (-3, 8 | 16)
    assert (message.born_timestamp, message.born_host) == (17, ("2001:db8::7", 1))
    assert (message.store_host, message.reconsume_times) == (("10.9.8.7", 2), 4)
    assert message.prepared_transaction_offset == 99
    assert message.properties == {"a": "b"}
    assert bench.store.queue_entry("T", 0, 0) == (0, appended[3], 1 << 40)


def test_the_tags_code_comes_from_the_properties(bench: Bench) -> None:
    for text in ("TAGS\x01x", "", "TAGS\x01\x02a\x01b", "XTAGS\x01x", "TAGS\x01x\x02TAGS\x01y"):
        bench.append(text=text)
    codes = [bench.store.queue_entry("T", 0, offset)[2] for offset in range(5)]
    assert codes == [tags_code("x"), 0, 0, 0, tags_code("y")]


@pytest.mark.parametrize("kind", [4, 12])
def test_prepared_and_rolled_back_records_have_no_queue_entry(bench: Bench, kind: int) -> None:
    bench.append()
    appended = bench.append(sys_flag=kind, text=properties(UNIQ_KEY="half", KEYS="k"))
    assert tuple(appended)[:3] == (0, bench.store.queue_entry("T", 0, 0)[1], 0)
    assert bench.store.queue_bounds("T", 0) == (0, 1)
    message, _ = decode_record(bench.store.lookup(appended[1]))
    assert message.queue_offset == 0
    assert bench.append()[2] == 1
    bench.wait_indexed()
    found = bench.store.query_key("T", "half", 32, 0, NOW + 9_000)[2]
    assert bool(found) == (kind == 4)


def test_a_record_over_a_limit_is_refused_and_nothing_is_written(bench: Bench) -> None:
    assert bench.append(bytes(4 * 1024 * 1024 + 1))[0] == 6
    assert bench.append(text="a\x01" + "x" * 32_766)[0] == 7
    assert bench.append(bytes(70_000))[0] == 6
    assert bench.store.max_physical_offset == 0
    assert bench.append()[0] == 0


@pytest.mark.parametrize("topic", ["x" * 128, "a/b", "..", ""])
def test_a_topic_that_no_folder_can_have_is_refused(bench: Bench, topic: str) -> None:
    assert bench.append(topic=topic.encode())[0] == 6
    assert bench.store.max_physical_offset == 0


def test_append_batch_is_all_or_nothing(bench: Bench) -> None:
    def batch(items: list[tuple[int, bytes, bytes]], sys_flag: int = 0) -> Any:
        return bench.store.append_batch(
            Batch(b"T", 2, sys_flag, NOW - 1, BORN_HOST, STORE_HOST, 3, items)
        )

    good = batch([(1, b"one", b"TAGS\x01a"), (2, b"two", b"")])
    assert (good[0], good[2], good[4]) == (0, 0, NOW)
    assert good[1][0] == 0
    assert good[3] == bench.store.max_physical_offset
    found = [decode_record(bench.store.lookup(offset))[0] for offset in good[1]]
    assert [(m.flag, m.body, m.queue_offset) for m in found] == [(1, b"one", 0), (2, b"two", 1)]
    assert {m.reconsume_times for m in found} == {3}
    end = bench.store.max_physical_offset
    assert batch([])[0] == 6
    assert batch([(0, b"x", b"")], sys_flag=4)[0] == 6
    assert batch([(0, b"x", b""), (0, b"y", bytes(32_768))])[0] == 7
    assert batch([(0, bytes(30_000), b"")] * 3)[0] == 6
    assert bench.store.max_physical_offset == end


@pytest.mark.parametrize(
    ("queue", "offset", "status", "next_offset"),
    [
        (0, 0, FOUND, 5),
        (0, 4, FOUND, 5),
        (0, 5, ONE, 5),
        (0, 6, BADLY, 5),
        (0, -1, TOO_SMALL, 0),
        (1, 0, NO_MESSAGE, 0),
        (1, 7, NO_MESSAGE, 0),
    ],
)
def test_read_has_the_statuses_of_get_message(
    bench: Bench, queue: int, offset: int, status: int, next_offset: int
) -> None:
    for _ in range(5):
        bench.append()
    read = bench.store.read("T", queue, offset, 32, None)
    assert tuple(read)[:2] == (status, next_offset)
    assert tuple(read)[2:4] == ((0, 5) if queue == 0 else (0, 0))
    assert read[4] is False
    assert len(decode_records(read[6])) == read[5] == (5 - offset if status == FOUND else 0)


def test_read_filters_by_tags_codes(bench: Bench) -> None:
    for tag in "abcab":
        bench.append(tag.encode(), f"TAGS\x01{tag}")
    read = bench.store.read("T", 0, 0, 32, [java_hash("b"), java_hash("c")])
    assert [m.body for m in decode_records(read[6])] == [b"b", b"c", b"b"]
    assert tuple(read)[:2] == (FOUND, 5)
    read = bench.store.read("T", 0, 0, 2, [java_hash("b")])
    assert [m.body for m in decode_records(read[6])] == [b"b", b"b"]
    assert tuple(bench.store.read("T", 0, 0, 32, [1]))[:2] == (NO_MATCHED, 5)
    assert tuple(bench.store.read("T", 0, 0, 32, []))[:2] == (NO_MATCHED, 5)


def test_a_tags_code_beyond_32_bits_is_compared_by_its_low_half(bench: Bench) -> None:
    bench.append(tags_code=(1 << 40) + 7)
    bench.append(tags_code=(1 << 40) + 0x8000_0000)
    assert bench.store.read("T", 0, 0, 32, [7])[5] == 1
    assert bench.store.read("T", 0, 0, 32, [-0x8000_0000])[5] == 1


def test_a_read_examines_a_bounded_part_of_the_queue(bench: Bench) -> None:
    for _ in range(900):
        bench.append(b"", "TAGS\x01a")
    first = bench.store.read("T", 0, 0, 32, [1])
    assert (first[0], first[5]) == (NO_MATCHED, 0)
    assert first[1] <= 800
    assert tuple(bench.store.read("T", 0, 850, 32, [1]))[:2] == (NO_MATCHED, 900)


def test_lookup_finds_only_the_start_of_a_record(bench: Bench) -> None:
    first = bench.append(b"1")
    second = bench.append(b"2")
    assert len(bench.store.lookup(second[1])) == second[3]
    for offset in (-1, 1, first[3] - 1, first[3] + second[3], 1 << 40):
        assert bench.store.lookup(offset) is None


def test_queries_find_keys_within_their_time(bench: Bench) -> None:
    for index in range(5):
        bench.store.set_clock(NOW + index * 1_000)
        bench.append(b"%d" % index, properties(KEYS=f"all one-{index}", UNIQ_KEY=f"U{index}"))
    bench.append(b"other", properties(KEYS="all"), topic=b"Other")
    bench.wait_indexed()

    def find(key: str, count: int = 32, begin: int = 0, end: int = NOW + 10_000) -> list[bytes]:
        return [
            message.body
            for message in decode_records(bench.store.query_key("T", key, count, begin, end)[2])
        ]

    assert sorted(find("all")) == [b"0", b"1", b"2", b"3", b"4"]
    assert find("one-3") == find("U3") == [b"3"]
    assert find("nobody") == find("") == []
    assert len(find("all", count=2)) == 2
    assert sorted(find("all", begin=NOW + 1_000, end=NOW + 2_000)) == [b"1", b"2"]
    assert find("all", end=NOW - 1_000) == []


def test_an_answer_by_key_has_the_newest_that_fit_a_frame(closed_bench: Bench) -> None:
    closed_bench.open(mapped_file_size_commit_log=32 << 20, max_message_size=10 << 20)
    for index in range(5):
        closed_bench.append(b"%d" % index + bytes(3 << 20), properties(KEYS="all"))
    closed_bench.append(bytes(9 << 20), properties(KEYS="large"))
    closed_bench.wait_indexed()

    def found(key: str) -> list[bytes]:
        records = closed_bench.store.query_key("T", key, 64, 0, NOW + 10_000)[2]
        return [message.body[:1] for message in decode_records(records)]

    assert found("all") == [b"3", b"4"]
    assert len(found("large")) == 1


def test_offsets_by_time(bench: Bench) -> None:
    for time in (10, 20, 20, 30):
        bench.store.set_clock(NOW + time)
        bench.append()
    by_time = bench.store.offset_by_time
    assert by_time("T", 0, NOW + 10) == 0
    assert by_time("T", 0, NOW + 20) in (1, 2)
    assert by_time("T", 0, NOW + 30) == 3
    assert by_time("T", 0, NOW + 24) in (1, 2)
    assert by_time("T", 0, NOW + 29) == 3
    assert by_time("T", 1, NOW) == 0
    assert by_time("Nobody", 1, NOW) == 0


def test_store_times_and_entries_of_single_messages(bench: Bench) -> None:
    appended = bench.append(text="TAGS\x01t")
    store = bench.store
    assert store.store_time("T", 0, 0) == NOW
    assert store.queue_entry("T", 0, 0) == (0, appended[3], tags_code("t"))
    for queue, offset in ((0, 1), (0, -1), (1, 0)):
        assert store.store_time("T", queue, offset) == -1
        assert store.queue_entry("T", queue, offset) is None


def test_queues_lists_them_all_and_delete_queues_deletes_a_topic(bench: Bench) -> None:
    wire = bench.connect()
    wire.ask(send(e=1), send(e=1), send(e=3))
    bench.append(topic=b"Other")
    assert sorted(map(tuple, bench.store.queues())) == [
        ("Other", 0, 0, 1),
        ("T", 1, 0, 2),
        ("T", 3, 0, 1),
    ]
    assert bench.store.delete_queues("T") == 2
    assert bench.store.delete_queues("T") == 0
    assert [tuple(queue) for queue in bench.store.queues()] == [("Other", 0, 0, 1)]
    assert bench.store.queue_bounds("T", 1) == (0, 0)
    assert not (bench.path / "consumequeue" / "T").exists()
    (answer,) = wire.ask(send(e=1))
    assert answer.ext_fields["queueOffset"] == "0"
    assert bench.store.queue_bounds("T", 1) == (0, 1)


def test_stats_count(bench: Bench) -> None:
    bench.append(b"1", topic=b"A")
    bench.append(b"2", topic=b"B")
    bench.append(b"3", topic=b"A")
    stats = bench.store.stats()
    assert stats["put_count"] == 3
    assert stats["put_bytes"] == bench.store.max_physical_offset
    assert stats["held_pulls"] == stats["get_count"] == 0
    wait_until(lambda: bench.store.stats()["dispatch_behind_bytes"] == 0)
    assert {name for name, _, _ in bench.store.topic_stats()} == {"A", "B"}
    assert sum(count for _, count, _ in bench.store.topic_stats()) == 3
    bench.store.flush()
    assert bench.store.stats()["flush_count"] > 0


def test_notify_fd_does_not_block_when_it_is_read_empty(bench: Bench) -> None:
    assert bench.store.notify_fd >= 0
    with pytest.raises(BlockingIOError):
        os.read(bench.store.notify_fd, 8)


def test_an_identity_with_a_host_of_another_size_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="host"):
        bench.store.set_identity(
            cluster="c", region="r", trace_on=True, store_host=b"123", broker_id=0
        )


def test_queue_files_roll(bench: Bench) -> None:
    for _ in range(250):
        bench.append(b"")
    folder = bench.path / "consumequeue" / "T" / "0"
    assert sorted(file.name for file in folder.iterdir()) == [
        f"{start:020d}" for start in (0, 2_000, 4_000)
    ]
    assert len(bench.bodies()) == 250
