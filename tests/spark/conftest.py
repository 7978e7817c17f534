"""One Spark session and one ``kerolox up`` for the tests of a group."""

from __future__ import annotations

import os
import uuid
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients import python_forked
from tests.support.clients.spark import QUICK, Topics, spark_variables
from tests.support.servers.spark_forks import forks
from tests.support.servers.up import Up
from tests.support.spark_versions import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader


STREAMS = frozenset(
    (
        *("test_exactly_once", "test_first_batch", "test_kills", "test_restarts"),
        *("test_retention", "test_sink", "test_sink_exactly_once", "test_sink_kills"),
    )
)
"""Modules that run beside the others, in a Spark of their own. More than two at once are slower:
each Spark takes half a minute of a processor to get going."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.spark)
    if "spark" in getattr(item, "fixturenames", ()):
        group = "spark-streams" if item.path.stem in STREAMS else "spark"
        item.add_marker(pytest.mark.xdist_group(group))
    if VARIABLE in os.environ:
        # PySpark 4.1 leaves sockets of its own open.
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket"))
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[None]:
    """What Spark's Python workers need."""
    before = dict(os.environ)
    os.environ.update(spark_variables())
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def spark(
    spark_environment: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    with forks() as path:
        with warnings.catch_warnings():
            # PySpark's own imports warn about the versions of its dependencies.
            warnings.simplefilter("ignore")
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.master("local[2]").appName("kerolox-tests")
            builder = builder.config(
                map={
                    **QUICK,
                    "spark.driver.memory": "1g",
                    "spark.sql.session.timeZone": "UTC",
                    "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
                }
            )
            # For Java alone: drivers that tests start have whole Python processes.
            os.environ[python_forked.VARIABLE] = path
            session = builder.getOrCreate()
            del os.environ[python_forked.VARIABLE]
        yield session
        session.stop()


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with Up(tmp_path_factory.mktemp("up")) as cluster:
        yield Topics(cluster.namesrv, cluster.broker)


@pytest.fixture
def topic(topics: Topics) -> str:
    """A fresh topic of four queues."""
    return topics.create(f"spark-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def read(spark: SparkSession, topics: Topics) -> Callable[[str], DataFrameReader]:
    """A batch reader for a topic, options still open."""

    def reader(topic: str) -> DataFrameReader:
        made = spark.read.format("rocketmq").option("nameServer", topics.namesrv)
        return made.option("subscribe", topic)

    return reader


@pytest.fixture
def read_stream(spark: SparkSession, topics: Topics) -> Callable[[str], DataStreamReader]:
    """A stream reader for a topic from its start, options still open."""

    def reader(topic: str) -> DataStreamReader:
        made = spark.readStream.format("rocketmq").option("nameServer", topics.namesrv)
        return made.option("subscribe", topic).option("startingOffsets", "earliest")

    return reader


@pytest.fixture(scope="module")
def start(spark: SparkSession, topics: Topics) -> Callable[..., AbstractContextManager[Any]]:
    """Starts a query on a topic from where it would by itself, with a checkpoint and options."""

    @contextmanager
    def started(
        topic: str,
        checkpoint: Path,
        take: Callable[[DataFrame, int], None],
        *,
        trigger: dict[str, Any] | None = None,
        **options: str,
    ) -> Iterator[StreamingQuery]:
        trigger = trigger or {"processingTime": "0 seconds"}
        stream = spark.readStream.format("rocketmq").option("nameServer", topics.namesrv)
        stream = stream.option("subscribe", topic).options(**options)
        writer = stream.load().writeStream.option("checkpointLocation", str(checkpoint))
        query = writer.foreachBatch(take).trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()

    return started
