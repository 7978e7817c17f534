"""Files of the sizes and in the places that RocketMQ uses by default."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from kerolox.broker.config import BrokerConfig
from kerolox.kernel.settings import StoreSettings
from kerolox.message import java_hash
from kerolox.store.index import IndexFile, index_hash
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.queues.consume_queue import ConsumeQueue, OpenQueues

DEFAULTS = StoreSettings(store_path_root_dir="unused")
GIB = 1 << 30


def test_the_store_lies_in_the_home_folder() -> None:
    config = BrokerConfig.load(None)
    assert config.store_path_root_dir == Path.home() / "store"
    assert config.log_folders == (Path.home() / "store" / "commitlog",)
    assert config.config_folder == Path.home() / "store" / "config"


def test_files_of_the_log_have_a_gibibyte_and_their_first_offset_as_name(tmp_path: Path) -> None:
    log = CommitLog(str(tmp_path), DEFAULTS.mapped_file_size_commit_log)
    log.load()
    for _ in range(3):
        log.roll()
        log.write(b"x")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        "00000000000000000000",
        "00000000001073741824",
        "00000000002147483648",
    ]
    assert {file.stat().st_size for file in files} == {GIB}


def test_files_of_a_queue_have_300_000_entries(tmp_path: Path) -> None:
    size = DEFAULTS.mapped_file_size_consume_queue
    queue = ConsumeQueue(str(tmp_path), "T", 3, size, OpenQueues())
    for offset in (0, 300_000, 600_000):
        queue.truncate_entries(offset)
        queue.write_entries([offset, 1, 7])
    queue.close()
    files = sorted((tmp_path / "T" / "3").iterdir())
    assert [file.name for file in files] == [
        "00000000000000000000",
        "00000000000006000000",
        "00000000000012000000",
    ]
    assert {file.stat().st_size for file in files} == {6_000_000}
    assert struct.unpack_from(">qiq", files[1].read_bytes()) == (300_000, 1, 7)


def test_a_file_of_the_index_has_5_million_slots_and_20_million_entries(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    file = IndexFile(str(path), DEFAULTS.max_hash_slot_num, DEFAULTS.max_index_num)
    key_hash = index_hash("T#order-42")
    assert key_hash == abs(java_hash("T#order-42"))
    file.put(key_hash, 111, 1_000_000)
    file.put(key_hash, 222, 1_005_000)
    file.close()
    assert path.stat().st_size == 40 + 5_000_000 * 4 + 20_000_000 * 20
    entries_at = 40 + 5_000_000 * 4
    with path.open("rb") as data:
        data.seek(40 + key_hash % 5_000_000 * 4)
        [newest] = struct.unpack(">i", data.read(4))
        data.seek(entries_at + newest * 20)
        assert struct.unpack(">iqii", data.read(20)) == (key_hash, 222, 5, newest - 1)
        data.seek(entries_at + (newest - 1) * 20)
        assert struct.unpack(">iqii", data.read(20)) == (key_hash, 111, 0, 0)


def test_the_defaults_of_flushes_and_reads_are_those_of_rocketmq() -> None:
    assert DEFAULTS.flush_disk_type == "ASYNC_FLUSH"
    assert DEFAULTS.flush_interval_commit_log == 500
    assert DEFAULTS.flush_commit_log_least_pages == 4
    assert DEFAULTS.flush_commit_log_thorough_interval == 10_000
    assert DEFAULTS.sync_flush_timeout == 5_000
    assert DEFAULTS.flush_interval_consume_queue == 1_000
    assert DEFAULTS.access_message_in_memory_max_ratio == 40
    assert DEFAULTS.max_message_size == 4 << 20


def test_the_broker_and_the_store_have_the_same_defaults() -> None:
    in_store = {each.name: each.default for each in dataclasses.fields(StoreSettings)}
    in_broker = {each.name: each.default for each in dataclasses.fields(BrokerConfig)}
    del in_store["store_path_root_dir"]  # the broker's is in the home folder
    del in_store["bit_map_length_consume_queue_ext"]  # none for a broker without filters of bits
    del in_store["latency_recorded"]  # metricsExporterType says so
    assert {name: in_broker[name] for name in in_store} == in_store
