"""Stores read without Spark: planned as a reader plans them, read as a task reads them."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.fs
import pytest

from kerolox.errors import ConfigError, StoreError
from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.store import ends, entries, plan
from kerolox.spark.store.columns import store_schema
from kerolox.spark.store.ends import find_log_end
from kerolox.spark.store.files.disk import ArrowDisk, LocalDisk, disk_of
from kerolox.spark.store.files.listing import list_store
from kerolox.spark.store.options import StoreOptions
from kerolox.spark.store.partition import read_partition
from kerolox.spark.store.plan import StoreBatchReader
from tests.support.stores.golden import copy_golden
from tests.support.stores.log_bytes import record
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_BYTES = 64 * 1024
MESSAGES = 300


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three files: T in two queues, every 50th message is of Rare."""
    folder = tmp_path_factory.mktemp("made")
    with opened(small_settings(folder)) as store:
        for number in range(MESSAGES):
            topic = "T" if number % 50 else "Rare"
            body = b"%d " % number * 120
            put(store, topic, number % 2, body, b"TAGS\x01t\x02KEYS\x01k%d" % number)
    return folder / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "store"))


def rows_of(path: Path | str, **given: str) -> list[dict[str, Any]]:
    """The rows of a batch, each partition pickled as Spark does."""
    columns = given.setdefault("columns", "topic,queueId,queueOffset,commitLogOffset,size")
    options = StoreOptions.parse({"path": str(path), "splitBytes": "64k"} | given)
    schema = store_schema(columns.split(","))
    partitions = StoreBatchReader(options, schema).partitions()
    batches = [
        batch
        for partition in partitions
        for batch in read_partition(pickle.loads(pickle.dumps(partition)), options, schema)
    ]
    return [row for batch in batches for row in batch.to_pylist()]


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["commitLogOffset"] for row in rows]


def test_all_messages_come_once_in_the_order_of_the_log(made: Path) -> None:
    rows = rows_of(made)
    assert len(rows) == MESSAGES
    assert offsets(rows) == sorted(offsets(rows))
    assert sum(row["topic"] == "Rare" for row in rows) == MESSAGES // 50
    assert offsets(rows_of(made / "commitlog")) == offsets(rows)
    assert offsets(rows_of(made, splitBytes="1g")) == offsets(rows)
    assert offsets(rows_of(f"file://{made}")) == offsets(rows)


def test_the_java_broker_s_store_has_the_messages_of_its_manifest(tmp_path: Path) -> None:
    golden = copy_golden(tmp_path)
    rows = rows_of(
        golden.folder / "store",
        columns="topic,queueId,queueOffset,body,keys,tags,size,crcOk,properties",
        includeSystemTopics="true",
    )
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    manifest = list(golden.messages())
    assert manifest
    import hashlib

    for line in manifest:
        row = found[line["topic"], line["queueId"], line["queueOffset"]]
        assert row["crcOk"]
        assert hashlib.sha1(row["body"]).hexdigest() == line["bodySha1"], line
    user = rows_of(golden.folder / "store", columns="topic")
    assert 0 < len(user) < len(rows)
    assert not any(row["topic"].startswith(("%RETRY%", "RMQ_SYS", "SCHEDULE")) for row in user)


def test_topics_times_and_offsets_choose_rows(made: Path) -> None:
    every = rows_of(made, columns="topic,queueId,queueOffset,commitLogOffset,storeTimestamp")
    rare = [row for row in every if row["topic"] == "Rare"]
    assert offsets(rows_of(made, subscribe="Rare")) == offsets(rare)
    assert offsets(rows_of(made, subscribePattern="R.*e")) == offsets(rare)
    middle = every[100]["commitLogOffset"]
    assert offsets(rows_of(made, startingPhysicalOffset=str(middle))) == offsets(every)[100:]
    assert offsets(rows_of(made, startingPhysicalOffset=str(middle + 1))) == offsets(every)[101:]
    assert offsets(rows_of(made, endingPhysicalOffset=str(middle))) == offsets(every)[:100]
    assert offsets(rows_of(made, endingPhysicalOffset=str(middle + 1))) == offsets(every)[:101]
    when = int(every[150]["storeTimestamp"].timestamp() * 1000)
    later = rows_of(made, startingTimestamp=str(when), columns="storeTimestamp")
    sooner = rows_of(made, endingTimestamp=str(when), columns="storeTimestamp")
    assert len(later) + len(sooner) == MESSAGES
    assert all(row["storeTimestamp"].timestamp() * 1000 >= when for row in later)
    bounds = {"startingOffsets": '{"T":{"0":5}}', "endingOffsets": '{"T":{"0":9,"1":3}}'}
    chosen = rows_of(made, subscribe="T", consumeQueues="never", **bounds)
    places = [(row["queueId"], row["queueOffset"]) for row in chosen]
    assert sorted(places) == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 0), (1, 1), (1, 2)]
    assert sorted(
        rows_of(made, subscribe="T", consumeQueues="always", **bounds), key=str
    ) == sorted(chosen, key=str)


def test_files_out_of_the_times_asked_for_are_not_planned(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_CLOCK_MARGIN_MS", 0)
    times = {0: 1_000, 1: 2_000, 2: 3_000}
    files = list_store(str(made)).files
    monkeypatch.setattr(
        plan, "_first_time", lambda _, path: times[[f.path for f in files].index(path)]
    )
    for since, before, kept in [
        (2_500, 0, files[1:]),
        (2_000, 0, files),
        (2_001, 0, files[1:]),
        (0, 2_000, files[:1]),
        (0, 2_001, files[:2]),
        (2_500, 2_600, files[1:2]),
    ]:
        options = StoreOptions(
            paths=(str(made),), stored_from=since, stored_before=before or 2**63 - 1
        )
        found = plan.batch_range(options, 0)
        end = find_log_end(list_store(str(made))).offset
        assert (found.start, found.end) == (kept[0].start, min(kept[-1].end, end))


def test_entries_and_log_give_the_same_rows(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = "topic,queueId,queueOffset,commitLogOffset,size,body,keys"
    for topics in ("Rare", "T", "Rare,T"):
        by_log = rows_of(made, subscribe=topics, consumeQueues="never", columns=columns)
        for gap, count in ((0, 3), (8_192, 8_192)):
            monkeypatch.setattr(entries, "GAP_BYTES", gap)
            monkeypatch.setattr(entries, "CHUNK_ENTRIES", count)
            monkeypatch.setattr(plan, "ENTRIES_OF_PARTITION", count)
            by_entries = rows_of(made, subscribe=topics, consumeQueues="always", columns=columns)
            assert sorted(by_entries, key=str) == sorted(by_log, key=str)


def test_entries_are_taken_where_messages_are_few(made: Path) -> None:
    schema = store_schema(["body"])

    def planned(**given: str) -> list[Any]:
        options = StoreOptions.parse({"path": str(made)} | given)
        return [each.value.queues for each in StoreBatchReader(options, schema).partitions()]

    assert planned(subscribe="Rare") != [()]
    assert all(each == () for each in planned(subscribe="T"))
    assert all(each == () for each in planned(subscribe="Rare", consumeQueues="never"))
    assert all(each == () for each in planned())
    with pytest.raises(ConfigError, match="consumeQueues=always: no topic is named"):
        planned(consumeQueues="always")


def test_a_topic_that_a_store_does_not_have_is_an_error_that_names_the_nearest(made: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no topic 'Rar'; did you mean Rare.*consumeQueues=never"
    ):
        rows_of(made, subscribe="T,Rar")
    with pytest.raises(ConfigError, match=r"subscribePattern='x\.\*' matches no topic"):
        rows_of(made, subscribePattern="x.*")
    assert rows_of(made, subscribe="Rar", consumeQueues="never") == []


def test_what_is_no_store_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for name, words in [
        ("missing", "is not there; give the folder that storePathRootDir names"),
        ("file", "is no folder"),
        ("empty", "is no store: it has no folder commitlog"),
    ]:
        with pytest.raises(StoreError, match=words):
            rows_of(tmp_path / name)
    with pytest.raises(ConfigError, match=r"nofs://x.*pyarrow\.fs"):
        rows_of("nofs://x")
    (tmp_path / "empty" / "commitlog").mkdir()
    assert rows_of(tmp_path / "empty") == []


def test_damage_in_the_middle_fails_unless_loss_is_allowed(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = offsets(rows_of(store))
    damage(log_files(store)[0], every[5] + 4, b"\0\0\0\0")
    with pytest.raises(DataLossError, match=f"from physical offset {every[5]} .*magic code"):
        rows_of(store)
    with caplog.at_level(logging.WARNING):
        kept = offsets(rows_of(store, failOnDataLoss="false"))
    assert kept == every[:5] + every[6:]
    assert f"physical offset {every[5]}" in caplog.text


def test_a_wrong_crc_fails_or_is_a_row_that_says_so(store: Path) -> None:
    every = offsets(rows_of(store))
    damage(log_files(store)[0], every[5] + 90, b"!")
    with pytest.raises(DataLossError, match=r"CRC.*ask for column crcOk") as error:
        rows_of(store)
    assert str(error.value).count("failOnDataLoss=false") == 1
    assert offsets(rows_of(store, failOnDataLoss="false")) == every[:5] + every[6:]
    rows = rows_of(store, columns="crcOk,commitLogOffset,physicalOffset")
    assert [row["crcOk"] for row in rows].index(False) == 5
    assert [row["physicalOffset"] for row in rows] == every


def test_a_torn_tail_is_warned_of_and_costs_nothing_else(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = rows_of(store)
    last = every[-1]["commitLogOffset"]
    file = log_files(store)[last // FILE_BYTES]
    at = last % FILE_BYTES
    damage(file, at + 50, bytes(FILE_BYTES - at - 50))
    with caplog.at_level(logging.WARNING):
        assert offsets(rows_of(store)) == offsets(every)[:-1]
    assert f"the log ends at {last}" in caplog.text


def test_a_missing_file_and_one_that_vanishes_are_told(store: Path) -> None:
    every = offsets(rows_of(store))
    files = log_files(store)
    options = StoreOptions.parse({"path": str(store), "splitBytes": "64k"})
    schema = store_schema(["commitLogOffset"])
    planned = StoreBatchReader(options, schema).partitions()
    files[1].unlink()
    with pytest.raises(DataLossError, match=r"is gone.*failOnDataLoss=false"):
        list(read_partition(planned[1], options, schema))
    with pytest.raises(
        DataLossError, match=f"from {FILE_BYTES} to {2 * FILE_BYTES} are missing"
    ) as gap:
        rows_of(store)
    assert str(gap.value).count("failOnDataLoss=false") == 1
    rest = [each for each in every if not FILE_BYTES <= each < 2 * FILE_BYTES]
    assert offsets(rows_of(store, failOnDataLoss="false")) == rest
    files[0].unlink()
    with pytest.raises(DataLossError, match="behind startingPhysicalOffset 10"):
        rows_of(store, startingPhysicalOffset="10")
    with pytest.raises(DataLossError, match="before endingPhysicalOffset"):
        rows_of(store, endingPhysicalOffset=str(1 << 40))
    assert offsets(rows_of(store)) == [each for each in every if each >= 2 * FILE_BYTES]


def test_the_end_is_found_wherever_the_search_begins(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(made)
    end = rows[-1]["commitLogOffset"] + rows[-1]["size"]
    listing = list_store(str(made))
    for back in (100, 2_000, 1 << 23):
        monkeypatch.setattr(ends, "LOOKBACK_BYTES", back)
        assert find_log_end(listing).offset == end
        for row in rows[::29]:
            assert find_log_end(listing, row["commitLogOffset"]).offset == end
    assert find_log_end(listing, end) == (end, None)


def test_a_live_store_is_read_up_to_its_last_queue_entry(made: Path, tmp_path: Path) -> None:
    with opened(small_settings(tmp_path)) as store:
        for number in range(5):
            put(store, body=b"%d" % number)
        root = tmp_path / "store"
        assert list_store(str(root)).is_live
        end = store.max_physical_offset
        assert find_log_end(list_store(str(root))).offset == end
        # As a broker that writes the record first, and its entry later.
        late = record(end, queue_id=0, queue_offset=5, body=b"late")
        damage(log_files(root)[0], end, late)
        assert find_log_end(list_store(str(root))).offset == end
        assert find_log_end(list_store(str(root)), end).offset == end
        assert [row["queueOffset"] for row in rows_of(root)] == [0, 1, 2, 3, 4]
    assert not list_store(str(made)).is_live


def test_another_file_system_gives_the_same_rows(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = offsets(rows_of(made))
    rare = offsets(rows_of(made, subscribe="Rare"))

    def remote(location: str) -> tuple[ArrowDisk, str]:
        return ArrowDisk(pyarrow.fs.LocalFileSystem()), location

    monkeypatch.setattr("kerolox.spark.store.files.listing.disk_of", remote)
    monkeypatch.setattr("kerolox.spark.store.partition.disk_of", remote)
    monkeypatch.setattr("kerolox.spark.store.files.disk._PROBE_BYTES", 4_096)
    assert offsets(rows_of(made)) == expected
    assert offsets(rows_of(made, subscribe="Rare", consumeQueues="always")) == rare
    assert not list_store(str(made)).is_live
    with pytest.raises(StoreError, match="is not there"):
        rows_of(made / "nothing")


def test_locations_name_their_file_system(tmp_path: Path) -> None:
    assert isinstance(disk_of("store")[0], LocalDisk)
    disk, path = disk_of(f"file://{tmp_path}/a%20b")
    assert isinstance(disk, LocalDisk)
    assert path == f"{tmp_path}/a b"


def test_several_stores_have_their_own_broker_names(made: Path, store: Path) -> None:
    options = StoreOptions.parse(
        {"paths": json.dumps([str(made), str(store)]), "brokerName": "a,b"}
    )
    schema = store_schema(["brokerName", "size"])
    names = [
        name
        for partition in StoreBatchReader(options, schema).partitions()
        for batch in read_partition(partition, options, schema)
        for name in batch.column(0).to_pylist()
    ]
    assert names == ["a"] * MESSAGES + ["b"] * MESSAGES
    assert {row["brokerName"] for row in rows_of(made, columns="brokerName")} == {None}


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    yield
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_reading_changes_nothing_in_the_store(store: Path) -> None:
    with unchanged(store):
        rows_of(store)
        rows_of(store, subscribe="Rare")


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"splitBytes": str(2**63 - 1)}, MESSAGES),
        ({"startingTimestamp": "0", "endingTimestamp": str(2**63 - 1)}, MESSAGES),
        ({"startingTimestamp": str(2**63 - 1)}, 0),
        ({"endingTimestamp": "0"}, 0),
        ({"startingPhysicalOffset": "0"}, MESSAGES),
        ({"endingPhysicalOffset": str(2**63 - 1), "failOnDataLoss": "false"}, MESSAGES),
        ({"startingPhysicalOffset": str(2**63 - 1)}, 0),
        ({"endingPhysicalOffset": "0"}, 0),
        ({"startingOffsets": json.dumps({"T": {"0": 2**63 - 1, "65534": 0}})}, None),
        ({"endingOffsets": json.dumps({"T": {"0": 0, "1": 2**63 - 1}})}, None),
    ],
)
@pytest.mark.parametrize("queues", ["auto", "always"])
def test_options_at_their_edges_read_what_they_say(
    made: Path, given: dict[str, str], count: int | None, queues: str
) -> None:
    rows = rows_of(made, subscribe="T,Rare", consumeQueues=queues, **given)
    everything = rows_of(made, subscribe="T,Rare")
    left_out = [row for row in everything if (row["topic"], row["queueId"]) == ("T", 0)]
    assert 0 < len(left_out) < MESSAGES
    assert len(rows) == (MESSAGES - len(left_out) if count is None else count)
