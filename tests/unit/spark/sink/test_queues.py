from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.routes import BrokerAddresses, QueueData, TopicRoute
from kerolox.client.core.sending.queue_choice import queue_by_key
from kerolox.errors import MessageRejectedError
from kerolox.message import MessageQueue
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.queues import Share, TopicQueues, by_topic, shares_of
from kerolox.spark.sink.rows import Rows

ROUTE = TopicRoute(
    tuple(BrokerAddresses(name, "c", {0: f"{name}:1"}) for name in ("a", "b")),
    (QueueData("a", 3, 3, 6), QueueData("b", 2, 2, 6)),
)
QUEUES = [MessageQueue("t", "a", n) for n in range(3)] + [MessageQueue("t", "b", n) for n in (0, 1)]


def rows(columns: dict[str, list[Any]], **given: str) -> Rows:
    count = len(next(iter(columns.values())))
    options = SinkOptions.parse({"nameServer": "n:1", "topic": "t", **given}, is_stream=False)
    return Rows(pyarrow.record_batch({"body": [b"b"] * count, **columns}), options, 0)


def topic_queues() -> TopicQueues:
    return TopicQueues("t", ROUTE, 0)


def indices(share: Share) -> list[int] | None:
    return None if share.indices is None else share.indices.to_pylist()


def test_rows_that_want_nothing_go_to_all_queues_in_turn():
    [share] = shares_of(rows({"flag": [1, 2, 3]}), "t", None, 5)
    queues = topic_queues()
    assert indices(share) is None
    assert not share.is_fixed
    assert sorted(share.queue(queues) for _ in range(5)) == QUEUES
    assert len({share.queue(queues) for _ in range(5)}) == 5


@given(st.lists(st.text(max_size=12) | st.none(), min_size=1, max_size=20))
def test_a_text_key_gets_the_queue_that_the_client_gives_it(keys: list[str | None]):
    check_keys(keys, pyarrow.string())


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1, max_size=20))
def test_a_number_as_key_gets_the_queue_that_the_client_gives_it(keys: list[int | None]):
    check_keys(keys, pyarrow.int64())


def check_keys(keys: list[Any], kind: pyarrow.DataType) -> None:
    shares = shares_of(rows({"orderingKey": pyarrow.array(keys, kind)}), "t", None, 5)
    queues = topic_queues()
    seen: list[int] = []
    for share in shares:
        some = indices(share)
        assert some == sorted(some)
        seen += some
        if share.is_ordered:
            assert {queue_by_key(QUEUES, keys[row]) for row in some} == {share.queue(queues)}
        else:
            assert {keys[row] for row in some} == {None}
    assert sorted(seen) == list(range(len(keys)))


def test_rows_go_to_the_queue_and_broker_that_they_name():
    wanted = rows({"queueId": [1, None, 1, None], "brokerName": ["b", "b", None, None]})
    shares = {tuple(indices(share)): share for share in shares_of(wanted, "t", None, 5)}
    queues = topic_queues()

    def chosen(row: int) -> set[MessageQueue]:
        return {shares[row,].queue(queues) for _ in range(10)}

    assert chosen(0) == {MessageQueue("t", "b", 1)}
    assert chosen(1) == {MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)}
    assert chosen(2) == {MessageQueue("t", "a", 1), MessageQueue("t", "b", 1)}
    assert chosen(3) == set(QUEUES)


def test_an_option_stands_for_a_column_that_is_missing_or_null():
    [share] = shares_of(rows({"flag": [1, 2]}, queueId="2", brokerName="a"), "t", None, 5)
    assert share.queue(topic_queues()) == MessageQueue("t", "a", 2)
    both = shares_of(rows({"queueId": [1, None]}, queueId="0"), "t", None, 5)
    assert [(share.queue_id, indices(share)) for share in both] == [(0, [1]), (1, [0])] or [
        (share.queue_id, indices(share)) for share in both
    ] == [(1, [0]), (0, [1])]


def test_a_queue_that_is_not_there_is_an_error_that_says_what_is():
    [share] = shares_of(rows({"queueId": [9]}), "t", None, 5)
    with pytest.raises(MessageRejectedError, match=r"topic t has no queue 9 .* 5 on a, b"):
        share.queue(topic_queues())


def test_delayed_rows_travel_apart():
    shares = shares_of(rows({"delayLevel": [0, 3, None]}), "t", None, 5)
    assert sorted((share.is_delayed, indices(share)) for share in shares) == [
        (False, [0, 2]),
        (True, [1]),
    ]


def test_each_topic_has_its_rows_in_their_order():
    both = rows({"topic": ["x", "y", None, "x"], "queueId": [1, 1, 2, 1]})
    found = by_topic(both, "t")
    assert sorted((name, some.to_pylist()) for name, some in found) == [
        ("t", [2]),
        ("x", [0, 3]),
        ("y", [1]),
    ]
    some = dict(found)["x"]
    [share] = shares_of(both, "x", some, 5)
    assert (share.topic, share.queue_id, indices(share)) == ("x", 1, [0, 3])
