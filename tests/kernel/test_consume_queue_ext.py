"""The consume queue extension: units of tags code, store time and bit map beside the entries."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from kerolox.kernel.values import Batch
from kerolox.message import java_hash
from kerolox.protocol.records import decode_records
from tests.support.stores.bench import (
    BORN_HOST,
    NOW,
    STORE_HOST,
    Bench,
    files,
    properties,
    send,
    send_batch,
)

EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1_000}
UNIT = struct.Struct(">hqqh")
ENTRY = struct.Struct(">qiq")
FIRST = -(1 << 63)
PER_FILE = 49
"""Units without a bit map in a file of 1,000 bytes, 4 of which always stay."""
MISSING = 0
NO_MATCHED = 1


def tag(index: int) -> str:
    return "abc"[index % 3]


def put(bench: Bench, count: int, **changes: Any) -> None:
    for index in range(count):
        bench.store.set_clock(NOW + index)
        bench.append(b"%d" % index, properties(TAGS=tag(index)), **changes)


def raw_codes(bench: Bench, topic: str = "T", queue_id: int = 0) -> list[int]:
    """What the entries themselves hold."""
    folder = bench.path / "consumequeue" / topic / str(queue_id)
    data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return [code for _offset, size, code in ENTRY.iter_unpack(data) if size]


def ext_files(bench: Bench, queue_id: int = 0) -> dict[str, bytes]:
    folder = bench.path / "consumequeue_ext" / "T" / str(queue_id)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def all_files(bench: Bench) -> dict[str, Any]:
    units = sorted((bench.path / "consumequeue_ext").rglob("0" * 10 + "*"))
    return {
        **{name: data for name, data in files(bench.path).items() if "queue" in name},
        **{str(file.relative_to(bench.path)): file.read_bytes() for file in units},
    }


def found(bench: Bench, wanted: str, offset: int = 0) -> list[bytes]:
    read = bench.store.read("T", 0, offset, 32, [java_hash(wanted)])
    return [message.body for message in decode_records(read[6])]


def test_entries_lead_to_units(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**EXT)
    put(bench, 3)
    assert raw_codes(bench) == [FIRST, FIRST + 20, FIRST + 40]
    (data,) = ext_files(bench).values()
    assert data[:60] == b"".join(UNIT.pack(20, java_hash(tag(n)), NOW + n, 0) for n in range(3))
    assert not any(data[60:])
    for index in range(3):
        assert bench.store.queue_unit("T", 0, index) == (java_hash(tag(index)), NOW + index, b"")
        assert bench.store.queue_entry("T", 0, index)[2] == java_hash(tag(index))
    for queue_id, offset in ((0, 3), (0, -1), (1, 0)):
        assert bench.store.queue_unit("T", queue_id, offset) is None


def test_a_unit_never_crosses_a_file_and_a_mark_ends_one(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    put(closed_bench, 2 * PER_FILE + 1)
    assert raw_codes(closed_bench)[PER_FILE - 1 : PER_FILE + 1] == [FIRST + 960, FIRST + 1_000]
    units = ext_files(closed_bench)
    assert list(units) == [f"{start:020d}" for start in (0, 1_000, 2_000)]
    for data in list(units.values())[:2]:
        assert data[980:] == b"\xff\xff" + bytes(18)
    last = closed_bench.store.queue_unit("T", 0, 2 * PER_FILE)
    assert last == (java_hash(tag(2 * PER_FILE)), NOW + 2 * PER_FILE, b"")


def test_a_bit_map_is_kept_as_it_is_given(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    for bit_map in (b"\x01", b"", bytes(range(14)), bytes(977)):
        closed_bench.append(bit_map=bit_map)
    for offset, bit_map in enumerate((b"\x01", b"", bytes(range(14)))):
        assert closed_bench.store.queue_unit("T", 0, offset) == (0, NOW, bit_map)
    # No file can hold the last one: the entry has the tags code itself, as without units.
    assert closed_bench.store.queue_unit("T", 0, 3) is None
    assert raw_codes(closed_bench)[3] == 0


def test_hot_sends_and_batches_have_units(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    wire = closed_bench.connect()
    text = properties(TAGS="a")
    wire.ask(send(i=text), send(i=text), send_batch([(0, b"b", text.encode())] * 3))
    assert raw_codes(closed_bench) == [FIRST + 20 * index for index in range(5)]
    assert closed_bench.store.queue_unit("T", 0, 4) == (java_hash("a"), NOW, b"")


def test_filters_look_through_the_address(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    put(closed_bench, 6)
    assert found(closed_bench, "b") == [b"1", b"4"]
    assert closed_bench.store.read("T", 0, 0, 32, [5])[0] == NO_MATCHED
    assert closed_bench.store.read("T", 0, 0, 32, None)[5] == 6


def test_a_held_pull_is_woken_by_the_tag_of_a_message_with_a_unit(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    hold = closed_bench.store.hold
    assert hold(1, 0, 1, "G", "T", 0, 0, 32, [java_hash("b")], NOW + 60_000)
    put(closed_bench, 1)
    assert closed_bench.drain_ready() == {}
    put(closed_bench, 2)
    ((answer,),) = closed_bench.drain_ready().values()
    assert [message.body for message in decode_records(answer.body)] == [b"1"]


def test_further_queues_of_a_message_have_no_units(closed_bench: Bench) -> None:
    closed_bench.open(**EXT, enable_multi_dispatch=True)
    text = properties(TAGS="a", INNER_MULTI_DISPATCH="other")
    closed_bench.append(b"b", text)
    assert raw_codes(closed_bench) == [FIRST]
    assert raw_codes(closed_bench, "other") == [java_hash("a")]


def test_where_a_unit_is_missing_the_client_filters(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**EXT)
    put(bench, 3)
    bench.store.close()
    shutil.rmtree(bench.path / "consumequeue_ext")
    bench.open(**EXT)
    assert found(bench, "b") == [b"0", b"1", b"2"]
    # And no new unit stands where old entries look.
    put(bench, 3)
    assert raw_codes(bench)[3:] == [FIRST + 1_000 + 20 * index for index in range(3)]
    assert found(bench, "b") == [b"0", b"1", b"2", b"1"]
    bench.store.close()
    bench.open()
    assert found(bench, "b") == [b"0", b"1", b"2", b"0", b"1", b"2"], "switched off"


def test_a_file_of_another_size_is_refused(closed_bench: Bench) -> None:
    closed_bench.open(**EXT)
    put(closed_bench, 1)
    closed_bench.store.close()
    with pytest.raises(ValueError, match="mappedFileSizeConsumeQueueExt"):
        closed_bench.open(**{**EXT, "mapped_file_size_consume_queue_ext": 2_000})


@pytest.mark.parametrize("how", ["stop", "kill", "queues lost", "all lost"])
def test_the_same_bytes_are_there_after_a_restart(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench], how: str
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open(**EXT)
    put(writer, 130)
    put(writer, 3, queue_id=1)
    if how == "stop":
        writer.store.close()
    shutil.copytree(writer.path, reader.path)
    if how.endswith("lost"):
        shutil.rmtree(reader.path / "consumequeue")
    if how.startswith("all"):
        shutil.rmtree(reader.path / "consumequeue_ext")
    reader.open(**EXT)
    assert all_files(reader) == all_files(writer)
    put(reader, 1)
    assert reader.store.queue_unit("T", 0, 130) == (java_hash("a"), NOW + 129, b"")
    assert raw_codes(reader)[130] == FIRST + 2_000 + 20 * (130 - 2 * PER_FILE)


def test_units_behind_the_last_entry_are_cut(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    writer, reader = Bench(kernel, tmp_path / "one"), Bench(other_kernel, tmp_path / "two")
    closing += [writer, reader]
    writer.open(**EXT)
    put(writer, PER_FILE - 1)
    before = all_files(writer)
    end = writer.store.max_physical_offset
    put(writer, 4)
    shutil.copytree(writer.path, reader.path)
    with (reader.path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(end)
        log.write(bytes(1_000))
    reader.open(**EXT)
    assert reader.store.max_physical_offset == end
    assert all_files(reader) == before


def test_units_of_records_that_the_log_lost_are_deleted(closed_bench: Bench) -> None:
    bench = closed_bench
    small = {**EXT, "mapped_file_size_commit_log": 4_096}
    bench.open(**small)
    put(bench, 5 * PER_FILE)
    bench.store.close()
    logs = sorted((bench.path / "commitlog").iterdir())
    for log in logs[: len(logs) - 2]:
        log.unlink()
    bench.open(**small)
    first = bench.store.queue_bounds("T", 0)[0]
    assert first > 2 * PER_FILE
    names = list(ext_files(bench))
    address = raw_codes(bench)[first]
    assert int(names[0]) <= address - FIRST <= int(names[0]) + 2_000
    assert found(bench, tag(first), first)[0] == b"%d" % first


def test_units_go_with_their_topic(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**EXT)
    put(bench, 3)
    bench.append(topic=b"Other")
    assert bench.store.delete_queues("T") == 1
    assert not (bench.path / "consumequeue_ext" / "T").exists()
    assert (bench.path / "consumequeue_ext" / "Other").exists()
    put(bench, 1)
    assert raw_codes(bench) == [FIRST]


def test_both_kernels_write_the_same_units(
    kernel: Any, other_kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    found = []
    for number, each in enumerate((kernel, other_kernel)):
        bench = Bench(each, tmp_path / str(number))
        closing.append(bench)
        bench.open(**EXT)
        wire = bench.connect()
        for index in range(120):
            text = properties(TAGS=tag(index))
            bench.append(b"cold", text, queue_id=index % 3, bit_map=bytes(index % 5))
            wire.ask(send(e=index % 2, i=text))
        bench.wait_indexed()
        bench.store.close()
        found.append(all_files(bench))
    assert found[0] == found[1]


def bit_map(*positions: int) -> bytes:
    """A map of 16 bits."""
    return sum(1 << position for position in positions).to_bytes(2, "little")


def bodies_by_bits(bench: Bench, bits: tuple[int, int, list[int]], *tags: str) -> list[bytes]:
    codes = [java_hash(wanted) for wanted in tags] or None
    read = bench.store.read("T", 0, 0, 32, codes, None, bits)
    assert read[1] == read[3], "all was examined"
    return [message.body for message in decode_records(read[6])]


def test_a_filter_by_bits_passes_over_what_its_maps_rule_out(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**EXT)
    maps = [bit_map(1, 9), bit_map(9), b"", bit_map(1, 9, 10)]
    bench.store.set_clock(NOW)
    for index, each in enumerate(maps):
        bench.append(b"%d" % index, properties(TAGS=tag(index)), bit_map=each)
    items = [(0, b"b%d" % index, b"TAGS\x01a") for index in range(2)]
    batch = (b"T", 0, 0, NOW, BORN_HOST, STORE_HOST, 0, items)
    assert bench.store.append_batch(Batch(*batch, [bit_map(9), bit_map(1, 9)]))[0] == 0
    assert bench.store.append_batch(Batch(*batch))[0] == 0
    everything = [b"0", b"1", b"2", b"3", b"b0", b"b1", b"b0", b"b1"]
    wanted = [b"0", b"2", b"3", b"b1", b"b0", b"b1"]
    assert bodies_by_bits(bench, (16, NOW - 1, [1, 9])) == wanted
    assert bodies_by_bits(bench, (16, NOW, [1, 9])) == everything, "the maps are older"
    assert bodies_by_bits(bench, (24, NOW - 1, [1, 9])) == everything, "maps of another length"
    assert bodies_by_bits(bench, (16, NOW - 1, [1, 9]), "c", "b") == [b"2"]
    assert bench.store.read("T", 0, 1, 32, None, None, (16, 0, [1]))[:2] == (0, 8)
    assert bench.store.read("T", 0, 1, 1, None, None, (16, 0, [15]))[5] == 1
    bench.store.close()
    bench.open()
    assert bodies_by_bits(bench, (16, NOW - 1, [1, 9])) == everything, "units are switched off"


def test_units_that_are_written_again_rule_nothing_out(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(**EXT)
    bench.append(bit_map=bit_map(3))
    bench.store.close()
    shutil.rmtree(bench.path / "consumequeue")
    (bench.path / "abort").touch()
    bench.open(**EXT, bit_map_length_consume_queue_ext=16)
    assert bench.store.queue_unit("T", 0, 0) == (0, NOW, b"\xff\xff")
