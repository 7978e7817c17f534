import json
import logging
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kerolox.errors import ConfigError, ConnectError
from kerolox.message import MessageQueue
from kerolox.spark import stream
from kerolox.spark.network.cluster import AwayError
from kerolox.spark.network.connecting import Connector
from kerolox.spark.options import SourceOptions
from kerolox.spark.positions.offsets import Bounds, DataLossError, to_json
from kerolox.spark.positions.position import Document, SourcePosition
from kerolox.spark.rows.schema import schema_of
from kerolox.spark.selection import Selection
from kerolox.spark.stream import StreamPlanner

Q0, Q1, OTHER = (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1), MessageQueue("u", "c", 0))


class FakeCluster:
    """The queues that a test says exist, with their bounds; a message's store time is 1,000,000
    plus its offset, in a second life 2,000,000 plus its offset."""

    held: dict[MessageQueue, Bounds]
    life: int
    away: set[str]
    looks: int
    stored: dict[MessageQueue, int]
    """The group's offsets."""
    ends: dict[MessageQueue, int]
    """Where queues end that their topics have no more."""

    def __init__(
        self,
        name_servers: tuple[str, ...],
        *,
        wait_seconds: float,
        connector: Connector,
        selection: Selection,
    ) -> None:
        assert name_servers == ("n:1",)
        self.topics, self.selection = self, selection

    def now(self) -> tuple[str, ...]:
        if self.selection.pattern is None:
            return self.selection.topics
        return self.selection.choose([queue.topic for queue in self.held], [])

    fresh = now

    def view(self, topics) -> dict[MessageQueue, Bounds]:
        FakeCluster.looks += 1
        return {
            queue: now._replace(last_time=self.time(now.maximum - 1) if now.maximum else 0)
            for queue, now in self.held.items()
            if queue.topic in topics and queue.broker_name not in self.away
        }

    def complete(self, topics, needed=()) -> dict[MessageQueue, Bounds]:
        held = self.view(topics)
        if missing := sorted(set(needed) - held.keys()):
            raise ConnectError(f"no master has {missing[0]}")
        return held

    def address(self, queue: MessageQueue) -> str:
        return f"{queue.broker_name}:1"

    def time(self, offset: int) -> int:
        return self.life * 1_000_000 + offset

    def store_time(self, queue: MessageQueue, offset: int, group: str) -> int | None:
        if queue.broker_name in self.away:
            raise AwayError(queue.broker_name, ConnectError("away"))
        held = self.held[queue]
        return self.time(offset) if held.minimum <= offset < held.maximum else None

    def first_after(self, queue: MessageQueue, held: Bounds, time_ms: int, group: str) -> int:
        offsets = range(held.minimum, held.maximum)
        return next((each for each in offsets if self.time(each) > time_ms), held.maximum)

    def first_since(self, times, held, group: str) -> dict[MessageQueue, int]:
        return {
            queue: self.first_after(queue, held[queue], time - 1, group)
            for queue, time in times.items()
        }

    def committed(self, queues, group: str) -> dict[MessageQueue, int]:
        assert group == "g"
        return {queue: self.stored[queue] for queue in queues if queue in self.stored}

    def lost(self, queues, group: str) -> dict[MessageQueue, int]:
        assert group
        return {queue: self.ends[queue] for queue in queues if queue in self.ends}

    def commit(self, offsets, group: str) -> set[MessageQueue]:
        assert group == "g"
        done = {q: offset for q, offset in offsets.items() if q.broker_name not in self.away}
        self.stored.update(done)
        return set(done)

    def close(self) -> None:
        pass


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[MessageQueue, Bounds]:
    monkeypatch.setattr(FakeCluster, "held", {Q0: Bounds(5, 100), Q1: Bounds(0, 50)}, raising=False)
    monkeypatch.setattr(FakeCluster, "life", 1, raising=False)
    monkeypatch.setattr(FakeCluster, "away", set(), raising=False)
    monkeypatch.setattr(FakeCluster, "looks", 0, raising=False)
    monkeypatch.setattr(FakeCluster, "stored", {}, raising=False)
    monkeypatch.setattr(FakeCluster, "ends", {}, raising=False)
    monkeypatch.setattr(stream, "ClusterView", FakeCluster)
    return FakeCluster.held


def reader(**given: str) -> StreamPlanner:
    options = {"nameServer": "n:1", "pollTimeoutMs": "1", **given}
    if not {"subscribePattern", "assign"} & given.keys():
        options.setdefault("subscribe", "t")
    options.setdefault("pollIntervalMs", "1")
    return StreamPlanner(SourceOptions.parse(options), schema_of(["body"]))


def ranges(partitions) -> list[tuple[MessageQueue, int, int]]:
    return [tuple(each) for made in partitions for _, each in made.value]


def kept(document: Document) -> Document:
    """As it comes back from Spark and the checkpoint."""
    return json.loads(json.dumps(document))


def offsets(document: Document) -> dict[MessageQueue, int]:
    return SourcePosition.parse(kept(document)).offsets


def at(**marks: int) -> Document:
    """A position of a query that has read, by the number of each queue (q0, q1)."""
    return SourcePosition(
        {MessageQueue("t", "b", int(q[1:])): o for q, o in marks.items()}
    ).to_json()


def read_so_far(made: StreamPlanner, *, limit: object = None) -> Document:
    """A document that a query has left in its checkpoint after reading all."""
    end = made.latestOffset(made.initialOffset(), limit or ReadAllAvailable())
    return kept(end)


def test_a_new_query_starts_at_the_end_unless_told_otherwise(held):
    assert offsets(reader().initialOffset()) == {Q0: 100, Q1: 50}
    assert offsets(reader(startingOffsets="earliest").initialOffset()) == {Q0: 5, Q1: 0}
    text = '{"t":{"b":{"0":7,"1":-2}}}'
    assert offsets(reader(startingOffsets=text).initialOffset()) == {Q0: 7, Q1: 0}


def test_messages_in_a_queue_that_its_topic_lost_are_a_loss(held, caplog):
    made = reader(startingOffsets="earliest")
    start = made.latestOffset(made.initialOffset(), ReadMaxRows(10))
    del held[Q1]
    # A route that is older than the queue is no loss.
    assert offsets(made.latestOffset(start, ReadAllAvailable()))[Q0] == 100
    FakeCluster.ends[Q1] = 50
    with pytest.raises(DataLossError, match="t has no queue 1 on b any more, and the messages in"):
        reader().latestOffset(start, ReadAllAvailable())
    lenient = reader(failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    with caplog.at_level(logging.WARNING):
        end = lenient.latestOffset(start, ReadAllAvailable())
        lenient.latestOffset(end, ReadAllAvailable())
    assert offsets(end)[Q0] == 100
    assert offsets(end)[Q1] == offsets(start)[Q1]
    assert caplog.text.count("were not read") == 1


def test_a_lost_queue_that_was_read_to_its_end_is_no_loss(held):
    made = reader(startingOffsets="earliest")
    start = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    del held[Q1]
    FakeCluster.ends[Q1] = 50
    assert offsets(made.latestOffset(start, ReadAllAvailable())) == {Q0: 100, Q1: 50}


def test_a_run_with_an_end_says_that_a_queue_was_lost(held):
    made = reader(startingOffsets="earliest")
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    del held[Q1]
    FakeCluster.ends[Q1] = 50
    with pytest.raises(DataLossError, match="give the topic 2 read queues again"):
        made.latestOffset(start, ReadAllAvailable())


def test_a_start_outside_of_a_queue_is_an_error_or_moved(held):
    text = '{"t":{"b":{"0":3,"1":60}}}'
    with pytest.raises(DataLossError, match="not the 3 to start from"):
        reader(startingOffsets=text).initialOffset()
    lenient = reader(startingOffsets=text, failOnDataLoss="false")
    assert offsets(lenient.initialOffset()) == {Q0: 5, Q1: 50}


def test_a_query_starts_at_a_time_in_all_queues_or_in_each(held):
    made = reader(startingTimestamp="1000040")
    assert offsets(made.initialOffset()) == {Q0: 40, Q1: 40}
    text = '{"t":{"b":{"0":1000050,"1":7}}}'
    made = reader(startingOffsetsByTimestamp=text)
    assert offsets(made.initialOffset()) == {Q0: 50, Q1: 0}


def test_a_time_after_the_last_message_is_the_end_or_an_error(held):
    made = reader(startingTimestamp="1000060")
    assert offsets(made.initialOffset()) == {Q0: 60, Q1: 50}
    strict = reader(startingTimestamp="1000060", startingOffsetsByTimestampStrategy="error")
    text = "option startingTimestamp: t queue 1 on b has no message since 1000060 ms"
    with pytest.raises(ConfigError, match=text):
        strict.initialOffset()


def test_times_are_given_for_every_queue_and_no_other(held):
    for text, what in (
        ('{"t":{"b":{"0":5}}}', "leaves out t/b/1; give every queue a time"),
        ('{"t":{"b":{"0":5,"1":5,"2":5}}}', "names queues that do not exist: t/b/2"),
    ):
        with pytest.raises(ConfigError, match=f"option startingOffsetsByTimestamp {what}"):
            reader(startingOffsetsByTimestamp=text).initialOffset()


def test_a_query_starts_at_the_offsets_of_its_group_else_at_the_first_message(held):
    FakeCluster.stored = {Q0: 33}
    made = reader(startingOffsets="group", consumerGroup="g")
    assert offsets(made.initialOffset()) == {Q0: 33, Q1: 0}
    FakeCluster.stored = {Q0: 3}
    with pytest.raises(DataLossError, match="not the 3 to start from"):
        reader(startingOffsets="group", consumerGroup="g").initialOffset()


# -- offsets of the group --------------------------------------------------------------------
def test_the_groups_offsets_are_those_of_batches_that_are_done(held):
    made = reader(commitGroupOffsets="true", consumerGroup="g", startingOffsets="earliest")
    start = kept(made.initialOffset())
    first = kept(made.latestOffset(start, ReadMaxRows(10)))
    made.partitions(start, first)
    assert FakeCluster.stored == {}
    second = kept(made.latestOffset(first, ReadMaxRows(10)))
    assert FakeCluster.stored == offsets(first)
    made.partitions(first, second)
    assert FakeCluster.stored == offsets(first)
    # The last batch: Spark asks once more, also under AvailableNow.
    made.latestOffset(second, ReadMaxRows(10))
    assert FakeCluster.stored == offsets(second)


def test_a_restarted_query_stores_what_its_checkpoint_says(held):
    made = reader(commitGroupOffsets="true", consumerGroup="g", startingOffsets="earliest")
    end = read_so_far(made)
    again = reader(commitGroupOffsets="true", consumerGroup="g")
    again.latestOffset(end, ReadAllAvailable())
    assert FakeCluster.stored == {Q0: 100, Q1: 50}


def test_a_broker_that_is_away_gets_the_groups_offsets_later(held):
    held[OTHER] = Bounds(0, 7)
    options = {"commitGroupOffsets": "true", "consumerGroup": "g", "startingOffsets": "earliest"}
    made = reader(subscribe="t,u", **options)
    end = read_so_far(made)
    FakeCluster.away.add("c")
    made.latestOffset(end, ReadAllAvailable())
    assert FakeCluster.stored == {Q0: 100, Q1: 50}
    FakeCluster.away.clear()
    made.latestOffset(end, ReadAllAvailable())
    assert FakeCluster.stored[OTHER] == 7


def test_without_the_option_no_offsets_of_a_group_are_stored(held):
    made = reader()
    made.latestOffset(read_so_far(made), ReadAllAvailable())
    made.commit(at(q0=40))
    assert FakeCluster.stored == {}


def test_pyspark_4_1_stores_the_groups_offsets_when_it_says_a_batch_is_done(held, monkeypatch):
    monkeypatch.setattr(stream, "HAS_READ_LIMITS", False)
    made = reader(commitGroupOffsets="true", consumerGroup="g", startingOffsets="earliest")
    first = kept(made.latestOffset())
    made.latestOffset()
    assert FakeCluster.stored == {}
    made.commit(first)
    assert FakeCluster.stored == offsets(first)


# -- batches that wait -----------------------------------------------------------------------
def test_a_batch_waits_for_enough_offsets_or_for_the_delay(held, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(
        stream, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    )
    made = reader(minOffsetsPerTrigger="20", maxTriggerDelay="60s")
    start = read_so_far(made)
    held[Q0] = Bounds(5, 119)
    assert made.latestOffset(start, ReadAllAvailable()) == start
    held[Q0] = Bounds(5, 120)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert offsets(end)[Q0] == 120
    held[Q0] = Bounds(5, 121)
    now[0] = 59.0
    assert made.latestOffset(end, ReadAllAvailable()) == end
    assert made.reportLatestOffset() == to_json({Q0: 121, Q1: 50})
    now[0] = 60.0
    assert offsets(made.latestOffset(end, ReadAllAvailable()))[Q0] == 121


def test_a_run_with_an_end_never_waits_for_more(held):
    made = reader(minOffsetsPerTrigger="20")
    start = read_so_far(made)
    held[Q0] = Bounds(5, 101)
    made.prepareForTriggerAvailableNow()
    assert offsets(made.latestOffset(start, ReadAllAvailable()))[Q0] == 101


# -- the first batch -------------------------------------------------------------------------
def test_the_initial_offsets_are_the_same_at_each_call(held):
    made = reader()
    first = made.initialOffset()
    held[Q0] = Bounds(5, 130)
    assert made.initialOffset() == first


def test_a_first_batch_begins_where_the_first_answer_was(held):
    made = reader()
    start = kept(made.initialOffset())
    held[Q0] = Bounds(5, 130)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    held[Q0] = Bounds(5, 170)
    assert ranges(made.partitions(kept(made.initialOffset()), end)) == [(Q0, 100, 130)]


def test_a_first_batch_that_is_done_again_is_the_same(held):
    made = reader()
    start = kept(made.initialOffset())
    held[Q0] = Bounds(5, 130)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    held[Q0], held[Q1] = Bounds(5, 500), Bounds(0, 60)
    # Another process, which Spark asks for the initial offsets anew.
    again = reader()
    assert ranges(again.partitions(kept(again.initialOffset()), end)) == [(Q0, 100, 130)]
    following = kept(again.latestOffset(end, ReadAllAvailable()))
    assert ranges(again.partitions(end, following)) == [(Q0, 130, 500), (Q1, 50, 60)]


@pytest.mark.parametrize("starting", ["earliest", '{"t":{"b":{"0":-2,"1":-2}}}'])
def test_retention_during_the_first_batch_is_no_loss_from_earliest(held, starting):
    made = reader(startingOffsets=starting)
    start = kept(made.initialOffset())
    held[Q0] = Bounds(40, 100)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert ranges(made.partitions(start, end)) == [(Q0, 40, 100), (Q1, 0, 50)]
    held[Q0], held[Q1] = Bounds(60, 200), Bounds(50, 70)
    again = reader(startingOffsets=starting)
    assert ranges(again.partitions(kept(again.initialOffset()), end)) == [(Q0, 60, 100)]


def test_retention_past_offsets_that_were_given_is_a_loss(held):
    made = reader(startingOffsets='{"t":{"b":{"0":10,"1":-2}}}')
    start = kept(made.initialOffset())
    held[Q0] = Bounds(40, 100)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(DataLossError, match="not the 10 to start from"):
        made.partitions(start, end)


def test_a_first_batch_under_a_limit_is_done_again_from_its_start(held):
    made = reader(startingOffsets="earliest")
    start = kept(made.initialOffset())
    end = kept(made.latestOffset(start, ReadMaxRows(10)))
    first = ranges(made.partitions(start, end))
    again = reader(startingOffsets="earliest")
    assert ranges(again.partitions(kept(again.initialOffset()), end)) == first
    assert sum(stop - begin for _, begin, stop in first) == 10


# -- further batches -------------------------------------------------------------------------
def test_a_batch_ends_at_the_newest_offsets_or_at_the_limit(held):
    start = at(q0=40, q1=10)
    newest = reader().latestOffset(start, ReadAllAvailable())
    assert offsets(newest) == {Q0: 100, Q1: 50}
    limited = offsets(reader().latestOffset(start, ReadMaxRows(10)))
    assert limited[Q0] - 40 + limited[Q1] - 10 == 10
    made = reader(maxOffsetsPerTrigger="9")
    assert made.getDefaultReadLimit() == ReadMaxRows(9)
    assert offsets(made.latestOffset(start, ReadAllAvailable())) == {Q0: 100, Q1: 50}


def test_a_queue_that_appears_is_read_from_its_start(held):
    made = reader(subscribe="t,u")
    start = at(q0=100, q1=50)
    held[OTHER] = Bounds(3, 8)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert offsets(end) == {Q0: 100, Q1: 50, OTHER: 8}
    assert ranges(made.partitions(start, end)) == [(OTHER, 3, 8)]
    held[OTHER] = Bounds(4, 90)
    assert ranges(reader(subscribe="t,u").partitions(start, end)) == [(OTHER, 4, 8)]


def test_a_topic_that_a_pattern_means_and_that_appears_is_read_from_its_start(held):
    made = reader(subscribePattern="[tu]")
    start = kept(made.initialOffset())
    assert offsets(start) == {Q0: 100, Q1: 50}
    held[OTHER], held[MessageQueue("tu", "c", 0)] = Bounds(3, 8), Bounds(0, 5)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert ranges(made.partitions(start, end)) == [(OTHER, 3, 8)]
    del held[OTHER]
    following = kept(made.latestOffset(end, ReadAllAvailable()))
    assert offsets(following)[OTHER] == 8


def test_a_pattern_that_means_no_topic_yet_waits_for_one(held):
    made = reader(subscribePattern="new-.*")
    start = kept(made.initialOffset())
    assert offsets(start) == {}
    held[MessageQueue("new-1", "b", 0)] = Bounds(2, 7)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert ranges(made.partitions(start, end)) == [(MessageQueue("new-1", "b", 0), 2, 7)]


def test_assigned_queues_are_read_and_no_others(held):
    made = reader(assign='{"t":{"b":[1]}}', startingOffsets="earliest")
    start = kept(made.initialOffset())
    assert offsets(start) == {Q1: 0}
    held[MessageQueue("t", "b", 2)] = Bounds(0, 9)
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert ranges(made.partitions(start, end)) == [(Q1, 0, 50)]
    made.prepareForTriggerAvailableNow()
    assert offsets(made.latestOffset(end, ReadAllAvailable())) == {Q1: 50}


def test_an_assigned_queue_that_does_not_exist_is_an_error(held):
    with pytest.raises(ConfigError, match="assign names queues that do not exist: t/b/7; there"):
        reader(assign='{"t":{"b":[1,7]}}').initialOffset()


def test_a_queue_whose_broker_is_away_keeps_its_place(held):
    held[OTHER] = Bounds(3, 8)
    made = reader(subscribe="t,u")
    start = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    held[Q0], held[OTHER] = Bounds(5, 120), Bounds(3, 9)
    FakeCluster.away.add("c")
    end = made.latestOffset(kept(start), ReadAllAvailable())
    assert offsets(end) == {Q0: 120, Q1: 50, OTHER: 8}
    FakeCluster.away.clear()
    end = made.latestOffset(kept(end), ReadAllAvailable())
    assert offsets(end) == {Q0: 120, Q1: 50, OTHER: 9}


def test_a_run_with_an_end_does_not_end_while_a_broker_is_away(held):
    held[OTHER] = Bounds(3, 8)
    start = read_so_far(reader(subscribe="t,u"))
    held[Q0], held[OTHER] = Bounds(5, 120), Bounds(3, 9)
    made = reader(subscribe="t,u")
    made.prepareForTriggerAvailableNow()
    FakeCluster.away.add("c")
    # What the others have comes first.
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert offsets(end) == {Q0: 120, Q1: 50, OTHER: 8}
    # The same end once more would be the end of the run.
    with pytest.raises(ConnectError):
        made.latestOffset(end, ReadAllAvailable())
    FakeCluster.away.clear()
    end = kept(made.latestOffset(end, ReadAllAvailable()))
    assert offsets(end) == {Q0: 120, Q1: 50, OTHER: 9}
    FakeCluster.away.add("c")
    assert made.latestOffset(end, ReadAllAvailable()) == end


def test_a_run_with_an_end_waits_for_a_broker_that_comes_back(held, monkeypatch):
    start = read_so_far(reader())
    held[Q0] = Bounds(5, 120)
    made = reader(pollTimeoutMs="60000")
    made.prepareForTriggerAvailableNow()
    FakeCluster.away.add("b")

    def complete(self, topics, needed=()):
        FakeCluster.away.clear()
        return self.view(topics)

    monkeypatch.setattr(FakeCluster, "complete", complete)
    assert offsets(made.latestOffset(start, ReadAllAvailable())) == {Q0: 120, Q1: 50}


def test_a_broker_that_goes_away_between_two_questions_keeps_its_place(held, monkeypatch):
    start = read_so_far(reader())
    held[Q0] = Bounds(5, 120)

    def away(self, queue, offset, group):
        raise AwayError(queue.broker_name, ConnectError("gone"))

    monkeypatch.setattr(FakeCluster, "store_time", away)
    assert reader().latestOffset(start, ReadAllAvailable()) == start


def test_a_topic_that_is_not_subscribed_any_more_is_dropped(held):
    start = SourcePosition({Q0: 40, Q1: 10, OTHER: 3}).to_json()
    end = reader().latestOffset(start, ReadAllAvailable())
    assert offsets(end) == {Q0: 100, Q1: 50}


def test_a_batch_that_needs_a_broker_which_is_away_is_an_error(held):
    del held[Q1]
    with pytest.raises(ConnectError, match="no master has"):
        reader().partitions(at(q0=40, q1=10), at(q0=50, q1=20))


def test_a_replayed_batch_has_the_same_ranges(held):
    start, end = at(q0=40, q1=10), at(q0=50, q1=20)
    before = ranges(reader().partitions(start, end))
    held[Q0] = Bounds(30, 1000)
    assert ranges(reader().partitions(start, end)) == before == [(Q0, 40, 50), (Q1, 10, 20)]


def test_offsets_that_retention_deleted_are_an_error_or_skipped(held):
    start, end = at(q0=2, q1=10), at(q0=50, q1=20)
    with pytest.raises(DataLossError, match="holds offsets 5 to before 100, not the 2"):
        reader().partitions(start, end)
    skipped = reader(failOnDataLoss="false").partitions(start, end)
    assert ranges(skipped) == [(Q0, 5, 50), (Q1, 10, 20)]


def test_available_now_reads_no_further_than_its_start(held):
    made = reader(subscribe="t,u")
    made.prepareForTriggerAvailableNow()
    held[Q0] = Bounds(5, 999)
    held[OTHER] = Bounds(0, 10)
    first = made.latestOffset(at(q0=40, q1=50), ReadAllAvailable())
    assert offsets(first) == {Q0: 100, Q1: 50, OTHER: 0}
    assert made.latestOffset(kept(first), ReadAllAvailable()) == first


def test_an_unchanged_queue_gives_equal_text_and_no_partition(held):
    made = reader()
    start = json.dumps(made.latestOffset(kept(made.initialOffset()), ReadAllAvailable()))
    end = made.latestOffset(json.loads(start), ReadAllAvailable())
    assert json.dumps(end) == start
    assert made.partitions(json.loads(start), end) == []


def test_while_nothing_comes_the_next_look_waits(held, monkeypatch):
    now, pauses = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append)
    monkeypatch.setattr(stream, "time", clock)
    made = reader(pollIntervalMs="250")
    start = read_so_far(made)
    now[0] = 1.0
    made.latestOffset(start, ReadAllAvailable())
    assert pauses == []  # The check before found something.
    now[0] = 1.01
    made.latestOffset(start, ReadAllAvailable())
    assert pauses == [pytest.approx(0.24)]
    for _ in range(stream.IDLE_POLLS_MAX):
        made.latestOffset(start, ReadAllAvailable())
    assert pauses[-1] == pytest.approx(0.5)
    held[Q0] = Bounds(5, 101)
    made.latestOffset(start, ReadAllAvailable())
    count = len(pauses)
    made.latestOffset(kept(made._last), ReadAllAvailable())
    assert len(pauses) == count


# -- lives of a topic ------------------------------------------------------------------------
def test_a_queue_that_shrank_is_an_error_or_a_new_start(held):
    start = at(q0=400, q1=10)
    with pytest.raises(
        DataLossError, match="ends before 100, but the query has seen it end before 400"
    ):
        reader().latestOffset(start, ReadAllAvailable())
    lenient = reader(failOnDataLoss="false")
    end = kept(lenient.latestOffset(start, ReadAllAvailable()))
    assert ranges(lenient.partitions(start, end)) == [(Q0, 5, 100), (Q1, 10, 50)]


@pytest.mark.parametrize("more", [-90, -1, 0, 1, 200])
def test_a_topic_that_was_made_again_is_an_error_that_says_so(held, more):
    start = read_so_far(reader())
    held[Q0] = Bounds(0, 100 + more)
    held[Q1] = Bounds(0, 0)
    FakeCluster.life = 2
    with pytest.raises(DataLossError, match=r"deleted and created again.*failOnDataLoss=false"):
        reader().latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("more", [-90, -1, 0, 1, 200])
def test_a_topic_that_was_made_again_is_read_from_its_beginning(held, more, caplog):
    start = read_so_far(reader(failOnDataLoss="false"))
    held[Q0] = Bounds(0, 100 + more)
    held[Q1] = Bounds(0, 0)
    FakeCluster.life = 2
    made = reader(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert "deleted and created again" in caplog.text
    assert ranges(made.partitions(start, end)) == [(Q0, 0, 100 + more)]
    assert ranges(reader(failOnDataLoss="false").partitions(start, end)) == [(Q0, 0, 100 + more)]
    held[Q0], held[Q1] = Bounds(0, 400), Bounds(0, 60)
    following = kept(made.latestOffset(end, ReadAllAvailable()))
    assert ranges(made.partitions(end, following)) == [(Q0, 100 + more, 400), (Q1, 0, 60)]


def test_a_batch_of_a_life_that_is_over_is_not_done_again_with_other_messages(held):
    start = read_so_far(reader())
    held[Q0] = Bounds(5, 120)
    end = kept(reader().latestOffset(start, ReadAllAvailable()))
    assert ranges(reader().partitions(start, end)) == [(Q0, 100, 120)]
    FakeCluster.life = 2
    held[Q0] = Bounds(0, 300)
    with pytest.raises(DataLossError, match="deleted and created again"):
        reader().partitions(start, end)
    lenient = reader(failOnDataLoss="false")
    assert lenient.partitions(start, end) == []
    following = kept(lenient.latestOffset(end, ReadAllAvailable()))
    assert (Q0, 0, 300) in ranges(lenient.partitions(end, following))


def test_a_queue_that_lost_its_tail_goes_on_behind_what_was_read(held):
    start = read_so_far(reader(failOnDataLoss="false"))
    held[Q0] = Bounds(5, 80)
    made = reader(failOnDataLoss="false")
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert made.partitions(start, end) == []
    assert offsets(end) == {Q0: 80, Q1: 50}


def test_retention_of_the_message_that_is_compared_is_no_other_life(held):
    start = read_so_far(reader())
    held[Q0] = Bounds(100, 300)
    end = kept(reader().latestOffset(start, ReadAllAvailable()))
    assert ranges(reader().partitions(start, end)) == [(Q0, 100, 300)]


# -- losses before a run with an end has read all ---------------------------------------------
@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(10)])
def test_a_run_with_an_end_tells_that_its_broker_came_back_with_less(held, limit):
    made = reader(startingOffsets="earliest")
    start = kept(made.initialOffset())
    made.prepareForTriggerAvailableNow()
    held[Q0] = Bounds(5, 60)
    text = "ends before 60, but the query has seen it end before 100.*store was lost.*failOnData"
    with pytest.raises(DataLossError, match=text):
        made.latestOffset(start, limit)
    held[Q0] = Bounds(0, 0)
    with pytest.raises(DataLossError, match="ends before 0, but the query has seen it end before"):
        made.latestOffset(start, limit)


def test_a_run_with_an_end_tells_a_loss_between_two_of_its_batches(held):
    made = reader(startingOffsets="earliest")
    start = kept(made.initialOffset())
    made.prepareForTriggerAvailableNow()
    first = kept(made.latestOffset(start, ReadMaxRows(10)))
    # The document has seen what the target has, and knows it by its marks.
    held[Q0] = Bounds(5, 60)
    with pytest.raises(DataLossError, match="ends before 60"):
        made.latestOffset(first, ReadMaxRows(10))


def test_a_run_with_an_end_reads_what_is_left_when_asked(held, caplog):
    made = reader(startingOffsets="earliest", failOnDataLoss="false")
    start = kept(made.initialOffset())
    made.prepareForTriggerAvailableNow()
    held[Q0] = Bounds(5, 60)
    with caplog.at_level(logging.WARNING):
        first = kept(made.latestOffset(start, ReadMaxRows(10)))
    assert "ends before 60" in caplog.text
    caplog.clear()
    # It is told once, and messages that came later are for the next run.
    held[Q0] = Bounds(5, 130)
    end = kept(made.latestOffset(first, ReadAllAvailable()))
    assert offsets(end) == {Q0: 60, Q1: 50}
    assert made.latestOffset(end, ReadAllAvailable()) == end
    assert caplog.text == ""


@pytest.mark.parametrize("more", [-90, -1, 0, 1, 200])
def test_a_topic_made_again_before_a_run_with_an_end_reads_it_is_told(held, more, caplog):
    options = {"startingOffsets": "earliest"}
    made, lenient = reader(**options), reader(**options, failOnDataLoss="false")
    for each in (made, lenient):
        each.initialOffset()
        each.prepareForTriggerAvailableNow()
    held[Q0], held[Q1] = Bounds(0, 100 + more), Bounds(0, 0)
    FakeCluster.life = 2
    with pytest.raises(DataLossError, match="deleted and created again"):
        made.latestOffset(made.initialOffset(), ReadAllAvailable())
    start = lenient.initialOffset()
    with caplog.at_level(logging.WARNING):
        end = kept(lenient.latestOffset(start, ReadAllAvailable()))
    assert "deleted and created again" in caplog.text
    assert ranges(lenient.partitions(start, end)) == [(Q0, 0, 100 + more)]
    assert lenient.latestOffset(end, ReadAllAvailable()) == end


def test_a_queue_that_a_run_with_an_end_has_not_begun_may_be_lost_too(held):
    start = read_so_far(reader())
    held[OTHER] = Bounds(3, 8)
    made, lenient = reader(subscribe="t,u"), reader(subscribe="t,u", failOnDataLoss="false")
    for each in (made, lenient):
        each.prepareForTriggerAvailableNow()
    held[OTHER] = Bounds(3, 5)
    with pytest.raises(DataLossError, match="u queue 0 on c ends before 5"):
        made.latestOffset(start, ReadAllAvailable())
    end = kept(lenient.latestOffset(start, ReadAllAvailable()))
    assert ranges(lenient.partitions(start, end)) == [(OTHER, 3, 5)]


def test_a_loss_that_a_broker_comes_back_with_is_told(held, monkeypatch):
    start = read_so_far(reader())
    held[Q0] = Bounds(5, 120)
    made = reader(pollTimeoutMs="60000")
    made.prepareForTriggerAvailableNow()
    FakeCluster.away.add("b")

    def complete(self, topics, needed=()):
        FakeCluster.away.clear()
        held[Q0] = Bounds(5, 110)
        return self.view(topics)

    monkeypatch.setattr(FakeCluster, "complete", complete)
    with pytest.raises(DataLossError, match="ends before 110, but the query has seen it end be"):
        made.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("reads_limits", [True, False])
def test_offsets_of_a_life_that_is_over_are_not_stored_for_the_group(
    held, monkeypatch, reads_limits
):
    monkeypatch.setattr(stream, "HAS_READ_LIMITS", reads_limits)
    options = {"commitGroupOffsets": "true", "consumerGroup": "g", "startingOffsets": "earliest"}
    end = read_so_far(reader(**options))
    held[Q0] = Bounds(0, 300)
    FakeCluster.life = 2
    again = reader(**options, failOnDataLoss="false")
    if reads_limits:
        again.latestOffset(end, ReadAllAvailable())
    again.commit(end)
    assert Q0 not in FakeCluster.stored


def test_offsets_of_queues_that_lost_nothing_are_stored_before_a_loss_is_told(held):
    options = {"commitGroupOffsets": "true", "consumerGroup": "g", "startingOffsets": "earliest"}
    end = read_so_far(reader(**options))
    held[Q0] = Bounds(5, 60)
    with pytest.raises(DataLossError, match="ends before 60"):
        reader(**options).latestOffset(end, ReadAllAvailable())
    assert FakeCluster.stored == {Q1: 50}


# -- checkpoints of version 1 ----------------------------------------------------------------
def test_a_checkpoint_of_version_1_is_read_on(held):
    start = to_json({Q0: 90, Q1: 50})
    made = reader()
    end = kept(made.latestOffset(start, ReadAllAvailable()))
    assert ranges(made.partitions(start, end)) == [(Q0, 90, 100)]
    assert SourcePosition.parse(end).marks.keys() == {Q0, Q1}


def test_a_checkpoint_of_version_1_stays_as_it_is_while_nothing_comes(held):
    start = to_json({Q0: 100, Q1: 50})
    assert reader().latestOffset(start, ReadAllAvailable()) == start


def test_a_first_batch_of_version_1_that_was_not_finished_says_what_to_do(held):
    end = to_json({Q0: 95, Q1: 50})
    made = reader()
    with pytest.raises(DataLossError, match="first batch of this checkpoint was not finished"):
        made.partitions(kept(made.initialOffset()), end)
    lenient = reader(failOnDataLoss="false")
    assert lenient.partitions(kept(lenient.initialOffset()), end) == []
    following = kept(lenient.latestOffset(end, ReadAllAvailable()))
    assert ranges(lenient.partitions(end, following)) == [(Q0, 95, 100)]


def test_a_checkpoint_of_a_newer_version_is_refused(held):
    with pytest.raises(ConfigError, match="of version 3, known here are 1 and 2"):
        reader().latestOffset({"version": 3, "offsets": {}}, ReadAllAvailable())


def test_a_topic_may_be_called_version(held):
    queue = MessageQueue("version", "b", 0)
    assert SourcePosition.parse(kept(to_json({queue: 4}))).offsets == {queue: 4}


# -- other things ----------------------------------------------------------------------------
def test_a_query_may_be_stopped_twice(held):
    made = reader()
    made.initialOffset()
    made.stop()
    made.stop()


def test_pyspark_4_1_tells_no_start_and_asks_for_the_first_offsets_late(held, monkeypatch):
    monkeypatch.setattr(stream, "HAS_READ_LIMITS", False)
    with pytest.raises(ConfigError, match=r"needs PySpark 4\.2"):
        reader(maxOffsetsPerTrigger="5")
    made = reader(subscribe="t,u")
    held[Q0] = Bounds(5, 100)
    first = kept(made.latestOffset())
    held[Q0], held[OTHER] = Bounds(5, 130), Bounds(3, 8)
    assert made.partitions(kept(made.initialOffset()), first) == []
    second = kept(made.latestOffset())
    assert ranges(made.partitions(first, second)) == [(Q0, 100, 130), (OTHER, 3, 8)]
    # After a restart it gives the newest document of the log as a batch of nothing.
    again = reader(subscribe="t,u")
    assert again.partitions(second, second) == []
    assert json.dumps(again.latestOffset()) == json.dumps(second)
