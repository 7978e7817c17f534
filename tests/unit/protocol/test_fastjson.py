"""The JSON that fastjson writes and strict parsers refuse."""

from __future__ import annotations

import json

import pytest

from kerolox.message import MessageQueue
from kerolox.protocol.fastjson import (
    DEPTH_MAX,
    FastjsonError,
    dumps,
    dumps_pretty,
    dumps_strict,
    loads,
)

QUEUE = MessageQueue("T", "b", 0)
QUEUE_KEY = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({0: "ip:1", 1: "ip:2"}, '{0:"ip:1",1:"ip:2"}'),
        ({QUEUE: {"maxOffset": 4}}, f'{{{QUEUE_KEY}:{{"maxOffset":4}}}}'),
        ([QUEUE], f"[{QUEUE_KEY}]"),
        ({"a": [1, -2.5, True, None, 'x\n"ä']}, '{"a":[1,-2.5,true,null,"x\\n\\"ä"]}'),
        ({}, "{}"),
        ([], "[]"),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
    ],
)
def test_what_is_written_is_what_fastjson_writes_and_can_be_read(value: object, text: str) -> None:
    assert dumps(value).decode() == text
    again = loads(text)
    assert again == (value if value != [QUEUE] else [json.loads(QUEUE_KEY)])


def test_strict_json_has_quoted_and_sorted_keys() -> None:
    assert dumps_strict({"b": {1: 2, 0: 1}, "a": []}) == b'{"a":[],"b":{"0":1,"1":2}}'


def test_pretty_text_is_indented_with_tabs() -> None:
    assert dumps_pretty({"a": {0: 1}, "b": [], "c": [1, {}]}).decode() == (
        '{\n\t"a":{0:1\n\t},\n\t"b":[],\n\t"c":[\n\t\t1,\n\t\t{}\n\t]\n}'
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:1}", {0: 1}),
        ("{-1:1}", {-1: 1}),
        ("{name:1}", {"name": 1}),
        ("{true:1}", {True: 1}),
        (' { "a" : [ 1 , { 2 : 3 } ] } ', {"a": [1, {2: 3}]}),
        ('{1:"a,}]{[:\\"x"}', {1: 'a,}]{[:"x'}),
        ('{{"a":1}:2}', {(("a", 1),): 2}),
        ("{1:null}", {1: None}),
        ("{9223372036854775807:1}", {9223372036854775807: 1}),
    ],
)
def test_bare_and_object_keys_are_read(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{1",
        "{1:",
        "{1:2",
        "{1:2,",
        "{1:2,}",
        "{1 2}",
        "[1",
        "[1,]",
        "{1:2} x",
        "{1:x}",
        "{1:'a'}",
        '{1:"a}',
        "{:1}",
        "{1:2]",
        "\ufffe{1:",
    ],
)
def test_what_is_neither_is_an_error_that_says_where(text: str) -> None:
    with pytest.raises(FastjsonError):
        loads(text)


def test_bytes_that_are_no_utf_8_are_an_error() -> None:
    with pytest.raises(FastjsonError, match="not UTF-8"):
        loads(b'{1:"\xff"}')


def test_nesting_is_bounded() -> None:
    assert loads("[" * (DEPTH_MAX - 1) + "{1:2}" + "]" * (DEPTH_MAX - 1))
    with pytest.raises(FastjsonError, match="nested deeper"):
        loads("{1:" * (DEPTH_MAX + 2) + "1" + "}" * (DEPTH_MAX + 2))
    with pytest.raises(FastjsonError):
        loads("[" * 100_000)
