import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kerolox.errors import ConfigError, ConnectError
from kerolox.message import MessageQueue
from kerolox.spark import stream
from kerolox.spark.cluster import Routes
from kerolox.spark.offsets import Bounds, DataLossError, to_json
from kerolox.spark.options import SourceOptions
from kerolox.spark.schema import schema_of
from kerolox.spark.stream import StreamReader

Q0, Q1, OTHER = (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1), MessageQueue("u", "c", 0))


class FakeCluster:
    """The queues that a test says exist, with their bounds."""

    held: dict[MessageQueue, Bounds]
    retry_seconds = 0.0

    def __init__(self, name_servers: tuple[str, ...]) -> None:
        assert name_servers == ("n:1",)

    def routes(self, topics) -> Routes:
        queues = [queue for queue in self.held if queue.topic in topics]
        return Routes(queues, {queue.broker_name: f"{queue.broker_name}:1" for queue in queues})

    def bounds(self, routes: Routes) -> dict[MessageQueue, Bounds]:
        return {queue: self.held[queue] for queue in routes.queues}

    def close(self) -> None:
        pass


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[MessageQueue, Bounds]:
    monkeypatch.setattr(FakeCluster, "held", {Q0: Bounds(5, 100), Q1: Bounds(0, 50)}, raising=False)
    monkeypatch.setattr(stream, "Cluster", FakeCluster)
    return FakeCluster.held


def reader(**given: str) -> StreamReader:
    options = {"nameServer": "n:1", "subscribe": "t", "pollTimeoutMs": "1", **given}
    return StreamReader(SourceOptions.parse(options), schema_of(["body"]))


def ranges(partitions) -> list[tuple[MessageQueue, int, int]]:
    return [tuple(each) for made in partitions for _, each in made.value]


def test_a_new_query_starts_at_the_end_unless_told_otherwise(held):
    assert reader().initialOffset() == to_json({Q0: 100, Q1: 50})
    assert reader(startingOffsets="earliest").initialOffset() == to_json({Q0: 5, Q1: 0})
    text = '{"t":{"b":{"0":7,"1":-2}}}'
    assert reader(startingOffsets=text).initialOffset() == to_json({Q0: 7, Q1: 0})


def test_a_start_outside_of_a_queue_is_an_error_or_moved(held):
    text = '{"t":{"b":{"0":3,"1":60}}}'
    with pytest.raises(DataLossError, match="not the 3 to start from"):
        reader(startingOffsets=text).initialOffset()
    lenient = reader(startingOffsets=text, failOnDataLoss="false")
    assert lenient.initialOffset() == to_json({Q0: 5, Q1: 50})


def test_a_batch_ends_at_the_newest_offsets_or_at_the_limit(held):
    start = to_json({Q0: 40, Q1: 10})
    assert reader().latestOffset(start, ReadAllAvailable()) == to_json({Q0: 100, Q1: 50})
    assert reader().latestOffset(start, ReadMaxRows(10)) == to_json({Q0: 45, Q1: 15})
    limited = reader(maxOffsetsPerTrigger="9")
    assert limited.getDefaultReadLimit() == ReadMaxRows(9)
    assert limited.latestOffset(start, ReadAllAvailable()) == to_json({Q0: 100, Q1: 50})


def test_a_queue_that_appears_is_written_down_first_and_read_next(held):
    made = reader(subscribe="t,u")
    start = to_json({Q0: 100, Q1: 50})
    held[OTHER] = Bounds(3, 8)
    first = made.latestOffset(start, ReadAllAvailable())
    assert first == to_json({Q0: 100, Q1: 50, OTHER: 3})
    assert made.partitions(start, first) == []
    second = made.latestOffset(first, ReadAllAvailable())
    assert ranges(made.partitions(first, second)) == [(OTHER, 3, 8)]


def test_a_queue_whose_broker_is_away_keeps_its_place(held):
    del held[Q1]
    end = reader().latestOffset(to_json({Q0: 40, Q1: 10}), ReadAllAvailable())
    assert end == to_json({Q0: 100, Q1: 10})


def test_a_topic_that_is_not_subscribed_any_more_is_dropped(held):
    end = reader().latestOffset(to_json({Q0: 40, Q1: 10, OTHER: 3}), ReadAllAvailable())
    assert end == to_json({Q0: 100, Q1: 50})


def test_a_batch_that_needs_a_broker_which_is_away_is_an_error(held):
    del held[Q1]
    with pytest.raises(ConnectError, match="no master has queue 1 of t on b"):
        reader().partitions(to_json({Q0: 40, Q1: 10}), to_json({Q0: 50, Q1: 20}))


def test_a_replayed_batch_has_the_same_ranges(held):
    start, end = to_json({Q0: 40, Q1: 10}), to_json({Q0: 50, Q1: 20})
    before = ranges(reader().partitions(start, end))
    held[Q0] = Bounds(30, 1000)
    assert ranges(reader().partitions(start, end)) == before == [(Q0, 40, 50), (Q1, 10, 20)]


def test_offsets_that_retention_deleted_are_an_error_or_skipped(held):
    start, end = to_json({Q0: 2, Q1: 10}), to_json({Q0: 50, Q1: 20})
    with pytest.raises(DataLossError, match="holds offsets 5 to before 100, not the 2"):
        reader().partitions(start, end)
    skipped = reader(failOnDataLoss="false").partitions(start, end)
    assert ranges(skipped) == [(Q0, 5, 50), (Q1, 10, 20)]


def test_a_queue_that_shrank_is_an_error_or_read_on_from_its_end(held):
    start = to_json({Q0: 400, Q1: 10})
    with pytest.raises(DataLossError, match="ends before 100, but the query was at 400"):
        reader().latestOffset(start, ReadAllAvailable())
    lenient = reader(failOnDataLoss="false")
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end == to_json({Q0: 100, Q1: 50})
    assert ranges(lenient.partitions(start, end)) == [(Q1, 10, 50)]


def test_available_now_reads_no_further_than_its_start(held):
    made = reader(subscribe="t,u")
    made.prepareForTriggerAvailableNow()
    held[Q0] = Bounds(5, 999)
    held[OTHER] = Bounds(0, 10)
    first = made.latestOffset(to_json({Q0: 40, Q1: 50}), ReadAllAvailable())
    assert first == to_json({Q0: 100, Q1: 50, OTHER: 0})
    assert made.latestOffset(first, ReadAllAvailable()) == first


def test_an_unchanged_queue_gives_equal_text_and_no_partition(held):
    made = reader()
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert str(end) == str(start)
    assert made.partitions(start, end) == []


def test_a_reader_travels_without_its_connections(held):
    made = reader()
    made.initialOffset()
    copy = pickle.loads(pickle.dumps(made))
    assert copy.latestOffset(to_json({Q0: 1, Q1: 1}), ReadMaxRows(2)) is not None
    made.stop()
    made.stop()


def test_without_read_limits_everything_newest_is_read(held, monkeypatch):
    monkeypatch.setattr(stream, "HAS_READ_LIMITS", False)
    with pytest.raises(ConfigError, match=r"needs PySpark 4\.2"):
        reader(maxOffsetsPerTrigger="5")
    made = reader(subscribe="t,u")
    start = made.initialOffset()
    held[OTHER] = Bounds(3, 8)
    end = made.latestOffset()
    assert end == to_json({Q0: 100, Q1: 50, OTHER: 8})
    assert made.reportLatestOffset() == end
    assert ranges(made.partitions(start, end)) == [(OTHER, 3, 8)]


def test_without_read_limits_a_queue_that_shrank_is_seen_when_the_batch_is_planned(held):
    with pytest.raises(DataLossError, match="the query was at 101"):
        reader().partitions(to_json({Q0: 101, Q1: 50}), to_json({Q0: 100, Q1: 50}))


def test_a_partition_of_nothing_has_no_rows(held):
    assert list(reader().read(None)) == []
