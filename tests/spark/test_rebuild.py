"""Queues and index made anew on Spark: the broker's own files, and nothing half done."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.errors import ConfigError, StoreError
from kerolox.kernel.choice import load_kernel
from kerolox.message import PropertyKey
from kerolox.protocol.codes import MessageSysFlag
from kerolox.protocol.names import SCHEDULE_TOPIC
from kerolox.spark.jobs import JobError, silent
from kerolox.spark.jobs.rebuild import RebuildOptions, rebuild
from kerolox.spark.jobs.rebuild import job as rebuilding
from kerolox.store.layout import ENTRY_BYTES, PRE_BLANK
from tests.support.stores.bench import NOW, Bench, files, properties
from tests.support.stores.golden import copy_golden

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from kerolox.kernel.settings import StoreSettings
    from kerolox.spark.jobs.rebuild.options import RebuildSummary

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")

MESSAGES = 1_200
LOG_FILE_BYTES = 256 * 1024
SIZES = {
    "mapped_file_size_commit_log": LOG_FILE_BYTES,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 64,
    "max_index_num": 700,
}
CONFIG = "mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=64\nmaxIndexNum=700\n"
LOST = 20
"""Number of the message in its queue whose record is damaged; it lies in the log's first file."""
HALF, OP = b"RMQ_SYS_TRANS_HALF_TOPIC", b"RMQ_SYS_TRANS_OP_HALF_TOPIC"


def fill(bench: Bench) -> None:
    """Tagged and keyed messages in four queues, delayed ones, and transactions as a broker stores
    them; and records that have no place in a queue."""
    for number in range(MESSAGES):
        bench.store.set_clock(NOW + number * 100)
        text = properties(UNIQ_KEY=f"U{number:05d}", KEYS=f"k{number} all", TAGS=f"t{number % 3}")
        bench.append(b"%d " % number * 500, text, queue_id=number % 4)
        if number % 60 == 0:
            real = {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": f"D{number}"}
            text = properties(DELAY=str(number % 18 + 1), TAGS="late", **real)
            topic = SCHEDULE_TOPIC.encode()
            bench.append(b"later", text, topic=topic, queue_id=number % 18)
            text = properties(TRAN_MSG="true", PGROUP="P", UNIQ_KEY=f"H{number}")
            half = bench.append(b"half", text, topic=HALF)
            bench.append(b"0", properties(TAGS="d", UNIQ_KEY=f"O{number}"), topic=OP)
            ended = {"prepared_transaction_offset": half.physical_offset, "queue_id": 1}
            bench.append(b"half", text, sys_flag=MessageSysFlag.TRANSACTION_COMMIT, **ended)
            bench.append(b"half", text, sys_flag=MessageSysFlag.TRANSACTION_ROLLBACK, **ended)
            bench.append(b"half", text, sys_flag=MessageSysFlag.TRANSACTION_PREPARED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only read by the tests."""
    root = tmp_path_factory.mktemp("made") / "store"
    bench = Bench(load_kernel(), root)
    bench.open(**SIZES)
    fill(bench)
    bench.wait_indexed()
    bench.store.close()
    return root


def run(spark: SparkSession, root: Path, **options: Any) -> RebuildSummary:
    return rebuild(spark, RebuildOptions(store=str(root), split_mib=1, **options), silent)


def without_log(root: Path) -> dict[str, list[bytes]]:
    return {folder: data for folder, data in files(root).items() if folder != "commitlog"}


def with_parts(root: Path, parts: Path, to: Path) -> Path:
    """A copy of a store with queues, index and checkpoint of another folder in place of its own."""
    shutil.copytree(root, to, ignore=shutil.ignore_patterns("consumequeue", "index", "inventory"))
    shutil.copytree(parts, to, dirs_exist_ok=True)
    return to


def answers(settings: StoreSettings, keys: set[tuple[str, str]]) -> Iterator[object]:
    """All that a store says: what its opening did, bounds and messages of queues, keys."""
    opened = load_kernel().Store(settings)
    report = opened.open()
    yield (report.clean, report.dispatched, report.indexed, report.cut_entries, report.notes)
    yield sorted(opened.queues())
    for queue in opened.queues():
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = opened.read(queue.topic, queue.queue_id, offset, 32, None)
            yield read.records
            assert read.next_offset > offset
            offset = read.next_offset
    for topic, key in sorted(keys):
        yield sorted(opened.query_key(topic, key, 2_000, 0, 1 << 60)[2])
    opened.close()


def test_files_are_the_broker_s_own_and_a_broker_opens_them(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    found = run(spark, store, to=str(tmp_path / "new"))
    assert files(tmp_path / "new") == without_log(store)
    ended = MESSAGES // 60
    assert found.records == MESSAGES + 6 * ended
    assert (found.unqueued_records, found.queue_entries) == (2 * ended, MESSAGES + 4 * ended)
    assert found.index_entries == 3 * MESSAGES + 5 * ended
    assert found.log_bytes > 2 << 20
    assert (found.damages, found.odd_queues, found.notes, found.exit_code) == (0, 0, (), 0)
    assert 0 < found.task_peak_mib < 1_000
    state = json.loads((tmp_path / "new" / "rebuild.json").read_text())
    assert (state["state"], state["logStart"], state["records"]) == ("whole", 0, found.records)
    bench = Bench(load_kernel(), with_parts(store, tmp_path / "new", tmp_path / "moved"))
    report = bench.open(**SIZES)
    assert (report.clean, report.dispatched, report.indexed, report.notes) == (True, 0, 0, [])
    assert bench.store.queue_bounds("T", 2) == (0, MESSAGES // 4)
    bench.store.close()


def test_of_a_java_broker_s_log_come_its_queues_and_an_index_that_answers_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    golden = copy_golden(tmp_path)
    root = golden.folder / "store"
    run(spark, root, to=str(tmp_path / "new"))
    made, java = files(tmp_path / "new"), without_log(root)
    del made["index"], java["index"]
    assert made == java
    keys = {("no", "key")}
    for message in golden.messages():
        texts = message["properties"]
        words = texts.get(PropertyKey.KEYS, "").split()
        keys |= {(message["topic"], key) for key in (texts.get(PropertyKey.UNIQUE_KEY), *words)}
    keys = {each for each in keys if each[1]}
    assert len(keys) > 100
    moved = with_parts(root, tmp_path / "new", tmp_path / "moved" / "store")
    settings = type(golden)(moved.parent).settings
    ours, theirs = list(answers(settings, keys)), list(answers(golden.settings, keys))
    assert ours == theirs
    assert ours[0] == (True, 0, 0, 0, [])


def test_a_store_s_own_files_are_exchanged_when_no_broker_runs(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    bench = Bench(load_kernel(), Path(shutil.copytree(store, tmp_path / "store")))
    bench.open(**SIZES)
    config = tmp_path / "broker.conf"
    config.write_text(CONFIG)
    with pytest.raises(StoreError, match="is in use by"):
        run(spark, bench.path, in_place=True)
    bench.store.close()
    shutil.rmtree(bench.path / "consumequeue")
    shutil.rmtree(bench.path / "index")
    found = run(spark, bench.path, in_place=True, config=str(config))
    assert without_log(bench.path) == without_log(store)
    assert found.to == str(bench.path)
    assert not [*bench.path.glob("*.new"), *bench.path.glob("*.old")]


def test_damage_stops_it_with_its_place_or_is_left_out(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(store, tmp_path / "store"))
    entry = (root / "consumequeue" / "T" / "3" / f"{0:020}").read_bytes()[LOST * ENTRY_BYTES :]
    offset = int.from_bytes(entry[:8], "big")
    assert offset < LOG_FILE_BYTES
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(offset + 4)
        file.write(b"\0")
    with pytest.raises(JobError, match=rf"{0:020}: byte {offset}: .*--skip-damaged"):
        run(spark, root, to=str(tmp_path / "new"))
    assert sorted(os.listdir(tmp_path)) == ["store"]
    found = run(spark, root, to=str(tmp_path / "new"), skip_damaged=True)
    assert (found.damages, found.odd_queues, found.exit_code) == (1, 1, 1)
    assert f"byte {offset}" in found.notes[0]
    assert found.notes[1] == f"T, queue 3: no records from {LOST} to {LOST}, entries left blank."
    made, before = files(tmp_path / "new"), without_log(store)
    at = slice(LOST * ENTRY_BYTES, (LOST + 1) * ENTRY_BYTES)
    blank = bytearray(before["consumequeue/T/3"][0])
    blank[at] = PRE_BLANK
    before["consumequeue/T/3"][0] = bytes(blank)
    del made["index"], before["index"]
    assert made == before
    shutil.rmtree(tmp_path / "new")
    (root / "commitlog" / f"{2 * LOG_FILE_BYTES:020}").unlink()
    with pytest.raises(StoreError, match=rf"file from {2 * LOG_FILE_BYTES} to .* is missing"):
        run(spark, root, to=str(tmp_path / "new"))


def test_a_disk_that_is_full_leaves_nothing_that_looks_whole(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_batches: object) -> Iterator[object]:
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(rebuilding, "QueueFileWriter", lambda *_: full)
    with pytest.raises(JobError, match="No space left on device; nothing was changed"):
        run(spark, store, to=str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_rebuilt_is_refused(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="is no store"):
        run(spark, tmp_path, to=str(tmp_path / "new"))
    with pytest.raises(ConfigError, match=r"option --to: .* has other data"):
        run(spark, store, to=str(store))
    with pytest.raises(ConfigError, match=r"option --config: .*none is not there"):
        run(spark, store, to=str(tmp_path / "new"), config=str(tmp_path / "none"))
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    with pytest.raises(StoreError, match="no files of a commit log"):
        run(spark, tmp_path / "empty", to=str(tmp_path / "new"))
    assert sorted(os.listdir(tmp_path)) == ["empty"]
