"""What hostile, broken and old servers answer: a typed error, or what can be read of it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.admin.test_topics import FakeClient

from kerolox.admin import (
    FIRST,
    Access,
    Account,
    Admin,
    DelayLevel,
    QueueProgress,
    SubscriptionGroupConfig,
)
from kerolox.admin.answers import LENIENT_ANSWER_BYTES_MAX, Members, read_object
from kerolox.errors import KeroloxError, RemoteProtocolError
from kerolox.message import Message, MessageExt, MessageQueue
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = MessageQueue("T", "a", 0)
ODD = (None, True, -1, 2**63, 1.5, "x", [], [1], {}, {"a": 1})


def answer(body: bytes) -> RemotingCommand:
    return RemotingCommand(0, {}, body)


# -- one check -----------------------------------------------------------------------------------
LOOKS: dict[str, tuple[Callable[[Members], object], object]] = {
    "text": (lambda m: m.text("a"), "x"),
    "number": (lambda m: m.number("a"), 5),
    "required_number": (lambda m: m.required_number("a"), 5),
    "real": (lambda m: m.real("a"), 1.5),
    "flag": (lambda m: m.flag("a"), True),
    "texts": (lambda m: m.texts("a"), ["x"]),
    "objects": (lambda m: m.objects("a"), [{}]),
    "table": (lambda m: m.table("a"), {"k": {}}),
    "lists": (lambda m: m.lists("a"), {"k": [{}]}),
    "text_table": (lambda m: m.text_table("a"), {"k": "v"}),
    "queues": (lambda m: m.queues("a"), {QUEUE: {}}),
    "queue_numbers": (lambda m: m.queue_numbers("a"), {QUEUE: 1}),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_member_is_of_its_type_or_a_typed_error_that_names_it(look: str) -> None:
    read, good = LOOKS[look]
    read(Members({"a": good}, "the answer"))
    refused = 0
    for odd in ODD:
        try:
            read(Members({"a": odd}, "the answer"))
        except RemoteProtocolError as error:
            refused += "the answer" in str(error)
    assert refused >= 3


def test_numbers_beyond_64_bits_are_no_numbers() -> None:
    for value in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(RemoteProtocolError, match="64 bits"):
            Members({"a": value}, "it").number("a")
    assert Members({"a": 2**63 - 1}, "it").number("a") == 2**63 - 1
    with pytest.raises(RemoteProtocolError, match="finite"):
        Members({"a": 10**400}, "it").real("a")


def test_queues_as_keys_have_texts_and_numbers() -> None:
    for topic, broker, number in ((1, "a", 0), ("T", None, 0), ("T", "a", "0"), ("T", "a", True)):
        key = MessageQueue(topic, broker, number)  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError, match="a table by queues"):
            Members({"a": {key: {}}}, "it").queues("a")


async def test_bodies_are_objects_of_bounded_length() -> None:
    for body in (b"", b"[]", b"7", b"{", b"\xff", b"null", b'{"a":' * 100):
        with pytest.raises(RemoteProtocolError, match="the thing of b:1"):
            await read_object(answer(body), "the thing", "b:1")
    bare = b'{"a":{0:"x"},"b":"%s"}'
    long = await read_object(answer(bare % (b"y" * 100_000)), "the thing", "b:1")
    assert long.text_table("a") == {"0": "x"}
    with pytest.raises(RemoteProtocolError, match=f"up to {LENIENT_ANSWER_BYTES_MAX} bytes"):
        await read_object(answer(bare % (b"y" * LENIENT_ANSWER_BYTES_MAX)), "the thing", "b:1")


# -- whatever is asked --------------------------------------------------------------------------
def questions() -> list[str]:
    methods = [name for name, _ in inspect.getmembers(Admin, inspect.isfunction)]
    return [name for name in methods if not name.startswith("_") and name not in ("start", "close")]


ARGUMENTS: dict[str, object] = {
    "access_key": "someone",
    "account": Account(access_key="someone", secret_key="1234567"),
    "address": "b:1",
    "addresses": ["1.2.3.4"],
    "broker": "b:1",
    "client_id": "c",
    "client_ids": ["c"],
    "level": DelayLevel("b:1", "a", 1, 1_000, 0, 1),
    "message": Message("T", b"x"),
    "message_id": "7F00000100002A9F0000000000000000",
    "offset": 0,
    "order": "a:1",
    "position": FIRST,
    "queue": QUEUE,
    "settings": SubscriptionGroupConfig(group_name="g"),
    "since_ms": 0,
    "timestamp_ms": 0,
    "which": "unit",
}


def argument_of(function: str, name: str) -> object:
    if function in ("update_broker_settings", "update_name_server_settings"):
        return {"k": "v"} if name == "settings" else ARGUMENTS.get(name, "x")
    if function == "resend_dead_letter" and name == "message":
        return MessageExt(
            topic="%DLQ%g",
            body=b"x",
            queue_id=0,
            queue_offset=0,
            commit_log_offset=0,
            properties={},
            store_host=("127.0.0.1", 1),
        )
    return ARGUMENTS.get(name, name)


async def ask(name: str, admin: Admin) -> object:
    """Call a method with plausible arguments; of an iterator, take the first."""
    method: Any = getattr(admin, name)
    given = {
        each.name: argument_of(name, each.name)
        for each in inspect.signature(method).parameters.values()
        if each.default is each.empty
    }
    if name == "message_tracks":
        from tests.unit.admin.test_messages import stored

        given["message"] = stored()
    if name in ("time_sends", "time_cluster_sends"):
        given["count"] = 1
    if name == "wait_until_drained":
        given["timeout_seconds"] = 0.0
    result = method(**given)
    if isinstance(result, AsyncIterator):
        async for item in result:
            return item
        return None
    return await result


class Odd(FakeClient):
    """Answers all questions with the same body, but those about routes and clusters."""

    def __init__(self, body: bytes, fields: dict[str, str]) -> None:
        super().__init__()
        self.body, self.fields_of_all = body, fields
        known = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        self.answers = {code: self.answers[code] for code in known}

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_seconds: float, ahead: bool = False
    ) -> RemotingCommand:
        if command.code in self.answers:
            return await super().invoke(address, command, timeout_seconds=timeout_seconds)
        return command.response(0, None, self.fields_of_all, body=self.body)


_NAMES = st.sampled_from(
    [
        *("offsetTable", "table", "connectionSet", "subscriptionTable", "data", "mqTable"),
        *("consumeStatsList", "consumerTable", "queueData", "topicList", "groupList", "a"),
        *("topicConfigTable", "subscriptionGroupTable", "statsMinute", "properties", "putTps"),
        *("consumeTimeSpanSet", "messageQueue", "topic", "brokerOffset", "statusTable", "version"),
    ]
)
_VALUES = st.recursive(
    st.sampled_from(ODD),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(_NAMES, inner, max_size=4),
        st.dictionaries(st.just(QUEUE), inner, max_size=1),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", questions())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.dictionaries(_NAMES, _VALUES, max_size=5),
    fields=st.dictionaries(
        st.sampled_from(["offset", "version", "wipeTopicCount", "allAclFileVersion", "value"]),
        st.sampled_from(["", "7", "x", "{}", "[1]", '{"counter":"y"}', str(2**70)]),
    ),
)
async def test_any_answer_ends_in_a_result_or_a_typed_error(
    name: str, value: dict[str, object], fields: dict[str, str]
) -> None:
    admin = Admin.on(Access(Odd(fastjson.dumps(value), fields), ("n:1",)))  # type: ignore[arg-type]
    with suppress(KeroloxError):
        await ask(name, admin)


def test_lag_is_what_is_left() -> None:
    assert QueueProgress(QUEUE, 10, 4, 0).lag == 6
