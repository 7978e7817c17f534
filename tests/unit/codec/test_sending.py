"""The codecs of sends against each other and against the general way, which is complete."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.sending.send import (
    SendHeader,
    outgoing_batch,
    outgoing_message,
    send_result,
)
from kerolox.codec.choice import send_codec
from kerolox.codec.sending import SendCodec, SendEncoder
from kerolox.errors import KeroloxError, RemoteProtocolError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder

NAMES = ["python"]
if importlib.util.find_spec("kerolox_kernel") is not None:
    NAMES.append("native")
CODECS = [send_codec(name) for name in NAMES]
ID = "7F0000010ABC18B4AAC2000000000001"
OPAQUE = 77

TEXTS = st.text(st.characters(), max_size=20)
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\1\2"), max_size=20)
VALUES_OF_USERS = PLAIN.filter(lambda name: bool(name.strip()))
NAMES_OF_USERS = PLAIN.map("u{}".format)  # none of the reserved ones
MESSAGES = st.builds(
    Message,
    topic=st.just("T-1"),
    body=st.binary(min_size=1, max_size=64),
    tags=PLAIN | TEXTS,
    keys=PLAIN | TEXTS,
    flag=st.integers(-(2**31), 2**31 - 1),
    properties=st.dictionaries(NAMES_OF_USERS, VALUES_OF_USERS, max_size=3),
    wait_store_ok=st.booleans(),
)
HEADERS = st.builds(
    SendHeader,
    group=st.sampled_from(["g", 'odd"group', "группа"]),
    create_topic_key=st.sampled_from(["TBW102", ""]),
    default_topic_queue_nums=st.integers(1, 65_535),
    unit_mode=st.booleans(),
)
INTS = st.integers(-(2**31), 2**31 - 1)


def encoder(codec: SendCodec, header: SendHeader) -> SendEncoder:
    return codec.SendEncoder(
        header.group,
        "T-1",
        header.create_topic_key,
        header.default_topic_queue_nums,
        header.unit_mode,
    )


def encoded(
    codec: SendCodec, header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> bytes | None:
    made = encoder(codec, header)
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    return made.encode(
        queue_id,
        opaque,
        now_ms,
        ID,
        message.body,
        keys,
        message.tags,
        message.wait_store_ok,
        message.flag,
        message.properties,
    )


def in_general(
    header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> bytes:
    outgoing = outgoing_message(message, ID, compress_bytes_min=2**31, compress_level=5)
    command = header.request(outgoing, queue_id, now_ms)
    command.opaque = opaque
    return command.encode()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(HEADERS, MESSAGES, INTS, INTS, st.integers(0, 2**62))
def test_a_codec_makes_the_frame_of_the_general_way_or_declines(
    codec: SendCodec, header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> None:
    frame = encoded(codec, header, message, queue_id, opaque, now_ms)
    if frame is not None:
        assert frame == in_general(header, message, queue_id, opaque, now_ms)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(PLAIN, PLAIN, st.dictionaries(NAMES_OF_USERS, VALUES_OF_USERS, max_size=3))
def test_a_codec_takes_every_text_that_is_legal(
    codec: SendCodec, tags: str, keys: str, properties: dict[str, str]
) -> None:
    message = Message("T-1", b"x", tags=tags, keys=keys, properties=properties)
    assert encoded(codec, SendHeader("g", "TBW102", 4), message, 0, 1, 2) is not None


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(HEADERS, st.lists(MESSAGES, min_size=1, max_size=4), INTS, INTS, st.booleans())
def test_a_codec_makes_the_batch_of_the_general_way_or_declines(
    codec: SendCodec,
    header: SendHeader,
    messages: list[Message],
    queue_id: int,
    opaque: int,
    wait: bool,
) -> None:
    ids = [f"{ID}{index}" for index in range(len(messages))]
    made = encoder(codec, header)
    items = [
        made.item(
            message_id,
            message.body,
            str(message.keys),
            message.tags,
            wait,
            message.flag,
            message.properties,
        )
        for message_id, message in zip(ids, messages, strict=True)
    ]
    whole = [item for item in items if item is not None]
    if len(whole) < len(items):
        return
    for message in messages:
        message.wait_store_ok = wait
    command = header.request(outgoing_batch(messages, ids), queue_id, 12)
    command.opaque = opaque
    assert made.batch(queue_id, opaque, 12, wait, whole) == command.encode()


ODD_MESSAGES = {
    "a value that would be read as two": Message("T-1", b"x", keys="a\2TAGS\1b"),
    "half a surrogate pair": Message("T-1", b"x", tags="\ud800"),
    "properties that are too long": Message("T-1", b"x", keys="k" * 40_000),
    "a body that no frame holds": Message("T-1", bytes(17 << 20)),
}


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("why", ODD_MESSAGES)
def test_a_codec_leaves_what_is_illegal_to_the_general_way(codec: SendCodec, why: str) -> None:
    header = SendHeader("g", "TBW102", 4)
    assert encoded(codec, header, ODD_MESSAGES[why], 0, 1, 2) is None
    with pytest.raises((KeroloxError, UnicodeEncodeError)):
        in_general(header, ODD_MESSAGES[why], 0, 1, 2)


VALUES = st.sampled_from(["0", "7", "-1", "007", " 5", "1_0", "", "x", "9" * 30, "true", "é", '"'])
ANSWERS = st.builds(
    RemotingCommand,
    code=st.sampled_from([0, 0, 0, 0, 1, 10, 14]),
    ext_fields=st.dictionaries(
        st.sampled_from(["queueId", "msgId", "queueOffset", "MSG_REGION", "TRACE_ON", "other"]),
        VALUES,
        max_size=6,
    )
    | st.fixed_dictionaries(
        {"queueId": VALUES, "msgId": VALUES, "queueOffset": VALUES},
        optional={"MSG_REGION": VALUES, "TRACE_ON": st.sampled_from(["true", "false"])},
    ),
    opaque=st.sampled_from([OPAQUE, 5, -1]),
    flag=st.sampled_from([1, 1, 1, 0, 3]),
    remark=st.sampled_from([None, "", "as\tit is"]),
    body=st.binary(max_size=8),
    serialize_type=st.sampled_from(
        [SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ]
    ),
)
QUEUE = MessageQueue("T-1", "b", 3)
SENT = outgoing_message(Message("T-1", b"x"), ID, compress_bytes_min=2**31, compress_level=5)


def check_answers(codec: SendCodec, data: bytes, cuts: list[int]) -> int:
    """Feed a stream in parts; how many plain answers it had."""
    decoder, plain, others, at = codec.SendDecoder(), [], [], 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        part = bytearray(data[at:end])
        answers, frames, fault = decoder.feed(part + b"rest", len(part), {OPAQUE: None})
        assert fault is None
        plain += answers
        others += frames
        at = end
    expected = iter(plain)
    for frame in FrameDecoder().feed(data):
        if others and others[0] == frame:
            del others[0]
            continue
        command = RemotingCommand.decode(frame)
        assert command.opaque == OPAQUE
        assert command.is_response
        result = send_result(command, SENT.message_id, QUEUE, "a:1")
        numbers = (OPAQUE, result.queue.queue_id, result.queue_offset)
        texts = (result.offset_message_id, result.region, result.is_traced)
        assert (*numbers, *texts) == next(expected)
    assert not others
    assert next(expected, None) is None
    return len(plain)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(st.lists(ANSWERS, max_size=5), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_plain_answer_says_what_the_general_way_reads(
    codec: SendCodec, answers: list[RemotingCommand], cuts: list[int]
) -> None:
    check_answers(codec, b"".join(answer.encode() for answer in answers), cuts)


JAVA = (
    b'{"code":0,"extFields":{"queueId":"3","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"0A0000010000277A0000000000000000","queueOffset":"12"},"flag":1,"language":"JAVA",'
    b'"opaque":77,"serializeTypeCurrentRPC":"JSON","version":399}'
)
ODD_HEADERS = {
    "empty": b"",
    "no object": b"77",
    "escaped": JAVA.replace(b"msgId", b"msg\\u0049d"),
    "twice": JAVA.replace(b'"queueId":"3"', b'"queueId":"3","queueId":"4"'),
    "two opaques": JAVA.replace(b'"opaque":77', b'"opaque":1,"opaque":77'),
    "number": JAVA.replace(b'"3"', b"3"),
    "null region": JAVA.replace(b'"DefaultRegion"', b"null"),
    "spaces": JAVA.replace(b":", b" : ").replace(b",", b" ,\n"),
    "no UTF-8": JAVA.replace(b"DefaultRegion", b"\xff"),
    "control character": JAVA.replace(b"DefaultRegion", b"a\tb"),
    "cut": JAVA[:-1],
    "more": JAVA + b"}",
    "nested": JAVA.replace(b'"TRACE_ON":"true"', b'"TRACE_ON":"false"'),
    "large number": JAVA.replace(b'"12"', b'"9223372036854775808"'),
    "no flag": JAVA.replace(b'"flag":1,', b""),
}


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("how", ODD_HEADERS)
def test_an_odd_answer_is_read_as_the_general_way_reads_it_or_left_to_it(
    codec: SendCodec, how: str
) -> None:
    header = ODD_HEADERS[how]
    frame = len(header).to_bytes(4, "big") + header
    data = len(frame).to_bytes(4, "big") + frame
    try:
        RemotingCommand.decode(frame)
    except RemoteProtocolError:
        fed = codec.SendDecoder().feed(bytearray(data), len(data), {OPAQUE: None})
        assert fed == ([], [frame], None)
    else:
        check_answers(codec, data, [])


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_what_brokers_write_is_a_plain_answer_to_an_open_send_only(codec: SendCodec) -> None:
    frame = len(JAVA).to_bytes(4, "big") + JAVA
    data = bytearray(len(frame).to_bytes(4, "big") + frame)
    answer = (77, 3, 12, "0A0000010000277A0000000000000000", "DefaultRegion", True)
    assert codec.SendDecoder().feed(data, len(data), {77: None}) == ([answer], [], None)
    assert codec.SendDecoder().feed(data, len(data), {76: None}) == ([], [frame], None)
    assert codec.SendDecoder().feed(data, len(data), {}) == ([], [frame], None)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_stream_ends_at_a_length_that_no_frame_has(codec: SendCodec) -> None:
    good = bytes([0, 0, 0, 6, 0, 0, 0, 2]) + b"{}"
    decoder = codec.SendDecoder()
    data = bytearray(good + b"\xff" * 8)
    answers, frames, fault = decoder.feed(data, len(data), {})
    assert (answers, frames) == ([], [good[4:]])
    assert fault is not None
    assert decoder.feed(bytearray(1), 1, {}) == ([], [], fault)
    _, _, fault = codec.SendDecoder().feed(bytearray(b"GET / HTTP/1.1"), 14, {})
    assert fault is not None
    assert "this is HTTP" in fault
