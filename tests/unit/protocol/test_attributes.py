"""Changes of attributes, as RocketMQ 5.3.3 reads, checks and refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.attributes import (
    ATTRIBUTES_MAX,
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    AttributesError,
    TopicMessageType,
    altered,
    bounded_attributes,
    format_changes,
    parse_attributes,
)
from kerolox.protocol.names import NAME_BYTES_MAX

TYPES = "[UNSPECIFIED, TRANSACTION, FIFO, MIXED, DELAY, NORMAL]"
HAS = {"message.type": "FIFO", "queue.type": "SimpleCQ", "of.later": "kept"}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        (",", {}),
        ("+a=1,+b=2,-c,+d=4", {"+a": "1", "+b": "2", "-c": "", "+d": "4"}),
        ("+a=1,,", {"+a": "1"}),
        ("+reserve.time=-1", {"+reserve.time": "-1"}),
    ],
)
def test_changes_are_read_as_tools_write_them(text: str, changes: dict[str, str]) -> None:
    assert parse_attributes(text) == changes


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("a=1", "add/alter attribute format is wrong: a"),
        ("-a=1", "add/alter attribute format is wrong: -a"),
        ("+a=", "add/alter attribute format is wrong: +a"),
        ("+a=1=2", "add/alter attribute format is wrong: +a"),
        ("=", "add/alter attribute format is wrong: "),
        ("a", "delete attribute format is wrong: a"),
        ("+a", "delete attribute format is wrong: +a"),
        ("+a=1,,+b=2", "delete attribute format is wrong: "),
        ("+a=1,+a=2", "key duplication: +a"),
        ("-a,-a", "key duplication: -a"),
    ],
)
def test_changes_that_are_malformed_are_refused_as_by_rocketmq(text: str, remark: str) -> None:
    with pytest.raises(AttributesError) as told:
        parse_attributes(text)
    assert str(told.value) == remark


@pytest.mark.parametrize("value", list(TopicMessageType))
def test_a_topic_takes_each_type_of_messages(value: TopicMessageType) -> None:
    changes = {"+message.type": value.value}
    assert altered(None, changes, TOPIC_ATTRIBUTES, is_new=True) == {"message.type": value}
    assert altered(HAS, changes, TOPIC_ATTRIBUTES, is_new=False) == HAS | {"message.type": value}


def test_what_no_change_names_stays_also_of_later_versions() -> None:
    assert altered(HAS, {}, TOPIC_ATTRIBUTES, is_new=False) == HAS
    assert altered(HAS, {"-message.type": ""}, TOPIC_ATTRIBUTES, is_new=False) == {
        "queue.type": "SimpleCQ",
        "of.later": "kept",
    }
    given = {"+reserve.time": "9223372036854775807", "+cleanup.policy": "DELETE"}
    assert altered({}, given, TOPIC_ATTRIBUTES, is_new=True) == {
        "reserve.time": "9223372036854775807",
        "cleanup.policy": "DELETE",
    }


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"+a": "1"}, "unsupported key: a"),
        ({"+": "1"}, "kv string format wrong."),
        ({"": "1"}, "kv string format wrong."),
        ({"+a-b": "1"}, "kv string format wrong."),
        ({"++a": "1"}, "kv string format wrong."),
        ({"+message.type": "SOME"}, f"value is not in set: {TYPES}"),
        ({"+message.type": ""}, f"value is not in set: {TYPES}"),
        ({"+queue.type": "RocksDBCQ"}, "value is not in set: [SimpleCQ, BatchCQ]"),
        ({"+cleanup.policy": "delete"}, "value is not in set: [DELETE, COMPACTION]"),
        ({"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
        ({"+reserve.time": "x"}, 'For input string: "x"'),
        ({"+reserve.time": "9223372036854775808"}, 'For input string: "9223372036854775808"'),
        ({"+reserve.time": ""}, 'For input string: ""'),
        (
            {"-message.type": ""},
            "only add attribute is supported while creating topic. key: message.type",
        ),
        (
            {"+message.type": "FIFO", "-message.type": ""},
            "alter duplication key. key: message.type",
        ),
    ],
)
def test_a_new_topic_s_attributes_are_refused_as_by_rocketmq(
    changes: dict[str, str], remark: str
) -> None:
    with pytest.raises(AttributesError) as told:
        altered(None, changes, TOPIC_ATTRIBUTES, is_new=True)
    assert str(told.value) == remark


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"-reserve.time": ""}, "attempt to delete a nonexistent key: reserve.time"),
        ({"-a": ""}, "attempt to delete a nonexistent key: a"),
        ({"-of.later": ""}, "unsupported key: of.later"),
        (
            {"+queue.type": "SimpleCQ"},
            "attempt to update an unchangeable attribute. key: queue.type",
        ),
        (
            {"+cleanup.policy": "DELETE"},
            "attempt to update an unchangeable attribute. key: cleanup.policy",
        ),
        ({"-queue.type": ""}, "attempt to update an unchangeable attribute. key: queue.type"),
        ({"message.type": "FIFO"}, "wrong format key: essage.type"),
    ],
)
def test_changes_of_a_topic_that_is_there_are_refused_as_by_rocketmq(
    changes: dict[str, str], remark: str
) -> None:
    with pytest.raises(AttributesError) as told:
        altered(HAS, changes, TOPIC_ATTRIBUTES, is_new=False)
    assert str(told.value) == remark


@pytest.mark.parametrize("changes", [{"+queue.type": "BatchCQ"}, {"+cleanup.policy": "COMPACTION"}])
def test_what_the_store_does_not_have_is_refused_and_said(changes: dict[str, str]) -> None:
    with pytest.raises(AttributesError, match=r"is not supported by this broker; (Simple|DEL)"):
        altered(None, changes, TOPIC_ATTRIBUTES, is_new=True)


def test_groups_have_no_attribute_that_may_be_given() -> None:
    with pytest.raises(AttributesError, match=r"unsupported key: message\.type"):
        altered(None, {"+message.type": "FIFO"}, GROUP_ATTRIBUTES, is_new=True)


def test_a_tool_asks_for_what_differs_alone() -> None:
    wanted = {"message.type": "DELAY", "queue.type": "SimpleCQ", "reserve.time": None, "b": None}
    changes = format_changes(wanted, HAS | {"b": "1"})
    assert changes == "+message.type=DELAY,-b"
    assert format_changes({}, HAS) == ""


@pytest.mark.parametrize(
    "wanted",
    [{"": "1"}, {"a": ""}, {"a+b": "1"}, {"a-b": None}, {"a": "1,+b=2"}, {"a": "1 2"}, {"a": "="}],
)
def test_a_tool_can_t_ask_for_what_would_be_read_otherwise(wanted: dict[str, str | None]) -> None:
    with pytest.raises(AttributesError, match="is illegal"):
        format_changes(wanted, None)


def test_what_is_kept_of_a_file_or_a_master_is_bounded() -> None:
    many = {f"k{number}": "v" for number in range(10 * ATTRIBUTES_MAX)}
    kept = bounded_attributes(many)
    assert kept is not None
    assert len(kept) == ATTRIBUTES_MAX
    long = "x" * (NAME_BYTES_MAX + 1)
    assert bounded_attributes({"a": long, long: "a", "b": "x" * NAME_BYTES_MAX}) == {
        "b": "x" * NAME_BYTES_MAX
    }
    assert bounded_attributes({}) is None
    assert bounded_attributes(None) is None


_KEYS = st.text(st.characters(exclude_characters="+-,=", categories=["L", "N", "P"]), min_size=1)
_VALUES = st.text(st.characters(exclude_characters=",=", categories=["L", "N", "P"]), min_size=1)


@given(st.dictionaries(_KEYS, _VALUES), st.dictionaries(_KEYS, st.none() | _VALUES))
def test_what_a_tool_asks_for_is_read_as_it_was_meant(
    old: dict[str, str], wanted: dict[str, str | None]
) -> None:
    read = parse_attributes(format_changes(wanted, old))
    put = {key: value for key, value in wanted.items() if value and old.get(key) != value}
    gone = {key for key, value in wanted.items() if value is None and key in old}
    assert read == {f"+{k}": v for k, v in put.items()} | {f"-{k}": "" for k in gone}


@given(st.text(alphabet="+-=,ab.\0\u0661 ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    told = ""
    try:
        altered({"a": "1"}, parse_attributes(text), TOPIC_ATTRIBUTES, is_new=False)
    except AttributesError as error:
        told = str(error)
    assert "\0" not in told
    assert len(told) < 500
