"""Parts of replay that need no Spark: units, counts, state."""

import dataclasses
import json
import pickle
import shutil
from itertools import pairwise

import pyarrow
import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.replay import ReplayOptions
from kerolox.spark.jobs.replay.sending import TOPICS_COUNTED_MAX, Counts, UnitTask, sink_options
from kerolox.spark.jobs.replay.state import ReplayState
from kerolox.spark.jobs.replay.units import ROW_BYTES, Unit, plan, read, store_options
from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.store.columns import store_schema
from kerolox.spark.store.options import StoreOptions
from kerolox.spark.store.partition import read_partition
from kerolox.spark.store.plan import StoreBatchReader
from tests.support.stores.message_store import opened, put, small_settings
from tests.unit.spark.jobs.stored import write_staged


@pytest.fixture
def archive(tmp_path):
    """Two days of a topic, one of another."""
    for day, count in (("2026-11-21", 2), ("2026-11-22", 3)):
        for number in range(count):
            folder = tmp_path / "x" / "topic=a" / f"date={day}"
            write_staged(tmp_path / "y", "data", "a", day, 10, str(number))
            folder.mkdir(parents=True, exist_ok=True)
            made = tmp_path / "y" / "k=data" / "t=a" / f"d={day}" / f"part-{number}.parquet"
            made.rename(folder / f"{number:09d}-00000-aaaaaaaa.parquet")
    other = tmp_path / "x" / "topic=b" / "date=2026-11-21"
    other.mkdir(parents=True)
    write_staged(tmp_path / "y", "data", "b", "2026-11-21", 10)
    (tmp_path / "y/k=data/t=b/d=2026-11-21/part-a.parquet").rename(other / "0-0-a.parquet")
    return str(tmp_path / "x")


def test_an_archive_is_cut_by_days_and_rows(archive):
    units = plan(ReplayOptions(from_archive=archive, unit_rows=20))
    assert [(unit.date, unit.topic, len(unit.files)) for unit in units] == [
        ("2026-11-21", "a", 2),
        ("2026-11-21", "b", 1),
        ("2026-11-22", "a", 2),
        ("2026-11-22", "a", 1),
    ]
    for unit in units:
        assert Unit.of_json(json.loads(json.dumps(dataclasses.asdict(unit)))) == unit


def test_days_and_topics_that_are_not_asked_for_are_not_read(archive):
    midnight = 1_795_305_600_000  # 2026-11-22T00:00Z
    late = plan(ReplayOptions(from_archive=archive, since=midnight))
    assert {unit.date for unit in late} == {"2026-11-22"}
    early = plan(ReplayOptions(from_archive=archive, until=midnight))
    assert {unit.date for unit in early} == {"2026-11-21"}
    assert {unit.topic for unit in plan(ReplayOptions(from_archive=archive, topics=("b",)))} == {
        "b"
    }


STORED = 200
"""Messages of topic T in the store; each tenth is followed by one of Rare."""


@pytest.fixture
def store(tmp_path):
    with opened(small_settings(tmp_path)) as made:
        for number in range(STORED):
            put(made, "T", number % 2, b"%d " % number * 200)
            if number % 10 == 0:
                put(made, "Rare", 0, b"rare")
    return tmp_path / "store"


def rows_of(options, unit):
    """(topic, queue id, queue offset) of the rows of a unit of a store, as a task reads them."""
    given = StoreOptions.parse(store_options(options, unit))
    schema = store_schema(["topic", "queueId", "queueOffset"])
    return [
        tuple(row.values())
        for partition in StoreBatchReader(given, schema).partitions()
        for batch in read_partition(partition, given, schema)
        for row in batch.to_pylist()
    ]


def test_a_store_is_cut_by_its_log_and_each_row_is_in_one_unit(store):
    options = ReplayOptions(from_store=str(store), topics=("T",), unit_rows=30)
    units = plan(options)
    assert len(units) == 7
    assert units[0].start == "0"
    assert all(one.end == other.start for one, other in pairwise(units))
    found = [rows_of(options, unit) for unit in units]
    assert all(0 < len(rows) <= 2 * 30 for rows in found)
    rows = [row for part in found for row in part]
    assert sorted(rows) == sorted(("T", number % 2, number // 2) for number in range(STORED))
    # The rows of a queue keep their order from unit to unit.
    assert [row for row in rows if row[1] == 0] == sorted(row for row in rows if row[1] == 0)


def test_the_few_messages_of_a_topic_are_one_unit_of_a_store(store):
    options = ReplayOptions(from_store=str(store), topics=("Rare",), unit_rows=30)
    [unit] = plan(options)
    assert len(rows_of(options, unit)) == STORED // 10


def test_a_store_without_queues_is_cut_by_the_bytes_of_its_log(store):
    shutil.rmtree(store / "consumequeue")
    options = ReplayOptions(from_store=str(store), unit_rows=100)
    units = plan(options)
    assert len(units) == -(-int(units[-1].end) // ROW_BYTES // 100)
    assert sum(len(rows_of(options, unit)) for unit in units) == STORED + STORED // 10


def test_what_comes_into_a_store_after_the_plan_is_in_no_unit(store, tmp_path):
    options = ReplayOptions(from_store=str(store), topics=("T",), unit_rows=150)
    units = plan(options)
    with opened(small_settings(tmp_path)) as made:
        for _ in range(20):
            put(made, "T", 0, b"late" * 300)
    assert sum(len(rows_of(options, unit)) for unit in units) == STORED


def test_a_store_whose_first_files_went_since_the_plan_is_an_error(store):
    options = ReplayOptions(from_store=str(store), topics=("T",), unit_rows=150)
    first = plan(options)[0]
    min((store / "commitlog").iterdir()).unlink()
    with pytest.raises(DataLossError, match="log begins at 65536, behind 0 of the plan; set"):
        read(None, options, first)


def test_a_unit_of_an_older_plan_is_the_whole_store(store):
    options = ReplayOptions(from_store=str(store), topics=("T",))
    assert len(rows_of(options, Unit("store"))) == STORED


def test_what_is_no_archive_is_an_error_that_names_it(archive, tmp_path):
    with pytest.raises(ConfigError, match=r"option --from-archive: .*/none has no file of an arch"):
        plan(ReplayOptions(from_archive=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="has no file of an archive"):
        plan(ReplayOptions(from_archive=archive, topics=("c",)))


def test_a_run_that_goes_on_has_the_plan_of_the_first(archive, tmp_path):
    options = ReplayOptions(from_archive=archive, to_topic="t", state=str(tmp_path / "s"))
    state = ReplayState(options)
    first = state.plan(lambda: plan(options))
    more = Counts(rows=3, size=3, by_topic={"t": 1, "u": 2})
    state.mark(state.done().plus(Counts(rows=5, size=50, by_topic={"t": 5})).plus(more))
    again = ReplayState(options)
    assert again.plan(lambda: pytest.fail("it has a plan")) == first
    done = again.done()
    assert (done.units, done.rows, done.size, done.by_topic) == (2, 8, 53, {"t": 6, "u": 2})


def test_a_state_of_another_replay_is_refused(archive, tmp_path):
    options = ReplayOptions(from_archive=archive, to_topic="t", state=str(tmp_path / "s"))
    ReplayState(options).plan(lambda: [])
    other = ReplayOptions(from_archive=archive, to_topic="u", state=str(tmp_path / "s"))
    with pytest.raises(ConfigError, match=r"option --state: .* is of a replay with other options"):
        ReplayState(other).plan(lambda: [])
    full = ReplayOptions(from_archive=archive, to_topic="t", state=archive)
    with pytest.raises(ConfigError, match=r"is no state of a replay"):
        ReplayState(full).plan(lambda: [])
    (tmp_path / "s" / "replay.json").write_text('{"version": 9}')
    with pytest.raises(JobError, match="has version 9, not 1"):
        ReplayState(options).plan(lambda: [])


def test_rows_are_counted_by_topic_and_their_sum_has_all(archive):
    topics = [f"t{n}" for n in range(TOPICS_COUNTED_MAX)] * 2 + ["late", None]
    rows = pyarrow.record_batch(
        {"topic": pyarrow.array(topics), "body": pyarrow.array([b"ab"] * len(topics))}
    )
    [batch] = UnitTask(None, 0)(iter([rows, rows.slice(0, 1)]))
    message, counts = pickle.loads(batch["result"][0].as_py())
    assert message is None
    assert (counts.rows, counts.size) == (len(topics) + 1, 2 * len(topics) + 2)
    assert len(counts.by_topic) == TOPICS_COUNTED_MAX
    assert (counts.by_topic["t0"], counts.by_topic["t1"]) == (3, 2)


def test_what_a_unit_holds_is_known_when_it_is_decided(archive, tmp_path):
    options = ReplayOptions(
        from_archive=archive, to_topic="t", state=str(tmp_path / "s"), transactional=True
    )
    state = ReplayState(options)
    with pytest.raises(JobError, match=r"unit 0 is decided in .*/s/kerolox-sink, and sent.json"):
        state.kept(0)
    counts = Counts(rows=7, size=9, by_topic={"t": 7})
    state.keep(1, counts)
    assert state.kept(1) == counts
    with pytest.raises(JobError, match="unit 2 is decided"):
        state.kept(2)


def test_a_transactional_replay_has_a_group_and_a_name_of_its_own(archive, tmp_path):
    options = ReplayOptions(
        from_archive=archive, to_topic="t", state=str(tmp_path / "s"), transactional=True
    )
    sink = sink_options(options, ReplayState(options).decisions, "abc")
    assert sink.folder_of("abc") == str(tmp_path / "s" / "kerolox-sink" / "abc")
    assert sink.group_of("abc") == "kerolox-replay-abc"
    plain = dataclasses.replace(options, transactional=False)
    assert sink_options(plain, "", "abc").transactional is False
    assert sink_options(plain, "", "abc").group_of("") == "kerolox-replay"
    ReplayState(options).plan(lambda: [])
    with pytest.raises(ConfigError, match="is of a replay with other options"):
        ReplayState(plain).plan(lambda: [])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "option --transactional: needs --state"),
        ({"state": "s", "sets": {"delayLevel": "1"}}, "contradicts --set delayLevel"),
    ],
)
def test_what_no_transaction_can_do_is_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        ReplayOptions(from_archive="a", transactional=True, **given)
