"""Every text of a header or a request's body has a bound, and is refused when it is longer."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec
import pytest

from kerolox.protocol.bodies import (
    BodyError,
    CheckClientBody,
    HeartbeatData,
    LockBatchBody,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_request,
)
from kerolox.protocol.headers import (
    Header,
    HeaderFieldError,
    PullMessageHeader,
    SendMessageHeader,
    UpdateConsumerOffsetHeader,
)
from kerolox.protocol.names import (
    DLQ_PREFIX,
    NAME_BYTES_MAX,
    RETRY_PREFIX,
    TextBound,
    length_fault,
    text_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_MODULES = ("kerolox.protocol.headers", "kerolox.protocol.namesrv")
REQUEST_BODIES = (
    CheckClientBody,
    HeartbeatData,
    LockBatchBody,
    SubscriptionGroupConfig,
    TopicConfig,
)

COMMIT = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}


def _headers() -> list[type[Header]]:
    modules = [importlib.import_module(name) for name in HEADER_MODULES]
    return [
        each
        for module in modules
        for _, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, Header) and each.__module__ == module.__name__
    ]


def _texts(hint: Any, is_bound: bool = False) -> Iterator[bool]:
    """Of each text in a type: whether it has a bound."""
    if hint is str:
        yield is_bound
    metadata = getattr(hint, "__metadata__", ())
    bound = any(isinstance(each, TextBound) for each in metadata)
    for part in get_args(hint):
        yield from _texts(part, bound)


def _structs_in(hint: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
        for inner in get_type_hints(hint, include_extras=True).values():
            yield from _structs_in(inner)
    for part in get_args(hint):
        yield from _structs_in(part)


STRUCTS = [
    *_headers(),
    *dict.fromkeys(each for body in REQUEST_BODIES for each in _structs_in(body)),
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_text_has_a_bound(struct: type[msgspec.Struct]) -> None:
    for name, hint in get_type_hints(struct, include_extras=True).items():
        assert all(_texts(hint)), f"{struct.__name__}.{name}: take a type of protocol/names.py"


def test_the_walk_finds_headers_of_both_roles() -> None:
    assert len({each.__module__ for each in _headers()}) == len(HEADER_MODULES)
    assert len(_headers()) > 30


@pytest.mark.parametrize("struct", _headers(), ids=lambda struct: struct.__name__)
def test_a_text_one_byte_too_long_is_refused(struct: type[Header]) -> None:
    bounds = {wire: bound for _field, wire, bound, _is_nested in text_bounds(struct)}
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    given = {name: "x" if name in bounds else "0" for name in names}
    for name, bound in bounds.items():
        assert bound is not None
        struct.decode(given | {name: "x" * bound.bytes_max})
        said = f"<{name}> .* {bound.bytes_max + 1} bytes; at most {bound.bytes_max} "
        with pytest.raises(HeaderFieldError, match=said):
            struct.decode(given | {name: "x" * (bound.bytes_max + 1)})


def test_bytes_are_counted_and_not_characters() -> None:
    UpdateConsumerOffsetHeader.decode(COMMIT | {"consumerGroup": "费" * 85})
    with pytest.raises(HeaderFieldError, match=r"<consumerGroup> .* 258 bytes; at most 255"):
        UpdateConsumerOffsetHeader.decode(COMMIT | {"consumerGroup": "费" * 86})


@pytest.mark.parametrize("prefix", [RETRY_PREFIX, DLQ_PREFIX])
def test_a_topic_may_hold_the_longest_group_behind_its_prefix(prefix: str) -> None:
    topic = prefix + "g" * NAME_BYTES_MAX
    assert UpdateConsumerOffsetHeader.decode(COMMIT | {"topic": topic}).topic == topic
    with pytest.raises(HeaderFieldError, match="<topic> "):
        UpdateConsumerOffsetHeader.decode(COMMIT | {"topic": topic + "g"})
    with pytest.raises(HeaderFieldError, match="<consumerGroup> "):
        UpdateConsumerOffsetHeader.decode(COMMIT | {"consumerGroup": topic})


def test_the_error_shows_the_begin_of_the_name_on_one_line() -> None:
    fault = length_fault("group", "a\n\x1b[31m" + "b" * 16_000_000)
    assert fault is not None
    assert fault.startswith('group "a\\n\\x1b[31mb')
    assert "16000007 bytes; at most 255" in fault
    assert len(fault) < 200


def test_the_short_name_of_a_member_is_in_the_error() -> None:
    short = dict.fromkeys("defghj", "0") | {"a": "p" * 256, "b": "T", "k": "false"}
    with pytest.raises(HeaderFieldError, match=r"^the custom field <a> "):
        SendMessageHeader.decode_short(short)


def test_a_name_with_other_characters_is_taken() -> None:
    header = UpdateConsumerOffsetHeader.decode(COMMIT | {"consumerGroup": "группа 1"})
    assert header.consumer_group == "группа 1"


def test_a_pull_takes_a_long_expression() -> None:
    members = "queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion"
    given = dict.fromkeys(members.split(), "0") | {"consumerGroup": "g", "topic": "T"}
    header = PullMessageHeader.decode(given | {"subscription": "a || " * 1_000})
    assert header.subscription == "a || " * 1_000


LONG = "n" * (NAME_BYTES_MAX + 1)
HEARTBEAT: dict[str, Any] = {
    "clientID": "c",
    "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}]}],
    "producerDataSet": [{"groupName": "p"}],
}


@pytest.mark.parametrize(
    ("body_type", "body"),
    [
        (HeartbeatData, HEARTBEAT | {"clientID": LONG}),
        (HeartbeatData, HEARTBEAT | {"producerDataSet": [{"groupName": LONG}]}),
        (HeartbeatData, HEARTBEAT | {"consumerDataSet": [{"groupName": LONG}]}),
        (
            HeartbeatData,
            HEARTBEAT
            | {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": LONG}]}]},
        ),
        (LockBatchBody, {"clientId": LONG, "consumerGroup": "g"}),
        (LockBatchBody, {"clientId": "c", "consumerGroup": LONG}),
        (
            LockBatchBody,
            {"clientId": "c", "consumerGroup": "g", "mqSet": [{"queueId": 0, "topic": LONG}]},
        ),
        (
            LockBatchBody,
            {
                "clientId": "c",
                "consumerGroup": "g",
                "mqSet": [{"brokerName": LONG, "queueId": 0, "topic": "T"}],
            },
        ),
        (SubscriptionGroupConfig, {"groupName": LONG}),
        (TopicConfig, {"topicName": LONG}),
        (CheckClientBody, {"clientId": LONG}),
        (CheckClientBody, {"group": LONG}),
        (CheckClientBody, {"subscriptionData": {"topic": LONG}}),
    ],
)
def test_a_body_with_a_long_name_is_refused(body_type: type[Any], body: dict[str, Any]) -> None:
    text = msgspec.json.encode(body)
    with pytest.raises(BodyError, match=r"has 256 bytes; at most 255 are allowed"):
        decode_request(text, body_type)
    assert decode_request(text.replace(LONG.encode(), LONG[:-1].encode()), body_type)
