from hypothesis import given
from hypothesis import strategies as st

from kerolox.message import MessageQueue
from kerolox.spark.positions.limits import limit_offsets


def queue(queue_id: int, topic: str = "t", broker_name: str = "b") -> MessageQueue:
    return MessageQueue(topic, broker_name, queue_id)


queues = st.builds(
    MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b"]), st.integers(0, 20)
)
starts = st.dictionaries(queues, st.integers(0, 10**12), max_size=12)
sizes = st.one_of(st.integers(0, 3), st.integers(0, 10**6))


@given(starts, st.data(), st.integers(1, 10**6))
def test_a_limit_is_used_up_exactly_and_no_queue_goes_beyond_its_end(start, data, limit):
    waiting = data.draw(st.fixed_dictionaries({q: sizes for q in start}))
    end = {q: start[q] + waiting[q] for q in start}
    limited = limit_offsets(start, end, limit)
    assert limited.keys() == end.keys()
    assert all(start[q] <= limited[q] <= end[q] for q in end)
    taken = sum(limited[q] - start[q] for q in end)
    assert taken == min(limit, sum(waiting.values()))


@given(starts, st.data(), st.integers(1, 20))
def test_each_queue_with_backlog_moves_within_a_bounded_number_of_batches(start, data, limit):
    end = {q: start[q] + data.draw(sizes) for q in start}
    waiting = {q for q in start if end[q] > start[q]}
    moved: set[MessageQueue] = set()
    position = dict(start)
    for _ in range(-(-len(start) // limit)):
        after = limit_offsets(position, end, limit)
        moved |= {q for q in start if after[q] > position[q]}
        position = after
    assert moved == waiting


@given(starts, st.data(), st.integers(1, 10**6))
def test_each_queue_moves_in_each_batch_when_the_limit_allows_it(start, data, spare):
    end = {q: start[q] + data.draw(sizes) for q in start}
    limited = limit_offsets(start, end, len(start) + spare)
    assert all(limited[q] > start[q] for q in start if end[q] > start[q])


def test_a_small_queue_beside_a_long_one_is_read_while_both_grow():
    start = {queue(0): 0, queue(1): 0}
    end = {queue(0): 1, queue(1): 10_000_000}
    for _ in range(200):
        after = limit_offsets(start, end, 100)
        assert after[queue(0)] == end[queue(0)]
        start, end = after, {queue(0): end[queue(0)] + 1, queue(1): end[queue(1)] + 5_000}


def test_a_limit_is_shared_by_what_waits():
    limited = limit_offsets({queue(0): 10, queue(1): 0}, {queue(0): 40, queue(1): 90}, 40)
    assert limited == {queue(0): 20, queue(1): 30}


def test_equal_starts_give_equal_ends_whatever_their_order():
    start, end = {queue(n): n * 7 for n in range(9)}, {queue(n): n * 7 + 50 for n in range(9)}
    again = limit_offsets(dict(reversed(start.items())), dict(reversed(end.items())), 4)
    assert again == limit_offsets(start, end, 4)


def test_a_queue_without_a_start_keeps_its_end_under_a_limit():
    assert limit_offsets({queue(0): 0}, {queue(0): 100, queue(1): 7}, 10) == {
        queue(0): 10,
        queue(1): 7,
    }


def test_nothing_is_limited_to_nothing():
    assert limit_offsets({}, {}, 1) == {}
