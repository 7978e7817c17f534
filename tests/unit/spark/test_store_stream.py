"""Streams over stores, asked as Spark asks them: exact bytes, exact batches, losses told."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.store import plan, stream
from kerolox.spark.store.columns import store_schema
from kerolox.spark.store.ends import NEXT_BYTES, TAIL_BYTES
from kerolox.spark.store.files.disk import LocalFile
from kerolox.spark.store.options import StoreOptions
from kerolox.spark.store.partition import read_partition
from kerolox.spark.store.stream import StorePosition, StoreStreamPlanner
from tests.support.stores.message_store import opened, put, small_settings

if TYPE_CHECKING:
    from kerolox.spark.store.stream import Document

COLUMNS = ["queueOffset", "commitLogOffset", "size"]
FILE_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    fill(folder, 200)
    return folder / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def fill(folder: Path, count: int) -> None:
    with opened(small_settings(folder)) as store:
        for number in range(count):
            put(store, body=b"x" * (number % 7 * 100 + 500))


def reader(*paths: Path, **given: str) -> StoreStreamPlanner:
    found = {"paths": json.dumps([str(path) for path in paths]), "pollIntervalMs": "1"} | given
    return StoreStreamPlanner(StoreOptions.parse(found), store_schema(COLUMNS))


def batch(source: StoreStreamPlanner, start: Document, end: Document) -> list[dict[str, Any]]:
    options, schema = source._options, store_schema(COLUMNS)
    return [
        row
        for partition in source.partitions(start, end)
        for batch in read_partition(partition, options, schema)
        for row in batch.to_pylist()
    ]


def all_batches(source: StoreStreamPlanner) -> list[list[dict[str, Any]]]:
    place = source.initialOffset()
    found = []
    while (end := source.latestOffset(place)) != place:
        found.append(batch(source, place, end))
        place = end
    return found


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["queueOffset"] for row in rows]


def test_a_batch_has_the_whole_store_and_the_next_one_what_came_since(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    source = reader(tmp_path / "store")
    place = source.initialOffset()
    end = source.latestOffset(place)
    assert numbers(batch(source, place, end)) == list(range(10))
    assert source.latestOffset(end) == end
    fill(tmp_path, 150)
    later = source.latestOffset(end)
    assert numbers(batch(source, end, later)) == list(range(10, 160))
    again = reader(tmp_path / "store")
    assert again.initialOffset() == place
    assert numbers(batch(again, place, end)) == list(range(10))
    assert numbers(batch(again, end, later)) == list(range(10, 160))
    assert source.reportLatestOffset() is not None


@pytest.mark.parametrize("bytes_max", [1, 700, 5_000, 70_000, 1 << 30])
def test_a_batch_has_at_most_the_bytes_asked_for_but_one_record_always(
    made: Path, bytes_max: int
) -> None:
    batches = all_batches(reader(made, maxBytesPerTrigger=str(bytes_max)))
    assert [n for rows in batches for n in numbers(rows)] == list(range(200))
    for rows in batches:
        taken = sum(row["size"] for row in rows)
        assert taken <= bytes_max or len(rows) == 1
    for rows, after in pairwise(batches):
        # It is no smaller than it must be: the next record would have been too much.
        span = after[0]["commitLogOffset"] - rows[0]["commitLogOffset"]
        assert span + after[0]["size"] > bytes_max


def test_bytes_are_shared_between_stores(made: Path, store: Path) -> None:
    batches = all_batches(reader(made, store, maxBytesPerTrigger="10000"))
    found = [n for rows in batches for n in numbers(rows)]
    assert sorted(found) == sorted([*range(200), *range(200)])
    first = numbers(batches[0])
    assert first.count(0) == 2
    assert sum(row["size"] for row in batches[0]) <= 10_000


def test_a_store_that_is_added_starts_in_the_first_batch_that_knows_it(
    made: Path, store: Path
) -> None:
    one = reader(made)
    place = one.initialOffset()
    end = one.latestOffset(place)
    both = reader(made, store)
    later = both.latestOffset(end)
    assert numbers(batch(both, end, later)) == list(range(200))
    assert both.latestOffset(later) == later
    alone = reader(store)
    assert alone.latestOffset(later) == later


def test_available_now_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    source = reader(tmp_path / "store", maxBytesPerTrigger="2000")
    place = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    fill(tmp_path, 10)
    found = []
    while (end := source.latestOffset(place)) != place:
        found += numbers(batch(source, place, end))
        place = end
    assert found == list(range(10))


@pytest.mark.parametrize("cut", ["files", "zeros"])
def test_a_log_that_loses_its_end_before_a_run_with_an_end_reads_it_is_a_loss(
    store: Path, tmp_path: Path, cut: str
) -> None:
    sources = [
        reader(store, maxBytesPerTrigger="2000", failOnDataLoss=f) for f in ("true", "false")
    ]
    for each in sources:
        place = each.initialOffset()
        each.prepareForTriggerAvailableNow()
        first = each.latestOffset(place)
    count = len(batch(each, place, first))
    lose_the_end(store, tmp_path, cut)
    strict, careless = sources
    with pytest.raises(DataLossError, match=r"ends at .*, before .*, where this run is to end"):
        strict.latestOffset(first)
    rest, place = [], first
    while (end := careless.latestOffset(place)) != place:
        rest += numbers(batch(careless, place, end))
        place = end
    assert rest == list(range(count, 10))


def lose_the_end(store: Path, folder: Path, cut: str) -> None:
    """Leave the first ten records, as a crash or a copy of before would."""
    if cut == "files":
        shutil.rmtree(store)
        fill(folder / "other", 10)
        shutil.move(folder / "other" / "store", store)
        return
    for file in sorted((store / "commitlog").iterdir()):
        keep = 0 if int(file.name) else tenth_end(store)
        file.write_bytes(file.read_bytes()[:keep].ljust(FILE_BYTES, b"\0"))


def tenth_end(store: Path) -> int:
    source = reader(store)
    row = batch(source, source.initialOffset(), source.latestOffset(source.initialOffset()))[9]
    return int(row["commitLogOffset"] + row["size"])


def test_a_log_that_loses_its_end_while_a_query_runs_is_a_loss(store: Path, tmp_path: Path) -> None:
    strict, careless = reader(store), reader(store, failOnDataLoss="false")
    for each in (strict, careless):
        end = each.latestOffset(each.initialOffset())
        assert each.latestOffset(end) == end
    lose_the_end(store, tmp_path, "zeros")
    with pytest.raises(DataLossError, match=r"ends at .*, before .*, up to which this query had"):
        strict.latestOffset(end)
    assert batch(careless, end, careless.latestOffset(end)) == []


def test_files_deleted_before_they_were_read_are_a_loss(store: Path) -> None:
    source = reader(store)
    place = source.initialOffset()
    end = source.latestOffset(place)
    (store / "commitlog" / f"{0:020}").unlink()
    again = reader(store)
    with pytest.raises(DataLossError, match=f"begins at {FILE_BYTES}, behind 0.*retention"):
        again.partitions(place, end)
    careless = reader(store, failOnDataLoss="false")
    assert min(row["commitLogOffset"] for row in batch(careless, place, end)) >= FILE_BYTES


def test_a_log_that_is_shorter_than_what_was_read_is_a_loss(store: Path, tmp_path: Path) -> None:
    end = reader(store).latestOffset(reader(store).initialOffset())
    fill(tmp_path / "other", 3)
    shutil.rmtree(store)
    shutil.move(tmp_path / "other" / "store", store)
    with pytest.raises(DataLossError, match="another store, or recovery cut its end"):
        reader(store).latestOffset(end)
    careless = reader(store, failOnDataLoss="false")
    assert batch(careless, end, careless.latestOffset(end)) == []


def test_a_stream_starts_where_its_options_say(made: Path) -> None:
    source = reader(made)
    rows = batch(source, source.initialOffset(), source.latestOffset(source.initialOffset()))
    place = rows[50]["commitLogOffset"]
    for first, expected in ((place, 50), (place + 1, 51)):
        source = reader(made, startingPhysicalOffset=str(first))
        start = source.initialOffset()
        assert numbers(batch(source, start, source.latestOffset(start)))[0] == expected


def test_documents_of_other_sources_and_versions_are_refused() -> None:
    position = StorePosition({"/a": 1}, {"/a": 2})
    assert StorePosition.parse(json.loads(json.dumps(position.to_json()))) == position
    for document in (
        {},
        {"version": 2},
        {"version": 1},
        {"version": 1, "starts": {}, "ends": {"a": "1"}},
    ):
        with pytest.raises(ConfigError, match="version 1"):
            StorePosition.parse(document)


def test_pyspark_4_1_asks_without_a_start(made: Path) -> None:
    source = reader(made, maxBytesPerTrigger="50000")
    first = source.latestOffset()
    assert numbers(batch(source, source.initialOffset(), first))[0] == 0
    second = source.latestOffset()
    assert numbers(batch(source, first, second))[0] == len(
        batch(source, source.initialOffset(), first)
    )


def test_pyspark_4_1_takes_no_bound_and_reads_all_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HAS_READ_LIMITS", False)
    with pytest.raises(ConfigError, match=r"maxBytesPerTrigger needs PySpark 4\.2"):
        reader(store, maxBytesPerTrigger="20k")
    made = reader(store)
    start = made.initialOffset()
    end = made.latestOffset()
    assert len(batch(made, start, end)) == 200
    assert made.latestOffset() == end


def test_a_query_examines_the_log_once_until_its_first_batch(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def examine(options: StoreOptions, number: int, *known: int | None) -> object:
        looks.append(number)
        return plan.examine(options, number, *known)

    monkeypatch.setattr(stream, "examine", examine)
    source = reader(store)
    first = source.latestOffset(source.initialOffset())
    assert looks == [0]
    fill(store.parent, 2)
    second = source.latestOffset(first)
    assert (looks, len(batch(source, first, second))) == ([0, 0], 2)
    assert source.latestOffset(second) == second


def test_an_idle_examine_a_live_log_reads_little_more_than_a_page_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read_at = LocalFile.read_at

    def counted(file: LocalFile, position: int, size: int) -> bytes:
        sizes.append(size)
        return read_at(file, position, size)

    with opened(small_settings(tmp_path)) as store:
        for _ in range(3):
            put(store)
        source = reader(tmp_path / "store")
        first = source.latestOffset(source.initialOffset())
        assert len(batch(source, source.initialOffset(), first)) == 3
        with monkeypatch.context() as patched:
            patched.setattr(LocalFile, "read_at", counted)
            patched.delattr(LocalFile, "next_data")
            assert source.latestOffset(first) == first
        assert sum(sizes) == TAIL_BYTES + NEXT_BYTES
        put(store)
        assert len(batch(source, first, source.latestOffset(first))) == 1
