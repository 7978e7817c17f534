"""decode_columns: the same as a plain decoder says, with every kernel."""

from __future__ import annotations

import struct
import zlib
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerolox._pykernel as reference
from kerolox.kernel.read import COLUMN_MS_MAX, COLUMN_MS_MIN
from kerolox.message import MessageExt
from kerolox.protocol.records import decode_records, encode_record

NUMBERS = {
    "queueId": ("i", lambda m: m.queue_id),
    "queueOffset": ("q", lambda m: m.queue_offset),
    "commitLogOffset": ("q", lambda m: m.commit_log_offset),
    "bornTimestamp": ("q", lambda m: in_columns(m.born_timestamp)),
    "storeTimestamp": ("q", lambda m: in_columns(m.store_timestamp)),
    "flag": ("i", lambda m: m.flag),
    "sysFlag": ("i", lambda m: m.sys_flag),
    "reconsumeTimes": ("i", lambda m: m.reconsume_times),
    "preparedTransactionOffset": ("q", lambda m: m.prepared_transaction_offset),
}
TEXTS = {
    "topic": lambda m: m.topic.encode(),
    "bornHost": lambda m: "{}:{}".format(*m.born_host).encode(),
    "storeHost": lambda m: "{}:{}".format(*m.store_host).encode(),
    "tags": lambda m: optional(m.properties.get("TAGS")),
    "keys": lambda m: optional(m.properties.get("KEYS")),
    "msgId": lambda m: m.offset_message_id.encode(),
    "uniqKey": lambda m: optional(m.properties.get("UNIQ_KEY")),
    "body": lambda m: m.body,
}
ALL = [*NUMBERS, *TEXTS, "properties"]


def in_columns(time_ms: int) -> int:
    return max(COLUMN_MS_MIN, min(time_ms, COLUMN_MS_MAX)) * 1_000


def optional(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def message(**changes: Any) -> MessageExt:
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
    }
    return MessageExt(**(values | changes))


def record(text: str = "", **changes: Any) -> bytes:
    return encode_record(message(**changes), text)


def integers(data: bytes, kind: str) -> list[int]:
    return list(struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data))


def values(column: tuple[bytes | None, bytes, bytes]) -> list[bytes | None]:
    validity, offsets, data = column
    edges = integers(offsets, "i")
    assert edges[0] == 0
    assert edges[-1] == len(data)
    found: list[bytes | None] = [data[a:b] for a, b in pairwise(edges)]
    if validity is not None:
        assert len(validity) == (len(found) + 7) // 8
        bits = int.from_bytes(validity, "little")
        assert bits >> len(found) == 0
        for index, value in enumerate(found):
            if not bits >> index & 1:
                assert value == b""
                found[index] = None
        assert None in found
    return found


def maps(column: tuple[bytes, ...], count: int) -> list[list[tuple[bytes, bytes]]]:
    edges = integers(column[0], "i")
    assert len(edges) == count + 1
    names = values((None, column[1], column[2]))
    texts = values((None, column[3], column[4]))
    items = list(zip(names, texts, strict=True))
    return [items[a:b] for a, b in pairwise(edges)]


def check(kernel: Any, data: bytes) -> None:
    """Compare with the plain decoder and with the other kernel."""
    wanted = decode_records(data)
    count, columns, end = kernel.decode_columns(data, ALL)
    assert (count, end) == (len(wanted), len(data))
    assert list(columns) == ALL
    for name, (kind, get) in NUMBERS.items():
        assert integers(columns[name], kind) == [get(m) for m in wanted], name
    for name, get in TEXTS.items():
        assert values(columns[name]) == [get(m) for m in wanted], name
    assert maps(columns["properties"], count) == [
        [(name.encode(), value.encode()) for name, value in m.properties.items()] for m in wanted
    ]
    assert (count, columns, end) == reference.decode_columns(data, ALL)


hosts = st.one_of(
    st.ip_addresses(v=4).map(str), st.sampled_from(["2001:db8::1", "::1", "::", "fe80::1:0:0:2"])
)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
int32 = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**43)


@st.composite
def records(draw: Any) -> bytes:
    names = ["TAGS", "KEYS", "UNIQ_KEY", "other", draw(texts)]
    items = draw(st.lists(st.tuples(st.sampled_from(names), texts), max_size=6))
    text = "\x02".join(f"{name}\x01{value}" for name, value in items)
    text += draw(st.sampled_from(["", "\x02", "\x02\x02x", "\x01"]))
    body = draw(st.binary(max_size=40))
    sys_flag = draw(st.sampled_from([0, 1, 1 | 0x300, 2, 64, 8]))
    return record(
        text,
        topic=draw(st.text("aäT_%|-", min_size=1, max_size=9)),
        body=zlib.compress(body) if sys_flag & 1 else body,
        queue_id=draw(int32),
        queue_offset=draw(offsets),
        commit_log_offset=draw(offsets),
        born_timestamp=draw(times),
        store_timestamp=draw(times),
        born_host=(draw(hosts), draw(st.integers(0, 2**32 - 1))),
        store_host=(draw(hosts), draw(st.integers(0, 65_535))),
        flag=draw(int32),
        sys_flag=sys_flag,
        reconsume_times=draw(int32),
        prepared_transaction_offset=draw(offsets),
    )


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(records(), max_size=12))
def test_columns_are_what_the_plain_decoder_says(kernel: Any, parts: list[bytes]) -> None:
    check(kernel, b"".join(parts))


def test_nothing_gives_empty_columns(kernel: Any) -> None:
    check(kernel, b"")
    assert kernel.decode_columns(b"", []) == (0, {}, 0)


def test_only_the_columns_asked_for_come_in_their_order(kernel: Any) -> None:
    data = memoryview(bytearray(record() * 2))
    count, columns, _ = kernel.decode_columns(data, ["body", "topic"])
    assert count == 2
    assert list(columns) == ["body", "topic"]
    assert kernel.decode_columns(record(), [])[0] == 1


def test_a_bad_body_does_not_matter_to_other_columns(kernel: Any) -> None:
    data = record(body=b"no zlib", sys_flag=1)
    assert kernel.decode_columns(data, ["topic"])[0] == 1


@pytest.mark.parametrize("name", ["Body", "", "brokerName", "queueid"])
def test_an_unknown_column_is_refused(kernel: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"column.*{name}"):
        kernel.decode_columns(b"garbage", ["topic", name])


BAD_BODIES = {
    "LZ4": {"sys_flag": 1 | 0x100},
    "ZSTD": {"sys_flag": 1 | 0x200},
    "unknown": {"sys_flag": 1 | 0x700},
    "corrupt": {"sys_flag": 1},
    "empty": {"sys_flag": 1, "body": b""},
    "torn": {"sys_flag": 1, "body": zlib.compress(bytes(1_000))[:-3]},
}


@pytest.mark.parametrize("changes", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_body_that_cannot_be_inflated_names_its_offset(
    kernel: Any, changes: dict[str, Any]
) -> None:
    data = record() + record(commit_log_offset=987_654_321, **changes)
    with pytest.raises(ValueError, match="987654321"):
        kernel.decode_columns(data, ["body"])


def test_a_body_that_inflates_too_far_is_refused(kernel: Any) -> None:
    bomb = zlib.compress(bytes((64 << 20) + 1), 9)
    with pytest.raises(ValueError, match="4711"):
        kernel.decode_columns(record(body=bomb, sys_flag=1, commit_log_offset=4711), ["body"])


def body(size: int, *, compressed: bool = True, **changes: Any) -> bytes:
    text = bytes(size)
    if not compressed:
        return record(body=text, **changes)
    return record(body=zlib.compress(text), sys_flag=1, **changes)


def test_a_body_may_inflate_to_just_what_is_allowed(kernel: Any) -> None:
    columns = kernel.decode_columns(body(64 << 20), ["body"])[1]
    assert len(columns["body"][2]) == 64 << 20


def test_bytes_behind_the_end_of_a_compressed_body_do_not_matter(kernel: Any) -> None:
    data = record(body=zlib.compress(b"text") + b"more", sys_flag=1)
    assert values(kernel.decode_columns(data, ["body"])[1]["body"]) == [b"text"]


def test_a_hundred_bodies_that_inflate_1000_times_are_cut_into_columns(kernel: Any) -> None:
    one = body(1 << 20)
    assert len(one) * 800 < 1 << 20
    data, sizes, start = one * 100, [], 0
    while start < len(data):
        count, columns, start = kernel.decode_columns(
            data, ["queueId", "body", "topic"], start=start, body_bytes_max=8 << 20
        )
        assert len(columns["queueId"]) == 4 * count
        assert len(values(columns["topic"])) == count
        sizes.append(len(columns["body"][2]))
    assert sizes == [8 << 20] * 12 + [4 << 20]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ([100, 100], [2]),
        ([100, 101], [1, 1]),
        ([500], [1]),
        ([500, 0, 1], [2, 1]),
        ([0, 500, 200, 0, 0], [1, 1, 3]),
        ([200, 0, 0, 0, 0, 0, 0, 0, 0, 1], [9, 1]),
    ],
)
def test_a_call_ends_before_the_body_that_is_too_much(
    kernel: Any, compressed: bool, sizes: list[int], cuts: list[int]
) -> None:
    data = b"".join(body(size, compressed=compressed) for size in sizes)
    start, found, lengths = 0, [], []
    while start < len(data):
        result = kernel.decode_columns(data, ["body"], start=start, body_bytes_max=200)
        assert result == reference.decode_columns(data, ["body"], start=start, body_bytes_max=200)
        count, columns, start = result
        found.append(count)
        lengths += [len(each or b"") for each in values(columns["body"])]
    assert found == cuts
    assert lengths == sizes


def test_a_limit_of_bodies_means_nothing_to_other_columns(kernel: Any) -> None:
    data = body(5_000) * 3
    assert kernel.decode_columns(data, ["topic"], body_bytes_max=0)[0] == 3


@pytest.mark.parametrize("changes", BAD_BODIES.values(), ids=BAD_BODIES)
def test_what_stands_for_an_odd_body_is_asked_of_the_caller(
    kernel: Any, changes: dict[str, Any]
) -> None:
    odd = record(queue_offset=77, **changes)
    asked: list[tuple[bytes, int, int]] = []

    def answer(stored: bytes, sys_flag: int, queue_offset: int) -> bytes | None:
        asked.append((stored, sys_flag, queue_offset))
        return b"instead" if len(asked) == 1 else None

    data = record() * 9 + odd + record() * 8 + odd + record()
    result = kernel.decode_columns(data, ["body", "topic"], odd_body=answer)
    column = values(result[1]["body"])
    assert column == [b"body"] * 9 + [b"instead"] + [b"body"] * 8 + [None, b"body"]
    stored = changes.get("body", b"body")
    assert asked == [(stored, changes["sys_flag"], 77)] * 2
    asked.clear()
    assert result == reference.decode_columns(data, ["body", "topic"], odd_body=answer)


def test_what_stands_for_an_odd_body_counts_for_the_limit(kernel: Any) -> None:
    data = record(sys_flag=0x101) * 3
    cut = {"body_bytes_max": 10, "odd_body": lambda *_: b"123456"}
    count, columns, end = kernel.decode_columns(data, ["body"], **cut)
    assert (count, end) == (1, len(data) // 3)
    assert columns["body"][2] == b"123456"
    assert kernel.decode_columns(data, ["body"], start=end, **cut)[2] == 2 * end


def test_an_error_about_an_odd_body_reaches_the_caller(kernel: Any) -> None:
    def refuse(*_: object) -> bytes:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kernel.decode_columns(record(sys_flag=0x101), ["body"], odd_body=refuse)


def test_an_odd_body_that_is_no_bytes_is_an_error(kernel: Any) -> None:
    with pytest.raises(TypeError):
        kernel.decode_columns(record(sys_flag=0x101), ["body"], odd_body=lambda *_: "text")


def test_a_malformed_record_behind_the_cut_is_found_by_the_next_call(kernel: Any) -> None:
    data = body(200) + body(200) + b"\0" * 91
    count, _, end = kernel.decode_columns(data, ["body"], body_bytes_max=300)
    assert count == 1
    with pytest.raises(ValueError, match=f"byte {2 * end}"):
        kernel.decode_columns(data, ["body"], start=end, body_bytes_max=1000)


def test_every_torn_tail_is_refused_with_its_position(kernel: Any) -> None:
    whole = record()
    for size in range(1, len(whole)):
        with pytest.raises(ValueError, match=str(len(whole))):
            kernel.decode_columns(whole + whole[:size], ["topic"])


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\0\0\0\0"),
        (0, b"\0\0\0\x40"),
        (0, b"\x7f\xff\xff\xff"),
        (0, b"\xff\xff\xff\xff"),
        (4, b"\0\0\0\0"),
        (39, b"\x30"),
        (84, b"\xff\xff\xff\xff"),
        (84, b"\x7f\xff\xff\xff"),
        (84, b"\0\0\0\x05"),
        (92, b"\xff"),
        (94, b"\xff\xff"),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(kernel: Any, at: int, value: bytes) -> None:
    data = bytearray(record())
    data[at : at + len(value)] = value
    with pytest.raises(ValueError, match="byte 0"):
        kernel.decode_columns(bytes(data), ["topic"])


def test_text_that_is_no_utf_8_is_repaired(kernel: Any) -> None:
    data = bytearray(record("TAGS\x01abc\x02xyz\x01v"))
    data[data.index(b"abc")] = 0xFF
    data[data.index(b"xyz") + 1] = 0xC3
    columns = kernel.decode_columns(bytes(data), ["tags", "properties"])[1]
    assert values(columns["tags"]) == ["\ufffdbc".encode()]
    assert maps(columns["properties"], 1) == [
        [(b"TAGS", "\ufffdbc".encode()), ("x\ufffdz".encode(), b"v")]
    ]


def test_a_property_twice_keeps_the_last_value_at_the_first_place(kernel: Any) -> None:
    columns = kernel.decode_columns(record("a\x01b\x02c\x01d\x02a\x01e\x01f"), ["properties"])[1]
    assert maps(columns["properties"], 1) == [[(b"a", b"e\x01f"), (b"c", b"d")]]


def test_times_before_1678_or_after_2261_are_the_nearest_of_these_years(kernel: Any) -> None:
    first = round(datetime(1678, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    last = round(datetime(2262, 1, 1, tzinfo=UTC).timestamp() * 1_000) - 1
    times = [2**63 - 1, -(2**63), 2**62, last + 1, last, first - 1, first, 0, -1]
    expected = [last, first, last, last, last, first, first, 0, -1]
    for column in ("born_timestamp", "store_timestamp"):
        name = column.replace("_t", "T")
        data = b"".join(record(**{column: time}) for time in times)
        columns = kernel.decode_columns(data, [name])[1]
        assert integers(columns[name], "q") == [time * 1_000 for time in expected]


def test_a_topic_that_is_no_utf_8_is_refused(kernel: Any) -> None:
    data = record(topic="Topic").replace(b"Topic", b"To\xffic")
    with pytest.raises(ValueError, match=r"byte 0.*UTF-8"):
        kernel.decode_columns(data, ["body"])


def test_a_mapped_address_is_written_without_dots(kernel: Any) -> None:
    data = record(born_host=("::ffff:1.2.3.4", 80))
    assert values(kernel.decode_columns(data, ["bornHost"])[1]["bornHost"]) == [
        b"::ffff:102:304:80"
    ]


def test_arrow_takes_the_buffers(kernel: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    data = record("TAGS\x01t") + record()
    count, columns, _ = kernel.decode_columns(data, ["tags", "queueOffset", "body"])
    validity, edges, text = columns["tags"]
    buffers = [pyarrow.py_buffer(part) for part in (validity, edges, text)]
    assert pyarrow.Array.from_buffers(pyarrow.string(), count, buffers).to_pylist() == ["t", None]
    numbers = [None, pyarrow.py_buffer(columns["queueOffset"])]
    assert pyarrow.Array.from_buffers(pyarrow.int64(), count, numbers).to_pylist() == [2, 2]
