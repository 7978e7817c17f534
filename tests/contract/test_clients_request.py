"""Requests that wait for a reply, by our clients, against our broker and the Java broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kerolox.client import (
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    create_reply,
)
from kerolox.client import sync as blocking
from kerolox.errors import BrokerSystemError, ReplyError, RequestTimeoutError
from kerolox.message import Message, MessageExt, decode_properties
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.fastjson import dumps
from kerolox.remoting.client import RemotingClient
from tests.contract.conftest import FIRST
from tests.support.eventually import SECONDS_MAX, until

if TYPE_CHECKING:
    from tests.support.servers.clusters import Cluster

pytestmark = pytest.mark.asyncio

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"

Serve = Callable[[Callable[[bytes], bytes]], Awaitable[None]]

PATIENT_MS = 60_000
"""The machine may stand still for seconds: what must go well has so long."""

PATIENT = ProducerSettings(api_timeout_ms=PATIENT_MS)


@pytest_asyncio.fixture
async def serve(cluster: Cluster, topic: str, producer: Producer) -> AsyncIterator[Serve]:
    """Starts a consumer of the topic that replies what a function makes of a request's body."""
    consumers: list[PushConsumer] = []

    async def start(answer: Callable[[bytes], bytes]) -> None:
        async def listen(messages: list[MessageExt]) -> None:
            for message in messages:
                reply = create_reply(message, answer(message.body))
                await producer.send(reply, timeout_ms=PATIENT_MS)

        settings = PushConsumerSettings(consume_from_where=FIRST, api_timeout_ms=PATIENT_MS)
        consumer = PushConsumer(f"servers-{topic}", cluster.name_server, settings=settings)
        consumer.subscribe(topic, "*", listen)
        consumers.append(consumer)
        await consumer.start()

    yield start
    for consumer in consumers:
        await consumer.close()


async def test_each_request_gets_its_own_reply(cluster: Cluster, topic: str, serve: Serve) -> None:
    """Forty at once; large ones travel compressed, both ways."""
    await serve(lambda body: b"reply to " + body)
    bodies = [b"%d " % number * (3_000 if number % 10 == 0 else 1) for number in range(40)]
    async with Producer(f"askers-{topic}", cluster.name_server, settings=PATIENT) as asker:

        async def ask(body: bytes) -> MessageExt:
            return await asker.request(Message(topic, body), timeout_ms=PATIENT_MS)

        replies = await asyncio.gather(*map(ask, bodies))
        assert [reply.body for reply in replies] == [b"reply to " + body for body in bodies]
        first = replies[0]
        assert first.topic == REPLY_TOPIC
        assert first.properties["REPLY_TO_CLIENT"] == asker.client_id
        assert first.properties["MSG_TYPE"] == "reply"
        assert first.properties["TTL"] == str(PATIENT_MS)
        sent, pushed, arrived = (
            int(first.properties["PUSH_REPLY_TIME"]),
            first.store_timestamp,
            int(first.properties["ARRIVE_TIME"]),
        )
        assert sent - 1_000 <= pushed <= arrived + 1_000
        assert not asker._requests


async def test_a_request_whose_reply_is_an_error_ends_with_it(
    cluster: Cluster, topic: str, producer: Producer
) -> None:
    async def refuse(message: MessageExt) -> None:
        reply = create_reply(message, b"none", error="sold out")
        await producer.send(reply, timeout_ms=PATIENT_MS)

    settings = PushConsumerSettings(consume_from_where=FIRST, api_timeout_ms=PATIENT_MS)
    consumer = PushConsumer(f"servers-{topic}", cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", refuse)
    async with (
        consumer,
        Producer(f"askers-{topic}", cluster.name_server, settings=PATIENT) as asker,
    ):
        with pytest.raises(ReplyError, match="was answered with an error: sold out") as raised:
            await asker.request(Message(topic, b"how many?"), timeout_ms=PATIENT_MS)
        assert isinstance(raised.value.reply, MessageExt)
        assert raised.value.reply.body == b"none"


async def test_a_request_that_nobody_answers_ends_when_its_time_is_over(
    cluster: Cluster, topic: str
) -> None:
    async with Producer(f"askers-{topic}", cluster.name_server) as asker:
        with pytest.raises(RequestTimeoutError):
            await asker.request(
                Message(topic, b"learns the route, greets the broker"), timeout_ms=1
            )

        async def is_unanswered() -> bool:
            # On a busy machine the time may be over before the message is sent: then once more.
            with pytest.raises(RequestTimeoutError) as raised:
                await asker.request(Message(topic, b"anyone?"), timeout_ms=1_000)
            return re.search(f"no reply in time to .* topic {topic}", str(raised.value)) is not None

        await until(is_unanswered, what="a request that was sent and not answered")
        assert not asker._requests


async def test_a_reply_to_a_client_that_is_gone_is_refused_but_kept(
    cluster: Cluster, topic: str, producer: Producer
) -> None:
    async with PullConsumer(f"group-{topic}", cluster.name_server) as reader:
        found: list[MessageExt] = []

        async def asked() -> bool:
            # A broker that is slow may not have it when the time is over: then once more.
            with pytest.raises(RequestTimeoutError):
                await asker.request(Message(topic, b"in vain"), timeout_ms=100)
            for queue in await reader.queues(topic):
                found.extend((await reader.pull(queue, 0)).messages)
            return bool(found)

        async with Producer(f"askers-{topic}", cluster.name_server) as asker:
            await until(asked, what="the request")
            gone = asker.client_id
        queue = (await reader.queues(REPLY_TOPIC))[0]
        end = await reader.max_offset(queue)
        late = create_reply(found[0], b"too late")
        with pytest.raises(BrokerSystemError, match=f"channel of <{gone}> not found"):
            await producer.send(late)
        kept = (await reader.pull(queue, end, wait=True)).messages
    # The send was tried three times, and each try was kept.
    assert {message.body for message in kept} == {b"too late"}
    assert kept[0].properties["CORRELATION_ID"] == found[0].properties["CORRELATION_ID"]


async def test_the_blocking_producer_does_the_same(
    cluster: Cluster, topic: str, serve: Serve
) -> None:
    await serve(bytes.upper)

    def run() -> bytes:
        with blocking.Producer(f"askers-{topic}", cluster.name_server, settings=PATIENT) as asker:
            return asker.request(Message(topic, b"hello"), timeout_ms=PATIENT_MS).body

    assert await asyncio.to_thread(run) == b"HELLO"


FIELDS = {
    "a": "answers-repliers",
    "b": REPLY_TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "7",
    "i": "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01raw-asker",
    "j": "2",
    "k": "false",
    "m": "false",
}
STORED = {"MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset"}


async def test_both_brokers_push_and_answer_the_same(cluster: Cluster) -> None:
    """The frames themselves: what the client that asked is told, and what whoever replied."""
    pushed: list[RemotingCommand] = []
    told = ResponseCode.SUCCESS

    async def on_request(command: RemotingCommand, connection: object) -> RemotingCommand:
        pushed.append(command)
        return command.response(told)

    async with RemotingClient(on_request=on_request) as client:

        async def reply(**changes: str | None) -> RemotingCommand:
            given = {**FIELDS, **changes}
            fields = {name: value for name, value in given.items() if value is not None}
            request = RemotingCommand.request(
                RequestCode.SEND_REPLY_MESSAGE_V2, fields, body=b"yes"
            )
            return await client.invoke(cluster.broker, request, timeout_seconds=SECONDS_MAX)

        beat = {"clientID": "raw-asker", "producerDataSet": [{"groupName": "raw-askers"}]}
        hello = RemotingCommand.request(
            RequestCode.HEART_BEAT, {}, body=dumps({**beat, "consumerDataSet": []})
        )
        await client.invoke(cluster.broker, hello)
        answer = await reply()
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert answer.ext_fields.keys() == STORED
        [push] = pushed
        assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"yes")
        fields = dict(push.ext_fields)
        properties = decode_properties(fields.pop("properties"))
        assert properties.pop("PUSH_REPLY_TIME").isdecimal()
        assert properties == decode_properties(FIELDS["i"])
        assert fields.pop("storeTimestamp").isdecimal()
        assert fields.pop("bornHost").startswith("127.0.0.1:")
        assert fields.pop("storeHost") == cluster.broker
        assert fields == {
            "producerGroup": "answers-repliers",
            "topic": REPLY_TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "7",
            "reconsumeTimes": "2",
            "unitMode": "false",
        }
        told = ResponseCode.SYSTEM_ERROR
        answer = await reply()
        assert (answer.code, answer.remark) == (1, "push reply message to raw-askerfail.")
        assert answer.ext_fields.keys() == STORED
        answer = await reply(i="CORRELATION_ID\x01c1")
        assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        answer = await reply(i=None)
        assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        answer = await reply(i="REPLY_TO_CLIENT\x01nobody")
        assert answer.remark == "push reply message fail, channel of <nobody> not found."
        assert (answer.code, answer.ext_fields.keys()) == (1, STORED)
        answer = await reply(b="a b")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.ext_fields.keys() & STORED == {"MSG_REGION", "TRACE_ON"}
        answer = await reply(e="99")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "queueId[99] is illegal" in (answer.remark or "")
    assert len(pushed) == 2


async def test_a_producer_that_leaves_takes_no_reply_from_others_of_its_client(
    cluster: Cluster,
) -> None:
    """A Java broker forgets the channel of the client id, for as long as it is connected."""

    async def on_request(command: RemotingCommand, connection: object) -> RemotingCommand:
        return command.response()

    async with RemotingClient(on_request=on_request) as client:

        async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
            request = RemotingCommand.request(code, fields, body=body)
            return await client.invoke(cluster.broker, request, timeout_seconds=SECONDS_MAX)

        groups = [{"groupName": "raw-askers-1"}, {"groupName": "raw-askers-2"}]
        beat = {"clientID": "raw-asker-2", "producerDataSet": groups, "consumerDataSet": []}
        await ask(RequestCode.HEART_BEAT, {}, dumps(beat))
        leave = {"clientID": "raw-asker-2", "producerGroup": "raw-askers-1"}
        assert (await ask(RequestCode.UNREGISTER_CLIENT, leave)).code == ResponseCode.SUCCESS
        await ask(RequestCode.HEART_BEAT, {}, dumps({**beat, "producerDataSet": groups[1:]}))
        marks = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c2\x02REPLY_TO_CLIENT\x01raw-asker-2"
        answer = await ask(RequestCode.SEND_REPLY_MESSAGE_V2, {**FIELDS, "i": marks}, b"yes")
    if cluster.kind == "ours":
        assert answer.code == ResponseCode.SUCCESS
    else:
        assert "channel of <raw-asker-2> not found" in (answer.remark or "")
