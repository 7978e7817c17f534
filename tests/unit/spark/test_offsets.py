import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import ConfigError
from kerolox.message import MessageQueue
from kerolox.spark.bounds import Bound
from kerolox.spark.positions.offsets import (
    PARTITION_ROWS_MIN,
    Bounds,
    QueueRange,
    from_json,
    offset_of,
    plan_partitions,
    resolve,
    to_json,
)


def queue(queue_id: int, topic: str = "t", broker_name: str = "b") -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


queues = st.builds(
    MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b"]), st.integers(0, 20)
)
offsets = st.dictionaries(queues, st.integers(0, 10**12), max_size=12)
ranges = st.dictionaries(
    queues, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12
).map(lambda made: [QueueRange(q, start, start + size) for q, (start, size) in made.items()])


@given(offsets)
def test_offsets_survive_their_json(given_offsets):
    assert from_json(json.loads(json.dumps(to_json(given_offsets))), offset_of) == given_offsets


@given(offsets, st.randoms())
def test_equal_offsets_have_equal_text_whatever_their_order(given_offsets, random):
    items = list(given_offsets.items())
    random.shuffle(items)
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(given_offsets))


@pytest.mark.parametrize("wrong", [{"t": 3}, {"t": {"b": {"x": 1}}}, {"t": {"b": {"0": None}}}])
def test_offsets_of_another_source_are_refused(wrong):
    with pytest.raises(ConfigError, match="not those of a rocketmq source"):
        from_json(wrong, offset_of)


BOUNDS = {queue(0): Bounds(5, 50), queue(1): Bounds(0, 7)}


def test_words_resolve_to_the_bounds():
    assert resolve(Bound.EARLIEST, BOUNDS, option="o") == {queue(0): 5, queue(1): 0}
    assert resolve(Bound.LATEST, BOUNDS, option="o") == {queue(0): 50, queue(1): 7}


def test_special_numbers_resolve_to_the_bounds_and_others_stay():
    assert resolve({queue(0): -2, queue(1): -1}, BOUNDS, option="o") == {queue(0): 5, queue(1): 7}
    assert resolve({queue(0): 9, queue(1): 99}, BOUNDS, option="o") == {queue(0): 9, queue(1): 99}


def test_a_queue_that_is_left_out_is_named():
    with pytest.raises(ConfigError, match="leaves out t/b/1"):
        resolve({queue(0): 5}, BOUNDS, option="startingOffsets")


def test_a_queue_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="queues that do not exist: t/b/2"):
        resolve({queue(0): 5, queue(1): 0, queue(2): 0}, BOUNDS, option="startingOffsets")


@given(ranges, st.one_of(st.none(), st.integers(1, 40)))
def test_partitions_cover_every_offset_once_and_are_of_equal_length(given_ranges, min_partitions):
    partitions = plan_partitions(given_ranges, min_partitions=min_partitions)
    pieces = sorted(piece for partition in partitions for piece in partition)
    joined: list[QueueRange] = []
    for piece in pieces:
        assert piece.start < piece.end
        if joined and joined[-1].queue == piece.queue and joined[-1].end == piece.start:
            joined[-1] = QueueRange(piece.queue, joined[-1].start, piece.end)
        else:
            joined.append(piece)
    assert joined == sorted(each for each in given_ranges if each.start < each.end)
    sizes = [sum(piece.end - piece.start for piece in each) for each in partitions]
    assert not sizes or max(sizes) - min(sizes) <= 1
    total = sum(sizes)
    assert len(partitions) >= min(min_partitions or 1, total)


def test_little_data_is_one_partition():
    assert len(plan_partitions([QueueRange(queue(i), 0, 10) for i in range(16)])) == 1


def test_much_data_is_one_partition_per_queue():
    size = 4 * PARTITION_ROWS_MIN
    assert len(plan_partitions([QueueRange(queue(i), 0, size) for i in range(4)])) == 4


def test_min_partitions_cuts_a_queue():
    partitions = plan_partitions([QueueRange(queue(0), 0, 10)], min_partitions=3)
    assert [[tuple(piece[1:]) for piece in each] for each in partitions] == [
        [(0, 3)],
        [(3, 6)],
        [(6, 10)],
    ]


def test_nothing_to_read_is_no_partition():
    assert plan_partitions([QueueRange(queue(0), 5, 5)], min_partitions=4) == []


def test_no_partition_has_more_rows_than_its_maximum():
    queues = [QueueRange(MessageQueue("t", "b", n), 0, rows) for n, rows in enumerate((10, 0, 25))]
    made = plan_partitions(queues, rows_max=7)
    sizes = [sum(each.end - each.start for each in part) for part in made]
    assert sizes == [7, 7, 7, 7, 7]
    assert len(plan_partitions(queues, rows_max=7, min_partitions=9)) == 9
    assert len(plan_partitions(queues, rows_max=35)) == 1
    with pytest.raises(ConfigError, match=r"maxRecordsPerPartition=1 makes 20000 .* write 2"):
        plan_partitions([QueueRange(MessageQueue("t", "b", 0), 0, 20_000)], rows_max=1)
