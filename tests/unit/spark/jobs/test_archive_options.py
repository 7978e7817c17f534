"""Options of archive and replay that don't fit together are errors that name one of them."""

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs.archive import ArchiveOptions
from kerolox.spark.jobs.replay import ReplayOptions


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": ()}, "option --topic: give one or more"),
        ({"to": " "}, "option --to: is blank"),
        ({"format": "orc"}, "option --format: 'orc' must be one of parquet, delta, iceberg"),
        ({"format": "iceberg", "to": "a.b"}, "option --state: is needed for iceberg"),
        ({"format": "iceberg", "to": "a", "state": "s"}, "option --to: 'a' is no table"),
        ({"catalog": {"a": "b"}}, "option --catalog: has no meaning with --format parquet"),
        ({"body": "json"}, "option --body-schema: is needed with --body json"),
        ({"body_schema": "x"}, "option --body-schema: has no meaning with --body binary"),
        (
            {"body": "protobuf", "body_schema": "x"},
            "option --body-message: is needed with --body protobuf",
        ),
        ({"body_message": "x"}, "option --body-message: has no meaning with --body binary"),
        ({"follow": True, "compact": "after"}, "option --compact: after has no meaning"),
        ({"interval": -1.0}, "option --interval: -1.0 must be 0 or more"),
        ({"batch_rows": 0}, "option --batch-rows: 0 must be 1 or more"),
        ({"compact_mib": 0}, "option --compact-mib: 0 must be 1 or more"),
    ],
)
def test_a_wrong_archive_is_an_error_that_names_the_option(given, text):
    with pytest.raises(ConfigError, match=text):
        ArchiveOptions(**{"topics": ("t",), "to": "/data/x", **given})


def test_places_of_state_and_quarantine_follow_from_the_target():
    options = ArchiveOptions(topics=("t",), to="/data/x/")
    assert options.state_folder == "/data/x/_kerolox"
    assert options.quarantine_folder == "/data/x/_kerolox/quarantine"
    options = ArchiveOptions(topics=("t",), to="/data/x", state="/s", quarantine="/q")
    assert (options.state_folder, options.quarantine_folder) == ("/s", "/q")


def test_a_pattern_of_the_source_stands_for_topics():
    ArchiveOptions(to="/data/x", source={"subscribePattern": "o.*"})
    ArchiveOptions(to="/data/x", compact="only")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"from_archive": ""}, "give one of --from-archive, --from-store and --from-topic"),
        ({"from_store": "/s"}, "give one of --from-archive, --from-store and --from-topic"),
        ({"catalog": {"a": "b"}}, "option --catalog: has no meaning with --format parquet"),
        ({"from_name_server": "n:1"}, "option --from-name-server: has a meaning with"),
        ({"since": 5, "until": 5}, "option --until: is not behind --since"),
        ({"sets": {"queueOffset": "1"}}, "option --set: there is no column 'queueOffset'"),
        ({"sets": {"topic": "'a'"}}, "option --to-topic: contradicts --set topic"),
        ({"ordered": True, "sets": {"orderingKey": "1"}}, "option --ordered: contradicts"),
        ({"rate": 0.0}, "option --rate: 0.0 must be 0.001 or more"),
        (
            {"from_archive": "", "from_topics": ("a",), "to_topic": "a"},
            "option --to-topic: is needed with --from-topic: a topic is not replayed into itself",
        ),
        (
            {"from_archive": "", "from_topics": ("a",), "to_topic": ""},
            "option --to-topic: is needed with --from-topic",
        ),
    ],
)
def test_a_wrong_replay_is_an_error_that_names_the_option(given, text):
    with pytest.raises(ConfigError, match=text):
        ReplayOptions(**{"from_archive": "/data/x", "to_topic": "t", **given})


def test_a_topic_may_keep_its_name_on_another_cluster():
    ReplayOptions(from_topics=("a",), from_name_server="other:9876")
