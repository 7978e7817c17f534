"""Pulled records as messages whose parts are made late: each decoder against the plain one."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib
import pickle
import re
import sys
import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.codec.pulling import (
    MessageCodec,
    decode_messages,
    decode_pulled,
    message_codec,
    pulled_of,
)
from kerolox.errors import RemoteProtocolError
from kerolox.message import MessageExt, consume_start_ms, note_consume_start
from kerolox.protocol.records import decode_records, encode_record
from tests.support.kernels import KERNELS

CODECS = {"python": "kerolox.codec.python_answers", "native": "kerolox_kernel"}
TEXT = "TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02colour\x01blue"
COMPRESSORS = {0x001: zlib.compress, 0x101: lz4.frame.compress, 0x201: zstandard.compress}


@pytest.fixture(params=KERNELS)
def codec(request: pytest.FixtureRequest) -> MessageCodec:
    """The decoder of each kernel in turn."""
    module: MessageCodec = importlib.import_module(CODECS[request.param])
    return module


def record(text: str = TEXT, **changes: Any) -> bytes:
    values: dict[str, Any] = {
        "topic": "T",
        "body": b"body",
        "queue_id": 1,
        "queue_offset": 2,
        "commit_log_offset": 3,
        "properties": {},
        "born_timestamp": 1_763_715_347_123,
        "store_timestamp": 1_763_715_347_124,
        "born_host": ("10.0.0.1", 1),
        "store_host": ("10.0.0.2", 2),
        "reconsume_times": 4,
    }
    return encode_record(MessageExt(**(values | changes)), text)


def one(codec: MessageCodec, data: bytes, **more: Any) -> MessageExt:
    [message] = decode_messages(data, codec=codec, **more)
    return message


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.tuples(st.sampled_from(["10.0.0.1", "::1", "2001:db8::2"]), st.integers(0, 2**32 - 1))
property_texts = st.lists(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "é", "a", "", "\x01", "\x02", "\x01\x02", "?"]),
    max_size=12,
).map("".join)


@st.composite
def records(draw: Any) -> bytes:
    body = draw(st.binary(max_size=30))
    sys_flag = draw(st.sampled_from([0, 8, 0x301, 0x701, *COMPRESSORS]))
    if draw(st.booleans()):
        body = COMPRESSORS.get(sys_flag, bytes)(body)
    data = record(
        draw(property_texts),
        topic=draw(st.sampled_from(["", "T", "tä", "t" * 127])),
        body=body,
        sys_flag=sys_flag,
        queue_id=draw(int32),
        queue_offset=draw(int64),
        commit_log_offset=draw(int64),
        born_host=draw(hosts),
        store_host=draw(hosts),
        born_timestamp=draw(int64),
        store_timestamp=draw(int64),
        flag=draw(int32),
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(int64),
    )
    # A question mark becomes what is no UTF-8, in topic, body or properties alike.
    return data.replace(b"?", draw(st.sampled_from([b"?", b"\xff", b"\xc3", b"\xe2"])))


def outcome(decode: Any) -> tuple[str, list[MessageExt]]:
    try:
        return "", decode()
    except RemoteProtocolError as error:
        return str(error), []


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(records(), max_size=4),
    cut=st.integers(0, 40),
    change=st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 255)),
)
def test_messages_are_what_the_plain_decoder_says(
    codec: MessageCodec, parts: list[bytes], cut: int, change: tuple[int, int] | None
) -> None:
    data = bytearray(b"".join(parts))
    if change is None:
        data = data[: len(data) - cut] if cut < 20 else data
    elif data:
        data[change[0] % len(data)] = change[1]
    whole = bytes(data)
    plain = outcome(lambda: decode_records(whole, broker_name="b"))
    late = outcome(lambda: decode_messages(whole, broker_name="b", codec=codec))
    assert late == plain
    again = outcome(lambda: decode_messages(whole, broker_name="b", codec=codec))
    assert repr(again) == repr(plain)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(records(), max_size=4))
def test_tags_are_compared_as_those_of_whole_messages(
    codec: MessageCodec, parts: list[bytes]
) -> None:
    data = b"".join(parts)
    wanted = ("a", "é", "\ufffd", "aTAGS")
    kept = decode_messages(data, tags=wanted, codec=codec)
    assert kept == [message for message in decode_records(data) if message.tags in wanted]


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(records(), max_size=4), before=st.binary(max_size=9))
def test_what_is_said_of_all_together_is_what_each_says(
    codec: MessageCodec, parts: list[bytes], before: bytes
) -> None:
    whole = b"".join(parts)
    reason, messages = outcome(lambda: decode_records(whole, broker_name="b"))
    if reason:
        with pytest.raises(RemoteProtocolError, match=f"^{re.escape(reason)}$"):
            decode_pulled(before + whole, len(before), "b", (), None, codec)
        return
    pulled = decode_pulled(before + whole, len(before), "b", (), None, codec)
    assert pulled == pulled_of(messages)
    offsets = [message.queue_offset for message in messages]
    assert pulled.ascends == (offsets == sorted(set(offsets)))


def test_a_topic_that_is_no_text_is_an_error(codec: MessageCodec) -> None:
    data = record() + record(topic="oops").replace(b"oops", b"oo\xffs")
    with pytest.raises(RemoteProtocolError) as plain:
        decode_records(data)
    with pytest.raises(RemoteProtocolError) as late:
        decode_messages(data, codec=codec)
    assert str(late.value) == str(plain.value)


def test_each_kernel_takes_its_own_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNELS:
        monkeypatch.setenv("KEROLOX_KERNEL", name)
        message_codec.cache_clear()
        assert message_codec() is importlib.import_module(CODECS[name])
    message_codec.cache_clear()


def test_a_message_keeps_nothing_of_the_others_of_its_pull(codec: MessageCodec) -> None:
    data = record() + record(body=b"x" * 100_000)
    known = sys.getrefcount(data)
    small, large = decode_messages(data, codec=codec)
    assert sys.getrefcount(data) == known
    kept = [each for each in gc.get_referents(small) if isinstance(each, bytes)]
    assert sum(map(len, kept)) < 500
    assert len(large.body) == 100_000


def test_the_start_becomes_a_property_and_the_bounds_do_not(codec: MessageCodec) -> None:
    plain = {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "U", "colour": "blue"}
    message = one(codec, record(), bounds=("7", "9"))
    assert consume_start_ms(message) == 0
    note_consume_start([message], 5)
    assert consume_start_ms(message) == 5
    assert message.properties == plain | {"CONSUME_START_TIME": "5"}
    assert message.queue_bounds == (7, 9)
    assert copy.copy(message).queue_bounds is None
    assert one(codec, record(), bounds=("", "x")).queue_bounds is None
    note_consume_start([message], 6)
    assert message.properties["CONSUME_START_TIME"] == "6"
    assert consume_start_ms(message) == 6


def test_the_start_is_noted_in_a_message_made_of_its_parts() -> None:
    message = decode_records(record())[0]
    assert consume_start_ms(message) == 0
    note_consume_start([message], 5)
    assert message.properties["CONSUME_START_TIME"] == "5"
    assert consume_start_ms(message) == 5


def test_what_a_listener_sets_stays(codec: MessageCodec) -> None:
    message = one(codec, record())
    message.topic, message.reconsume_times, message.properties = "other", 9, {"mine": "1"}
    assert message.queue_id == 1
    assert (message.topic, message.reconsume_times) == ("other", 9)
    assert message.properties == {"mine": "1"}
    counted = one(codec, record())
    counted.reconsume_times += 1
    counted.properties["more"] = "x"
    assert (counted.reconsume_times, counted.properties["more"]) == (5, "x")


def test_a_late_message_is_copied_and_pickled_as_any(codec: MessageCodec) -> None:
    plain = decode_records(record())[0]
    assert pickle.loads(pickle.dumps(one(codec, record()))) == plain
    assert copy.copy(one(codec, record())) == plain
    assert copy.deepcopy(one(codec, record())) == plain
    assert dataclasses.asdict(one(codec, record())) == dataclasses.asdict(plain)
    renamed = dataclasses.replace(one(codec, record()), topic="N")
    assert (renamed.topic, renamed.properties) == ("N", plain.properties)
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_ids_tags_and_keys_are_those_of_the_record(codec: MessageCodec) -> None:
    message, plain = one(codec, record()), decode_records(record())[0]
    for name in ("tags", "keys", "unique_key", "message_id", "offset_message_id", "queue"):
        assert getattr(message, name) == getattr(plain, name)


def test_a_name_that_no_message_has_is_refused(codec: MessageCodec) -> None:
    message = one(codec, record())
    with pytest.raises(AttributeError, match=r"'MessageExt' object has no attribute 'color'"):
        message.color  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(AttributeError):
        message.color = 1  # type: ignore[attr-defined]
    assert not hasattr(decode_records(record())[0], "_kept")
