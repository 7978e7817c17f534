"""Messages that a producer refuses, whichever way they would leave: nothing of them is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kerolox.client import (
    ProducerSettings,
    SendContext,
    SendHook,
    TransactionProducer,
    TransactionState,
    create_reply,
)
from kerolox.client.core.sending.send import retry_message
from kerolox.errors import MessageRejectedError
from kerolox.message import Message, MessageExt, decode_properties
from kerolox.protocol.codes import RequestCode
from tests.support.servers.fake_broker import FakeBroker, route_body

SEND = RequestCode.SEND_MESSAGE_V2


async def never_asked(_: object) -> TransactionState:
    raise AssertionError


def producer(name_server: str, **settings: Any) -> TransactionProducer:
    given = ProducerSettings(send_timeout_ms=60_000, **settings)
    return TransactionProducer("group", name_server, check=never_asked, settings=given)


WAYS: dict[str, Callable[[TransactionProducer, Message], Awaitable[object]]] = {
    "send": lambda made, message: made.send(message),
    "send_oneway": lambda made, message: made.send_oneway(message),
    "send_batch": lambda made, message: made.send_batch([Message("T", b"x"), message]),
    "request": lambda made, message: made.request(message),
    "send_in_transaction": lambda made, message: made.send_in_transaction(message, never_asked),
}
"""Each way in which a message leaves."""


def changed(**changes: Any) -> Message:
    message = Message("T", b"x")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"tags": "a\x02KEYS\x01forged"}, r"tags has U\+0002 at position 1,"),
        ({"keys": "ab\x01"}, r"keys has U\+0001 at position 2,"),
        ({"keys": ["a", "b\x02c"]}, r"keys has U\+0002 at position 3,"),
        ({"properties": {"p": "1\x02DELAY\x0118"}}, r"property 'p' has U\+0002 at position 1,"),
        ({"properties": {"p\x01": "1"}}, r"the name of property 'p\\x01' has U\+0001 at"),
        ({"properties": {"p": "1\x01"}}, r"property 'p' has U\+0001 at position 1,"),
    ],
    ids=["tags", "keys", "list of keys", "value", "name", "end of a name in a value"],
)
async def test_what_would_be_read_as_other_properties_is_refused(
    way: str, changes: dict[str, Any], where: str
) -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with producer(broker.address) as made:
            with pytest.raises(MessageRejectedError, match=where):
                await WAYS[way](made, changed(**changes))
        assert not broker.seen[SEND]
        assert not broker.seen[RequestCode.SEND_BATCH_MESSAGE]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", [-1, 19, 99, 2**40, True, "3", 1.5])
async def test_what_is_no_delay_level_is_refused(way: str, level: object) -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with producer(broker.address) as made:
            with pytest.raises(MessageRejectedError, match="delay"):
                await WAYS[way](made, changed(delay_level=level))
        assert not broker.seen[SEND]


async def test_levels_of_brokers_that_have_more_can_be_allowed() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with producer(broker.address, delay_level_max=20) as made:
            await made.send(Message("T", b"x", delay_level=20))
            with pytest.raises(MessageRejectedError, match=r"from 0 .* to 20\..*delay_level_max"):
                await made.send(Message("T", b"x", delay_level=21))
        [sent] = broker.seen[SEND]
        assert decode_properties(sent.ext_fields["i"])["DELAY"] == "20"


async def test_a_reply_with_properties_that_would_be_read_as_others_is_refused() -> None:
    marks = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me\x02TTL\x019"}
    asked = MessageExt(
        topic="T", body=b"?", queue_id=0, queue_offset=0, commit_log_offset=0, properties=marks
    )
    async with FakeBroker() as broker:
        broker.routes["c_REPLY_TOPIC"] = route_body({"a": broker.address})
        async with producer(broker.address) as made:
            with pytest.raises(MessageRejectedError, match="'REPLY_TO_CLIENT' has U"):
                await made.send(create_reply(asked, b"!"))


async def test_a_hook_can_add_no_property_that_would_be_read_as_others() -> None:
    refused: list[str] = []

    class Adds(SendHook):
        def before_send(self, context: SendContext) -> None:
            try:
                context.add_property("p", "1\x02TAGS\x01b")
            except MessageRejectedError as error:
                refused.append(str(error))

    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with producer(broker.address, send_hooks=(Adds(),)) as made:
            await made.send(Message("T", b"x", tags="a"))
        [sent] = broker.seen[SEND]
    assert "TAGS\x01a" in sent.ext_fields["i"]
    assert "TAGS\x01b" not in sent.ext_fields["i"]
    assert len(refused) == 1


def test_a_retry_copy_keeps_what_others_sent_and_adds_no_forged_property() -> None:
    failed = MessageExt(
        topic="T",
        body=b"x",
        queue_id=0,
        queue_offset=1,
        commit_log_offset=2,
        properties={"UNIQ_KEY": "ID", "odd": "a\x01b"},
    )
    copy = retry_message(failed, "g", max_reconsume_times=16)
    assert decode_properties(copy.properties)["odd"] == "a\x01b"
    failed.properties = {"UNIQ_KEY": "ID"}
    failed.properties["note"] = "1\x02TAGS\x01forged"
    with pytest.raises(MessageRejectedError, match="property 'note' has U"):
        retry_message(failed, "g", max_reconsume_times=16)
