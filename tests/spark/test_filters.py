"""Filters that brokers or the planning evaluate: conditions (SQL92), pushed-down filters."""

from contextlib import contextmanager

import pytest
from pyspark.errors import AnalysisException

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import Sent, read_to_end
from tests.support.eventually import SECONDS_MAX

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@contextmanager
def broker_setting(topics, name: str, value: str, before: str):
    """A setting of the running broker, as long as the context lasts."""

    def put(text: str) -> None:
        with PatientConnection(topics.broker) as connection:
            request = RemotingCommand.request(
                RequestCode.UPDATE_BROKER_CONFIG, body=f"{name}={text}".encode()
            )
            answer = connection.invoke(request, SECONDS_MAX)
        assert answer.code == 0, answer

    put(value)
    try:
        yield
    finally:
        put(before)


@pytest.fixture
def properties(topics, topic):
    """A topic of 100 numbers in queue 0 and 1, whose property ``n`` is the number."""
    topics.send(
        topic,
        [
            Sent(str(n).encode(), queue_id=n % 2, properties={"n": str(n), "TAGS": "abc"[n % 3]})
            for n in range(100)
        ],
    )
    return topic


def numbers(frame) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def test_a_condition_is_evaluated_by_brokers_that_allow_it(
    read, read_stream, topics, properties, tmp_path
):
    sql92 = {"subExpressionType": "SQL92", "subExpression": "n BETWEEN 30 AND 39 AND TAGS <> 'a'"}
    wanted = [n for n in range(30, 40) if n % 3]
    with pytest.raises(AnalysisException, match=r"subExpressionType=SQL92: .*enablePropertyFilter"):
        read(properties).options(**sql92).load().collect()
    with broker_setting(topics, "enablePropertyFilter", "true", "false"):
        assert numbers(read(properties).options(**sql92).load()) == wanted
        assert read_to_end(read_stream(properties).options(**sql92), tmp_path) == wanted


def test_filters_are_pushed_down_where_the_session_allows_it(spark, read, properties):
    def frame():
        return read(properties).options(pushFilters="true", minPartitions="2").load()

    with pytest.raises(Exception, match="filterPushdown"):
        frame().where("queueId = 1").collect()
    spark.conf.set(PUSHDOWN, "true")
    try:
        narrow = frame().where("queueId = 1 AND tags = 'b' AND queueOffset BETWEEN 10 AND 30")
        assert numbers(narrow) == [
            n for n in range(100) if n % 2 and n % 3 == 1 and 10 <= n // 2 <= 30
        ]
        assert numbers(frame().where("storeTimestamp < '2001-01-01'")) == []
        assert numbers(frame().where("storeTimestamp > '2001-01-01'")) == list(range(100))
    finally:
        spark.conf.unset(PUSHDOWN)
