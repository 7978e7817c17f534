"""Which requests the kernel answers itself, condition by condition."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.kernel.status import PutMessageStatus
from kerolox.protocol.codes import RequestCode, SerializeType
from tests.support.kernels import KERNELS, MODULES
from tests.support.stores.bench import (
    BORN_HOST,
    SMALL_FILES,
    STORE_HOST,
    Bench,
    commands,
    frame,
    holding_pull,
    properties,
    pull,
    pull_fields,
    request,
    send,
    send_batch,
    send_fields,
    send_v1,
)

ENCODINGS = pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)

HOT_SENDS = {
    "highest queue": {"e": 3},
    "user flag": {"h": -7},
    "compressed": {"f": 1},
    "host bits": {"f": 48},
    "reconsumed": {"j": 3, "l": 16},
    "without optional fields": {"i": None, "j": None, "k": None, "m": None},
    "broker name": {"n": "broker-a"},
    "4.9 broker name": {"bname": "broker-a"},
    "old born timestamp": {"g": 0},
    "negative born timestamp": {"g": -1},
    "properties": {"i": properties(KEYS="k", TAGS="t", UNIQ_KEY="u", WAIT="true")},
    "properties with an end": {"i": properties(TAGS="t") + "\x02"},
    "text": {"i": properties(TAGS="ä😀", name='é\n"\\/')},
    "longest producer group": {"a": "g" * 255},
    "longest producer group of two bytes a character": {"a": "é" * 127},
    "longest template": {"c": "t" * 255},
    "signature, which nothing checks": {
        "AccessKey": "a",
        "Signature": "s",
        "SecurityToken": "t" * 999,
    },
    "retry properties": {"i": properties(RETRY_TOPIC="T", REAL_TOPIC="T", REAL_QID="0")},
}

COLD_SENDS = {
    "unknown topic": {"b": "Unknown"},
    "cold topic": {"b": "Cold"},
    "unwritable topic": {"b": "ReadOnly"},
    "queue picked by the broker": {"e": -1},
    "queue too high": {"e": 4},
    "queue not a number": {"e": "x"},
    "queue with a blank": {"e": " 1"},
    "queue in other digits": {"e": "\u0661"},
    "prepared": {"f": 4},
    "committed": {"f": 8},
    "rolled back": {"f": 12},
    "negative sys flag": {"f": -1},
    "sys flag too large": {"f": 1 << 31},
    "unit mode": {"k": "true"},
    "unit mode in capitals": {"k": "FALSE"},
    "batch flag": {"m": "true"},
    "flag not a number": {"h": "1.0"},
    "flag too large": {"h": 1 << 31},
    "born timestamp not a number": {"g": "now"},
    "born timestamp too large": {"g": 1 << 63},
    "reconsume times not a number": {"j": "x"},
    "maximum not a number": {"l": "x"},
    "queue numbers not a number": {"d": ""},
    "unknown field": {"z": "1"},
    "producer group too long": {"a": "g" * 256},
    "producer group of too many bytes": {"a": "é" * 128},
    "template too long": {"c": "t" * 256},
    "template of too many bytes": {"c": "é" * 128},
    "broker name too long": {"n": "b" * 256},
    "a number of megabytes": {"d": "0" * 2_000_000},
    "delay level": {"i": properties(DELAY="3")},
    "transaction": {"i": properties(TRAN_MSG="true")},
    "cluster": {"i": properties(TAGS="t", CLUSTER="c")},
    "multi dispatch": {"i": properties(INNER_MULTI_DISPATCH="q")},
    "reply": {"i": properties(MSG_TYPE="reply")},
    "timed": {"i": properties(__STARTDELIVERTIME="1")},
    "timed as by 5": {"i": properties(TIMER_DELIVER_MS="1")},
    "delayed as by 5": {"i": properties(TIMER_DELAY_MS="1")},
    "delayed as by 5, in seconds": {"i": properties(TIMER_DELAY_SEC="1")},
    "property without a value": {"i": "TAGS\x01"},
    "property without a name": {"i": "\x01t"},
    "property without a separator": {"i": "TAGS"},
    "separators out of order": {"i": "a\x01b\x01c\x02d\x02e\x01f"},
    "two ends": {"i": "TAGS\x01t\x02\x02"},
    "only an end": {"i": "\x02"},
    "too many properties": {"i": properties(a="x" * 32_768)},
    "too many with the cluster": {"i": properties(a="x" * 32_750)},
    **{f"without {name}": {name: None} for name in "abcdefgh"},
}

COLD_PULLS = {
    "unknown topic": {"topic": "Unknown"},
    "cold topic": {"topic": "Cold"},
    "unreadable topic": {"topic": "WriteOnly"},
    "unknown group": {"consumerGroup": "Unknown"},
    "cold group": {"consumerGroup": "ColdGroup"},
    "queue too high": {"queueId": 4},
    "negative queue": {"queueId": -1},
    "no messages": {"maxMsgNums": 0},
    "too many messages": {"maxMsgNums": 1025},
    "class filter": {"sysFlag": 12},
    "unknown bit": {"sysFlag": 36},
    "negative bits": {"sysFlag": -1},
    "SQL": {"expressionType": "SQL92"},
    "no tag left": {"subscription": " || "},
    "too many tags": {"subscription": "||".join(f"t{number}" for number in range(4_097))},
    "no subscription known": {"sysFlag": 0, "topic": "Unsubscribed"},
    "older subscription known": {"sysFlag": 0, "subVersion": 8},
    "offset not a number": {"queueOffset": "x"},
    "offset too large": {"queueOffset": 1 << 63},
    "commit not a number": {"commitOffset": ""},
    "version not a number": {"subVersion": "x"},
    "time not a number": {"suspendTimeoutMillis": "1e3"},
    "unknown field": {"z": "1"},
    "group too long": {"consumerGroup": "g" * 256},
    "topic too long": {"topic": "t" * 256},
    "broker name too long": {"bname": "b" * 256},
    "group of megabytes": {"consumerGroup": "g" * 4_000_000},
    "offset beyond the end": {"queueOffset": 5},
    "negative offset": {"queueOffset": -1},
    "empty queue behind its start": {"queueId": 1, "queueOffset": 1},
    **{
        f"without {name}": {name: None}
        for name in pull_fields()
        if name not in ("subscription", "expressionType")
    },
}


def filled(bench: Bench) -> Bench:
    """With one message, and topics and groups of each kind."""
    store = bench.store
    store.set_topic("Cold", 4, 4, 6, False)
    store.set_topic("ReadOnly", 4, 4, 4, True)
    store.set_topic("WriteOnly", 4, 4, 2, True)
    store.set_topic("Unsubscribed", 4, 4, 6, True)
    store.set_group("ColdGroup", False, 1)
    store.set_subscription("G", "T", 7, None)
    bench.append()
    return bench


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Each test's own."""
    return filled(bench)


def shared_bench(kernel: str, folder: Path) -> Iterator[Bench]:
    made = Bench(importlib.import_module(MODULES[kernel]), folder)
    made.open()
    yield filled(made)
    made.store.close()


@pytest.fixture(scope="module", params=KERNELS)
def still(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store that no test changes: what is cold leaves nothing behind, and pulls only read."""
    yield from shared_bench(request.param, tmp_path_factory.mktemp("still"))


@pytest.fixture(scope="module", params=KERNELS)
def growing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store that sends are added to, whatever is in it."""
    yield from shared_bench(request.param, tmp_path_factory.mktemp("growing"))


@ENCODINGS
@pytest.mark.parametrize("changes", HOT_SENDS.values(), ids=HOT_SENDS)
def test_an_ordinary_send_is_hot(
    growing: Bench, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    (answer,) = growing.connect().ask(send(encoding=encoding, **changes))
    assert answer.code == 0


@ENCODINGS
@pytest.mark.parametrize("changes", COLD_SENDS.values(), ids=COLD_SENDS)
def test_an_unusual_send_is_cold_and_stores_nothing(
    still: Bench, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    end = still.store.max_physical_offset
    assert still.connect().is_cold(send(encoding=encoding, **changes))
    assert still.store.max_physical_offset == end


@pytest.mark.parametrize(
    "changes", [{}, {"j": 2}, {"i": properties(TAGS="t")}, {"n": "b"}], ids=str
)
def test_the_long_names_are_hot_under_their_own_code(growing: Bench, changes: Any) -> None:
    (answer,) = growing.connect().ask(send_v1(**changes))
    assert answer.code == 0


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE])
def test_the_short_names_are_cold_under_other_codes(still: Bench, code: int) -> None:
    assert still.connect().is_cold(request(code, send_fields(), b"body"))


@pytest.mark.parametrize("code", [0, 12, 34, 36, 105, 311, 319, 321, -1, 325])
def test_other_codes_are_cold(still: Bench, code: int) -> None:
    assert still.connect().is_cold(request(code, send_fields(), b"body"))


def test_a_response_is_cold(still: Bench) -> None:
    fields = send_fields()
    for flag in (1, 3):
        assert still.connect().is_cold(request(310, fields, b"body", flag=flag))


def test_an_empty_body_is_cold(still: Bench) -> None:
    assert still.connect().is_cold(send(b""))


def test_a_body_over_the_limit_is_cold_and_one_at_the_limit_is_hot(closed_bench: Bench) -> None:
    closed_bench.open(max_message_size=1_000)
    wire = closed_bench.connect()
    assert wire.is_cold(send(bytes(1_001)))
    assert wire.ask(send(bytes(1_000)))[0].code == 0


def test_the_limit_of_a_body_can_change_while_the_store_is_open(closed_bench: Bench) -> None:
    closed_bench.open(max_message_size=1_000)
    wire = closed_bench.connect()
    for limit in (1_500, 500):
        closed_bench.store.set_max_message_size(limit)
        assert wire.ask(send(bytes(limit)))[0].code == 0
        assert wire.is_cold(send(bytes(limit + 1)))
        assert wire.is_cold(send_batch([item(bytes(limit))]))
        assert closed_bench.append(bytes(limit))[0] == PutMessageStatus.PUT_OK
        assert closed_bench.append(bytes(limit + 1))[0] == PutMessageStatus.MESSAGE_ILLEGAL


def test_a_record_that_no_file_can_hold_is_cold(bench: Bench) -> None:
    wire = bench.connect()
    fixed = 75 + len(BORN_HOST) + len(STORE_HOST) + len("T") + len("CLUSTER\x01DefaultCluster") + 8
    room = SMALL_FILES["mapped_file_size_commit_log"] - fixed
    assert wire.is_cold(send(bytes(room + 1)))
    assert wire.ask(send(bytes(room)))[0].code == 0


@ENCODINGS
@pytest.mark.parametrize("changes", COLD_PULLS.values(), ids=COLD_PULLS)
def test_an_unusual_pull_is_cold(
    still: Bench, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    assert still.connect().is_cold(pull(encoding=encoding, **changes))
    assert still.store.drain_commits() == []


def test_an_empty_expression_type_is_cold(still: Bench) -> None:
    assert still.connect().is_cold(pull(expressionType=""))


def test_a_oneway_pull_is_cold(still: Bench) -> None:
    assert still.connect().is_cold(pull(flag=2))


@ENCODINGS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"maxMsgNums": 1024},
        {"sysFlag": 20},
        {"subscription": None},
        {"subscription": ""},
        {"expressionType": None},
        {"sysFlag": 0, "subVersion": 7},
        {"sysFlag": 0, "subVersion": 6, "subscription": "other"},
        {"bname": "broker-a"},
        {"suspendTimeoutMillis": -1},
        {"maxMsgBytes": 2147483647, "bname": "broker-a"},
        {"maxMsgBytes": "any"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE], ids=lambda code: code.name
)
def test_an_ordinary_pull_is_hot_under_both_codes(
    still: Bench, code: int, encoding: SerializeType, changes: dict[str, Any]
) -> None:
    (answer,) = still.connect().ask(pull(code=code, encoding=encoding, **changes))
    assert (answer.code, answer.remark) == (0, "FOUND")


def test_a_lite_pull_is_held_and_answered_as_any_pull(bench: Bench) -> None:
    wire = bench.connect()
    held = holding_pull(code=RequestCode.LITE_PULL_MESSAGE, queueId=1, opaque=7, sysFlag=22)
    assert wire.ask(held) == []
    sent, woken = wire.ask(send(opaque=8, e=1))
    assert (sent.opaque, sent.code) == (8, 0)
    assert (woken.opaque, woken.code, woken.remark) == (7, 0, "FOUND")


def item(body: bytes = b"body", text: bytes = b"") -> tuple[int, bytes, bytes]:
    return 0, body, text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes(22),
        send_batch([item()])[-20:],
        b"\xff" * 40,
        bytes.fromhex("00000016 00000000 00000000 00000000 00000000 0000"),
        bytes.fromhex("00000018 00000000 00000000 00000000 00000001 61 ffff"),
        bytes.fromhex("00000018 00000000 00000000 00000000 00000001 61 0000"),
        bytes.fromhex("00000017 00000000 00000000 00000000 00000001 61 0001"),
        bytes.fromhex("00000017 00000000 00000000 00000000 80000001 61 0000"),
        bytes.fromhex("00000017 00000000 00000000 00000000 00000001 61 0000 00"),
    ],
    ids=lambda body: body.hex() or "empty",
)
def test_a_malformed_batch_is_cold(still: Bench, body: bytes) -> None:
    end = still.store.max_physical_offset
    assert still.connect().is_cold(send_batch(body))
    assert still.store.max_physical_offset == end


@pytest.mark.parametrize(
    "changes",
    [{"m": "false"}, {"m": None}, {"f": 4}, {"e": 4}, {"i": properties(DELAY="1")}, {"b": "Cold"}],
    ids=str,
)
def test_an_unusual_batch_is_cold(still: Bench, changes: dict[str, Any]) -> None:
    assert still.connect().is_cold(send_batch([item()], **changes))


def test_a_batch_with_too_many_properties_in_one_item_is_cold_as_a_whole(still: Bench) -> None:
    end = still.store.max_physical_offset
    large = b"a\x01" + b"x" * 32_760
    assert still.connect().is_cold(send_batch([item(), item(text=large)]))
    assert still.store.max_physical_offset == end


def test_a_batch_that_no_file_can_hold_is_cold(still: Bench) -> None:
    end = still.store.max_physical_offset
    assert still.connect().is_cold(send_batch([item(bytes(22_000))] * 3))
    assert still.store.max_physical_offset == end


@pytest.mark.parametrize("kind", [2, 9, 255])
def test_an_unknown_encoding_is_cold(still: Bench, kind: int) -> None:
    assert still.connect().is_cold(frame(b"{}", b"body", kind))


JSON_HEADERS = {
    "nothing": b"",
    "no object": b"[]",
    "not JSON": b"{",
    "not UTF-8": b'{"code":310,"opaque":1,"remark":"\xff"}',
    "unknown member": b'{"code":310,"extFields":%b,"flag":0,"opaque":1,"x":1}',
    "no opaque": b'{"code":310,"extFields":%b,"flag":0}',
    "no fields": b'{"code":310,"flag":0,"opaque":1}',
    "null fields": b'{"code":310,"extFields":null,"flag":0,"opaque":1}',
    "code as text": b'{"code":"310","extFields":%b,"flag":0,"opaque":1}',
    "opaque too large": b'{"code":310,"extFields":%b,"flag":0,"opaque":2147483648}',
    "flag too large": b'{"code":310,"extFields":%b,"flag":4294967296,"opaque":1}',
    "unknown flag": b'{"code":310,"extFields":%b,"flag":4,"opaque":1}',
    "two headers": b'{"code":310,"extFields":%b,"flag":0,"opaque":1}{}',
}


@pytest.mark.parametrize("header", JSON_HEADERS.values(), ids=JSON_HEADERS)
def test_an_unusual_header_is_cold(still: Bench, header: bytes) -> None:
    fields = json.dumps(send_fields()).encode()
    assert still.connect().is_cold(frame(header.replace(b"%b", fields), b"body"))


@pytest.mark.parametrize("value", [b"0", b"null", b"[]", b"true"])
def test_a_field_that_is_no_text_is_cold(still: Bench, value: bytes) -> None:
    fields = json.dumps(send_fields()).encode().replace(b'"0"', value, 1)
    header = b'{"code":310,"extFields":%b,"flag":0,"opaque":1}' % fields
    assert still.connect().is_cold(frame(header, b"body"))


@pytest.mark.parametrize(
    "header",
    [
        # The Go client always sends a remark and its own order of members.
        b'{"code":310,"language":"GO","version":317,"opaque":1,"flag":0,"remark":"",'
        b'"extFields":%b}',
        b'{"opaque":1,"extFields":%b,"code":310}',
        b'{"code":310,"remark":null,"extFields":%b,"flag":0,"opaque":1}',
    ],
)
def test_any_order_of_members_is_hot(growing: Bench, header: bytes) -> None:
    text = properties(TAGS="t\u00e4😀")
    fields = json.dumps(send_fields(i=text), separators=(",", ":")).encode()
    (answer,) = growing.connect().ask(frame(header.replace(b"%b", fields), b"body"))
    assert (answer.code, answer.opaque) == (0, 1)


BINARY_HEADERS = {
    "nothing": b"",
    "short": bytes(20),
    "remark beyond the end": bytes.fromhex("0136 00 0199 00000001 00000000 00000009 00000000"),
    "negative remark": bytes.fromhex("0136 00 0199 00000001 00000000 ffffffff 00000000"),
    "fields beyond the end": bytes.fromhex("0136 00 0199 00000001 00000000 00000000 00000009"),
    "negative fields": bytes.fromhex("0136 00 0199 00000001 00000000 00000000 ffffffff"),
    "torn field": bytes.fromhex("0136 00 0199 00000001 00000000 00000000 00000003 000161"),
    "empty name": bytes.fromhex("0136 00 0199 00000001 00000000 00000000 00000006 0000 00000000"),
}


@pytest.mark.parametrize("header", BINARY_HEADERS.values(), ids=BINARY_HEADERS)
def test_a_malformed_binary_header_is_cold(still: Bench, header: bytes) -> None:
    assert still.connect().is_cold(frame(header, b"body", 1))


def test_bytes_behind_the_fields_of_a_binary_header_are_cold(still: Bench) -> None:
    whole = send(b"", encoding=SerializeType.ROCKETMQ)
    assert still.connect().is_cold(frame(whole[8:] + b"\0", b"body", 1))


def test_a_field_of_zero_bytes_is_a_missing_one_in_a_binary_header(bench: Bench) -> None:
    wire = bench.connect()
    assert wire.is_cold(send(encoding=SerializeType.ROCKETMQ, a=""))
    assert wire.ask(send(encoding=SerializeType.ROCKETMQ, i=""))[0].code == 0


def test_sends_are_cold_while_the_broker_is_not_writable(bench: Bench) -> None:
    wire = bench.connect()
    bench.store.set_writable(False)
    assert wire.is_cold(send())
    assert wire.is_cold(send_batch([item()]))
    assert wire.ask(pull())[0].code == 0
    bench.store.set_writable(True)
    assert wire.ask(send())[0].code == 0


def test_tables_take_effect_at_once(bench: Bench) -> None:
    wire = bench.connect()
    store = bench.store
    assert wire.ask(send(e=3))[0].code == 0
    store.set_topic("T", 4, 2, 6, True)
    assert wire.is_cold(send(e=3))
    store.set_topic("T", 4, 4, 4, True)
    assert wire.is_cold(send())
    assert wire.ask(pull())[0].code == 0
    store.set_topic("T", 4, 4, 2, True)
    assert wire.is_cold(pull())
    store.set_topic("T", 4, 4, 6, False)
    assert wire.is_cold(pull())
    store.set_topic("T", 4, 4, 6, True)
    store.delete_topic("T")
    assert wire.is_cold(send())
    store.delete_topic("T")
    store.set_topic("T", 4, 4, 6, True)
    assert wire.ask(send(), pull())[1].code == 0
    store.delete_group("G")
    assert wire.is_cold(pull())
    store.delete_group("G")
    store.set_group("G", True, 1)
    assert wire.ask(pull())[0].code == 0
    assert wire.is_cold(pull(sysFlag=0))
    store.set_subscription("G", "T", 1, None)
    assert wire.ask(pull(sysFlag=0))[0].code == 0
    store.delete_subscription("G", "T")
    store.delete_subscription("G", "T")
    assert wire.is_cold(pull(sysFlag=0))


def test_hot_and_cold_frames_of_one_chunk_are_told_apart(bench: Bench) -> None:
    cold = [request(34, {}, b"1", opaque=2), send(b="Unknown", opaque=4), pull(topic="x", opaque=6)]
    chunk = [send(opaque=1), cold[0], send(opaque=3), cold[1], pull(opaque=5), cold[2]]
    answers, left, _, error = bench.connect().feed(*chunk)
    assert error is None
    assert left == [frame[4:] for frame in cold]
    assert [answer.opaque for answer in commands(answers)] == [1, 3, 5]


@ENCODINGS
def test_a_name_that_is_too_long_is_cold_although_the_table_has_it(
    bench: Bench, encoding: SerializeType
) -> None:
    bench.store.set_group("g" * 255, True, 1)
    bench.store.set_group("g" * 256, True, 1)
    wire = bench.connect()
    (answer,) = wire.ask(pull(encoding=encoding, consumerGroup="g" * 255))
    assert answer.code == 0
    assert wire.is_cold(pull(encoding=encoding, consumerGroup="g" * 256, sysFlag=5))
    assert bench.store.drain_commits() == []


@pytest.mark.parametrize("same", [True, False], ids=["the same", "different"])
@ENCODINGS
def test_a_header_with_a_great_many_members_is_cold(
    bench: Bench, encoding: SerializeType, same: bool
) -> None:
    if encoding == SerializeType.JSON:
        member = [f'"a{"" if same else number}":"1"' for number in range(50_000)]
        fields = ",".join([*member, *(f'"{k}":"{v}"' for k, v in send_fields().items())])
        header = ('{"code":310,"opaque":1,"extFields":{' + fields + "}}").encode()
    else:
        names = [f"a{'' if same else number}".encode() for number in range(50_000)]
        entries = [struct.pack(">h", len(name)) + name + b"\0\0\0\x011" for name in names]
        ext = b"".join(entries)
        header = struct.pack(">hbhiiii", 310, 0, 0, 1, 0, 0, len(ext)) + ext
    word = int(encoding) << 24 | len(header)
    assert bench.connect().is_cold(struct.pack(">II", 4 + len(header) + 1, word) + header + b"x")


@ENCODINGS
def test_a_long_header_of_few_members_is_hot(bench: Bench, encoding: SerializeType) -> None:
    wire = bench.connect()
    (answer,) = wire.ask(send(encoding=encoding, i=properties(TAGS='"t",' * 7_000)))
    assert answer.code == 0
