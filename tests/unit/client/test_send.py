from __future__ import annotations

import zlib

import pytest

from kerolox.client.core.sending.send import (
    SendHeader,
    SendStatus,
    outgoing_batch,
    outgoing_message,
    retry_message,
    send_result,
    split_batches,
)
from kerolox.client.core.sending.transaction import TransactionState
from kerolox.errors import MessageRejectedError, RemoteProtocolError, TopicNotFoundError
from kerolox.message import Message, MessageExt, MessageQueue, decode_properties
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.records import decode_batch

HEADER = SendHeader("group", "TBW102", 4)
QUEUE = MessageQueue("T", "b", 3)


def outgoing(message: Message, compress_bytes_min: int = 4096) -> object:
    return outgoing_message(message, "ID", compress_bytes_min=compress_bytes_min, compress_level=5)


def test_the_request_has_the_short_names_of_v2() -> None:
    message = outgoing_message(
        Message("T", b"body", tags="t", keys="k", flag=9),
        "ID",
        compress_bytes_min=4096,
        compress_level=5,
    )
    request = HEADER.request(message, 3, 1234)
    properties = request.ext_fields.pop("i")
    assert decode_properties(properties) == {
        "KEYS": "k",
        "TAGS": "t",
        "WAIT": "true",
        "UNIQ_KEY": "ID",
    }
    assert request.ext_fields == {
        "a": "group",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "1234",
        "h": "9",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    assert (request.code, request.body, request.flag) == (310, b"body", 0)
    assert HEADER.request(message, 3, 1234, oneway=True).is_oneway


def test_a_body_from_the_limit_on_is_compressed() -> None:
    body = b"x" * 4096
    small = outgoing_message(
        Message("T", body[1:]), "ID", compress_bytes_min=4096, compress_level=5
    )
    large = outgoing_message(Message("T", body), "ID", compress_bytes_min=4096, compress_level=5)
    assert (small.body, small.sys_flag) == (body[1:], 0)
    assert zlib.decompress(large.body) == body
    assert large.sys_flag == 0x301


def test_too_many_properties_are_refused_by_their_bytes() -> None:
    with pytest.raises(MessageRejectedError, match="properties"):
        outgoing(Message("T", b"x", properties={"p": "ü" * 16_384}))
    outgoing(Message("T", b"x", properties={"p": "u" * 16_384}))


def test_a_batch_has_its_messages_in_the_body_and_wait_in_the_header() -> None:
    messages = [Message("T", b"one", tags="a", flag=1), Message("T", b"two", keys="k")]
    batch = outgoing_batch(messages, ["ID0", "ID1"])
    assert (batch.properties, batch.message_id) == ("WAIT\x01true", "ID0,ID1")
    items = decode_batch(batch.body)[0]
    assert [(flag, body) for flag, body, _ in items] == [(1, b"one"), (0, b"two")]
    assert decode_properties(items[1][2].decode())["UNIQ_KEY"] == "ID1"
    request = HEADER.request(batch, 0, 1)
    assert (request.code, request.ext_fields["m"]) == (320, "true")


def test_a_list_is_cut_by_bytes_and_by_count() -> None:
    messages = [Message("T", bytes(1000)) for _ in range(10)]
    assert [len(part) for part in split_batches(messages, count_max=4)] == [4, 4, 2]
    assert [len(part) for part in split_batches(messages, bytes_max=2500)] == [2] * 5
    assert [len(part) for part in split_batches(messages, bytes_max=1)] == [1] * 10
    assert list(split_batches([])) == []


def answer(code: int, **fields: str) -> RemotingCommand:
    return RemotingCommand(code, fields, flag=1)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_four_codes_mean_that_the_message_is_stored(code: int, status: SendStatus) -> None:
    message = outgoing_batch([Message("T", b"x")], ["ID"])
    response = answer(code, msgId="7F", queueId="5", queueOffset="42", MSG_REGION="R")
    result = send_result(response, message.message_id, QUEUE, "h:1")
    assert result == (status, "ID", "7F", MessageQueue("T", "b", 5), 42, "R", True)
    assert result.is_ok == (code == 0)


def test_any_other_code_is_an_error_with_its_remark() -> None:
    message = outgoing_batch([Message("T", b"x")], ["ID"])
    response = RemotingCommand(17, flag=1, remark="no such topic")
    with pytest.raises(TopicNotFoundError, match=r"from h:1: no such topic"):
        send_result(response, message.message_id, QUEUE, "h:1")


@pytest.mark.parametrize("fields", [{}, {"msgId": "x", "queueId": "a", "queueOffset": "1"}])
def test_a_malformed_answer_is_a_protocol_error(fields: dict[str, str]) -> None:
    message = outgoing_batch([Message("T", b"x")], ["ID"])
    with pytest.raises(RemoteProtocolError):
        send_result(answer(0, **fields), message.message_id, QUEUE, "h:1")


def test_a_retry_keeps_the_origin_and_waits_longer_each_time() -> None:
    failed = MessageExt(
        topic="T",
        body=b"x",
        queue_id=0,
        queue_offset=1,
        commit_log_offset=2,
        properties={"UNIQ_KEY": "ID", "MIN_OFFSET": "0", "MAX_OFFSET": "9", "a": "b"},
        reconsume_times=2,
    )
    again = retry_message(failed, "g", max_reconsume_times=16)
    assert decode_properties(again.properties) == {
        "UNIQ_KEY": "ID",
        "a": "b",
        "ORIGIN_MESSAGE_ID": "ID",
        "RETRY_TOPIC": "T",
        "DELAY": "5",
        "WAIT": "true",
    }
    fields = HEADER.request(again, 0, 1).ext_fields
    assert (fields["b"], fields["j"], fields["l"]) == ("%RETRY%g", "3", "16")


def test_states_print_as_their_names() -> None:
    assert f"{SendStatus.SEND_OK} {TransactionState.COMMIT}" == "SEND_OK COMMIT"
