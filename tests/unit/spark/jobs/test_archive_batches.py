"""A batch of an archive that is cut off at each of its steps, and done again."""

import pytest
from pyarrow import parquet

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive import job
from kerolox.spark.jobs.archive.job import BatchWriter, target_of
from kerolox.spark.jobs.archive.options import ArchiveOptions
from kerolox.spark.jobs.archive.records import RECORDS_KEPT, Records, Totals
from kerolox.spark.jobs.archive.targets.parquet import EXCHANGING, ParquetTarget
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder
from kerolox.spark.rows.schema import full_schema, schema_of
from tests.unit.spark.jobs.stored import write_staged

ARCHIVE = "a" * 32
TODAY = "2026-11-22"


class CutOffError(Exception):
    """Stands for a kill."""


@pytest.fixture
def options(tmp_path):
    return ArchiveOptions(topics=("t",), to=str(tmp_path / "to"))


@pytest.fixture
def staging(monkeypatch):
    """Stands for Spark: each batch has two files of data and one that does not decode."""
    written = []

    def stage(frame, folder, *, with_topic):
        written.append(frame)
        path = folder.inner()
        for name in ("a", "b"):
            write_staged(type(TMP)(path), "data", "%25RETRY%25g", TODAY, 3, name)
        write_staged(type(TMP)(path), "quarantined", "t", TODAY, 2)

    from pathlib import Path

    TMP = Path()
    monkeypatch.setattr(job, "stage", stage)
    return written


def rows(folder) -> int:
    return sum(
        parquet.read_metadata(path).num_rows
        for path in folder.rglob("*.parquet")
        if "_kerolox" not in path.relative_to(folder).parts
    )


@pytest.mark.parametrize(
    ("planned", "done", "is_open"),
    [
        ([], [], False),
        (["0"], [], True),
        (["9", "10"], ["9", "10"], False),
        (["9", "10"], ["9"], True),
    ],
)
def test_a_batch_that_spark_has_planned_and_not_done_is_known(tmp_path, planned, done, is_open):
    for log, names in (("offsets", planned), ("commits", done)):
        for name in [*names, ".10.crc"]:
            Folder(str(tmp_path)).write_text(f"checkpoint/{log}/{name}", "v1")
    assert Records(Folder(str(tmp_path))).has_open_batch() == is_open


def test_a_batch_is_put_in_its_place_once(options, staging, tmp_path):
    writer = BatchWriter(options, ARCHIVE, None)
    writer(0, 0)
    writer(0, 0)
    assert staging == [0]
    place = tmp_path / "to" / "topic=%25RETRY%25g" / f"date={TODAY}"
    assert sorted(path.name for path in place.iterdir()) == [
        f"000000000-00000-{ARCHIVE[:8]}.parquet",
        f"000000000-00001-{ARCHIVE[:8]}.parquet",
    ]
    aside = tmp_path / "to" / "_kerolox" / "quarantine" / "topic=t" / f"date={TODAY}"
    assert [parquet.read_metadata(path).num_rows for path in aside.iterdir()] == [2]
    stored = list(target_of(options).stored())
    assert [(each.topic, each.date, each.rows) for each in stored] == [("%RETRY%g", TODAY, 3)] * 2
    totals = Records(Folder(options.state_folder)).totals()
    assert (totals.batches, totals.rows, totals.files, totals.quarantined) == (1, 6, 2, 2)
    assert totals.rows_by_topic == {"%RETRY%g": 6}
    assert not (tmp_path / "to" / "_kerolox" / "staging" / ARCHIVE / "000000000").exists()


@pytest.mark.parametrize("step", range(1, 7))
def test_a_batch_cut_off_at_any_step_is_completed(options, staging, tmp_path, monkeypatch, step):
    calls = iter(range(1, 100))

    def cut(name):
        original = getattr(Folder, name)

        def called(self, *arguments):
            if next(calls) == step:
                raise CutOffError(name)
            return original(self, *arguments)

        return called

    for name in ("move", "write_json", "delete_folder"):
        monkeypatch.setattr(Folder, name, cut(name))
    writer = BatchWriter(options, ARCHIVE, None)
    try:
        writer(0, 0)
    except CutOffError:
        assert step < 7
    # Before the record is there nothing can be seen.
    if step == 1:
        assert rows(tmp_path / "to") == 0
    writer(1, 0)
    writer(2, 1)
    assert rows(tmp_path / "to") == 12
    assert Records(Folder(options.state_folder)).totals().rows == 12
    assert staging == ([0, 1, 2] if step == 1 else [0, 2])


def test_old_records_are_removed(options, staging):
    writer = BatchWriter(options, ARCHIVE, None)
    for batch in range(RECORDS_KEPT + 3):
        writer(batch, batch)
    records = Records(Folder(options.state_folder))
    assert records.read(2) is None
    assert records.read(3) is not None
    assert records.totals().batches == RECORDS_KEPT + 3


def test_totals_of_a_run_are_what_it_has_added():
    before = Totals(batches=1, rows=5, rows_by_topic={"a": 5})
    after = Totals(batches=3, rows=9, files=2, rows_by_topic={"a": 5, "b": 4})
    assert after.since(before) == Totals(batches=2, rows=4, files=2, rows_by_topic={"b": 4})


def test_a_target_with_other_data_is_refused_unless_it_is_to_be_appended_to(tmp_path):
    to = tmp_path / "to"
    to.mkdir()
    (to / "mine.txt").touch()
    target = ParquetTarget(str(to), f"{to}/_kerolox")
    with pytest.raises(ConfigError, match=r"option --to: .* has other data \(mine.txt\)"):
        target.prepare(ARCHIVE, full_schema(), is_new=True, append=False)
    target.prepare(ARCHIVE, full_schema(), is_new=True, append=True)
    target.prepare(ARCHIVE, full_schema(), is_new=False, append=False)


def test_a_state_of_another_archive_is_refused(options, tmp_path):
    records = Records(Folder(options.state_folder))
    archive, is_new = records.open(options, "x int")
    assert is_new
    records.begin(options, archive, "x int")
    assert records.open(options, "x int") == (archive, False)
    other = ArchiveOptions(
        topics=("t",), to=str(tmp_path / "elsewhere"), state=options.state_folder
    )
    with pytest.raises(ConfigError, match=r"option --to: the archive in .* with another to"):
        records.open(other, "x int")
    with pytest.raises(ConfigError, match=r"option --body-schema: .* with another schema"):
        records.open(options, "x long")


def test_a_state_with_the_checkpoint_of_another_query_is_refused(options, tmp_path):
    (tmp_path / "to" / "_kerolox" / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"option --state: .* checkpoint of another query"):
        Records(Folder(options.state_folder)).open(options, "")


def test_a_record_of_a_later_version_is_refused(options):
    folder = Folder(options.state_folder)
    folder.write_json("archive.json", {"version": 9})
    with pytest.raises(JobError, match="has version 9, not 1"):
        Records(folder).identity()


class Rewriting:
    """Stands for Spark in a compaction: joins the files by Arrow."""

    def __call__(self, spark, group, folder, target_bytes):
        import pyarrow

        from kerolox.spark.jobs.archive.records import DataFile

        folder.make()
        tables = [parquet.read_table(each.path, partitioning=None) for each in group]
        table = pyarrow.concat_tables(tables)
        parquet.write_table(table, folder.inner("new.parquet"))
        first = group[0]
        return [
            DataFile(
                path="new.parquet", topic=first.topic, date=first.date, rows=len(table), size=1
            )
        ]


@pytest.mark.parametrize("step", range(1, 10))
def test_an_exchange_cut_off_at_any_step_is_completed_and_never_looks_whole(
    options, staging, tmp_path, monkeypatch, step
):
    writer = BatchWriter(options, ARCHIVE, None)
    for batch in range(2):
        writer(batch, batch)
    to = tmp_path / "to"
    monkeypatch.setattr("kerolox.spark.jobs.archive.targets.parquet.rewrite", Rewriting())
    calls = iter(range(1, 1000))

    def cut(name):
        original = getattr(Folder, name)

        def called(self, *arguments):
            if next(calls) == step:
                raise CutOffError(name)
            return original(self, *arguments)

        return called

    for name in ("move", "write_text", "delete", "delete_folder"):
        monkeypatch.setattr(Folder, name, cut(name))
    try:
        target_of(options).compact(None, 1 << 20, "2026-11-23")
    except CutOffError:
        place = to / "topic=%25RETRY%25g" / f"date={TODAY}"
        is_marked = (place / EXCHANGING).exists()
        names = [path for path in place.iterdir() if path.name != EXCHANGING]
        held = sum(parquet.read_metadata(path).num_rows for path in names)
        assert held == 12 or is_marked
    target_of(options).compact(None, 1 << 20, "2026-11-23")
    assert rows(to) == 12
    assert [each.rows for each in target_of(options).stored()] == [12]
    assert not list(to.rglob(EXCHANGING))


def test_days_that_are_not_over_and_large_files_are_left_as_they_are(options, staging):
    writer = BatchWriter(options, ARCHIVE, None)
    writer(0, 0)
    assert target_of(options).compact(None, 1 << 20, TODAY) == (0, 0)
    assert target_of(options).compact(None, 1, "2026-11-23") == (0, 0)


def test_columns_of_files_are_those_that_a_replay_needs():
    names = [name for name in full_schema().fieldNames() if name != "topic"]
    assert schema_of(names).fieldNames() == names
