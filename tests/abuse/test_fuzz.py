"""What nobody ever sent: frames, headers, bodies, expressions and properties by Hypothesis.

Each example is a connection of its own to a broker process, which reads it to its end and answers;
a probe is served all the while, and the log reports nothing unforeseen. Examples are the same
in each run; ``KEROLOX_FUZZ_EXAMPLES=5000`` takes so many, and others each time.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.broker.requests import ROUTER
from kerolox.protocol.codes import BINARY_CODE_MAX, RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from tests.malformed.test_frames import BODIES, TEXTS, request_members
from tests.support.clients.raw import connect, drain, frame
from tests.support.clients.raw import pull as pull_fields
from tests.support.clients.raw import send as send_fields
from tests.support.servers.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers.up import Up

EXAMPLES = int(os.environ.get("KEROLOX_FUZZ_EXAMPLES", "0"))
MEMORY_MIB_MAX = 96
LOG_LINES_MAX = 3000 + 100 * EXAMPLES

CODES = sorted(ROUTER.codes)

fuzz = settings(
    max_examples=EXAMPLES or 50,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)

bodies = st.one_of(
    st.sampled_from(BODIES),
    st.binary(max_size=64),
    # What fastjson writes beyond JSON: bare keys, objects as keys.
    st.lists(st.sampled_from(["{", "}", "[", "]", ":", ",", "a", "1", '"topic"', "{a:[1]}"])).map(
        lambda parts: "".join(parts).encode()
    ),
    st.sampled_from([b'{{"a":[1]}:1}', b'{{"brokerName":[],"queueId":{},"topic":1}:1}', b"{1:{}}"]),
)

texts = st.one_of(
    st.sampled_from(TEXTS),
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.text(max_size=40),
    st.integers(1, 5000).map(lambda count: "9" * count),
)


def said(up: Up, data: bytes) -> bytes:
    """What the broker says to some bytes and the end of the stream; it must end it, too."""
    with connect(up) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return b""  # refused before it was all there
        return drain(connection)


def answered(up: Up, data: bytes, count: int) -> None:
    """So many requests are all answered; struct.error: the broker ended the connection before.
    Who ends the stream at once, as :func:`said` does, may miss answers that take the broker some
    iterations of its loop."""
    with connect(up) as connection, connection.makefile("rb") as file:
        connection.settimeout(60.0)
        connection.sendall(data)
        for _ in range(count):
            (size,) = struct.unpack(">i", file.read(4))
            assert len(file.read(size)) == size


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request of any code: members missing, wrong, more; any body."""
    code = draw(st.sampled_from([*CODES, 0, 1, 99, 32_767]))
    members = request_members(code) if code in CODES else {}
    for name in draw(st.lists(st.sampled_from(sorted(members) or ["x"]), max_size=3)):
        if draw(st.booleans()):
            members[name] = draw(texts)
        else:
            members.pop(name, None)
    members |= draw(st.dictionaries(st.text(max_size=5), texts, max_size=2))
    command = RemotingCommand(code, members, draw(bodies))
    command.flag = draw(st.sampled_from([0, 0, 0, 1, 2, 3, -1]))
    command.opaque = draw(st.integers(-(1 << 31), (1 << 31) - 1))
    command.version = draw(st.sampled_from([0, 401, 409, -1, 32_767]))
    kinds = list(SerializeType) if code <= BINARY_CODE_MAX else [SerializeType.JSON]
    command.serialize_type = draw(st.sampled_from(kinds))
    return command.encode()


def lenient(text: str) -> str:
    """Without what UTF-8 has no bytes for: headers are UTF-8."""
    return text.encode("utf-8", "replace").decode()


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Real frames with bytes changed, lengths that lie, cut anywhere."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(REAL), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.integers(0, 3))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            data[at : at + 4] = struct.pack(">i", draw(st.integers(-(1 << 31), (1 << 31) - 1)))
        elif kind == 2:
            data[at : at + draw(st.integers(0, 20))] = b""
        else:
            data[at:at] = draw(st.binary(max_size=20))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


REAL = [
    frame(code, fields, body, serialize_type=kind)
    for kind in SerializeType
    for code, fields, body in (
        send_fields("Fuzz", b"body", properties="KEYS\x01k\x02TAGS\x01t"),
        send_fields("Fuzz", b"body", properties="DELAY\x011\x02"),
        (11, pull_fields("Fuzz", 0), b""),
        (11, pull_fields("Fuzz", 0, expression="a > 1", kind="SQL92"), b""),
        (34, {}, BODIES[-4]),
        (105, {"topic": "T"}, b""),
    )
]

WORDS = (
    "a b KEYS TAGS 1 0 -1 9223372036854775808 1.5 .5 1E9 'x' '' 'it''s' AND OR NOT IN BETWEEN IS "
    "NULL TRUE FALSE = <> < > <= >= ( ) , + - -- /* */ 0x1p99 99999999999999999999 ' ä"
)
expressions = st.one_of(
    st.lists(st.sampled_from(WORDS.split(" ")), max_size=30).map(" ".join),
    st.text(max_size=60),
    st.tuples(
        st.sampled_from(["(", "NOT ", "-", "+", "a = 1 OR ", "a BETWEEN 1 AND ", "-(", "/*", "--"]),
        st.integers(1, 6000),
        st.sampled_from(["a = 1", "", "a", ")"]),
    ).map(lambda parts: parts[0] * parts[1] + parts[2]),
    st.integers(1, 2000).map(lambda n: f"a IN ({','.join(['x'.join(chr(39) * 2)] * n)})"),
    st.integers(1, 60_000).map(lambda n: f"a > {'9' * n}"),
    st.integers(1, 60).map(lambda n: "-(" * n + "a" + " BETWEEN 1 AND 2)" * n + " BETWEEN 1 AND 2"),
)

properties = st.one_of(
    st.lists(
        st.sampled_from(["\x01", "\x02", "KEYS", "TAGS", "a", "WAIT", "DELAY", "", "1", "\0"])
        | st.text(max_size=8),
        max_size=20,
    ).map("".join),
    st.sampled_from(["DELAY", "TRAN_MSG", "UNIQ_KEY", "INNER_MULTI_DISPATCH", "a"]).flatmap(
        lambda name: texts.map(lambda value: f"{name}\x01{value}\x02")
    ),
    st.integers(32_000, 33_000).map(lambda size: "a\x01" + "1" * size + "x"),
    st.integers(1, 8000).map(lambda count: "a\x01b\x02" * count),
)


def watch(up: Up, tried: Callable[[], None]) -> None:
    """Try all examples beside a probe."""
    with Probe(up) as probe:
        tried()
    probe.verdict(memory_mib_max=MEMORY_MIB_MAX, log_lines_max=LOG_LINES_MAX)


def test_broken_frames(up: Up) -> None:
    @fuzz
    @given(broken())
    def tried(data: bytes) -> None:
        said(up, data)

    watch(up, tried)


def test_requests_of_every_code_with_wrong_members_and_bodies(up: Up) -> None:
    @fuzz
    @given(st.lists(requests(), min_size=1, max_size=12).map(b"".join))
    def tried(data: bytes) -> None:
        said(up, data)

    watch(up, tried)


def test_expressions_in_checks_subscriptions_and_pulls(up: Up) -> None:
    @fuzz
    @given(expressions.map(lenient), st.integers(1, 1 << 40))
    def tried(text: str, version: int) -> None:
        subscription = {"topic": "Fuzz", "subString": text, "expressionType": "SQL92"}
        subscription["subVersion"] = version  # type: ignore[assignment]
        check = {"clientId": "c", "group": "sql", "subscriptionData": subscription}
        consumer = {"groupName": "sql", "subscriptionDataSet": [subscription]}
        beat = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
        data = frame(RequestCode.CHECK_CLIENT_CONFIG, {}, json.dumps(check).encode())
        data += frame(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())
        data += frame(11, pull_fields("Fuzz", 0, expression=text, kind="SQL92"))
        answered(up, data, 3)

    send = b"".join(
        frame(*send_fields("Fuzz", b"x", properties=f"a\x01{value}"))
        for value in ("1", "1" * 9000, "1" * 9000 + "x", "0x1p99999", "x")
    )
    said(up, send)
    watch(up, tried)


def test_properties_of_messages(up: Up) -> None:
    @fuzz
    @given(
        st.lists(properties.map(lenient), min_size=1, max_size=4),
        st.sampled_from(SerializeType),
        st.binary(max_size=3),
    )
    def tried(values: list[str], kind: SerializeType, noise: bytes) -> None:
        data = bytearray()
        for value in values:
            code, fields, body = send_fields("Props", b"x", properties=value)
            one = frame(code, fields, body, serialize_type=kind)
            # Bytes that are no UTF-8, where the encoding has room for them.
            data += one.replace("ä".encode(), noise[:2].ljust(2, b"\xff"))
        data += frame(11, pull_fields("Props", 0, expression="a > 1 OR KEYS = 'k'", kind="SQL92"))
        said(up, bytes(data))

    watch(up, tried)
