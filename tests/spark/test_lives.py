"""A topic that is deleted and made again while a query knows its first life."""

import uuid

import pytest
from pyspark.errors import StreamingQueryException

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.blocking import BlockingConnection
from tests.spark.test_stream import numbers_of, run_to_end

FIRST, SECOND = 1_000, 1_200


@pytest.fixture
def twice_made(topics, read_stream, tmp_path):
    """A topic whose 1,000 messages were read, made again with 1,200 others; and its name."""
    topic = topics.create(f"lives-{uuid.uuid4().hex[:12]}")
    topics.send_numbers(topic, range(FIRST))
    run_to_end(read_stream(topic), tmp_path)
    for address, code in (
        (topics.broker, RequestCode.DELETE_TOPIC_IN_BROKER),
        (topics.namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ):
        with BlockingConnection(address) as connection:
            assert connection.invoke(RemotingCommand.request(code, {"topic": topic})).code == 0
    topics.create(topic)
    return topic


@pytest.mark.parametrize("sent", [SECOND, FIRST, 20])
def test_a_topic_made_again_is_an_error_that_says_what_to_do(
    topics, read_stream, twice_made, tmp_path, sent
):
    topics.send_numbers(twice_made, range(FIRST, FIRST + sent))
    with pytest.raises(StreamingQueryException, match=r"created again.*failOnDataLoss=false"):
        run_to_end(read_stream(twice_made), tmp_path)


@pytest.mark.parametrize("sent", [SECOND, FIRST, 20])
def test_a_topic_made_again_is_read_from_its_beginning_when_loss_is_no_error(
    spark, topics, read_stream, twice_made, tmp_path, sent
):
    topics.send_numbers(twice_made, range(FIRST, FIRST + sent))
    stream = read_stream(twice_made).option("failOnDataLoss", "false")
    run_to_end(stream, tmp_path)
    assert numbers_of(spark, tmp_path / "table") == list(range(FIRST + sent))
