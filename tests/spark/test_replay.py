"""Messages of an archive or a topic, sent again: all of them, or those that are asked for."""

from __future__ import annotations

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs import JobError
from kerolox.spark.jobs.archive import archive
from kerolox.spark.jobs.replay import REPLAYED_FROM, ReplayOptions, job, replay, sending
from kerolox.spark.jobs.replay.state import ReplayState
from kerolox.spark.sink.transactions.decisions import store_at
from tests.spark.dying import STEPS_OF_REPLAY, ending_a_replay
from tests.spark.test_archive import FORMATS, archive_options
from tests.support.clients.spark import Sent, Topics
from tests.support.servers.up import Up, deaf_address

TOTAL = 64

# PySpark's own remark on the versions of what it needs.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")


@pytest.fixture(scope="module")
def sent(topics):
    """A topic whose messages have all that a message has."""
    topic = topics.create("replay-source")
    messages = [
        Sent(
            str(number).encode(),
            queue_id=number % 4,
            flag=number,
            properties={
                "TAGS": "abc"[number % 3],
                "KEYS": f"k{number} all",
                "UNIQ_KEY": f"{number:032d}",
                "city": "Žilina",
            },
        )
        for number in range(TOTAL)
    ]
    topics.send(topic, messages)
    return topic


@pytest.fixture(scope="module")
def archives(spark, topics, sent, tmp_path_factory):
    """The archive of the topic in each format."""
    folder = tmp_path_factory.mktemp("archives")
    made = {}
    for format in FORMATS:
        made[format] = archive_options(folder, topics, sent, format)
        assert archive(spark, made[format]).rows == TOTAL
    return made


@pytest.fixture
def of_archive(topics, archives, topic):
    """Options of a replay into the test's topic."""

    def make(format="parquet", **given):
        options = archives[format]
        places = {"from_archive": options.to, "format": format, "to_topic": topic}
        if format == "iceberg":
            places["catalog"] = options.catalog
        return ReplayOptions(**{"name_server": topics.namesrv} | places | given)

    return make


@pytest.fixture
def store(tmp_path):
    """The files of a broker that is stopped: five messages of a topic, three of another."""
    with Up(tmp_path / "up") as cluster:
        other = Topics(cluster.namesrv, cluster.broker)
        other.send_numbers(other.create("OfStore", queues=1), range(5), queues=1)
        other.send_numbers(other.create("Other", queues=1), range(3), queues=1)
    return cluster.data / "store"


def by_number(read, topic):
    rows = read(topic).load().collect()
    numbers = {int(bytes(row.body)): row for row in rows}
    assert len(numbers) == len(rows)
    return numbers


@pytest.mark.parametrize("format", FORMATS)
def test_an_archive_is_replayed_whole_and_each_message_tells_where_it_was(
    spark, read, topic, sent, of_archive, format
):
    summary = replay(spark, of_archive(format))
    assert summary.as_json().items() >= {"rows": TOTAL, "rowsByTopic": {topic: TOTAL}}.items()
    before, after = by_number(read, sent), by_number(read, topic)
    assert after.keys() == before.keys()
    for number, row in after.items():
        old = before[number]
        assert (row.tags, row["keys"], row.flag) == (old.tags, old["keys"], old.flag)
        assert row.properties["city"] == "Žilina"
        place = f"{sent}/{old.brokerName}/{old.queueId}/{old.queueOffset}"
        assert row.properties[REPLAYED_FROM] == place
        assert row.uniqKey != old.uniqKey


def test_only_what_is_asked_for_is_replayed_and_changed(spark, read, topic, of_archive):
    options = of_archive(
        tags=("a", "b"),
        keys=("k3", "k4", "k5", "k6"),
        where="flag > 3 AND properties['city'] = 'Žilina'",
        sets={"tags": "concat('re-', tags)", "properties": "map('why', 'a fix')"},
        mark=False,
        rate=1e6,
        ordered=True,
    )
    dry = replay(spark, ReplayOptions(**fields(options) | {"dry_run": True}))
    assert (dry.dry_run, dry.rows, dry.rows_by_topic) == (True, 2, {topic: 2})
    assert by_number(read, topic) == {}
    assert replay(spark, options).rows == 2
    rows = by_number(read, topic)
    assert {number: row.tags for number, row in rows.items()} == {4: "re-b", 6: "re-a"}
    assert rows[4].properties["why"] == "a fix"
    assert not {"city", REPLAYED_FROM} & rows[4].properties.keys()


def fields(options) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def test_a_topic_is_replayed_into_another(spark, read, topics, topic, sent):
    options = ReplayOptions(
        name_server=topics.namesrv, from_topics=(sent,), to_topic=topic, unit_rows=32, since=1
    )
    summary = replay(spark, options)
    assert (summary.rows, summary.units) == (TOTAL, 2)
    assert by_number(read, topic).keys() == set(range(TOTAL))


def test_a_store_is_replayed_without_its_broker(spark, read, topics, topic, store):
    options = ReplayOptions(
        name_server=topics.namesrv,
        from_store=str(store),
        topics=("OfStore",),
        to_topic=topic,
        since=1,
        unit_rows=2,
    )
    summary = replay(spark, options)
    assert (summary.rows, summary.units) == (5, 3)
    rows = by_number(read, topic)
    assert rows.keys() == set(range(5))
    assert rows[0].properties[REPLAYED_FROM] == "OfStore//0/0"


def test_a_replay_that_stopped_goes_on_behind_what_it_has_sent(
    spark, read, topic, topics, sent, tmp_path, monkeypatch
):
    options = ReplayOptions(
        name_server=topics.namesrv,
        from_topics=(sent,),
        to_topic=topic,
        unit_rows=16,
        state=str(tmp_path / "state"),
    )
    original, calls = sending.send, iter(range(100))

    def failing(*arguments):
        if next(calls) == 2:
            raise RuntimeError("the third unit fails")
        return original(*arguments)

    monkeypatch.setattr(job, "send", failing)
    with pytest.raises(
        JobError, match=r"third unit fails; 32 rows are sent for certain; .*--state"
    ):
        replay(spark, options)
    assert len(by_number(read, topic)) == ReplayState(options).done().rows == 32
    summary = replay(spark, options)
    assert (summary.rows, summary.units, summary.units_of_this_run) == (TOTAL, 4, 2)
    assert by_number(read, topic).keys() == set(range(TOTAL))
    assert replay(spark, options).units_of_this_run == 0


def test_a_transactional_replay_of_a_store_sends_each_row_once(
    spark, read, topic, topics, store, tmp_path
):
    options = ReplayOptions(
        name_server=topics.namesrv,
        from_store=str(store),
        topics=("OfStore",),
        to_topic=topic,
        unit_rows=2,
        state=str(tmp_path / "state"),
        transactional=True,
    )
    for step in ("kept", "ended", "done"):
        with pytest.raises(KilledError), ending_a_replay(step, end):
            replay(spark, options)
    assert ReplayState(options).done().units == 1
    summary = replay(spark, options)
    assert (summary.rows, summary.units, summary.units_of_this_run) == (5, 3, 2)
    assert by_number(read, topic).keys() == set(range(5))


class KilledError(BaseException):
    """Ends a driver as a kill does: nothing is tidied up."""


def test_a_transactional_replay_ended_at_each_step_sends_each_row_once(
    spark, read, topic, topics, sent, tmp_path
):
    options = ReplayOptions(
        name_server=topics.namesrv,
        from_topics=(sent,),
        to_topic=topic,
        unit_rows=10,
        state=str(tmp_path / "state"),
        transactional=True,
    )
    for step in STEPS_OF_REPLAY:
        # Each run goes on with the first unit, one step further than the one before.
        with pytest.raises(KilledError), ending_a_replay(step, end):
            replay(spark, options)
        assert ReplayState(options).done().units == (step == "done"), step
    state = ReplayState(options)
    decisions = store_at(f"{state.decisions}/{state.plan(list).replay}")
    summary = replay(spark, options)
    assert (summary.rows, summary.units) == (TOTAL, 7)
    assert by_number(read, topic).keys() == set(range(TOTAL))
    told = [
        sum(part.rows for winner in decisions.decision(unit).winners for part in winner.ranges)
        for unit in range(7)
    ]
    assert sum(told) == state.done().rows == TOTAL
    assert replay(spark, options).units_of_this_run == 0


def end() -> None:
    raise KilledError


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"where": "no_such > 1"}, r"option --where: .*no_such"),
        ({"sets": {"tags": "no_such"}}, r"option --set: .*no_such"),
        ({"sets": {"body": "1"}}, r"option --set: column body is int, but must be binary or str"),
        ({"from_archive": "/no/such"}, "option --from-archive: /no/such has no file of an archive"),
    ],
)
def test_a_wrong_replay_sends_nothing(spark, read, topic, of_archive, given, text):
    with pytest.raises(ConfigError, match=text):
        replay(spark, of_archive(**given))
    assert by_number(read, topic) == {}


def test_a_broker_that_is_down_is_an_error_that_names_it(spark, of_archive, monkeypatch):
    monkeypatch.setattr(sending, "SEND_TIMEOUT_MS", 500)
    with (
        deaf_address() as address,
        pytest.raises(JobError, match=rf"connect to {address}.*0 rows are sent for certain"),
    ):
        replay(spark, of_archive(name_server=address))
