"""Jobs whose input, target or broker fails: a clear error, and no half result that looks whole."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from kerolox.errors import KeroloxError, StoreError
from kerolox.spark.jobs import JobError, silent
from kerolox.spark.jobs.archive import ArchiveOptions, archive
from kerolox.spark.jobs.archive.records import Records
from kerolox.spark.jobs.dlq import DeadLetterOptions, dead_letters
from kerolox.spark.jobs.frame import messages
from kerolox.spark.jobs.frame.cluster import ClusterOptions
from kerolox.spark.jobs.rebuild import RebuildOptions, rebuild
from kerolox.spark.jobs.rebuild import job as rebuilding
from kerolox.spark.jobs.rebuild.target import check_room
from kerolox.spark.jobs.replay import ReplayOptions, replay, sending
from kerolox.spark.jobs.replay import job as replaying
from kerolox.spark.jobs.replay.state import ReplayState
from kerolox.spark.jobs.trace import TraceOptions, trace
from kerolox.spark.jobs.traffic import TrafficOptions, traffic
from tests.support.clients.spark import Topics, needs_limits
from tests.support.faults.small_disk import disk_kinds, small_disk
from tests.support.servers.up import Up, deaf_address
from tests.support.stores.golden import copy_golden

# PySpark's own remark on the versions of what it needs.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")

needs_disk = pytest.mark.skipif(
    disk_kinds() == ["pretended"], reason="no file system can be mounted here"
)
TOPIC = "%DLQ%billing"
READERS = {
    "traffic": (traffic, TrafficOptions, {"topics": (TOPIC,)}),
    "dlq": (dead_letters, DeadLetterOptions, {"groups": ("billing",)}),
    "trace": (trace, TraceOptions, {"trace_topic": TOPIC}),
}


@pytest.fixture
def own(tmp_path):
    """A cluster that may be ended and started again, with 64 messages in a topic."""
    with Up(tmp_path / "own") as cluster:
        topics = Topics(cluster.namesrv, cluster.broker)
        topics.send_numbers(topics.create(TOPIC), range(64))
        yield cluster


@pytest.fixture
def soon(monkeypatch):
    """Brokers that are down are not waited for long."""
    given = ClusterOptions.source_options
    monkeypatch.setattr(
        messages.SpanOptions,
        "source_options",
        lambda options: given(options) | {"pollTimeoutMs": "2000"},
        raising=False,
    )
    monkeypatch.setattr(sending, "SEND_TIMEOUT_MS", 2_000)


def numbers_in(spark, name_server: str, topic: str) -> Counter[int]:
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    rows = reader.option("subscribe", topic).load().select("body").collect()
    return Counter(int(bytes(row.body)) for row in rows)


@pytest.mark.parametrize("name", READERS)
def test_a_store_that_is_none_is_an_error_that_says_so(spark, tmp_path, name):
    job, options, given = READERS[name]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("?")
    for place, words in (
        ("nothing", "is not there"),
        ("file", "is no folder"),
        ("empty", "is no store"),
    ):
        with pytest.raises(JobError, match=rf"stopped: .*{place} {words}.*; nothing was written"):
            job(spark, options(store=str(tmp_path / place), **given), silent)


def test_a_replay_of_a_store_that_is_none_sends_nothing(spark, topics, topic, tmp_path):
    options = ReplayOptions(
        name_server=topics.namesrv, from_store=str(tmp_path / "nothing"), to_topic=topic
    )
    with pytest.raises(StoreError, match="nothing is not there; give the folder that"):
        replay(spark, options)
    assert numbers_in(spark, topics.namesrv, topic) == {}


@pytest.mark.parametrize("name", READERS)
def test_a_cluster_that_is_down_is_an_error_that_names_it(spark, soon, name):
    job, options, given = READERS[name]
    with (
        deaf_address() as address,
        pytest.raises(JobError, match=f"stopped: .*can't connect to {address}.*nothing was"),
    ):
        job(spark, options(name_server=address, **given), silent)


@pytest.mark.parametrize("name", READERS)
def test_a_broker_killed_behind_the_planning_is_an_error(spark, own, soon, monkeypatch, name):
    job, options, given = READERS[name]
    original = messages.read_messages

    def read_and_kill(*arguments):
        rows = original(*arguments)
        rows.schema  # noqa: B018 - planned
        own.kill()
        return rows

    monkeypatch.setattr(f"{job.__module__}.read_messages", read_and_kill)
    with pytest.raises(JobError, match=r"stopped: .*127\.0\.0\.1:\d+.*; nothing was written"):
        job(spark, options(name_server=own.namesrv, **given), silent)


@needs_limits
def test_an_archive_whose_broker_is_killed_keeps_whole_batches_and_goes_on(
    spark, own, tmp_path, monkeypatch
):
    options = ArchiveOptions(
        name_server=own.namesrv,
        topics=(TOPIC,),
        to=str(tmp_path / "to"),
        batch_rows=16,
        source={"pollTimeoutMs": "2000"},
    )
    original = Records.write

    def write_and_kill(self, record):
        original(self, record)
        if record.batch == 1 and record.is_done:
            own.kill()

    monkeypatch.setattr(Records, "write", write_and_kill)
    with pytest.raises(JobError, match=r"archiving stopped: .*the 32 rows of earlier batches are"):
        archive(spark, options)
    monkeypatch.setattr(Records, "write", original)
    assert spark.read.parquet(options.to).count() == 32
    own.start()
    assert archive(spark, options).rows_in_all == 64
    rows = spark.read.parquet(options.to).collect()
    assert Counter(int(bytes(row.body)) for row in rows) == Counter(range(64))


def replay_options(own, topics, tmp_path, **given) -> ReplayOptions:
    """Of four units, to a topic of another cluster."""
    topic = topics.create(f"again-{uuid.uuid4().hex[:12]}")
    return ReplayOptions(
        name_server=topics.namesrv,
        from_name_server=own.namesrv,
        from_topics=(TOPIC,),
        to_topic=topic,
        unit_rows=16,
        state=str(tmp_path / "state"),
        **given,
    )


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_replay_whose_target_is_killed_goes_on_when_it_is_back(
    spark, own, topics, soon, tmp_path, monkeypatch, is_transactional
):
    origin = topics.create(f"origin-{uuid.uuid4().hex[:12]}")
    topics.send_numbers(origin, range(64))
    here = Topics(own.namesrv, own.broker)
    options = ReplayOptions(
        name_server=own.namesrv,
        from_name_server=topics.namesrv,
        from_topics=(origin,),
        to_topic=here.create("Again"),
        unit_rows=16,
        state=str(tmp_path / "state"),
        transactional=is_transactional,
    )
    original, calls = sending.send, iter(range(100))

    def send_or_kill(*arguments):
        if next(calls) == 2:
            own.kill()
        return original(*arguments)

    monkeypatch.setattr(replaying, "send", send_or_kill)
    with pytest.raises(JobError, match=r"the replay stopped: .*; 32 rows are sent for certain"):
        replay(spark, options)
    assert ReplayState(options).done().units == 2
    own.start()
    assert sum(numbers_in(spark, own.namesrv, "Again").values()) == 32
    assert replay(spark, options).rows == 64
    assert numbers_in(spark, own.namesrv, "Again") == Counter(range(64))


@needs_disk
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_replay_whose_state_finds_no_room_says_so_and_goes_on(
    spark, own, topics, tmp_path, monkeypatch, is_transactional
):
    notes = tmp_path / "notes"
    notes.mkdir()
    with small_disk(disk_kinds()[0], tmp_path / "disk", notes) as disk:
        options = replay_options(own, topics, tmp_path / "disk", transactional=is_transactional)
        original, calls = sending.send, iter(range(100))

        def send_and_fill(*arguments):
            sent = original(*arguments)
            if next(calls) == 2:
                disk.fill()
            return sent

        monkeypatch.setattr(replaying, "send", send_and_fill)
        with pytest.raises((KeroloxError, OSError), match="No space left"):
            replay(spark, options)
        assert ReplayState(options).done().units == 2
        found = numbers_in(spark, topics.namesrv, options.to_topic)
        assert sum(found.values()) == (32 if is_transactional else 48)
        disk.free()
        assert replay(spark, options).rows == 64
        found = numbers_in(spark, topics.namesrv, options.to_topic)
        assert found.keys() == set(range(64))
        # At least once: the unit whose mark found no room is sent again.
        assert sum(found.values()) == (64 if is_transactional else 80)


@needs_disk
def test_a_rebuild_whose_disk_fills_up_leaves_nothing(spark, tmp_path, monkeypatch):
    store = str(copy_golden(tmp_path / "golden").folder / "store")
    notes = tmp_path / "notes"
    notes.mkdir()
    with small_disk(disk_kinds()[0], tmp_path / "disk", notes) as disk:
        options = RebuildOptions(store=store, to=str(tmp_path / "disk" / "new"), index=False)

        def fill_behind_the_check(*arguments):
            check_room(*arguments)
            disk.fill()

        monkeypatch.setattr(rebuilding, "check_room", fill_behind_the_check)
        with pytest.raises((JobError, OSError), match="No space left"):
            rebuild(spark, options)
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["filler"]
        with pytest.raises(JobError, match=r"need about \d+ bytes, and .* has 0 left"):
            rebuild(spark, options)
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["filler"]
        disk.free()
        monkeypatch.setattr(rebuilding, "check_room", check_room)
        assert rebuild(spark, options).damages == 0
