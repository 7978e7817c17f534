"""The transactional sink of Spark, without Spark, against our broker and the Java broker."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest

from kerolox.client.sync import PullConsumer
from kerolox.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from kerolox.spark.sink import job
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.transactions.commit import Transaction
from tests.spark.sink_reading import stored
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import Topics
from tests.support.eventually import wait_until
from tests.support.programs import RUNS_ALL
from tests.support.servers.clusters import Cluster, often_asking

if TYPE_CHECKING:
    from kerolox.spark.sink.transactions.messages import SinkMessage

KINDS = ["ours", *([pytest.param("java", marks=pytest.mark.java)] if RUNS_ALL else [])]
"""Of brokers that a test starts for itself."""


def exactly(cluster: Cluster, topic: str, folder: Path) -> SinkOptions:
    Topics(cluster.name_server, cluster.broker).create(topic)
    given = {"nameServer": cluster.name_server, "topic": topic, "transactional": "true"}
    given |= {"transactionLocation": str(folder), "transactionId": uuid.uuid4().hex}
    return SinkOptions.parse(given, is_stream=False)


def written(options: SinkOptions, *parts: list[str]) -> list[SinkMessage]:
    """What tasks tell the driver that have written these rows."""
    query = options.transaction_id
    return [
        job.write_halves(options, query, 0, number, 0, [pyarrow.record_batch({"body": bodies})])
        for number, bodies in enumerate(parts)
    ]


def bodies(cluster: Cluster, topic: str) -> list[str]:
    found = []
    with PullConsumer(f"group-{uuid.uuid4().hex}", cluster.name_server) as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found += [each.body.decode() for each in result.messages]
                offset = result.next_offset
    return sorted(found)


def test_rows_are_seen_once_and_only_after_the_decision(cluster: Cluster, tmp_path: Path) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    options = exactly(cluster, topic, tmp_path)
    [dead] = written(options, ["dead"])
    messages = written(options, [f"a{n}" for n in range(300)], ["b"])
    assert dead.ranges
    assert bodies(cluster, topic) == []
    expected = sorted(["b", *(f"a{n}" for n in range(300))])
    for _ in range(2):
        job.commit(options, messages, 0)
        # A Java broker answers before consumers can read what it has ended.
        wait_until(lambda: len(bodies(cluster, topic)) >= len(expected), what="all rows")
        assert bodies(cluster, topic) == expected


def test_a_commit_that_failed_after_the_decision_is_gone_on_with(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    options = exactly(cluster, topic, tmp_path)
    messages = written(options, ["a", "b"], ["c"])

    def fail(*_: object, **__: object) -> None:
        raise SinkError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "mark_done", fail)
        with pytest.raises(SinkError):
            job.commit(options, messages, 0)
    job.abort(options, messages, 0)
    again = written(options, ["other"])
    job.commit(options, again, 0)
    wait_until(lambda: {*bodies(cluster, topic)} >= {"a", "b", "c"}, what="all rows")
    found = bodies(cluster, topic)
    if cluster.kind == "java":  # it may end a half twice, as the guarantees say
        found = sorted({*found})
    assert found == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_away_for_longer_than_all_checks_loses_nothing(kind: str, tmp_path: Path) -> None:
    with often_asking(kind, tmp_path / "servers") as cluster:
        topic = "away"
        options = exactly(cluster, topic, tmp_path / "decisions")
        messages = written(options, ["a", "b"], ["c"])
        with PatientConnection(cluster.broker) as connection:
            wait_until(
                lambda: stored(connection, CHECK_MAX_TIME_TOPIC, 0) == 3,
                what="halves that the broker has set aside",
            )
        assert bodies(cluster, topic) == []
        job.commit(options, messages, 0)
        wait_until(lambda: len(bodies(cluster, topic)) >= 3, what="all rows")
        assert bodies(cluster, topic) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_halves_that_a_broker_asks_about_all_the_time_are_seen_once(
    kind: str, tmp_path: Path
) -> None:
    with often_asking(kind, tmp_path / "servers", checks=10_000) as cluster:
        topic = "asked"
        options = exactly(cluster, topic, tmp_path / "decisions")
        messages = written(options, ["a", "b"], ["c"])
        with PatientConnection(cluster.broker) as connection:

            def wait_for_copies() -> None:
                end = stored(connection, HALF_TOPIC, 0) + 9
                wait_until(
                    lambda: stored(connection, HALF_TOPIC, 0) >= end,
                    what="copies that the broker makes of open halves",
                )

            wait_for_copies()
            job.commit(options, messages, 0)
            wait_until(lambda: len(bodies(cluster, topic)) >= 3, what="all rows")
            # The broker goes on to ask, about this one at least.
            written(exactly(cluster, "other", tmp_path / "decisions"), ["open"])
            wait_for_copies()
        assert bodies(cluster, topic) == ["a", "b", "c"]
