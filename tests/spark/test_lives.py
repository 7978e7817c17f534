"""A topic that is deleted and made again while a query knows its first life."""

import shutil
import uuid

import pytest
from pyspark.errors import StreamingQueryException

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import DataLossError
from kerolox.spark.rows.schema import schema_of
from kerolox.spark.stream import StreamPlanner
from tests.support.clients.patient import PatientConnection
from tests.support.clients.spark import needs_limits, read_to_end

FIRST = 1_000


def make_again(topics, topic):
    for address, code in (
        (topics.broker, RequestCode.DELETE_TOPIC_IN_BROKER),
        (topics.namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ):
        with PatientConnection(address) as connection:
            assert connection.invoke(RemotingCommand.request(code, {"topic": topic})).code == 0
    topics.create(topic)


@pytest.fixture
def twice_made(topics, read_stream, tmp_path):
    """A topic made again, empty now, of whose first life a query in ``once`` has read all."""
    topic = topics.create(f"lives-{uuid.uuid4().hex[:12]}")
    topics.send_numbers(topic, range(FIRST))
    assert read_to_end(read_stream(topic), tmp_path / "once") == list(range(FIRST))
    make_again(topics, topic)
    return topic


def test_a_topic_made_again_is_an_error_or_is_read_from_its_beginning(
    topics, read_stream, twice_made, tmp_path
):
    sent = 0
    # Fewer messages than before, as many, and more.
    for total in (20, FIRST, FIRST + 200):
        topics.send_numbers(twice_made, range(sent, total))
        sent = total
        fails, goes_on = (tmp_path / f"{total}-{name}" for name in ("fails", "goes-on"))
        for folder in (fails, goes_on):
            shutil.copytree(tmp_path / "once", folder)
        with pytest.raises(StreamingQueryException, match=r"created again.*failOnDataLoss=false"):
            read_to_end(read_stream(twice_made), fails)
        stream = read_stream(twice_made).option("failOnDataLoss", "false")
        assert read_to_end(stream, goes_on) == list(range(total))


@needs_limits
@pytest.mark.parametrize("left", [0, 20, FIRST, FIRST + 200])
def test_a_topic_made_again_once_a_run_with_an_end_has_begun_is_told(topics, topic, left):
    topics.send_numbers(topic, range(FIRST))
    given = {"nameServer": topics.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    # Asked as Spark asks: it begins its batches at once, too soon for a topic to go meanwhile.
    planner = StreamPlanner(SourceOptions.parse(given), schema_of(["body"]))
    start = planner.initialOffset()
    planner.prepareForTriggerAvailableNow()
    make_again(topics, topic)
    topics.send_numbers(topic, range(left))
    with pytest.raises(DataLossError, match=r"created again.*failOnDataLoss=false"):
        planner.latestOffset(start, planner.getDefaultReadLimit())
    planner.stop()
