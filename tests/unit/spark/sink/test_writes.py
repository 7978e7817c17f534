"""Tasks and drivers of the sink against a broker of this process, without Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from kerolox.client.core.sending.send import OutgoingMessage
from kerolox.errors import ConnectError, RequestTimeoutError, TopicRouteNotFoundError
from kerolox.message import MessageExt
from kerolox.protocol.records import decode_batch
from kerolox.spark.option_values import WAIT_MS_MAX
from kerolox.spark.sink import broker_sender, job, task
from kerolox.spark.sink.errors import SinkError
from kerolox.spark.sink.options import SinkOptions
from kerolox.spark.sink.queues import Share
from kerolox.spark.sink.task import TaskWriter
from kerolox.spark.sink.transactions.commit import Transaction, store_of
from kerolox.spark.sink.transactions.decisions import Decision
from kerolox.spark.sink.transactions.halves import new_attempt
from kerolox.spark.sink.transactions.messages import SinkMessage
from kerolox.testing import LocalBroker
from tests.support.servers.up import deaf_address


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def topic(broker: LocalBroker) -> str:
    return broker.create_topic(queues=3)


def options(broker: LocalBroker, topic: str, **given: str) -> SinkOptions:
    named = {"nameServer": broker.name_server, "topic": topic, "sendTimeoutMs": "20000"}
    return SinkOptions.parse(named | given, is_stream=False)


def write(given: SinkOptions, *batches: dict[str, list[Any]]) -> int:
    return job.write_partition(given, [pyarrow.record_batch(each) for each in batches]).rows


def stored(broker: LocalBroker, topic: str, count: int) -> list[MessageExt]:
    return list(broker.messages(topic, count=count))


def test_rows_become_messages_with_all_that_they_say(broker: LocalBroker, topic: str):
    given = options(broker, topic, keys="none", properties='{"of":"all"}', flag="9")
    columns = {
        "body": ["text", "b"],
        "tags": ["a", None],
        "keys": [["k1", "k2"], None],
        "flag": [-7, None],
        "properties": pyarrow.array(
            [[("city", "Žilina")], None], pyarrow.map_(pyarrow.string(), pyarrow.string())
        ),
        "queueId": [2, 1],
    }
    assert write(given, columns) == 2
    found = {each.queue_id: each for each in stored(broker, topic, 2)}
    assert (found[2].body, found[2].tags, found[2].keys, found[2].flag) == (
        b"text",
        "a",
        "k1 k2",
        -7,
    )
    assert found[2].properties["city"] == "Žilina"
    assert "of" not in found[2].properties
    assert (found[1].tags, found[1].keys, found[1].flag) == ("", "none", 9)
    assert found[1].properties["of"] == "all"
    assert len({each.unique_key for each in found.values()} - {""}) == 2


@pytest.mark.parametrize("size", [1, 40, 70_000])
def test_each_row_is_stored_once_and_queues_take_turns(broker, topic, size):
    count = 3500 if size < 1000 else 200
    bodies = [str(n).encode().rjust(size, b".") for n in range(count)]
    given = options(broker, topic, batchBytes="64k", inFlightBytes="256k")
    assert (
        write(
            given, {"body": bodies[:1700]}, {"body": bodies[1700:]} if size < 1000 else {"body": []}
        )
        == count
    )
    found = stored(broker, topic, count)
    assert sorted(each.body for each in found) == sorted(bodies)
    assert len({each.unique_key for each in found}) == count
    assert {each.queue_id for each in found} == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("batchBytes", "1"), ("batchBytes", "15m"), ("inFlightBytes", "1")),
        *(("inFlightBytes", str(2**63 - 1)), ("maxMessageBytes", "2"), ("maxMessageBytes", "15m")),
        ("sendTimeoutMs", str(WAIT_MS_MAX)),
    ],
)
def test_sizes_and_times_at_their_edges_store_each_row_once(broker, topic, name, text):
    bodies = [str(number).encode() for number in range(100)]
    assert write(options(broker, topic, **{name: text}), {"body": bodies}) == 100
    assert sorted(each.body for each in stored(broker, topic, 100)) == sorted(bodies)


@pytest.mark.parametrize(
    ("more", "begin"),
    [({}, "0000000005"), ({"messageIndexes": "1,0"}, "0000000005040200")],
)
def test_bodies_get_the_header_of_their_schema(
    broker: LocalBroker, more: dict[str, str], begin: str
):
    topic, bodies = broker.create_topic(queues=1), [b"a", b"", b"\0\xff"]
    assert write(options(broker, topic, schemaId="5", **more), {"body": bodies}) == 3
    found = [each.body for each in stored(broker, topic, 3)]
    assert found == [bytes.fromhex(begin) + body for body in bodies]


def test_rows_with_a_key_stay_in_order_in_one_queue(broker: LocalBroker, topic: str):
    keys = [f"k{n % 7}" for n in range(3000)]
    given = options(broker, topic, batchBytes="2k")
    write(given, {"body": [str(n) for n in range(3000)], "orderingKey": keys})
    found = stored(broker, topic, 3000)
    queues: dict[str, set[int]] = {}
    seen: dict[str, list[int]] = {}
    for each in sorted(found, key=lambda each: (each.queue_id, each.queue_offset)):
        key = keys[int(each.body)]
        queues.setdefault(key, set()).add(each.queue_id)
        seen.setdefault(key, []).append(int(each.body))
    assert all(len(found) == 1 for found in queues.values())
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_column_names_the_topic_of_each_row(broker: LocalBroker, topic: str):
    other = broker.create_topic()
    given = options(broker, topic)
    write(given, {"body": ["a", "b", "c"], "topic": [other, None, other]})
    assert [each.body for each in stored(broker, topic, 1)] == [b"b"]
    assert sorted(each.body for each in stored(broker, other, 2)) == [b"a", b"c"]


def test_a_delayed_row_comes_when_its_level_is_over(broker: LocalBroker, topic: str):
    write(options(broker, topic), {"body": ["now", "later"], "delayLevel": [0, 9]})
    assert [each.body for each in stored(broker, topic, 1)] == [b"now"]
    broker.advance(minutes=6)
    assert sorted(each.body for each in stored(broker, topic, 2)) == [b"later", b"now"]


def test_a_topic_in_a_namespace_has_its_prefix(broker: LocalBroker):
    broker.create_topic("ns%Inside")
    write(options(broker, "Inside", namespace="ns"), {"body": ["a"]})
    [found] = stored(broker, "ns%Inside", 1)
    assert found.properties["INSTANCE_ID"] == "ns"


def test_an_illegal_row_is_told_before_any_of_its_record_batch_is_sent(broker, topic):
    with pytest.raises(SinkError, match="partition 0: row 1502: the body is empty"):
        write(
            options(broker, topic),
            {"body": ["a"] * 1500},
            {"body": ["b", "b", "", "b"]},
        )
    # What was sent before is not waited for when a task fails.
    assert {each.body for each in broker.messages(topic)} <= {b"a"}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": ["a", "b"], "topic": ["", "x y"]}, "row [01]: .*(blank|illegal character)"),
        ({"body": ["a", "b"], "queueId": [0, 99]}, "row 1: .* has no queue 99"),
        ({"body": ["a", "b"], "brokerName": [None, "nobody"]}, "row 1: .*on broker nobody"),
    ],
)
def test_a_row_for_nowhere_is_told_before_any_is_sent(broker, topic, columns, text):
    with pytest.raises(SinkError, match=text):
        write(options(broker, topic), columns)
    assert list(broker.messages(topic)) == []


def test_a_row_that_this_broker_refuses_is_told_with_its_number(broker: LocalBroker, topic: str):
    given = options(broker, topic, maxMessageBytes="8m")
    with pytest.raises(SinkError, match=r"partition 0: row 1 can't be .*message is illegal"):
        write(given, {"body": [b"a", b"b" * (5 << 20)]})


def test_a_broker_that_is_away_is_waited_for_and_gets_all_rows(tmp_path: Path):
    with LocalBroker(folder=tmp_path) as broker:
        topic = broker.create_topic()

        def rows() -> Iterator[pyarrow.RecordBatch]:
            for number in range(4):
                if number == 2:
                    broker.restart()
                yield pyarrow.record_batch({"body": [f"{number}/{n}" for n in range(500)]})

        given = options(broker, topic, batchBytes="1k")
        assert job.write_partition(given, rows()).rows == 2000
        found = Counter(each.body for each in stored(broker, topic, 2000))
        assert len(found) == 2000


def test_rows_at_a_rate_are_stored_before_each_pause(broker, topic, monkeypatch):
    given = options(broker, topic)
    seen, pauses = [], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        seen.append(len(stored(broker, topic, len(seen) + 1)))

    clock = SimpleNamespace(monotonic=time.monotonic, time_ns=time.time_ns, sleep=pause)
    monkeypatch.setattr(task, "time", clock)
    rows = [pyarrow.record_batch({"body": [str(n)]}) for n in range(4)]
    assert job.write_partition(given, rows, rows_per_second=0.001).rows == 4
    assert seen == [1, 2, 3]
    assert min(pauses) > 900


def test_without_a_broker_the_task_ends_at_its_time_limit():
    with deaf_address() as nobody:
        named = {"nameServer": nobody, "topic": "t", "sendTimeoutMs": "300"}
        given = SinkOptions.parse(named, is_stream=False)
        with pytest.raises(ConnectError):
            write(given, {"body": ["a"]})


def test_a_topic_that_nobody_knows_is_an_error(tmp_path: Path):
    with LocalBroker(folder=tmp_path, settings={"autoCreateTopicEnable": "false"}) as broker:
        given = options(broker, "nothing", sendTimeoutMs="300")
        with pytest.raises(TopicRouteNotFoundError, match="knows no topic nothing; create it"):
            write(given, {"body": ["a"]})


def test_a_new_topic_is_made_where_the_broker_does_that(broker: LocalBroker):
    write(options(broker, "made-by-spark"), {"body": ["a"]})
    assert [each.body for each in stored(broker, "made-by-spark", 1)] == [b"a"]


# -- transactions ------------------------------------------------------------------------------
def exact(broker: LocalBroker, topic: str, folder: Path, **given: str) -> SinkOptions:
    return options(
        broker,
        topic,
        transactional="true",
        transactionLocation=str(folder),
        transactionId="day-1",
        **given,
    )


def halves(given: SinkOptions, *bodies: list[str], batch: int = 0, query: str = "day-1"):
    """The messages of tasks that write these rows."""
    return [
        job.write_halves(given, query, batch, n, 0, [pyarrow.record_batch({"body": each})])
        for n, each in enumerate(bodies)
    ]


def bodies(broker: LocalBroker, topic: str) -> list[str]:
    return sorted(each.body.decode() for each in broker.messages(topic))


@pytest.fixture
def exactly(broker: LocalBroker, topic: str, tmp_path: Path) -> SinkOptions:
    return exact(broker, topic, tmp_path)


def test_rows_are_seen_once_and_only_after_the_commit(broker, topic, exactly):
    messages = halves(exactly, ["a", "b"], ["c"])
    assert bodies(broker, topic) == []
    job.commit(exactly, messages, 0)
    assert bodies(broker, topic) == ["a", "b", "c"]
    job.commit(exactly, messages, 0)
    assert bodies(broker, topic) == ["a", "b", "c"]


def test_a_half_names_each_property_once(broker, topic, exactly, monkeypatch):
    """A broker ends a half that names one twice in its slow way, 40 times slower."""
    sent: list[OutgoingMessage] = []
    dispatch = TaskWriter._dispatch

    def watched(self: TaskWriter, share: Share, message: OutgoingMessage, *rest: Any) -> None:
        sent.append(message)
        dispatch(self, share, message, *rest)

    monkeypatch.setattr(TaskWriter, "_dispatch", watched)
    rows = {"body": ["a", "b"], "tags": ["t", None], "keys": ["k", "l"]}
    job.write_halves(exactly, "day-1", 0, 0, 0, [pyarrow.record_batch(rows)])
    [message] = sent
    halves_of, _ = decode_batch(message.body, message.properties.encode())
    assert len(halves_of) == 2
    for _flag, _body, text in halves_of:
        names = [item.split("\1")[0] for item in text.decode().split("\2")]
        assert len(set(names)) == len(names)
        assert {"WAIT", "UNIQ_KEY", "KEROLOX_SINK", "PGROUP", "TRAN_MSG"} <= set(names)


def test_an_aborted_batch_is_never_seen(broker: LocalBroker, topic: str, exactly: SinkOptions):
    messages = halves(exactly, ["a"], ["b"])
    job.abort(exactly, [messages[0], None], 0)
    again = halves(exactly, ["a2"], ["b2"])
    job.commit(exactly, again, 0)
    assert bodies(broker, topic) == ["a2", "b2"]


def test_an_abort_after_the_decision_takes_nothing_back(broker, topic, exactly, monkeypatch):
    messages = halves(exactly, ["a"], ["b"])

    def fail(*_: object, **__: object) -> None:
        raise SinkError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "settle", fail)
        with pytest.raises(SinkError):
            job.commit(exactly, messages, 0)
    job.abort(exactly, messages, 0)
    assert bodies(broker, topic) == []
    job.commit(exactly, messages, 0)
    assert bodies(broker, topic) == ["a", "b"]


def test_a_batch_that_is_decided_is_not_written_again(broker, topic, exactly, monkeypatch):
    messages = halves(exactly, ["a"])
    monkeypatch.setattr(Transaction, "settle", lambda *_, **__: None)
    job.commit(exactly, messages, 0)
    monkeypatch.undo()
    [again] = halves(exactly, ["other"])
    assert (again.is_decided, again.rows, again.ranges) == (True, 0, ())
    job.commit(exactly, [again], 0)
    assert bodies(broker, topic) == ["a"]


def test_what_was_written_beside_a_decision_is_discarded(broker, topic, exactly, monkeypatch):
    first = halves(exactly, ["a"])
    zombie = halves(exactly, ["other"])
    job.commit(exactly, first, 0)
    job.commit(exactly, zombie, 0)
    assert bodies(broker, topic) == ["a"]
    broker.advance(minutes=2)
    assert bodies(broker, topic) == ["a"]


def test_a_dead_attempt_is_rolled_back_with_the_batch(broker, topic, exactly):
    attempts: list[SinkMessage] = [*halves(exactly, ["dead"]), *halves(exactly, ["a"])]
    job.commit(exactly, attempts[1:], 0)
    assert bodies(broker, topic) == ["a"]
    for _ in range(20):
        broker.advance(minutes=2)
    assert bodies(broker, topic) == ["a"]


def test_a_driver_away_for_longer_than_all_checks_loses_nothing(broker, topic, exactly):
    messages = halves(exactly, ["a", "b"], ["c"])
    for _ in range(20):
        broker.advance(minutes=2)
    assert bodies(broker, topic) == []
    job.commit(exactly, messages, 0)
    assert bodies(broker, topic) == ["a", "b", "c"]
    for _ in range(20):
        broker.advance(minutes=2)
    assert bodies(broker, topic) == ["a", "b", "c"]


def test_batches_of_a_stream_follow_each_other(broker: LocalBroker, topic: str, tmp_path: Path):
    stream = SinkOptions.parse(
        {
            "nameServer": broker.name_server,
            "topic": topic,
            "transactional": "true",
            "checkpointLocation": str(tmp_path),
        },
        is_stream=True,
    )
    for batch in range(3):
        late = halves(stream, [f"zombie-{batch}"], batch=max(batch - 1, 0), query="q")
        messages = halves(stream, [f"a{batch}"], [f"b{batch}"], batch=batch, query="q")
        job.commit(stream, messages, batch)
        assert late[0].is_decided == (batch > 0)
    assert bodies(broker, topic) == sorted(f"{x}{batch}" for x in "ab" for batch in range(3))
    names = sorted(path.name for path in (tmp_path / "kerolox-sink").iterdir())
    assert names == ["0", "0.done", "1", "1.done", "2", "2.done"]


def test_a_batch_decided_before_is_ended_before_the_next(broker, topic, tmp_path, monkeypatch):
    stream = SinkOptions.parse(
        {
            "nameServer": broker.name_server,
            "topic": topic,
            "transactional": "true",
            "checkpointLocation": str(tmp_path),
        },
        is_stream=True,
    )
    monkeypatch.setattr(Transaction, "settle", lambda *_, **__: None)
    job.commit(stream, halves(stream, ["a0"], batch=0, query="q"), 0)
    monkeypatch.undo()
    job.commit(stream, halves(stream, ["a1"], batch=1, query="q"), 1)
    assert bodies(broker, topic) == ["a0", "a1"]


def test_rows_sent_twice_since_an_answer_was_lost_are_seen_once(
    broker, topic, exactly, monkeypatch
):
    lost: list[int] = []
    take_ended = broker_sender.BrokerSender._take_ended

    def lose(self):
        if len(lost) < 2 and self.outcome.rows == 0 and self._ended:
            lost.append(1)
            error = RequestTimeoutError("lost")
            self._ended[:] = [(row_batch, error) for row_batch, _ in self._ended]
            self._connection._fail(error)
        take_ended(self)

    monkeypatch.setattr(broker_sender.BrokerSender, "_take_ended", lose)
    messages = halves(exactly, [f"r{n}" for n in range(300)])
    assert lost
    job.commit(exactly, messages, 0)
    assert bodies(broker, topic) == sorted(f"r{n}" for n in range(300))


def test_a_broker_that_restarts_at_each_step_gives_each_row_once(tmp_path: Path):
    with LocalBroker(folder=tmp_path / "data") as broker:
        topic = broker.create_topic()
        given = exact(broker, topic, tmp_path / "decisions")
        messages = halves(given, ["a", "b"], ["c"])
        broker.restart()
        job.commit(given, messages, 0)
        broker.restart()
        job.commit(given, messages, 0)
        assert bodies(broker, topic) == ["a", "b", "c"]


def test_a_broker_that_asks_about_a_decided_half_gets_a_commit(broker, topic, exactly, monkeypatch):
    lost = halves(exactly, ["lost"])[0]
    attempt = new_attempt("day-1", 0, 1, 0)
    monkeypatch.setattr(job, "new_attempt", lambda *_: attempt)

    def rows() -> Iterator[pyarrow.RecordBatch]:
        yield pyarrow.record_batch({"body": ["won", "not in the range"]})
        first = lost.ranges[0].high
        part = lost.ranges[0]._replace(begin=first, low=first, high=first + 1, rows=1)
        winner = SinkMessage(1, attempt.text, (part,))
        decision = Decision.of("day-1", 0, exactly.group_of("day-1"), [winner])
        store_of(exactly, "day-1").decide(decision)
        broker.advance(minutes=2)
        # The request of the broker comes before the answer to this row.
        yield pyarrow.record_batch({"body": ["late"]})

    written = job.write_halves(exactly, "day-1", 0, 1, 0, rows())
    assert [each.body for each in stored(broker, topic, 1)] == [b"won"]
    job.commit(exactly, [written], 0)
    assert bodies(broker, topic) == ["won"]
