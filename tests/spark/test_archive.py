"""Topics to Parquet, Delta and Iceberg: each message once, with all that a replay needs."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from kerolox.cli.app import main
from kerolox.spark.jobs.archive import ArchiveOptions, archive
from kerolox.spark.jobs.archive.job import target_of
from kerolox.spark.positions.read_limits import HAS_READ_LIMITS
from kerolox.spark.rows.schema import COLUMNS
from tests.support.clients.spark import QUICK, SECONDS_OF_SPARK, Sent, needs_limits
from tests.support.programs import RUNS_ALL

LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
FORMATS = [format for format, library in LIBRARIES.items() if find_spec(library) is not None]
"""Those that are installed (``kerolox[lakehouse]``)."""


def tomorrow() -> str:
    """The date after the one that it is when a test asks: a run may go on over midnight."""
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).date().isoformat()


def archive_options(folder, topics, topic, format, **given) -> ArchiveOptions:
    """Options for an archive in a folder."""
    places = {"to": str(folder / format)}
    if format == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        catalog["warehouse"] = str(folder / "warehouse")
        places = {"to": "lake.orders", "state": str(folder / "state"), "catalog": catalog}
    return ArchiveOptions(
        **{"name_server": topics.namesrv, "topics": (topic,), "format": format, **places} | given
    )


@pytest.fixture
def options_of(topics, tmp_path):
    """Options for a topic and a format, with a target of the test's own."""

    def make(topic, format="parquet", **given):
        return archive_options(tmp_path, topics, topic, format, **given)

    return make


def rows_of(spark, options):
    """The rows of an archive, as any reader of its format sees them."""
    if options.format == "delta":
        import deltalake

        table = deltalake.DeltaTable(options.to).to_pyarrow_table()
        return table.to_pylist()
    if options.format == "iceberg":
        from pyiceberg.catalog import load_catalog

        table = load_catalog("default", **options.catalog).load_table(options.to)
        return table.scan().to_arrow().to_pylist()
    return [row.asDict() for row in spark.read.parquet(options.to).collect()]


def numbers_of(spark, options) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in rows_of(spark, options))


@pytest.mark.parametrize("format", FORMATS)
def test_a_topic_is_archived_whole_and_gone_on_with(spark, topics, topic, options_of, format):
    sent = topics.send(
        topic,
        [
            Sent(b"1", queue_id=1, properties={"TAGS": "a", "KEYS": "k1 k2", "city": "Žilina"}),
            Sent(b"2", queue_id=2, flag=-7),
        ],
    )
    options = options_of(topic, format)
    first = archive(spark, options)
    assert (first.rows, first.rows_in_all, first.batches) == (2, 2, 1)
    topics.send_numbers(topic, range(3, 3003))
    second = archive(spark, options_of(topic, format, batch_rows=1000))
    assert (second.rows, second.rows_in_all) == (3000, 3002)
    assert second.rows_by_topic == {topic: 3000}
    assert second.batches >= (3 if HAS_READ_LIMITS else 1)
    rows = rows_of(spark, options)
    assert sorted(int(bytes(row["body"])) for row in rows) == list(range(1, 3003))
    assert set(COLUMNS) <= rows[0].keys()
    by_id = {row["msgId"]: row for row in rows}
    for each in sent:
        row = by_id[each.message_id]
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            *(topic, each.queue_id, each.queue_offset),
        )
        assert (row["flag"], row["tags"]) == (each.flag, each.properties.get("TAGS"))
        assert each.properties.items() <= dict(row["properties"]).items()
        assert row["storeTimestamp"].timestamp() > 1_700_000_000


@needs_limits
@pytest.mark.parametrize("format", FORMATS)
def test_small_files_become_large_ones_and_rows_stay(spark, topics, topic, options_of, format):
    topics.send_numbers(topic, range(600))
    options = options_of(topic, format, batch_rows=200)
    archive(spark, options)
    before = list(target_of(options).stored())
    taken, made = target_of(options).compact(spark, 1 << 20, tomorrow())
    after = list(target_of(options).stored())
    assert (taken, made) == (len(before), len(after))
    assert len(before) >= 3
    assert len(after) == 1
    assert numbers_of(spark, options) == list(range(600))
    topics.send_numbers(topic, range(600, 700))
    archive(spark, options)
    assert numbers_of(spark, options) == list(range(700))


@pytest.fixture
def command(topics, topic, tmp_path):
    """Arguments of an archive of ten messages, with a report."""
    topics.send_numbers(topic, range(10))
    places = ["--topic", topic, "--to", str(tmp_path / "to"), "--report", str(tmp_path / "page")]
    of_spark = ["--master", "local[2]", *[f"--conf={name}={QUICK[name]}" for name in QUICK]]
    return ["spark", "archive", *places, "-n", topics.namesrv, *of_spark, "-o", "json"]


def check_command(spark, topic: str, tmp_path, output: str, errors: str) -> None:
    """What the command has told, and done."""
    summary = json.loads(output)
    assert (summary["job"], summary["rows"], summary["rowsByTopic"]) == ("archive", 10, {topic: 10})
    assert "kerolox: archiving" in errors
    assert topic in (tmp_path / "page").read_text()
    assert spark.read.parquet(str(tmp_path / "to")).count() == 10


def test_the_command_runs_a_job_in_the_spark_that_is_there(
    spark, topic, command, tmp_path, monkeypatch, capsys
):
    stopped = []
    monkeypatch.setattr(type(spark), "stop", lambda session: stopped.append(session))
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    assert stopped == [spark]
    told = capsys.readouterr()
    check_command(spark, topic, tmp_path, told.out, told.err)


@pytest.mark.skipif(not RUNS_ALL, reason="it starts a Spark; KEROLOX_SOFTWARE=all runs it")
def test_the_command_runs_a_job_in_a_spark_of_its_own(spark, topic, command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kerolox.cli", *command],
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_OF_SPARK,
    )
    assert done.returncode == 0, done.stderr
    check_command(spark, topic, tmp_path, done.stdout, done.stderr)
