"""Bodies decoded by a schema; what does not decode is put aside, and nothing is lost."""

from __future__ import annotations

import io
import json

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs import JobError
from kerolox.spark.jobs.archive import ArchiveOptions, archive
from tests.spark.test_archive import FORMATS, archive_options, numbers_of
from tests.support.clients.spark import Sent
from tests.support.faults.small_disk import disk_kinds, small_disk
from tests.support.programs import RUNS_ALL
from tests.support.servers.up import deaf_address

# PySpark's own remark on the versions of what it needs.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")

JSON_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
}
GOOD = [b'{"id": 1, "note": "\xc5\xbd"}', b'{"id": 2, "more": []}']
BAD = {
    b'{"id": "x"}': "no JSON of the schema",
    b'{"note": "x"}': "lacks id",
    b"{": "no JSON of the schema",
    b"": "no JSON of the schema",
    b"\xff\xfe": "no UTF-8",
    b"null": "no JSON of the schema",
}


def archive_of(topics, topic, tmp_path, **given) -> ArchiveOptions:
    places = {"to": str(tmp_path / "to"), "name_server": topics.namesrv, "topics": (topic,)}
    return ArchiveOptions(**places | given)


def aside_of(spark, options) -> dict[bytes, str]:
    rows = spark.read.parquet(options.quarantine_folder).collect()
    assert all(row.value is None for row in rows)
    return {bytes(row.body): row.reason for row in rows}


def test_json_that_does_not_decode_is_put_aside(spark, topics, topic, tmp_path):
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(JSON_SCHEMA))
    topics.send(topic, [Sent(body) for body in [*GOOD, *BAD]])
    options = archive_of(topics, topic, tmp_path, body="json", body_schema=str(schema))
    summary = archive(spark, options)
    assert (summary.rows, summary.quarantined) == (len(GOOD), len(BAD))
    rows = spark.read.parquet(options.to).orderBy("value.id").collect()
    assert [(row.value.id, row.value.note) for row in rows] == [(1, "Ž"), (2, None)]
    assert [bytes(row.body) for row in rows] == GOOD
    aside = aside_of(spark, options)
    assert aside.keys() == BAD.keys()
    for body, reason in BAD.items():
        assert reason in aside[body]


def test_avro_that_does_not_decode_is_put_aside(spark, topics, topic, tmp_path):
    fastavro = pytest.importorskip("fastavro")
    fields = [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), {"id": 7, "tags": {"a": 1}})
    good = stream.getvalue()
    topics.send(topic, [Sent(good), Sent(good + b"\0"), Sent(b"")])
    options = archive_of(
        *(topics, topic, tmp_path), body="avro", body_schema=str(tmp_path / "order.avsc")
    )
    summary = archive(spark, options)
    assert (summary.rows, summary.quarantined) == (1, 2)
    [row] = spark.read.parquet(options.to).collect()
    assert (row.value.id, row.value.tags) == (7, {"a": 1})
    assert aside_of(spark, options)[good + b"\0"].endswith("1 bytes are left behind the value")


def test_a_missing_topic_is_an_error_and_the_target_stays_empty(spark, topics, tmp_path):
    options = archive_of(topics, "no-such-topic", tmp_path)
    with pytest.raises((ConfigError, JobError), match="no topic no-such-topic"):
        archive(spark, options)
    assert not list((tmp_path / "to").glob("topic=*"))


def test_a_name_server_that_is_down_is_an_error_that_names_it(spark, topics, topic, tmp_path):
    with deaf_address() as address:
        options = archive_of(
            *(topics, topic, tmp_path), name_server=address, source={"pollTimeoutMs": "2000"}
        )
        with pytest.raises((ConfigError, JobError), match=f"can't connect to {address}"):
            archive(spark, options)
    assert not list((tmp_path / "to").glob("topic=*"))


def test_a_wrong_option_of_the_source_is_an_error_that_names_it(spark, topics, topic, tmp_path):
    options = archive_of(topics, topic, tmp_path, source={"failOnDataLos": "true"})
    with pytest.raises(ConfigError, match="did you mean failOnDataLoss"):
        archive(spark, options)
    assert not (tmp_path / "to").exists()


@pytest.mark.skipif(not RUNS_ALL, reason="Spark tries long; KEROLOX_SOFTWARE=all runs it")
@pytest.mark.skipif(disk_kinds() == ["pretended"], reason="no file system can be mounted here")
@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_an_error_and_what_was_there_stays_whole(
    spark, topics, topic, tmp_path, format
):
    notes = tmp_path / "notes"
    notes.mkdir()
    with small_disk(disk_kinds()[0], tmp_path / "disk", notes) as disk:
        options = archive_options(tmp_path / "disk", topics, topic, format)
        topics.send_numbers(topic, range(40))
        assert archive(spark, options).rows == 40
        topics.send_numbers(topic, range(40, 80))
        disk.fill()
        with pytest.raises((JobError, OSError), match="No space left"):
            archive(spark, options)
        assert numbers_of(spark, options) == list(range(40))
        disk.free()
        assert archive(spark, options).rows_in_all == 80
        assert numbers_of(spark, options) == list(range(80))
