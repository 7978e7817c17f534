from __future__ import annotations

import pytest

from kerolox.message import MessageExt
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import (
    AckMessageHeader,
    ChangeInvisibleTimeAnswer,
    ChangeInvisibleTimeHeader,
    HeaderFieldError,
    NotificationAnswer,
    NotificationHeader,
    PollingInfoAnswer,
    PopMessageAnswer,
    PopMessageHeader,
)
from kerolox.protocol.pop import (
    RECEIPT_BYTES_MAX,
    BatchAck,
    BatchAckBody,
    PoppedBatch,
    PopReceipt,
    PopTextError,
    batches_from_texts,
    msg_offset_info,
    order_count_info,
    popped_record,
    start_offset_info,
)
from kerolox.protocol.pop_names import TopicKind, pop_retry_topic, retry_topic_fault
from kerolox.protocol.records import decode_records, encode_record
from kerolox.protocol.request_modes import MessageRequestMode

POP = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "15000",
    "bornTime": "1700000000123",
    "initMode": "1",
    "expType": "TAG",
    "exp": "*",
    "order": "false",
}

JAVA_BATCH_ACK = (
    b'{"acks":[{"b":"AQIAgA==","c":"g","it":60000,"pt":1700000000123,"q":1,"r":"0","rq":2,"so":10,'
    b'"t":"T"}],"brokerName":"b"}'
)
"""What RocketMQ 5.3.3 writes; the offsets are 10, 19 and 41."""


def test_codes_are_those_of_rocketmq_five() -> None:
    assert list(range(200_050, 200_057)) == [
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.POP_ROLLBACK,
    ]
    assert RequestCode.BATCH_ACK_MESSAGE == 200_151
    assert (RequestCode.SET_MESSAGE_REQUEST_MODE, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE) == (
        401,
        402,
    )
    assert (ResponseCode.INVALID_PARAMETER, ResponseCode.NO_MESSAGE) == (29, 208)
    assert (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT) == (209, 210)


def test_the_header_of_a_pop_has_the_fields_of_rocketmq() -> None:
    header = PopMessageHeader.decode({**POP, "attemptId": "a", "bname": "b"})
    assert header.encode() == {**POP, "attemptId": "a"}
    assert (header.queue_id, header.order, header.attempt_id) == (-1, False, "a")


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "maxMsgNums", "initMode", "pollTime"])
def test_a_pop_without_a_required_field_is_refused_by_its_name(name: str) -> None:
    fields = {key: value for key, value in POP.items() if key != name}
    with pytest.raises(HeaderFieldError, match=f"^the custom field <{name}> is null$"):
        PopMessageHeader.decode(fields)


def test_a_pop_may_leave_out_when_it_was_born() -> None:
    assert PopMessageHeader.decode({k: v for k, v in POP.items() if k != "bornTime"}).born_time == 0


def test_an_answer_without_order_has_no_order_count() -> None:
    answer = PopMessageAnswer(pop_time=1, invisible_time=2, revive_qid=3, rest_num=4)
    assert answer.encode() == {
        "popTime": "1",
        "invisibleTime": "2",
        "reviveQid": "3",
        "restNum": "4",
        "startOffsetInfo": "",
        "msgOffsetInfo": "",
    }


def test_headers_of_acknowledgements_and_changes_have_their_fields() -> None:
    ack = {"consumerGroup": "g", "topic": "T", "queueId": "1", "extraInfo": "x", "offset": "7"}
    assert AckMessageHeader.decode(ack).encode() == ack
    change = {**ack, "invisibleTime": "1000"}
    assert ChangeInvisibleTimeHeader.decode(change).encode() == change
    answer = ChangeInvisibleTimeAnswer(pop_time=1, invisible_time=2, revive_qid=3)
    assert answer.encode() == {"popTime": "1", "invisibleTime": "2", "reviveQid": "3"}


def test_headers_of_notifications_have_their_fields() -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "pollTime": "5", "bornTime": "6"}
    assert NotificationHeader.decode(fields).encode() == {**fields, "order": "false"}
    assert NotificationAnswer(has_msg=True).encode() == {"hasMsg": "true", "pollingFull": "false"}
    assert PollingInfoAnswer(polling_num=3).encode() == {"pollingNum": "3"}


def test_topics_of_retries_are_named_as_rocketmq_names_them() -> None:
    assert pop_retry_topic("T", "g") == "%RETRY%g_T"
    assert pop_retry_topic("T", "g", is_v2=True) == "%RETRY%g+T"
    assert [kind.topic("T", "g") for kind in TopicKind] == ["T", "%RETRY%g_T", "%RETRY%g+T"]


def test_a_retry_topic_that_no_record_can_name_is_refused_before_a_pop() -> None:
    fits = 127 - len("%RETRY%_T")
    assert retry_topic_fault("T", "g" * fits) is None
    fault = retry_topic_fault("T", "g" * (fits + 1))
    assert fault is not None
    assert "has 128 bytes; at most 127" in fault


def test_a_receipt_is_the_text_of_rocketmq() -> None:
    receipt = PopReceipt(1, 2, 3, 4, TopicKind.RETRY_V2, "br", 5, 6)
    assert receipt.text == "1 2 3 4 2 br 5 6"
    assert PopReceipt.parse(receipt.text) == receipt
    assert PopReceipt.parse("1 2 3 999 0 br 5").is_order
    assert PopReceipt.parse("1 2 3 4 0 br 5 6 77").commit_log_offset == 77


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has 1 parts"),
        ("1 2 3 4 0 br", "has 6 parts"),
        ("1 2 3 4 0 br 5 6 7 8", "has 10 parts"),
        ("1 2 3 4 3 br 5 6", "topic type is '3'"),
        ("1 2 3 4 0  5 6", "names no broker"),
        ("-1 2 3 4 0 br 5 6", "start offset is '-1'"),
        ("1 9223372036854775808 3 4 0 br 5 6", "pop time is '9223372036854775808'"),
        ("1 2 3 4 0 br 2147483648 6", "queue is '2147483648'"),
        ("1 2 3 4 0 br 5 \u0663", "offset is"),
        ("1 2 +3 4 0 br 5 6", r"invisible time is '\+3'"),
        ("1" * (RECEIPT_BYTES_MAX + 1), f"at most {RECEIPT_BYTES_MAX}"),
    ],
)
def test_a_malformed_receipt_is_refused_with_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(PopTextError, match=fault):
        PopReceipt.parse(text)


@pytest.mark.parametrize("name", ["", "two words", "b" * 256])
def test_a_broker_name_that_would_break_receipts_is_refused(name: str) -> None:
    with pytest.raises(PopTextError, match="brokerName"):
        _ = PopReceipt(1, 2, 3, 4, TopicKind.NORMAL, name, 5, 6).text


def test_the_texts_of_an_answer_name_queues_and_offsets() -> None:
    batches = [
        PoppedBatch(TopicKind.RETRY_V1, 0, 4, (4, 6)),
        PoppedBatch(TopicKind.NORMAL, 3, 10, (10,), times_consumed=0, times_by_offset={10: 2}),
    ]
    starts, offsets = start_offset_info(batches), msg_offset_info(batches)
    counts = order_count_info(batches)
    assert starts == "1 0 4;0 3 10"
    assert offsets == "1 0 4,6;0 3 10"
    assert counts == "0 qo3%10 2;0 3 0"
    assert batches_from_texts(starts, offsets, counts) == batches


@pytest.mark.parametrize(
    ("starts", "offsets", "counts"),
    [
        ("0 1", "", ""),
        ("0 1 2;0 1 3", "", ""),
        ("0 1 2", "0 1 2;0 1 3", ""),
        ("", "0 1 2", ""),
        ("0 1 2", "0 1 2,", ""),
        ("0 1 2", "", "0 2 1"),
        ("0 1 2", "", "0 qo1%x 1"),
        ("0 1 2;", "", ""),
    ],
)
def test_malformed_texts_of_an_answer_are_refused(starts: str, offsets: str, counts: str) -> None:
    with pytest.raises(PopTextError):
        batches_from_texts(starts, offsets, counts)


def test_a_batch_of_acknowledgements_is_read_and_written_as_rocketmq_does() -> None:
    body = BatchAckBody.decode(JAVA_BATCH_ACK)
    assert body.broker_name == "b"
    (ack,) = body.acks
    assert (ack.c, ack.t, ack.kind, ack.q, ack.rq) == ("g", "T", TopicKind.NORMAL, 1, 2)
    assert (ack.so, ack.pt, ack.it) == (10, 1_700_000_000_123, 60_000)
    bits = 1 << 0 | 1 << 9 | 1 << 31
    assert ack.bits_between(0, 99) == ack.bits_between(10, 41) == bits
    assert ack.bits_between(11, 40) == 1 << 9
    assert ack.bits_between(1 << 62, 1 << 62) == ack.bits_between(0, 9) == 0
    assert BatchAck.bits(10, [10, 19, 41]) == ack.b
    assert body.encode() == JAVA_BATCH_ACK


def test_a_batch_is_read_by_its_long_names_too() -> None:
    text = JAVA_BATCH_ACK.decode()
    for short, long in [("c", "consumerGroup"), ("so", "startOffset"), ("b", "bitSet")]:
        text = text.replace(f'"{short}":', f'"{long}":')
    assert BatchAckBody.decode(text.encode()) == BatchAckBody.decode(JAVA_BATCH_ACK)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"acks":7}',
        b'{"acks":[7]}',
        b'{"acks":[{"b":"AQ==","c":"g"}]}',
        JAVA_BATCH_ACK.replace(b"AQIAgA==", b"!"),
        JAVA_BATCH_ACK.replace(b'"so":10', b'"so":9223372036854775807'),
        JAVA_BATCH_ACK.replace(b'"r":"0"', b'"r":"9"'),
        JAVA_BATCH_ACK.replace(b'"c":"g"', b'"c":"%b"' % (b"g" * 300)),
        JAVA_BATCH_ACK.replace(b"AQIAgA==", b"/" * 4 * 8192),
    ],
)
def test_a_malformed_batch_of_acknowledgements_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        BatchAckBody.decode(body)


def test_a_batch_that_acknowledges_too_many_messages_is_refused() -> None:
    ack = JAVA_BATCH_ACK[len(b'{"acks":[') : -len(b'],"brokerName":"b"}')]
    full = ack.replace(b"AQIAgA==", b"/" * 4 * 2048)
    with pytest.raises(BodyError, match="acknowledges 98304 messages"):
        BatchAckBody.decode(b'{"acks":[%b,%b]}' % (full, full))


def test_a_request_mode_is_pull_unless_it_says_pop() -> None:
    assert MessageRequestMode(consumer_group="g", topic="T").mode == "PULL"


def retry_record(properties: str) -> bytes:
    message = MessageExt(
        topic="%RETRY%g_T",
        body=b"body",
        queue_id=0,
        queue_offset=7,
        reconsume_times=2,
        commit_log_offset=9,
        properties={},
        born_host=("10.0.0.1", 1),
        store_host=("::1", 2),
    )
    return encode_record(message, properties)


@pytest.mark.parametrize("properties", ["", "TAGS\x01a", "TAGS\x01a\x02"])
def test_a_popped_retry_has_its_first_topic_and_its_receipt(properties: str) -> None:
    record = popped_record(retry_record(properties), "T", "1 2 3")
    (message,) = decode_records(record)
    (before,) = decode_records(retry_record(properties))
    assert (message.topic, before.topic) == ("T", "%RETRY%g_T")
    assert message.properties == {**before.properties, "POP_CK": "1 2 3"}
    assert (message.body, message.queue_offset, message.reconsume_times) == (b"body", 7, 2)
    assert (message.born_host, message.store_host) == (before.born_host, before.store_host)
    assert message.store_size == len(record)


@pytest.mark.parametrize(
    "record",
    [b"", b"x" * 100, retry_record("POP_CK\x01old"), retry_record("a\x01" + "b" * 32_760)],
)
def test_a_record_without_space_for_a_receipt_stays_as_it_is(record: bytes) -> None:
    assert popped_record(record, "T", "1 2 3") == record
