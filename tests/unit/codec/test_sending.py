"""The codecs of sends against each other and against the slow path, which is complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.client.core.sending.send import (
    SendHeader,
    SendResult,
    SendStatus,
    outgoing_batch,
    outgoing_message,
    send_result,
)
from kerolox.codec.python_sending import FrameHead, json_text, property_text
from kerolox.codec.sending import SendCodec
from kerolox.errors import KeroloxError, RemoteProtocolError
from kerolox.message import Message, MessageQueue
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from tests.unit.codec.rig import CODECS, HEAD, NAMES, Rig

ID = f"{HEAD}0000"
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


def encoded(
    codec: SendCodec, header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> bytes | None:
    rig = Rig(codec, header, queue_ids=(queue_id,), first_opaque=opaque, now_ms=now_ms)
    return None if rig.begin(message) is None else rig.channel.take()


def in_general(
    header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> bytes:
    outgoing = outgoing_message(message, ID, compress_bytes_min=2**31, compress_level=5)
    command = header.request(outgoing, queue_id, now_ms)
    command.opaque = opaque
    return command.encode()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(HEADERS, MESSAGES, INTS, INTS, st.integers(0, 2**62))
def test_a_codec_makes_the_frame_of_the_slow_path_or_declines(
    codec: SendCodec, header: SendHeader, message: Message, queue_id: int, opaque: int, now_ms: int
) -> None:
    frame = encoded(codec, header, message, queue_id, opaque, now_ms)
    if frame is not None:
        assert frame == in_general(header, message, queue_id, opaque, now_ms)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(HEADERS, MESSAGES, INTS, INTS)
def test_a_codec_makes_the_one_way_frame_of_the_slow_path_or_declines(
    codec: SendCodec, header: SendHeader, message: Message, queue_id: int, opaque: int
) -> None:
    rig = Rig(codec, header, queue_ids=(queue_id,), first_opaque=opaque, now_ms=12)
    count = rig.lane.write_oneway(message, None)
    frame = rig.channel.take()
    assert count == bool(frame)
    assert len(rig.channel) == rig.sender.open_count == 0
    if frame:
        outgoing = outgoing_message(message, ID, compress_bytes_min=2**31, compress_level=5)
        command = header.request(outgoing, queue_id, 12, oneway=True)
        command.opaque = opaque
        assert frame == command.encode()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_one_way_messages_take_turns_while_there_is_room(codec: SendCodec) -> None:
    rig = Rig(codec, queue_ids=(3, 5), buffer_bytes_max=400)
    message, other = Message("T-1", b"x"), MessageQueue("T-1", "b", 9)
    assert [rig.lane.write_oneway(message, None) for _ in range(2)] == [1, 2]
    assert rig.lane.write_oneway(message, rig.queues[1]) == 1, "the turn before was full"
    assert (rig.flushes_scheduled, rig.checks, len(rig.flushed)) == (2, 2, 1)
    frames = b"".join([*rig.flushed, rig.channel.take()])
    seen = [RemotingCommand.decode(each) for each in FrameDecoder().feed(memoryview(frames))]
    assert [(each.is_oneway, each.ext_fields["e"]) for each in seen] == [
        (True, "3"),
        (True, "5"),
        (True, "5"),
    ]
    assert rig.lane.write_oneway(message, other) == 0
    assert rig.lane.write_oneway(Message("T-1", b"x", delay_level=1), None) == 0
    rig.channel.blocked = True
    assert rig.lane.write_oneway(message, None) == 0
    rig.channel.blocked = False
    rig.waiting[1] = None
    assert rig.lane.write_oneway(message, None) == 0
    batching = Rig(codec, batching=True)
    assert batching.lane.write_oneway(message, None) == 0
    assert not batching.channel.take()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(PLAIN, PLAIN, st.dictionaries(NAMES_OF_USERS, VALUES_OF_USERS, max_size=3))
def test_a_codec_takes_every_text_that_is_legal(
    codec: SendCodec, tags: str, keys: str, properties: dict[str, str]
) -> None:
    message = Message("T-1", b"x", tags=tags, keys=keys, properties=properties)
    assert encoded(codec, SendHeader("g", "TBW102", 4), message, 0, 1, 2) is not None


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(HEADERS, st.lists(MESSAGES, min_size=1, max_size=4), INTS, INTS, st.booleans())
def test_a_codec_makes_the_batch_of_the_slow_path_or_declines(
    codec: SendCodec,
    header: SendHeader,
    messages: list[Message],
    queue_id: int,
    opaque: int,
    wait: bool,
) -> None:
    rig = Rig(codec, header, queue_ids=(queue_id,), first_opaque=opaque, now_ms=12)
    batch = rig.batch(wait=wait)
    if not all(batch.add(message) for message in messages):
        return
    for message in messages:
        message.wait_store_ok = wait
    assert batch.message_ids == [f"{HEAD}{index:04X}" for index in range(len(messages))]
    command = header.request(outgoing_batch(messages, batch.message_ids), queue_id, 12)
    command.opaque = opaque
    assert batch.body == command.body
    assert rig.lane.post_batch(batch, 0, 3_000, 10.0)
    assert rig.channel.take() == command.encode()


LONG = st.integers(1, 300).map("k".__mul__)
PROPERTIES = st.dictionaries(NAMES_OF_USERS, VALUES_OF_USERS, max_size=2)


ODD_KEYS = st.sampled_from(["", "a\1", "a\2b", '"', "\\", "\x7f", "\ud800"])
HEAD_OF_FRAMES = FrameHead(310, "g", "T-1", "TBW102", 4, False)


@given(TEXTS | LONG | ODD_KEYS, TEXTS | LONG, PROPERTIES, st.integers(0, 3))
def test_a_header_from_remembered_parts_is_the_one_that_would_be_made(
    keys: str, tags: str, properties: dict[str, str], number: int
) -> None:
    start = HEAD_OF_FRAMES.start(number)
    message = Message("T-1", b"x", tags, keys, number, properties, wait_store_ok=number > 1)
    try:
        made = HEAD_OF_FRAMES.message(start, 7, 100 + number, ID, keys, message)
    except UnicodeEncodeError:
        made = None
    try:
        text = property_text(ID, keys, tags, number > 1, properties)
        properties_text = None if text is None else json_text(text)
    except UnicodeEncodeError:
        properties_text = None
    if properties_text is None:
        assert made is None
    else:
        flag, now_ms = number, 100 + number
        assert made == HEAD_OF_FRAMES.frame(start, 7, now_ms, flag, properties_text, b"x")


ODD_MESSAGES = {
    "a value that would be read as two": Message("T-1", b"x", keys="a\2TAGS\1b"),
    "half a surrogate pair": Message("T-1", b"x", tags="\ud800"),
    "properties that are too long": Message("T-1", b"x", keys="k" * 40_000),
    "a body that no frame holds": Message("T-1", bytes(17 << 20)),
}


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("why", ODD_MESSAGES)
def test_a_codec_leaves_what_is_illegal_to_the_slow_path(codec: SendCodec, why: str) -> None:
    header = SendHeader("g", "TBW102", 4)
    rig = Rig(codec, header)
    assert rig.begin(ODD_MESSAGES[why]) is None
    assert (len(rig.channel), rig.channel.buffered_bytes, rig.sender.open_count) == (0, 0, 0)
    assert rig.batch().add(ODD_MESSAGES[why]) is None or why == "a body that no frame holds"
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
    opaque=st.integers(OPAQUE, OPAQUE + 3) | st.sampled_from([5, -1]),
    flag=st.sampled_from([1, 1, 1, 0, 3]),
    remark=st.sampled_from([None, "", "as\tit is"]),
    body=st.binary(max_size=8),
    serialize_type=st.sampled_from(
        [SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ]
    ),
)


def check_answers(codec: SendCodec, data: bytes, cuts: list[int]) -> None:
    """Feed a stream in parts to a channel with four open sends."""
    rig = Rig(codec, queue_ids=(3,), first_opaque=OPAQUE)
    futures = {OPAQUE + number: rig.begin(Message("T-1", b"x")) for number in range(4)}
    others, at = [], 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        frames, fault = rig.feed(data[at:end])
        assert fault is None
        others += frames
        at = end
    stored = 0
    for frame in FrameDecoder().feed(data):
        if others and others[0] == frame:
            del others[0]
            continue
        command = RemotingCommand.decode(frame)
        assert command.is_response
        future = futures.pop(command.opaque)  # one for each
        assert future is not None
        queue = rig.queues[0]
        message_id = f"{HEAD}{command.opaque - OPAQUE:04X}"
        assert future.result == send_result(command, message_id, queue, "a:1")
        assert type(future.result) is SendResult
        assert type(future.result.queue) is MessageQueue
        stored += 1
    assert not others
    assert not any(future.is_done for future in futures.values() if future)
    assert len(rig.channel) == rig.sender.open_count == 4 - stored


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@given(st.lists(ANSWERS, max_size=5), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_fast_answer_says_what_the_slow_path_reads(
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
def test_an_odd_answer_is_read_as_the_slow_path_reads_it_or_left_to_it(
    codec: SendCodec, how: str
) -> None:
    header = ODD_HEADERS[how]
    frame = len(header).to_bytes(4, "big") + header
    data = len(frame).to_bytes(4, "big") + frame
    try:
        RemotingCommand.decode(frame)
    except RemoteProtocolError:
        rig = Rig(codec)
        assert rig.begin(Message("T-1", b"x"))
        assert rig.feed(data) == ([frame], None)
        assert len(rig.channel) == 1
    else:
        check_answers(codec, data, [])


def framed(header: bytes) -> tuple[bytes, bytes]:
    """A frame, and the same with its length."""
    frame = len(header).to_bytes(4, "big") + header
    return frame, len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_what_brokers_write_is_a_fast_answer_to_an_open_send_only(codec: SendCodec) -> None:
    frame, data = framed(JAVA)
    rig = Rig(codec, queue_ids=(3,))
    assert rig.feed(data) == ([frame], None)
    future = rig.begin(Message("T-1", b"x"))
    assert future is not None
    assert rig.feed(data) == ([], None)
    id_of_broker = "0A0000010000277A0000000000000000"
    queue = MessageQueue("T-1", "b", 3)
    answer = (SendStatus.SEND_OK, ID, id_of_broker, queue, 12, "DefaultRegion", True)
    assert future.result == answer
    assert hash(future.result) == hash(answer)
    assert rig.feed(data) == ([frame], None)


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_message_in_another_queue_than_asked_for_is_said_to_be_there(codec: SendCodec) -> None:
    rig = Rig(codec, queue_ids=(8,))
    future = rig.begin(Message("T-1", b"x"))
    rig.feed(framed(JAVA)[1])
    assert future is not None
    assert future.result.queue == MessageQueue("T-1", "b", 3)
    assert type(future.result.queue) is MessageQueue


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_stream_ends_at_a_length_that_no_frame_has(codec: SendCodec) -> None:
    good = bytes([0, 0, 0, 6, 0, 0, 0, 2]) + b"{}"
    rig = Rig(codec)
    frames, fault = rig.feed(good + b"\xff" * 8)
    assert frames == [good[4:]]
    assert fault is not None
    assert rig.feed(b"x") == ([], fault)
    _, fault = Rig(codec).feed(b"GET / HTTP/1.1")
    assert fault is not None
    assert "this is HTTP" in fault
