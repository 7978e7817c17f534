"""Requests that wait for a reply: the messages, the table of those that wait, the producer."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client import Producer, ProducerSettings, ReplyMessage, create_reply
from kerolox.client.aio.producers import open_requests
from kerolox.client.aio.producers.open_requests import OpenRequests
from kerolox.client.core.sending.request_reply import (
    ERROR_CHARACTERS_MAX,
    REPLY_ERROR,
    check_reply,
    pushed_reply,
)
from kerolox.client.core.sending.send import SendHeader, outgoing_message
from kerolox.errors import (
    ClientClosedError,
    ClientError,
    MessageRejectedError,
    RemoteProtocolError,
    ReplyError,
    RequestTimeoutError,
    ServiceNotAvailableError,
)
from kerolox.message import Message, MessageExt, decode_properties, encode_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import loads
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.fake_broker import FakeBroker, route_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.asyncio

SEND = RequestCode.SEND_MESSAGE_V2
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
MARKS = {"CLUSTER": "c", "CORRELATION_ID": "id-1", "REPLY_TO_CLIENT": "me", "TTL": "3000"}


def received(**changes: str) -> MessageExt:
    properties = {name: value for name, value in {**MARKS, **changes}.items() if value}
    return MessageExt(
        topic="T", body=b"?", queue_id=0, queue_offset=0, commit_log_offset=0, properties=properties
    )


def push(correlation_id: str, body: bytes = b"!", **changes: str) -> RemotingCommand:
    fields = {
        "producerGroup": "g",
        "topic": "c_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "11",
        "flag": "3",
        "properties": encode_properties({"CORRELATION_ID": correlation_id}),
        "bornHost": "/10.0.0.1:1234",
        "storeHost": "10.0.0.2:10911",
        "storeTimestamp": "12",
        **changes,
    }
    return RemotingCommand.request(PUSH, fields, body=body)


# -- messages -------------------------------------------------------------------------------------
async def test_a_reply_repeats_what_the_request_said_and_goes_to_the_clusters_reply_topic() -> None:
    reply = create_reply(received(), b"yes")
    assert isinstance(reply, ReplyMessage)
    reply.tags = "answers"
    assert (reply.topic, reply.body) == ("c_REPLY_TOPIC", b"yes")
    made = outgoing_message(reply, "M1", compress_bytes_min=4096, compress_level=5)
    properties = decode_properties(made.properties)
    assert properties == {
        "CORRELATION_ID": "id-1",
        "MSG_TYPE": "reply",
        "REPLY_TO_CLIENT": "me",
        "TAGS": "answers",
        "TTL": "3000",
        "UNIQ_KEY": "M1",
        "WAIT": "true",
    }
    header = SendHeader("g", "TBW102", 4)
    assert header.request(made, 0, 1).code == REPLY
    plain = outgoing_message(Message("T", b""), "M2", compress_bytes_min=4096, compress_level=5)
    assert header.request(plain, 0, 1).code == SEND


@pytest.mark.parametrize("name", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
async def test_what_is_no_request_has_no_reply(name: str) -> None:
    with pytest.raises(MessageRejectedError, match=f"has no property {name}"):
        create_reply(received(**{name: ""}), b"yes")


async def test_an_error_travels_as_a_property_of_one_bounded_line() -> None:
    reply = create_reply(received(), error="sold out\n\x01\x02")
    assert reply.body == rb"sold out\n\x01\x02"
    made = outgoing_message(reply, "M1", compress_bytes_min=4096, compress_level=5)
    properties = decode_properties(made.properties)
    assert properties[REPLY_ERROR] == "sold out\\n\\x01\\x02"
    assert properties["CORRELATION_ID"] == "id-1"
    long = create_reply(received(), error="x" * 100_000)
    assert len(long.error) < ERROR_CHARACTERS_MAX + 40
    with pytest.raises(MessageRejectedError, match="error is of type int, not a text"):
        create_reply(received(), error=7)  # type: ignore[arg-type]


async def test_a_reply_with_an_error_is_an_error_of_the_request() -> None:
    assert check_reply(received(), "request M1").body == b"?"
    refused = received(**{REPLY_ERROR: "sold\x1b[31m out"})
    with pytest.raises(ReplyError) as raised:
        check_reply(refused, "request M1")
    assert str(raised.value) == "request M1 was answered with an error: sold\\x1b[31m out"
    assert raised.value.reply is refused


async def test_a_pushed_reply_is_a_message() -> None:
    body = zlib.compress(b"long " * 100)
    message = pushed_reply(push("id-1", body, sysFlag="1", reconsumeTimes="2"), now_ms=13)
    assert (message.topic, message.body, message.flag) == ("c_REPLY_TOPIC", b"long " * 100, 3)
    assert message.properties == {"CORRELATION_ID": "id-1", "ARRIVE_TIME": "13"}
    assert (message.born_timestamp, message.store_timestamp) == (11, 12)
    assert message.born_host == ("10.0.0.1", 1234)
    assert message.store_host == ("10.0.0.2", 10911)
    assert message.reconsume_times == 2
    torn = pushed_reply(push("id-1", body[:9], sysFlag="1"), now_ms=13)
    assert torn.body == body[:9]
    assert "torn" in torn.body_error
    with pytest.raises(RemoteProtocolError, match="malformed"):
        pushed_reply(push("id-1", queueId="x"), now_ms=13)


# -- the table ------------------------------------------------------------------------------------
async def test_overdue_requests_are_found_by_the_look_of_each_second() -> None:
    """One check arms a timer for what comes due before the next one, and for nothing else."""
    table, now = OpenRequests(), asyncio.get_running_loop().time()
    soon = table.open("soon", now + 0.05, "request 1")
    later = table.open("later", now + 3_600, "request 2")
    assert not table._timers
    await table.check_deadlines()
    assert list(table._timers) == ["soon"]
    # Without another check.
    with pytest.raises(RequestTimeoutError, match="no reply in time to request 1"):
        await asyncio.wait_for(soon, SECONDS_MAX)
    next_one = table.open("next", now + 0.2, "request 3")
    assert "next" in table._timers, "due before the next check"
    for name in ("soon", "later", "next"):
        table.drop(name)
    assert not len(table)
    assert not table._timers
    assert later.cancelled()
    assert next_one.cancelled()


async def test_no_more_requests_wait_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "REQUESTS_OPEN_MAX", 2)
    table = OpenRequests()
    for name in "ab":
        table.open(name, 1e9, name)
    with pytest.raises(ClientError, match="2 requests of this producer wait"):
        table.open("c", 1e9, "c")
    table.drop("a")
    table.open("c", 1e9, "c")


# -- the producer ---------------------------------------------------------------------------------
def replying(broker: FakeBroker, *, stored: int | None = 0) -> Callable[..., Awaitable[Any]]:
    """Brings the reply before it answers the send with a code; None: it does not answer."""

    async def answer(command: RemotingCommand) -> RemotingCommand | None:
        correlation_id = decode_properties(command.ext_fields["i"])["CORRELATION_ID"]
        reply = push(correlation_id, b"re " + command.body)
        told = await broker.connections[-1].request(reply, timeout_seconds=30)
        assert told.code == 0
        return None if stored is None else broker.stored(command, stored)

    return answer


async def test_a_reply_may_come_before_the_broker_answers_the_send_or_without_that() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with Producer("g", broker.address) as producer:
            # A send that is not answered is waited for as long as the request may take.
            for stored, timeout_ms in ((0, 30_000), (14, 30_000), (None, 1_500)):
                broker.answers[SEND] = replying(broker, stored=stored)
                reply = await producer.request(Message("T", b"x"), timeout_ms=timeout_ms)
                assert reply.body == b"re x"
            assert not len(producer._requests)


async def test_a_request_says_who_waits_how_long_and_greets_all_brokers_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.client.aio.producers.producer.HEARTBEAT_FIRST_MS", 3_600_000)
    async with FakeBroker() as a, FakeBroker() as b:
        a.routes["T"] = route_body({"a": a.address})
        # A reply may come to the other broker of the cluster.
        a.routes["c_REPLY_TOPIC"] = route_body({"a": a.address, "b": b.address})
        a.answers[SEND] = replying(a)
        async with Producer("g", a.address) as producer:
            await producer.request(Message("T", b"x", keys="k"), timeout_ms=20_000)
            for broker in (a, b):
                told = loads(broker.seen[RequestCode.HEART_BEAT][0].body)
                assert told["clientID"] == producer.client_id
            properties = decode_properties(a.seen[SEND][0].ext_fields["i"])
            assert properties["REPLY_TO_CLIENT"] == producer.client_id
            assert properties["TTL"] == "20000"
            assert properties["KEYS"] == "k"
            beats = len(b.seen[RequestCode.HEART_BEAT])
            await producer.request(Message("T", b"x"))
            assert len(b.seen[RequestCode.HEART_BEAT]) == beats, "once is enough"


async def test_a_request_that_is_not_sent_fails_as_a_send_does() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})

        async def refuse(command: RemotingCommand) -> RemotingCommand:
            return command.response(14, "told to")

        broker.answers[SEND] = refuse
        async with Producer("g", broker.address, settings=ProducerSettings(retries=0)) as producer:
            with pytest.raises(ServiceNotAvailableError):
                await producer.request(Message("T", b"x"))
            assert not len(producer._requests)


async def test_a_close_ends_requests_that_wait() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        producer = Producer("g", broker.address)
        await producer.start()
        waiting = asyncio.ensure_future(producer.request(Message("T", b"x"), timeout_ms=20_000))
        await until(lambda: broker.seen[SEND])
        await producer.close()
        with pytest.raises(ClientClosedError, match="closed before the reply came"):
            await waiting


async def test_a_reply_to_nothing_is_taken_and_one_that_is_malformed_refused() -> None:
    async with FakeBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address})
        async with Producer("g", broker.address) as producer:
            await producer.send(Message("T", b"x"))
            connection = broker.connections[-1]
            assert (await connection.request(push("gone"), timeout_seconds=30)).code == 0
            bad = push("gone", flag="x")
            assert (await connection.request(bad, timeout_seconds=30)).code == 1
            other = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, {})
            assert (await connection.request(other, timeout_seconds=30)).code == 3
