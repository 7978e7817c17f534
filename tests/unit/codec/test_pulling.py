"""Requests and answers of fast-path pulls: each codec against the slow path, which is complete."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.client.core.consuming.pull import (
    pull_flags,
    pull_frames,
    pull_request,
    pull_result,
)
from kerolox.codec.pulling import MessageCodec
from kerolox.errors import RemoteProtocolError
from kerolox.filter.tags import subscription_of
from kerolox.message import MessageQueue
from kerolox.protocol.codes import SerializeType
from kerolox.protocol.command import RemotingCommand
from tests.kernel.test_messages import CODECS
from tests.support.kernels import KERNELS

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)
QUEUE = MessageQueue("T", "b", 3)
ALL = subscription_of("T", "*", version=77)
OPAQUE = 77


@pytest.fixture(params=KERNELS)
def codec(request: pytest.FixtureRequest) -> MessageCodec:
    """The codec of each kernel in turn."""
    module: MessageCodec = importlib.import_module(CODECS[request.param])
    return module


@given(
    group=NAMES,
    topic=NAMES,
    queue_id=st.integers(-(2**31), 2**31 - 1),
    expression=st.sampled_from(["TAG", "SQL92", '"']),
    opaque=st.integers(-(2**31), 2**31 - 1),
    offset=INT64,
    commit_offset=st.integers(-1, 2**63 - 1),
    suspend_timeout_ms=st.sampled_from([0, 15_000]),
)
def test_a_frame_is_that_of_the_slow_path(
    group: str,
    topic: str,
    queue_id: int,
    expression: str,
    opaque: int,
    offset: int,
    commit_offset: int,
    suspend_timeout_ms: int,
) -> None:
    queue = MessageQueue(topic, "b", queue_id)
    subscription = dataclasses.replace(ALL, topic=topic, expression_type=expression)
    request = pull_request(
        group,
        queue,
        offset,
        subscription,
        max_messages=32,
        suspend_timeout_ms=suspend_timeout_ms,
        commit_offset=commit_offset,
    )
    request.opaque = opaque
    flags = pull_flags(suspend_timeout_ms=suspend_timeout_ms, commits=commit_offset >= 0)
    frames = pull_frames(group, queue, subscription, 32, suspend_timeout_ms)
    assert frames.frame(opaque, offset, flags, max(commit_offset, 0)) == request.encode()


def check(codec: MessageCodec, frame: bytes) -> bool:
    """A fast-path answer says what the slow path reads; whether it is one."""
    answer = codec.pull_answer(frame)
    if answer is None:
        return False
    opaque, code, next_offset, suggested, least, most, start = answer
    command = RemotingCommand.decode(frame)
    assert command.is_response
    assert (command.opaque, command.code) == (opaque, code)
    command.body = b""
    result = pull_result(command, QUEUE, ALL, "h:1")
    assert (result.next_offset, result.suggested_broker_id) == (next_offset, suggested)
    assert (str(result.min_offset), str(result.max_offset)) == (least, most)
    assert (command.ext_fields["minOffset"], command.ext_fields["maxOffset"]) == (least, most)
    assert frame[start:] == RemotingCommand.decode(frame).body
    return True


NUMBERS = st.sampled_from(["0", "7", "-1", str(2**63 - 1), str(-(2**63))])
ODD = st.sampled_from(["", "07", "+7", " 7", "7 ", "-0", "1_0", "٣", "x", str(2**63), "-", '"'])
ANSWERS = st.builds(
    RemotingCommand,
    code=st.sampled_from([0, 0, 19, 20, 21, 1, 2, -1, 276]),
    ext_fields=st.fixed_dictionaries(
        {
            "nextBeginOffset": NUMBERS,
            "minOffset": NUMBERS,
            "maxOffset": NUMBERS,
            "suggestWhichBrokerId": NUMBERS,
        },
        optional={"other": NAMES, "topicSysFlag": NUMBERS},
    )
    | st.dictionaries(
        st.sampled_from(["nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"]),
        NUMBERS | ODD,
    ),
    opaque=st.sampled_from([OPAQUE, 5, -1]),
    flag=st.sampled_from([1, 1, 1, 0, 3]),
    remark=st.sampled_from([None, "", "FOUND", "as\tit is"]),
    body=st.binary(max_size=8),
    serialize_type=st.sampled_from(
        [SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANSWERS)
def test_a_fast_answer_says_what_the_slow_path_reads(
    codec: MessageCodec, answer: RemotingCommand
) -> None:
    check(codec, answer.encode()[4:])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANSWERS, st.integers(0, 400), st.integers(0, 255))
def test_a_torn_or_changed_answer_is_read_alike_or_left_alone(
    codec: MessageCodec, answer: RemotingCommand, at: int, byte: int
) -> None:
    frame = bytearray(answer.encode()[4:])
    for odd in (bytes(frame[: at % len(frame)]), bytes(frame)):
        try:
            RemotingCommand.decode(odd)
        except RemoteProtocolError:
            assert codec.pull_answer(odd) is None
        else:
            check(codec, odd)
        frame[at % len(frame)] = byte


JAVA = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","maxOffset":"20","nextBeginOffset":"12",'
    b'"minOffset":"3"},"flag":1,"language":"JAVA","opaque":77,"remark":"FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":399}'
)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "big") + header + body


def test_what_brokers_write_fits_the_fast_path(codec: MessageCodec) -> None:
    frame = framed(JAVA, b"records")
    start = len(frame) - len(b"records")
    assert codec.pull_answer(frame) == (77, 0, 12, 0, "3", "20", start)
    assert check(codec, frame)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"code":0', b'"code":1'),
        (b'"flag":1', b'"flag":0'),
        (b'"flag":1,', b""),
        (b'"20"', b"20"),
        (b'"20"', b'"020"'),
        (b'"minOffset":"3"', b'"minOffset":"\xff"'),
        (b'"minOffset":"3"', b'"other":"3"'),
        (b'"opaque":77', b'"opaque":2147483648'),
        (b"399}", b"399"),
    ],
)
def test_what_is_odd_is_left_to_the_slow_path(codec: MessageCodec, old: bytes, new: bytes) -> None:
    header = JAVA.replace(old, new)
    assert header != JAVA
    assert codec.pull_answer(framed(header)) is None


@pytest.mark.parametrize("name", ["nextBeginOffset", "suggestWhichBrokerId"])
def test_the_last_of_two_fields_counts(codec: MessageCodec, name: str) -> None:
    doubled = JAVA.replace(b'"minOffset"', b'"%s":"9","minOffset"' % name.encode())
    frame = framed(doubled)
    assert check(codec, frame) or codec.pull_answer(frame) is None


NO_FRAMES = [b"", b"\0", b"\0\0\0", b"\0\0\0\1", b"\1\0\0\2{}", b"\0\0\0\2{}"]


@pytest.mark.parametrize("frame", NO_FRAMES)
def test_what_is_no_frame_is_no_answer(codec: MessageCodec, frame: bytes) -> None:
    assert codec.pull_answer(frame) is None


def test_records_that_begin_behind_the_end_are_refused(codec: MessageCodec) -> None:
    with pytest.raises(ValueError, match="behind the end"):
        codec.cut_messages(b"x", None, "b", (), 2)  # type: ignore[arg-type]
