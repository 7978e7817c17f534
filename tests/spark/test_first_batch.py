"""The first batch of a query, on topics that are written to meanwhile.

``KEROLOX_SPARK_ROUNDS=20`` takes as many starts.
"""

import os

import pytest

from tests.support.clients.spark import SECONDS_OF_SPARK, Gathered, Sending

ROUNDS = int(os.environ.get("KEROLOX_SPARK_ROUNDS", "0"))
STARTS = ROUNDS or 2


@pytest.mark.timeout(600 + 90 * ROUNDS)
@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_query_starts_on_a_topic_that_is_written_to(start, topics, topic, tmp_path, starting):
    with Sending(topics.broker, topic) as sending:
        for number in range(STARTS):
            gathered = Gathered()
            checkpoint = tmp_path / str(number)
            with start(topic, checkpoint, gathered.take, startingOffsets=starting) as query:
                gathered.catch_up(query, sending)
            if starting == "earliest":
                assert {(queue_id, 0) for queue_id in range(4)} <= gathered.places.keys()


def test_a_single_batch_reads_what_is_there(start, topics, topic, tmp_path):
    topics.send_numbers(topic, range(40))
    gathered = Gathered()
    options = {"trigger": {"availableNow": True}, "startingOffsets": "earliest"}
    with start(topic, tmp_path / "now", gathered.take, **options) as query:
        assert query.awaitTermination(SECONDS_OF_SPARK)
    assert len(gathered.places) == 40
