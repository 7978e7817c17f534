"""Odd frames are answered alike by the fast path and by the slow one."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.message import ITEM_END, NAME_END, PropertyKey, encode_properties
from kerolox.protocol.codes import FLAG_ONEWAY, RequestCode, SerializeType
from kerolox.protocol.headers import SEND_LONG_NAMES
from kerolox.protocol.records import encode_batch
from tests.differential.corpus import FAST_CODES
from tests.differential.pair import CLOSED, HELD, NOW_MS, ONEWAY, Pair
from tests.support.clients.requests import heartbeat_body, topic_fields
from tests.support.kernels import KERNELS

FRAMES = int(os.environ.get("KEROLOX_DIFFERENTIAL_FRAMES", "300"))
"""Random frames for each kernel."""

BLANKS = " \t\n\x0b\x0c\r\x1c\x1f\0\x85\u00a0\u2003\u3000\u200b"
NUMBERS = ["0", "1", "3", "4", "-1", "-0", "00", "01", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "١"]
NUMBERS += ["2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808"]
WORDS = ["", "true", "false", "TRUE", "null", "T", "Other", "readers", "a" * 128, "é" * 128, "💩"]
TAGS = [
    "*",
    "a",
    "a||b",
    "||",
    " ",
    "a || b",
    "a\u00a0||b",
    "\0a",
    "💩||a",
    "a|b",
    "*||a",
    "a" * 300,
]
KEYS = [
    PropertyKey.TAGS,
    PropertyKey.KEYS,
    PropertyKey.WAIT,
    PropertyKey.UNIQUE_KEY,
    PropertyKey.CLUSTER,
    PropertyKey.MESSAGE_TYPE,
    PropertyKey.TRACE_ON,
    PropertyKey.TRANSACTION_PREPARED,
    PropertyKey.REAL_TOPIC,
    "region",
    "",
    "wait",
    "WAIT ",
]

PLAIN_KEYS = [
    PropertyKey.TAGS,
    PropertyKey.KEYS,
    PropertyKey.WAIT,
    PropertyKey.UNIQUE_KEY,
    "region",
    "wait",
    "é",
]

odd_texts = st.one_of(
    st.sampled_from(NUMBERS + WORDS + TAGS),
    st.text(
        alphabet=st.one_of(st.sampled_from(BLANKS + 'aTAGS|1\\"é💩'), st.characters()), max_size=8
    ),
)
tag_texts = st.one_of(
    st.sampled_from(TAGS),
    st.text(alphabet=st.sampled_from(BLANKS + "ab|é💩"), max_size=8),
)
items = st.builds(
    lambda name, separator, value: f"{name}{separator}{value}",
    st.one_of(st.sampled_from(KEYS), odd_texts),
    st.sampled_from([NAME_END] * 9 + ["", NAME_END * 2]),
    st.one_of(odd_texts, tag_texts, st.just("x")),
)
odd_properties = st.builds(
    lambda parts, separator, end: separator.join(parts) + end,
    st.lists(items, max_size=5),
    st.sampled_from([ITEM_END] * 9 + [ITEM_END * 2]),
    st.sampled_from(["", "", ITEM_END, NAME_END]),
)
plain_values = st.text(alphabet=st.sampled_from("abTAGS 1|é💩\u00a0\u2003"), min_size=1, max_size=8)
plain_properties = st.builds(
    lambda properties, end: encode_properties(properties) + end,
    st.dictionaries(st.sampled_from(PLAIN_KEYS), plain_values, max_size=5),
    st.sampled_from(["", "", ITEM_END]),
).map(lambda text: text.removeprefix(ITEM_END))
property_texts = st.one_of(plain_properties, plain_properties, plain_properties, odd_properties)
batches = st.builds(
    encode_batch,
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.one_of(st.binary(min_size=1, max_size=8), st.binary(max_size=8)),
            property_texts.map(lambda text: text.encode("utf-8", "replace")),
        ),
        min_size=1,
        max_size=4,
    ),
)
plain_bodies = st.binary(min_size=1, max_size=20)
bodies = st.one_of(plain_bodies, plain_bodies, plain_bodies, st.just(b""), batches)

SEND = {
    "a": "producers",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": str(NOW_MS),
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
    "l": "0",
    "m": "false",
}
PULL = {
    "consumerGroup": "readers",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "1",
    "expressionType": "TAG",
}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One request of the fast path's codes, mostly as clients write it but for a thing or two."""
    code = draw(st.sampled_from(sorted(FAST_CODES)))
    is_pull = code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    body = b""
    if is_pull:
        members = PULL | {
            "queueOffset": draw(st.sampled_from(["0", "0", "1", "2", "7"])),
            "sysFlag": draw(st.sampled_from(["4", "5", "0", "20", "6"])),
            "subscription": draw(tag_texts),
        }
    else:
        members = SEND | {
            "i": draw(property_texts),
            "e": draw(st.sampled_from(["0", "1", "2", "3", "3", "4"])),
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        }
        body = draw(batches if code == RequestCode.SEND_BATCH_MESSAGE else bodies)
        if draw(st.integers(0, 3)) == 0:
            half = encode_properties({PropertyKey.TRANSACTION_PREPARED: "true"})
            members |= {"f": "4", "i": ITEM_END.join([half, members["i"]]).removesuffix(ITEM_END)}
    if code == RequestCode.SEND_MESSAGE:
        members = {SEND_LONG_NAMES[name]: value for name, value in members.items()}
    pairs = list(members.items())
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))):
        _change(draw, pairs)
    flag = draw(st.sampled_from([0] * 19 + [FLAG_ONEWAY]))
    if draw(st.booleans()):
        return _json_frame(draw, code, flag, pairs, body)
    return _binary_frame(code, flag, pairs, body)


def _change(draw: st.DrawFn, pairs: list[tuple[str, str]]) -> None:
    place = draw(st.integers(0, len(pairs) - 1))
    name, value = pairs[place]
    match draw(st.sampled_from(["value", "value", "leave out", "repeat", "unknown", "rename"])):
        case "value":
            pairs[place] = (name, draw(odd_texts))
        case "leave out":
            del pairs[place]
        case "repeat":
            pairs.append((name, draw(st.one_of(st.just(value), odd_texts))))
        case "unknown":
            pairs.append((draw(st.sampled_from(["n", "bname", "brokerName", "z", "", "é"])), value))
        case _:
            pairs[place] = (draw(st.sampled_from([name.upper(), f"{name} ", "o"])), value)


def _json_frame(
    draw: st.DrawFn, code: int, flag: int, pairs: list[tuple[str, str]], body: bytes
) -> bytes:
    """Written by hand, since no encoder repeats a member."""
    is_ascii = draw(st.booleans())

    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=is_ascii)

    members = ",".join(f"{text(name)}:{text(value)}" for name, value in pairs)
    header = (
        f'{{"code":{code},"extFields":{{{members}}},"flag":{flag},"language":"JAVA","opaque":7,'
        f'"serializeTypeCurrentRPC":"JSON","version":409}}'
    ).encode("utf-8", "surrogatepass")
    return _frame(SerializeType.JSON, header, body)


def _binary_frame(code: int, flag: int, pairs: list[tuple[str, str]], body: bytes) -> bytes:
    fields = b""
    for name, value in pairs:
        key, data = name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")
        fields += struct.pack(">h", len(key)) + key + struct.pack(">i", len(data)) + data
    fixed = struct.pack(">hbhiii", code, 0, 409, 7, flag, 0)
    return _frame(SerializeType.ROCKETMQ, fixed + struct.pack(">i", len(fields)) + fields, body)


def _frame(kind: SerializeType, header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


@pytest.fixture(params=KERNELS)
def loop_and_pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[asyncio.AbstractEventLoop, Pair]]:
    """A pair of brokers, which lives as long as all examples take, and its loop."""
    loop = asyncio.new_event_loop()
    pair = loop.run_until_complete(Pair.start(tmp_path, request.param, monkeypatch))
    body = heartbeat_body("c1", group="readers", topics={"T": "a||b"}, version=1)
    for code, fields, data in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", queues=4, perm=6), b""),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Other", queues=1, perm=4), b""),
        (RequestCode.HEART_BEAT, {}, body),
    ):
        pairs = [(name, str(value)) for name, value in fields.items()]
        made = loop.run_until_complete(pair.ask(0, _binary_frame(code, 0, pairs, data)))
        assert made[0] == made[1] not in (CLOSED, HELD, ONEWAY)
    yield loop, pair
    loop.run_until_complete(pair.stop())
    loop.close()
    assert pair.fast.stored() == pair.slow.stored()


def test_odd_frames_get_the_same_answers_and_bytes(
    loop_and_pair: tuple[asyncio.AbstractEventLoop, Pair],
) -> None:
    loop, pair = loop_and_pair
    asked = 0

    @settings(
        max_examples=FRAMES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(frames())
    def ask(frame: bytes) -> None:
        nonlocal asked
        asked += 1
        fast, slow = loop.run_until_complete(pair.ask(0, frame))
        assert fast == slow

    ask()
    slow_frames = sum(pair.fast.slow_codes[code] for code in FAST_CODES)
    # Three of five are slow, give or take what chance does to a few hundred: four of five, once.
    assert slow_frames < asked * 9 // 10, "the fast path answers few of them"
