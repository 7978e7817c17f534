"""The jobs that count what they read: traffic, dead letters, traces."""

from __future__ import annotations

import json
import uuid

import pytest

from kerolox.client.core.tracing.trace import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    encode_trace,
)
from kerolox.errors import ConfigError
from kerolox.message import DEAD_LETTER_REASON
from kerolox.protocol.names import DLQ_PREFIX
from kerolox.spark.jobs import silent
from kerolox.spark.jobs.dlq import DeadLetterOptions, dead_letters
from kerolox.spark.jobs.dlq import page as dead_letter_page
from kerolox.spark.jobs.report import render
from kerolox.spark.jobs.trace import Consuming, Sending, TraceOptions, TracePath, trace
from kerolox.spark.jobs.trace import page as trace_page
from kerolox.spark.jobs.traffic import SizeClass, TrafficOptions, traffic
from kerolox.spark.jobs.traffic import page as traffic_page
from tests.support.clients.spark import Sent, now_ms


def test_traffic_counts_topics_queues_tags_and_sizes(spark, topics, topic):
    other = topics.create(f"spark-{uuid.uuid4().hex[:12]}", queues=1)
    sizes = [10, 10, 100, 0x1000]
    topics.send(
        topic,
        [Sent(b"x" * size, queue_id=0, properties={"TAGS": "a"}) for size in sizes]
        + [Sent(b"y", queue_id=3)],
    )
    topics.send(other, [Sent(b"z" * 7)])
    options = TrafficOptions(name_server=topics.namesrv, topics=(topic, other), top=2)
    found = traffic(spark, options, silent)
    assert (found.messages, found.body_bytes, found.topic_count) == (6, 4224, 2)
    [first, second] = found.topics
    assert (first.topic, first.messages, first.body_bytes) == (topic, 5, 4217)
    assert (first.largest_bytes, first.queues, first.queue_skew) == (0x1000, 2, 1.6)
    assert first.fullest_queue.endswith("/0")
    assert (second.topic, second.messages, second.queue_skew) == (other, 1, 1.0)
    assert [(each.topic, each.tag, each.messages) for each in found.tags] == [
        (topic, "a", 4),
        *sorted([(other, "", 1), (topic, "", 1)])[:1],
    ]
    assert sum(each.messages for each in found.sizes) == 6
    assert found.sizes[-1] == SizeClass(up_to_bytes=0x1000, messages=1)
    assert sum(each.messages for each in found.spans) == 6
    assert json.loads(json.dumps(found.as_json()))["bodyBytes"] == 4224
    assert topic in render(traffic_page(found))


def test_traffic_of_a_span_without_messages_is_zero(spark, topics, topic):
    topics.send(topic, [Sent(b"x")])
    options = TrafficOptions(name_server=topics.namesrv, topics=(topic,), until=1)
    found = traffic(spark, options, silent)
    assert (found.messages, found.topics, found.spans, found.first_stored_ms) == (0, (), (), None)
    later = TrafficOptions(name_server=topics.namesrv, topics=(topic,), since=now_ms() + 60_000)
    assert traffic(spark, later, silent).messages == 0
    assert "Traffic" in render(traffic_page(found))


def test_dead_letters_are_counted_by_group_topic_and_reason(spark, topics):
    groups = [f"g-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    for group in groups:
        topics.create(DLQ_PREFIX + group, queues=1)
    reason = {DEAD_LETTER_REASON: "no such <customer>"}
    topics.send(
        DLQ_PREFIX + groups[0],
        [
            Sent(b"%d" % n, properties={"RETRY_TOPIC": "Orders", "KEYS": f"k{n}", **reason})
            for n in range(3)
        ]
        + [Sent(b"x", properties={"RETRY_TOPIC": "Bills"}, reconsume_times=16)],
    )
    options = DeadLetterOptions(name_server=topics.namesrv, groups=tuple(groups), samples=2)
    found = dead_letters(spark, options, silent)
    counts = [(each.group, each.topic, each.reason, each.messages) for each in found.counts]
    assert counts == [
        (groups[0], "Orders", "no such <customer>", 3),
        (groups[0], "Bills", "", 1),
    ]
    assert found.counts[1].tries_max == 16
    assert (found.messages, found.exit_code, len(found.newest)) == (4, 1, 2)
    page = render(dead_letter_page(found))
    assert "no such &lt;customer&gt;" in page


def test_no_dead_letters_end_with_zero(spark, topics):
    group = f"g-{uuid.uuid4().hex[:12]}"
    topics.create(DLQ_PREFIX + group, queues=1)
    options = DeadLetterOptions(name_server=topics.namesrv, groups=(group,))
    found = dead_letters(spark, options, silent)
    assert (found.messages, found.exit_code, found.newest) == (0, 0, ())


def _sent(message_id: str, at: int, *, cost: int = 5, is_success: bool = True) -> PubTrace:
    return PubTrace(
        timestamp_ms=at,
        region="r",
        group="makers",
        topic="Orders",
        message_id=message_id,
        cost_ms=cost,
        is_success=is_success,
    )


def _call(message_id: str, at: int, request_id: str, *, tries: int = 0) -> SubBeforeTrace:
    return SubBeforeTrace(
        timestamp_ms=at,
        region="r",
        group="billing",
        request_id=request_id,
        message_id=message_id,
        retry_times=tries,
    )


def _end(message_id: str, request_id: str, cost: int, *, is_success: bool) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=request_id, message_id=message_id, cost_ms=cost, is_success=is_success
    )


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")
def test_traces_tell_paths_latency_and_failures(spark, topics, topic):
    records = [
        _sent("A", 1000),
        _sent("B,C", 1000, cost=7),
        _sent("D", 1000, is_success=False),
        _call("A", 1105, "r1"),
        _end("A", "r1", 30, is_success=False),
        _call("A", 9000, "r2", tries=1),
        _end("A", "r2", 40, is_success=True),
        _call("B", 1107, "r3"),
        _call("E", 2000, "r4"),
        _end("E", "r4", 1, is_success=True),
    ]
    bodies = [encode_trace(record).encode() for record in records]
    topics.send(topic, [Sent(body) for body in [*bodies, b"Pub\x01torn\x02"]])
    found = trace(spark, TraceOptions(name_server=topics.namesrv, trace_topic=topic), silent)
    assert (found.sent, found.failed_sends, found.unreadable) == (4, 1, 1)
    assert (found.consumed, found.failed_calls) == (4, 1)
    assert found.sending == (
        Sending(group="makers", topic="Orders", messages=4, failed=1, p50_ms=5, p99_ms=7),
    )
    assert found.consuming == (
        Consuming(
            group="billing",
            topic="Orders",
            calls=3,
            failed=1,
            retried=1,
            unfinished=1,
            listener_p50_ms=30,
            listener_p99_ms=40,
            latency_p50_ms=100,
            latency_p99_ms=100,
        ),
        Consuming(
            group="billing",
            topic="",
            calls=1,
            failed=0,
            retried=0,
            unfinished=0,
            listener_p50_ms=1,
            listener_p99_ms=1,
            latency_p50_ms=None,
            latency_p99_ms=None,
        ),
    )
    assert found.paths == (
        TracePath(producer_group="makers", topic="Orders", consumer_group="billing", messages=2),
        TracePath(producer_group="makers", topic="Orders", consumer_group="", messages=1),
    )
    assert "makers → Orders → billing" in render(trace_page(found))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (lambda: TrafficOptions(), "--topic"),
        (lambda: TrafficOptions(topics=("T",), top=0), "--top"),
        (lambda: TrafficOptions(topics=("T",), since=5, until=5), "--until"),
        (lambda: DeadLetterOptions(groups=()), "--group"),
        (lambda: TraceOptions(trace_topic=" "), "--trace-topic"),
    ],
)
def test_a_wrong_option_is_named(options, named):
    with pytest.raises(ConfigError, match=named):
        options()
