from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.sending.queue_choice import QueueChooser
from kerolox.message import MessageQueue

QUEUES = [MessageQueue("T", broker, queue_id) for broker in "ab" for queue_id in range(3)]


@given(start=st.integers(0, 2**31), rounds=st.integers(1, 5))
def test_each_round_visits_every_queue_once(start: int, rounds: int) -> None:
    chooser = QueueChooser(QUEUES, start=start)
    for _ in range(rounds):
        assert sorted(chooser.next() for _ in QUEUES) == sorted(QUEUES)


@given(start=st.integers(0, 100), avoid=st.sampled_from("ab"))
def test_a_retry_avoids_the_broker_that_failed(start: int, avoid: str) -> None:
    chooser = QueueChooser(QUEUES, start=start)
    assert all(chooser.next([avoid]).broker_name != avoid for _ in range(12))


def test_with_one_broker_a_retry_goes_there_again() -> None:
    chooser = QueueChooser(QUEUES[:3], start=0)
    assert [chooser.next(["a"]).queue_id for _ in range(3)] == [1, 2, 0]


@given(start=st.integers(0, 100))
def test_a_broker_that_was_not_tried_comes_before_those_that_were(start: int) -> None:
    queues = [MessageQueue("T", broker, queue_id) for broker in "abc" for queue_id in range(2)]
    chooser = QueueChooser(queues, start=start)
    assert all(chooser.next(["a", "b"]).broker_name == "c" for _ in range(6))
    assert all(chooser.next(["a", "b", "c"]).broker_name != "c" for _ in range(6))


def test_no_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="no queue"):
        QueueChooser([], start=0)
