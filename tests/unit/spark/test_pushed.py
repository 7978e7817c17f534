import pickle
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark import reader
from kerolox.spark.option_values import WHOLE_MAX
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import Bounds
from kerolox.spark.positions.pushed import CLOCK_MS, pushed_of
from kerolox.spark.reader import BatchReader, PushingReader
from kerolox.spark.rows.schema import schema_of

Q0, Q1, OTHER = (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1), MessageQueue("u", "c", 0))
SECOND = datetime.fromtimestamp(5_000, UTC)


def allowed(*filters: object, namespace: str = "") -> list[MessageQueue]:
    pushed = pushed_of(filters)
    return [queue for queue in (Q0, Q1, OTHER) if pushed.allows(queue, namespace)]


def test_queues_are_left_out_by_topic_broker_and_number():
    assert allowed() == [Q0, Q1, OTHER]
    assert allowed(EqualTo(("queueId",), 0)) == [Q0, OTHER]
    assert allowed(In(("queueId",), [1, 7, None])) == [Q1]
    assert allowed(EqualTo(("topic",), "t"), EqualNullSafe(("queueId",), 0)) == [Q0]
    assert allowed(EqualTo(("brokerName",), "c")) == [OTHER]
    assert allowed(EqualTo(("queueId",), 0), EqualTo(("queueId",), 1)) == []
    assert allowed(In(("topic",), [None])) == []


def test_topics_are_compared_without_their_namespace():
    queue = MessageQueue("ns%t", "b", 0)
    pushed = pushed_of([EqualTo(("topic",), "t")])
    assert pushed.allows(queue, "ns")
    assert not pushed.allows(queue, "")


@pytest.mark.parametrize(
    "odd",
    [
        Not(EqualTo(("queueId",), 0)),
        IsNotNull(("queueId",)),
        StringStartsWith(("topic",), "x"),
        EqualNullSafe(("queueId",), None),
        In(("queueId",), [1.5]),
        GreaterThan(("queueId",), 5),
        EqualTo(("properties", "a"), "b"),
        GreaterThan(("queueOffset",), 1.5),
        GreaterThan(("storeTimestamp",), datetime(2020, 1, 1)),
        EqualTo(("body",), b"x"),
    ],
)
def test_what_says_nothing_of_use_leaves_nothing_out(odd):
    assert pushed_of([odd]) == pushed_of([])


@pytest.mark.parametrize(
    ("filters", "start", "end"),
    [
        ([], 10, 90),
        ([EqualTo(("queueOffset",), 20)], 20, 21),
        ([GreaterThanOrEqual(("queueOffset",), 20)], 20, 90),
        ([GreaterThan(("queueOffset",), 20)], 20, 90),
        ([LessThan(("queueOffset",), 30)], 10, 31),
        ([LessThanOrEqual(("queueOffset",), 30)], 10, 31),
        ([GreaterThan(("queueOffset",), 20), LessThan(("queueOffset",), 30)], 20, 31),
        ([LessThan(("queueOffset",), WHOLE_MAX)], 10, 90),
    ],
)
def test_offsets_narrow_a_range(filters, start: int, end: int):
    assert pushed_of(filters).cut({Q0: 10}, {Q0: 90}) == ({Q0: start}, {Q0: end})


@pytest.mark.parametrize("offset", [5, 95])
def test_offsets_outside_of_a_range_leave_nothing(offset: int):
    starts, ends = pushed_of([EqualTo(("queueOffset",), offset)]).cut({Q0: 10}, {Q0: 90})
    assert starts[Q0] == ends[Q0]
    assert 10 <= starts[Q0] <= 90


def test_times_are_widened_by_what_a_clock_may_be_set_back():
    pushed = pushed_of([GreaterThan(("storeTimestamp",), SECOND)])
    assert (pushed.since_ms, pushed.until_ms) == (5_000_000 - CLOCK_MS, WHOLE_MAX)
    pushed = pushed_of([LessThan(("storeTimestamp",), SECOND)])
    assert (pushed.since_ms, pushed.until_ms) == (0, 5_000_000 + CLOCK_MS)


@pytest.mark.parametrize(
    ("filters", "tags", "expression"),
    [
        ([], (), None),
        ([EqualTo(("tags",), "a")], (), "a"),
        ([In(("tags",), ["b", "a"])], (), "a || b"),
        ([In(("tags",), ["b", "a"])], ("a", "c"), "a"),
        ([EqualTo(("tags",), "b")], ("a",), ""),
        ([EqualTo(("tags",), " a")], (), None),
        ([EqualTo(("tags",), "a||b")], (), None),
        ([EqualTo(("tags",), "*")], (), None),
        ([EqualTo(("tags",), "")], (), None),
    ],
)
def test_tags_are_asked_for_when_an_expression_can_say_them(filters, tags, expression):
    assert pushed_of(filters).tag_expression(tags) == expression


# -- the reader ------------------------------------------------------------------------------
class Held:
    """A cluster whose message n was stored at n minutes."""

    def __init__(self, name_servers, *, wait_seconds, connector, selection) -> None:
        self.topics = self

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def fresh(self) -> tuple[str, ...]:
        return ("t", "u")

    def complete(self, topics) -> dict[MessageQueue, Bounds]:
        return {Q0: Bounds(0, 100), Q1: Bounds(0, 100), OTHER: Bounds(0, 100)}

    def address(self, queue: MessageQueue) -> str:
        return "a:1"

    def first_since(self, times, held, group: str) -> dict[MessageQueue, int]:
        return {queue: min(-(-time // 60_000), 100) for queue, time in times.items()}


def planned(*filters: object, **given: str) -> list[tuple[MessageQueue, int, int]]:
    options = {"nameServer": "n:1", "subscribe": "t,u", "pushFilters": "true", **given}
    made = PushingReader(SourceOptions.parse(options), schema_of(["body"]))
    assert list(made.pushFilters(list(filters))) == list(filters), "all are left to Spark too"
    return [tuple(each) for partition in made.partitions() for _, each in partition.value]


def test_a_batch_reads_only_what_its_filters_may_want(monkeypatch):
    monkeypatch.setattr(reader, "ClusterView", Held)
    assert len(planned()) == 3
    assert planned(EqualTo(("queueId",), 1)) == [(Q1, 0, 100)]
    narrow = [EqualTo(("topic",), "u"), GreaterThan(("queueOffset",), 97)]
    assert planned(*narrow) == [(OTHER, 97, 100)]
    since = datetime.fromtimestamp(50 * 60, UTC)
    assert planned(EqualTo(("queueId",), 1), GreaterThan(("storeTimestamp",), since)) == [
        (Q1, 49, 100)
    ]
    assert planned(EqualTo(("queueId",), 1), LessThan(("storeTimestamp",), since)) == [(Q1, 0, 52)]
    assert planned(EqualTo(("tags",), "b"), subExpression="a") == []


def test_tags_of_a_filter_reach_the_tasks(monkeypatch):
    options = SourceOptions.parse({"nameServer": "n:1", "subscribe": "t", "pushFilters": "true"})
    made = PushingReader(options, schema_of(["body"]))
    made.pushFilters([EqualTo(("tags",), "a")])
    reduced: tuple[object, ...] = made.__reduce__()
    assert isinstance(reduced[1], tuple)
    payload = reduced[1][1]
    assert pickle.loads(payload)[0].sub_expression == "a"


def test_only_a_reader_with_the_option_takes_filters():
    assert "pushFilters" not in vars(BatchReader)


def test_a_stream_takes_no_filters():
    options = SourceOptions.parse({"nameServer": "n:1", "subscribe": "t", "pushFilters": "true"})
    with pytest.raises(ConfigError, match="option pushFilters is for batches only"):
        options.check_stream()
