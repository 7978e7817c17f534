"""Traces as text: what 4.9.8 writes and reads, and how records become messages."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from kerolox.client.core.hooks import ConsumeReturnType, MessageType
from kerolox.client.core.sending.transaction import TransactionState
from kerolox.client.core.tracing.trace import (
    TRACE_MESSAGE_BYTES_MAX,
    TRACE_WAIT_MS,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    TraceSegment,
    decode_traces,
    encode_trace,
    trace_views,
)
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageExt

PUB = PubTrace(
    timestamp_ms=1_625_848_452_706,
    region="DefaultRegion",
    group="G",
    topic="T",
    message_id="AC1415116D1418B4AAC217FE1B4E0000",
    tags="Tags",
    keys="k1 k2",
    store_host="127.0.0.1:10911",
    body_bytes=26,
    cost_ms=245,
    offset_message_id="0A9A002600002A9F0000000000002329",
)
PUB_TEXT = (
    "Pub\x011625848452706\x01DefaultRegion\x01G\x01T\x01AC1415116D1418B4AAC217FE1B4E0000\x01Tags"
    "\x01k1 k2\x01127.0.0.1:10911\x0126\x01245\x010\x010A9A002600002A9F0000000000002329\x01true\x02"
)
BEFORE = SubBeforeTrace(
    timestamp_ms=1, region="", group="G", request_id="R", message_id="M", retry_times=3, keys="k"
)
AFTER = SubAfterTrace(
    request_id="R",
    message_id="M",
    cost_ms=12,
    is_success=False,
    return_type=ConsumeReturnType.FAILED,
    timestamp_ms=2,
    group="G",
)
END = EndTransactionTrace(
    timestamp_ms=3,
    region="DefaultRegion",
    group="G",
    topic="T",
    message_id="M",
    store_host="127.0.0.1:10911",
    transaction_id="M",
    state=TransactionState.COMMIT,
    is_from_check=True,
)
ALL = [PUB, BEFORE, AFTER, END]


def pub(number: int, **changes: object) -> PubTrace:
    fields = {"timestamp_ms": 1, "region": "R", "group": "G", "topic": "T", **changes}
    return PubTrace(**{"message_id": f"{number:032d}", **fields})  # type: ignore[arg-type]


def message(body: bytes, host: str = "10.0.0.1") -> MessageExt:
    return MessageExt(
        topic="RMQ_SYS_TRACE_TOPIC",
        body=body,
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        properties={},
        born_host=(host, 1),
        store_host=("10.9.9.9", 1),
    )


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (PUB, PUB_TEXT),
        (BEFORE, "SubBefore\x011\x01null\x01G\x01R\x01M\x013\x01k\x02"),
        (AFTER, "SubAfter\x01R\x01M\x0112\x01false\x01null\x014\x012\x01G\x02"),
        (
            END,
            "EndTransaction\x013\x01DefaultRegion\x01G\x01T\x01M\x01null\x01null"
            "\x01127.0.0.1:10911\x012\x01M\x01COMMIT_MESSAGE\x01true\x02",
        ),
    ],
)
def test_a_record_has_the_fields_of_its_type_in_order(trace: TraceRecord, text: str) -> None:
    assert encode_trace(trace) == text
    assert decode_traces(text) == [trace]


def test_records_follow_each_other_and_unknown_types_are_left_out() -> None:
    text = "".join(encode_trace(trace) for trace in ALL)
    assert decode_traces(f"{text}Recall\x015\x02") == ALL


def test_the_shorter_records_of_older_clients_are_read() -> None:
    fields = PUB_TEXT.removesuffix("\x02").split("\x01")
    [oldest] = decode_traces("\x01".join(fields[:12]) + "\x02")
    [thirteen] = decode_traces("\x01".join([*fields[:12], "false"]) + "\x02")
    [fifteen] = decode_traces("\x01".join([*fields, "10.1.1.1"]) + "\x02")
    assert isinstance(oldest, PubTrace)
    assert isinstance(thirteen, PubTrace)
    assert isinstance(fifteen, PubTrace)
    assert (oldest.offset_message_id, oldest.is_success) == ("", True)
    assert (thirteen.offset_message_id, thirteen.is_success) == ("", False)
    assert (fifteen.client_host, fifteen.is_success) == ("10.1.1.1", True)
    [after] = decode_traces("SubAfter\x01R\x01M\x0112\x01true\x01k\x02")
    assert after == SubAfterTrace(
        request_id="R", message_id="M", cost_ms=12, is_success=True, keys="k"
    )


def test_a_torn_record_is_an_error_that_shows_it() -> None:
    with pytest.raises(RemoteProtocolError, match="is unreadable"):
        decode_traces("Pub\x01x\x02")


def test_keys_of_other_clients_forge_no_records_and_hide_none() -> None:
    forged = replace(BEFORE, keys=f"a\x02{PUB_TEXT}b")
    [read] = decode_traces(encode_trace(forged))
    assert isinstance(read, SubBeforeTrace)
    segment = TraceSegment()
    assert segment.add(forged, 0) is None
    batch = segment.drain()
    assert batch is not None
    assert (batch.keys, batch.records) == ("M", 1)


def test_a_segment_is_taken_when_its_first_record_has_waited_half_a_second() -> None:
    segment = TraceSegment()
    assert segment.drain() is None
    assert segment.add(PUB, 1_000) is None
    assert segment.add(AFTER, 1_400) is None
    assert segment.due_ms == 1_000 + TRACE_WAIT_MS
    batch = segment.drain()
    assert batch is not None
    assert decode_traces(batch.body.decode()) == [PUB, AFTER]
    assert sorted(batch.keys.split(" ")) == ["AC1415116D1418B4AAC217FE1B4E0000", "M", "k1", "k2"]
    assert not segment


def test_many_records_become_messages_whose_body_and_keys_fit() -> None:
    segment = TraceSegment()
    traces = [pub(n, tags="ü" * (n % 400), keys=f"key-{n}") for n in range(3_000)]
    batches = [batch for trace in traces if (batch := segment.add(trace, 0)) is not None]
    last = segment.drain()
    assert last is not None
    batches.append(last)
    assert len(batches) > 5
    assert [t for b in batches for t in decode_traces(b.body.decode())] == traces
    assert all(len(batch.body) <= TRACE_MESSAGE_BYTES_MAX for batch in batches)
    assert all(len(batch.keys.encode()) <= 32_000 for batch in batches)


def test_a_batch_is_found_by_the_joined_ids_and_by_each_of_them() -> None:
    ids = [f"{n:032d}" for n in range(10)]
    segment = TraceSegment()
    segment.add(pub(0, message_id=",".join(ids)), 0)
    batch = segment.drain()
    assert batch is not None
    assert set(batch.keys.split(" ")) == {",".join(ids), *ids}
    [view] = trace_views(ids[3], [message(batch.body)])
    assert view.trace.message_id == ",".join(ids)


def test_a_batch_of_very_many_messages_still_fits() -> None:
    segment = TraceSegment()
    whole = ",".join(f"{n:032d}" for n in range(1_000))
    batch = segment.add(pub(0, message_id=whole), 0) or segment.drain()
    assert batch is not None
    assert len(batch.keys) < 32_000
    assert whole not in batch.keys


def test_views_are_of_one_id_in_the_order_of_time_with_the_client_s_address() -> None:
    after, before = encode_trace(AFTER).encode(), encode_trace(BEFORE).encode()
    stranger = encode_trace(PUB).encode()
    views = trace_views("M", [message(after + stranger, "10.0.0.2"), message(before)])
    assert [(v.trace, v.client_host) for v in views] == [(BEFORE, "10.0.0.1"), (AFTER, "10.0.0.2")]


def test_views_of_one_millisecond_stand_in_the_order_of_a_message_s_life() -> None:
    life = [replace(each, timestamp_ms=1, message_id="M") for each in (PUB, END, BEFORE, AFTER)]
    backwards = [message(encode_trace(each).encode()) for each in reversed(life)]
    assert [view.trace for view in trace_views("M", backwards)] == life


def test_an_unreadable_trace_message_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        views = trace_views("M", [message(b"Pub\x01\x02"), message(encode_trace(AFTER).encode())])
    assert [view.trace for view in views] == [AFTER]
    assert "is left out" in caplog.text


def test_the_kinds_of_messages_have_rocketmq_s_numbers() -> None:
    assert [each.value for each in MessageType] == [0, 1, 2, 3]
