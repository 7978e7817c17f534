"""Multi-dispatch: one record, entries in several queues; light message queues."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kerolox.kernel.status import PutMessageStatus
from kerolox.kernel.values import Batch
from kerolox.message import decode_properties, tags_code
from kerolox.protocol.records import decode_record, decode_records
from tests.support.stores.bench import BORN_HOST, NOW, STORE_HOST, Bench, files, properties

MULTI = {"enable_multi_dispatch": True, "enable_lmq": True}
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"


def put(bench: Bench, queues: str, body: bytes = b"b", **changes: Any) -> Any:
    """Append a message to T that names further queues."""
    text = properties(TAGS="a", INNER_MULTI_DISPATCH=queues)
    return bench.append(body, text, **{"queue_id": 2, **changes})


def stored_offsets(bench: Bench, physical_offset: int) -> str | None:
    """What the record says of its further queues."""
    return decode_record(bench.store.lookup(physical_offset))[0].properties.get(OFFSETS)


def test_a_message_appears_in_each_queue_that_it_names(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**MULTI)
    first = put(bench, "%LMQ%one,other", b"1")
    bench.append(b"direct", topic=b"other", queue_id=2)
    second = put(bench, "%LMQ%one,other", b"2")
    assert (first[0], first[2], second[2]) == (0, 0, 1)
    assert stored_offsets(bench, first[1]) == "0,0"
    assert stored_offsets(bench, second[1]) == "1,2"
    # Light message queues have queue 0 only, other names the queue of the message.
    assert bench.bodies(0, "%LMQ%one") == [b"1", b"2"]
    assert bench.bodies(2, "other") == [b"1", b"direct", b"2"]
    assert bench.bodies(2) == [b"1", b"2"]
    assert bench.store.queue_bounds("other", 0) == (0, 0)
    for topic, queue_id, offset in (("T", 2, 1), ("%LMQ%one", 0, 1), ("other", 2, 2)):
        entry = bench.store.queue_entry(topic, queue_id, offset)
        assert entry == (second[1], second[3], tags_code("a"))
    text = decode_record(bench.store.lookup(second[1]))[0].properties
    assert text == decode_properties(
        properties(TAGS="a", INNER_MULTI_DISPATCH="%LMQ%one,other", INNER_MULTI_QUEUE_OFFSET="1,2")
    )


def test_messages_count_for_their_own_topic_only(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI)
    put(closed_bench, "%LMQ%one,other")
    assert closed_bench.store.stats()["put_count"] == 1
    assert [name for name, _count, _size in closed_bench.store.topic_stats()] == ["T"]


def test_a_queue_that_is_named_twice_gets_one_entry(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI)
    for body in (b"1", b"2"):
        put(closed_bench, "%LMQ%a,%LMQ%a,T", body)
    assert closed_bench.bodies(0, "%LMQ%a") == closed_bench.bodies(2) == [b"1", b"2"]
    last = closed_bench.store.queue_entry("T", 2, 1)
    assert stored_offsets(closed_bench, last[0]) == "1,1,1"


@pytest.mark.parametrize("queues", [" ", "\t", ",", ",,"])
def test_names_that_are_blank_dispatch_nowhere(closed_bench: Bench, queues: str) -> None:
    closed_bench.open(**MULTI)
    appended = put(closed_bench, queues)
    assert appended[0] == PutMessageStatus.PUT_OK
    assert stored_offsets(closed_bench, appended[1]) is None
    assert len(closed_bench.store.queues()) == 1


@pytest.mark.parametrize("queues", ["a,,b", "a/b", "..", "x" * 256])
def test_a_name_that_no_folder_can_have_is_illegal(closed_bench: Bench, queues: str) -> None:
    closed_bench.open(**MULTI)
    assert put(closed_bench, queues)[0] == PutMessageStatus.MESSAGE_ILLEGAL
    assert closed_bench.store.max_physical_offset == 0


def test_a_light_queue_has_a_name_as_long_as_a_folder_s(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    name = "%LMQ%" + "x" * 250
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open(**MULTI)
    for body in (b"1", b"2"):
        assert put(writer, name, body)[0] == PutMessageStatus.PUT_OK
    assert writer.bodies(0, name) == [b"1", b"2"]
    # No record can have such a topic of its own, whether there is such a queue or not.
    for topic in (name, "y" * 128):
        end = writer.store.max_physical_offset
        assert writer.append(b"own", topic=topic.encode())[0] == PutMessageStatus.MESSAGE_ILLEGAL
        refused = writer.store.append_batch(
            Batch(topic.encode(), 0, 0, NOW, BORN_HOST, STORE_HOST, 0, [(0, b"own", b"")])
        )
        assert refused[0] == PutMessageStatus.MESSAGE_ILLEGAL
        assert writer.store.max_physical_offset == end
    shutil.copytree(writer.path, reader.path)
    shutil.rmtree(reader.path / "consumequeue" / name)
    reader.open(**MULTI)
    assert reader.bodies(0, name) == [b"1", b"2"]


def test_offsets_that_do_not_fit_into_the_properties_are_refused(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI)
    text = properties(INNER_MULTI_DISPATCH="a,b", FILL="x" * 32_720)
    assert closed_bench.append(b"b", text)[0] == PutMessageStatus.PROPERTIES_SIZE_EXCEEDED


def test_switched_off_the_property_is_only_text(bench: Bench) -> None:
    appended = put(bench, "%LMQ%one,other")
    assert stored_offsets(bench, appended[1]) is None
    assert [queue[0] for queue in bench.store.queues()] == ["T"]


def test_without_lmq_the_names_are_plain(closed_bench: Bench) -> None:
    closed_bench.open(enable_multi_dispatch=True)
    put(closed_bench, "%LMQ%one")
    assert closed_bench.bodies(2, "%LMQ%one") == [b"b"]


def test_a_prepared_message_says_its_places_and_takes_none(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI)
    put(closed_bench, "%LMQ%one")
    half = put(closed_bench, "%LMQ%one", sys_flag=4)
    assert stored_offsets(closed_bench, half[1]) == "1"
    assert closed_bench.bodies(0, "%LMQ%one") == [b"b"]


def test_only_the_store_says_offsets(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI)
    given = properties(INNER_MULTI_QUEUE_OFFSET="7", INNER_MULTI_DISPATCH="q")
    appended = closed_bench.append(b"b", given)
    assert stored_offsets(closed_bench, appended[1]) == "0"
    batch = closed_bench.store.append_batch(
        Batch(b"T", 0, 0, NOW, bytes(8), bytes(8), 0, [(0, b"b", given.encode())])
    )
    assert batch[0] == PutMessageStatus.MESSAGE_ILLEGAL


def test_light_message_queues_have_a_most(closed_bench: Bench) -> None:
    closed_bench.open(**MULTI, max_lmq_consume_queue_num=2)
    assert put(closed_bench, "%LMQ%a,%LMQ%b,%LMQ%a")[0] == 0
    full = int(PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED)
    end = closed_bench.store.max_physical_offset
    assert put(closed_bench, "%LMQ%c")[0] == full
    assert closed_bench.append(topic=b"%LMQ%c")[0] == full
    assert closed_bench.store.max_physical_offset == end
    assert put(closed_bench, "%LMQ%a,plain")[0] == 0
    assert closed_bench.append(topic=b"%LMQ%a")[0] == 0
    assert closed_bench.store.delete_queues("%LMQ%b") == 1
    assert put(closed_bench, "%LMQ%c")[0] == 0


def test_held_pulls_of_every_named_queue_are_woken(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**MULTI)
    for connection, (topic, queue_id) in enumerate((("%LMQ%one", 0), ("other", 2), ("T", 2))):
        assert bench.store.hold(
            connection, 0, connection, "G", topic, queue_id, 0, 32, None, NOW + 60_000
        )
    put(bench, "%LMQ%one,other", b"wake")
    ready = bench.drain_ready()
    assert sorted(ready) == [0, 1, 2]
    for (answer,) in ready.values():
        assert [message.body for message in decode_records(answer.body)] == [b"wake"]


@pytest.mark.parametrize("lost", ["queues", "further", "nothing"])
def test_recovery_writes_the_further_entries_again(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench], lost: str
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open(**MULTI)
    for index in range(150):
        queues = "%LMQ%a,b" if index % 3 else "%LMQ%c,T,%LMQ%a"
        put(writer, queues, b"%d" % index + bytes(700), queue_id=index % 2)
    wanted = files(writer.path)
    shutil.copytree(writer.path, reader.path)
    if lost == "queues":
        shutil.rmtree(reader.path / "consumequeue")
    elif lost == "further":
        shutil.rmtree(reader.path / "consumequeue" / "%LMQ%a")
    reader.open(**MULTI)
    got = files(reader.path)
    assert {name for name in got if "queue" in name} == {name for name in wanted if "queue" in name}
    for name in wanted:
        if "queue" in name:
            assert got[name] == wanted[name], name
    assert put(reader, "%LMQ%a")[0] == 0
    assert reader.store.queue_bounds("%LMQ%a", 0) == (0, 151)


def test_both_kernels_store_the_same_bytes(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    found = []
    for number, each in enumerate((kernel, other_kernel)):
        bench = Bench(each, tmp_path / str(number))
        closing.append(bench)
        bench.open(**MULTI)
        for index in range(120):
            put(bench, f"%LMQ%{index % 7},q{index % 3},", b"%d" % index, queue_id=index % 4)
        bench.wait_indexed()
        bench.store.close()
        found.append(files(bench.path))
    assert found[0] == found[1]
