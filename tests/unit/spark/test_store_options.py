"""Options of the store format: each value's edge, and errors that name the option."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.options import BodyErrors
from kerolox.spark.store.columns import STORE_COLUMNS, check_store_schema, store_schema
from kerolox.spark.store.options import (
    FORMAT,
    OPTIONS,
    SPLIT_BYTES_DEFAULT,
    ConsumeQueues,
    StoreOptions,
    is_system_topic,
)
from kerolox.spark.store.source import STORE_FORMAT


def parse(**given: str) -> StoreOptions:
    return StoreOptions.parse({"path": "/s"} | given)


def test_what_is_not_given_has_its_default() -> None:
    options = parse()
    assert options == StoreOptions(paths=("/s",))
    assert options.split_bytes == SPLIT_BYTES_DEFAULT
    assert options.fail_on_data_loss
    assert options.body_errors is BodyErrors.FAIL
    assert options.consume_queues is ConsumeQueues.AUTO
    assert FORMAT == STORE_FORMAT


def test_each_option_is_read() -> None:
    options = StoreOptions.parse(
        {
            "PATH": " /s ",
            "commitlogpath": "/a, /b",
            "brokerName": "b-a",
            "subscribePattern": "T.*",
            "includeSystemTopics": "TRUE",
            "startingTimestamp": "5",
            "endingTimestamp": "1970-01-01T00:00:01Z",
            "startingPhysicalOffset": "0",
            "endingPhysicalOffset": "99",
            "startingOffsets": '{"T":{"0":1}}',
            "endingOffsets": '{"T":{"0":2,"1":3}}',
            "columns": "size, body",
            "bodyErrors": "raw",
            "failOnDataLoss": "false",
            "consumeQueues": "never",
            "splitBytes": "64k",
            "maxBytesPerTrigger": "1g",
            "pollIntervalMs": "1",
        }
    )
    assert options == StoreOptions(
        paths=("/s",),
        log_paths=("/a", "/b"),
        broker_names=("b-a",),
        pattern="T.*",
        has_system_topics=True,
        stored_from=5,
        stored_before=1_000,
        first_offset=0,
        end_offset=99,
        starting_offsets={("T", 0): 1},
        ending_offsets={("T", 0): 2, ("T", 1): 3},
        columns=("size", "body"),
        body_errors=BodyErrors.RAW,
        fail_on_data_loss=False,
        consume_queues=ConsumeQueues.NEVER,
        split_bytes=64 * 1024,
        max_bytes_per_trigger=1 << 30,
        poll_interval_ms=1,
    )
    assert set(OPTIONS) - {"subscribe"} == {
        *("path", "commitLogPath", "brokerName", "subscribePattern", "includeSystemTopics"),
        *("startingTimestamp", "endingTimestamp", "startingPhysicalOffset"),
        *("endingPhysicalOffset", "startingOffsets", "endingOffsets", "columns", "bodyErrors"),
        *("failOnDataLoss", "consumeQueues", "splitBytes", "maxBytesPerTrigger"),
        "pollIntervalMs",
    }


def test_the_page_has_each_option_and_its_meaning() -> None:
    page = Path(__file__).parents[3] / "docs" / "spark" / "store.md"
    table = page.read_text().split("## Options")[1].split("## Columns")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))
    plain = {name: text.replace("`,`", "','").replace("`", "") for name, text in rows.items()}
    assert plain == OPTIONS


def test_several_paths_of_load_are_several_stores() -> None:
    options = StoreOptions.parse({"paths": json.dumps(["/a", "/b", "/a"]), "brokerName": "x,y"})
    assert options.paths == ("/a", "/b")
    assert options.broker_names == ("x", "y")


def test_options_of_other_formats_are_errors_that_name_this_one() -> None:
    with pytest.raises(ConfigError, match="format rocketmq-store has no option 'nameServer'"):
        parse(nameServer="n:1")
    with pytest.raises(ConfigError, match="option paths is no list"):
        parse(paths='"/a"')


def test_the_path_must_be_given() -> None:
    with pytest.raises(ConfigError, match="option path is missing"):
        StoreOptions.parse({})


@pytest.mark.parametrize("given", [{"endingPhysicalOffset": "1"}, {"consumeQueues": "always"}])
def test_a_stream_refuses_what_only_a_batch_can_mean(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"option {next(iter(given))}.* for batches only"):
        parse(**given).check_stream()
    parse().check_stream()


@pytest.mark.parametrize(
    ("name", "is_system"),
    [
        ("T", False),
        ("SCHEDULE_TOPIC_XXXX", True),
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("TRANS_CHECK_MAX_TIME_TOPIC", True),
        ("RMQ_SYS_TRACE_TOPIC", True),
        ("rmq_sys_x", True),
        ("%RETRY%g", True),
        ("%DLQ%g", True),
        ("c_REPLY_TOPIC", True),
        ("TBW102x", False),
    ],
)
def test_system_topics_are_left_out_unless_they_are_asked_for(name: str, is_system: bool) -> None:
    assert is_system_topic(name) is is_system
    topic = name.encode()
    assert parse().is_wanted(topic) is not is_system
    assert parse(includeSystemTopics="true").is_wanted(topic)
    assert parse(subscribe=name).is_wanted(topic)
    assert not parse(subscribe="other").is_wanted(topic)
    assert parse(subscribePattern=".*").is_wanted(topic) is not is_system
    assert not parse(subscribePattern="x").is_wanted(topic)


def test_columns_are_those_of_topics_and_three_more_by_name() -> None:
    from kerolox.spark.rows.schema import COLUMNS, full_schema

    assert store_schema(None) == full_schema()
    assert list(STORE_COLUMNS) == [*COLUMNS, "size", "crcOk", "physicalOffset"]
    assert store_schema(["crcOk", "BODY"]).fieldNames() == ["crcOk", "BODY"]
    with pytest.raises(ConfigError, match="rocketmq-store has no column 'crc'; did you mean crcOk"):
        store_schema(["crc"])
    check_store_schema(store_schema(["size"]), None)
    with pytest.raises(ConfigError, match="contradicts the schema"):
        check_store_schema(store_schema(["size"]), ["body"])
