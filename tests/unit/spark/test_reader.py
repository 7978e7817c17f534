import logging
import pickle

import pytest

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark import reader
from kerolox.spark.network.connecting import Connector
from kerolox.spark.options import SourceOptions
from kerolox.spark.partition import read_partition
from kerolox.spark.positions.offsets import Bounds, DataLossError, Known, Mark, QueueRange
from kerolox.spark.positions.planned import QueuePartition
from kerolox.spark.reader import BatchReader
from kerolox.spark.rows.schema import schema_of
from kerolox.spark.selection import Selection
from tests.support.servers.threaded_broker import Queue, ThreadedBroker

QUEUE = MessageQueue("t", "b", 0)


class OneQueue:
    """A cluster of one queue that holds offsets 50 to before 100."""

    def __init__(
        self,
        name_servers: tuple[str, ...],
        *,
        wait_seconds: float,
        connector: Connector,
        selection: Selection,
    ) -> None:
        self.topics, self.selection = self, selection
        assert name_servers == ("n:1",)
        assert wait_seconds == 120

    def fresh(self) -> tuple[str, ...]:
        pattern = self.selection.pattern
        return self.selection.choose(["t"], []) if pattern else self.selection.topics

    def __enter__(self) -> "OneQueue":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def complete(self, topics) -> dict[MessageQueue, Bounds]:
        return {QUEUE: Bounds(50, 100)}

    def address(self, queue: MessageQueue) -> str:
        return f"{queue.broker_name}:1"


@pytest.fixture(autouse=True)
def one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ClusterView", OneQueue)


def planned(start: int, end: int, **given: str) -> list[tuple[int, int]]:
    offsets = {"startingOffsets": start, "endingOffsets": end}
    texts = {name: f'{{"t":{{"b":{{"0":{offset}}}}}}}' for name, offset in offsets.items()}
    options = SourceOptions.parse({"nameServer": "n:1", "subscribe": "t", **texts, **given})
    partitions = BatchReader(options, schema_of(["body"])).partitions()
    return [each[1:] for made in partitions for _, each in made.value]


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (-2, 30, "t queue 0 on b holds offsets 50 to before 100, not those to before .* 30"),
        (60, 101, "t queue 0 on b holds offsets 50 to before 100, not those to before .* 101"),
        (101, -1, "t queue 0 on b holds offsets 50 to before 100, not the 101 to start from"),
        (49, -1, "t queue 0 on b holds offsets 50 to before 100, not the 49 to start from"),
    ],
)
def test_a_range_that_the_queue_does_not_hold_is_an_error(start: int, end: int, text: str):
    with pytest.raises(DataLossError, match=text):
        planned(start, end)


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(-2, 30, []), (60, 101, [(60, 100)]), (101, -1, []), (49, -1, [(50, 100)])],
)
def test_a_range_that_is_gone_in_part_is_cut_with_a_warning(caplog, start: int, end: int, left):
    with caplog.at_level(logging.WARNING):
        assert planned(start, end, failOnDataLoss="false") == left
    assert "data lost" in caplog.text


def test_the_bounds_themselves_are_no_loss(caplog):
    assert planned(50, 100) == [(50, 100)]
    assert planned(-2, -1) == [(50, 100)]
    assert planned(-2, 50) == []
    assert not caplog.records


def test_a_task_is_told_what_was_known_of_its_queues():
    queue = Queue(200)
    queue.time_of = lambda offset: 5_000 + offset
    given = SourceOptions.parse({"nameServer": "127.0.0.1:1", "subscribe": "t"})
    with ThreadedBroker(queue) as broker:
        ranges = [(broker.address, QueueRange(QUEUE, 10, 90))]
        of_this_life = QueuePartition(ranges, {QUEUE: Known(Mark(120, 5_119))})
        of_another = QueuePartition(ranges, {QUEUE: Known(Mark(120, 1_119))})
        schema = schema_of(["body"])
        for partition in (of_this_life, pickle.loads(pickle.dumps(of_this_life))):
            batches = read_partition(partition, given, schema)
            assert sum(batch.num_rows for batch in batches) == 80
        for partition in (of_another, pickle.loads(pickle.dumps(of_another))):
            with pytest.raises(DataLossError, match="created again"):
                list(read_partition(partition, given, schema))


def test_a_pattern_that_matches_nothing_is_an_error_in_a_batch():
    given = {"nameServer": "n:1", "subscribePattern": "orders-.*"}
    made = BatchReader(SourceOptions.parse(given), schema_of(["body"]))
    with pytest.raises(ConfigError, match=r"subscribePattern='orders-.*' matches no topic"):
        made.partitions()
