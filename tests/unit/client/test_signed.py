"""Clients with credentials: each request that leaves is signed, as it is on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kerolox.client import (
    Credentials,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullConsumerSettings,
    PushConsumerSettings,
    RpcHook,
    TransactionProducer,
    TransactionState,
)
from kerolox.client.core.sending.send import SendHeader
from kerolox.errors import BrokerSystemError, ConfigError, RemoteProtocolError
from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.message import Message, MessageExt
from kerolox.protocol.codes import RequestCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.security.credentials import Signer
from tests.support.eventually import until
from tests.support.servers.fake_broker import FakeBroker, route_body
from tests.unit.client.test_batches import BatchBroker
from tests.unit.client.test_push_consumer import Consumer, QueueBroker

ACCOUNT = Credentials("rocketmq2", "12345678", "a-token")


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as made:
        made.routes["T"] = route_body({"a": made.address}, queues=1)
        yield made


def is_signed(command: RemotingCommand) -> bool:
    """As a broker checks it: over what arrived, without the signature."""
    fields = dict(command.ext_fields)
    given = fields.pop("Signature", "")
    assert (fields["AccessKey"], fields["SecurityToken"]) == ("rocketmq2", "a-token")
    return given == Signer(ACCOUNT).signature(fields, command.body)


@pytest.mark.parametrize("serialize_type", ["JSON", "ROCKETMQ"])
async def test_every_request_of_a_client_is_signed(broker: FakeBroker, serialize_type: str) -> None:
    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    async def commit(message: Message) -> TransactionState:
        return TransactionState.COMMIT

    given = ProducerSettings(credentials=ACCOUNT, serialize_type=serialize_type)
    async with TransactionProducer("G", broker.address, check=check, settings=given) as producer:
        await producer.send(Message("T", b"x", tags="a", keys="\u00e9"))
        await producer.send_oneway(Message("T", b"x" * 5_000))
        await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
        await producer.send_in_transaction(Message("T", b"x"), commit)
        [queue] = await producer.queues("T")
        with pytest.raises(RemoteProtocolError):
            await producer.max_offset(queue)  # the answer has none; it was asked
    seen = [command for commands in broker.seen.values() for command in commands]
    codes = {command.code for command in seen}
    assert codes >= {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.UNREGISTER_CLIENT,
    }
    assert [command for command in seen if not is_signed(command)] == []
    assert {command.serialize_type for command in seen} == {SerializeType[serialize_type]}


@pytest.mark.parametrize("kernel", ["python", "native"])
@pytest.mark.parametrize("batching", [False, True])
async def test_sends_that_a_codec_makes_are_signed(
    kernel: str, batching: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "native":
        pytest.importorskip("kerolox_kernel")
    monkeypatch.setenv(KERNEL_VARIABLE, kernel)
    given = ProducerSettings(credentials=ACCOUNT, batching=batching)
    async with BatchBroker() as broker:
        broker.routes["T"] = route_body({"a": broker.address}, queues=1)
        async with Producer("G", broker.address, settings=given) as producer:
            await producer.send(Message("T", b"first"))
            monkeypatch.setattr(SendHeader, "request", None)  # the general way
            sends = (producer.send(Message("T", b"x" * n, keys='"\u00e9')) for n in range(1, 50))
            results = await asyncio.gather(*sends)
    assert all(result.is_ok for result in results)
    code = RequestCode.SEND_BATCH_MESSAGE if batching else RequestCode.SEND_MESSAGE_V2
    sent = broker.seen[code]
    assert len(sent) == (1 if batching else 50)
    assert all(is_signed(command) for command in sent)


async def test_pulls_that_a_codec_makes_are_signed() -> None:
    async with QueueBroker() as broker:
        async with Consumer(broker, credentials=ACCOUNT) as consumer:
            broker.add(3)
            await until(lambda: len(consumer.got) == 3)
            connection = consumer._open_cluster().remoting.connection(broker.address)
            assert connection is not None
            await until(lambda: len(connection.requests.pulls))
        pulls = broker.seen[RequestCode.PULL_MESSAGE]
        assert len(pulls) > 1
        assert all(is_signed(command) for command in pulls)


async def test_what_a_hook_adds_is_signed_too(broker: FakeBroker) -> None:
    class Adds(RpcHook):
        def before_request(self, address: str, request: RemotingCommand) -> None:
            request.ext_fields["zone"] = "b"
            request.body += b"!"

    given = ProducerSettings(credentials=ACCOUNT, rpc_hook=Adds())
    async with Producer("G", broker.address, settings=given) as producer:
        await producer.send(Message("T", b"x"))
    [sent] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert (sent.ext_fields["zone"], sent.body) == ("b", b"x!")
    assert is_signed(sent)


async def test_a_pull_consumer_signs(broker: FakeBroker) -> None:
    given = PullConsumerSettings(credentials=ACCOUNT)
    async with PullConsumer("G", broker.address, settings=given) as consumer:
        assert await consumer.queues("T")
    assert all(is_signed(c) for c in broker.seen[RequestCode.GET_ROUTEINFO_BY_TOPIC])


async def test_without_credentials_nothing_is_added(broker: FakeBroker) -> None:
    async with Producer("G", broker.address) as producer:
        await producer.send(Message("T", b"x"))
    [sent] = broker.seen[RequestCode.SEND_MESSAGE_V2]
    assert not {"AccessKey", "Signature"} & sent.ext_fields.keys()


async def test_a_refusal_tells_the_brokers_reason_and_no_secret(broker: FakeBroker) -> None:
    async def refuse(command: RemotingCommand) -> RemotingCommand:
        return command.response(1, "Check signature failed for accessKey=rocketmq2")

    broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse
    given = ProducerSettings(credentials=ACCOUNT, retries=0)
    async with Producer("G", broker.address, settings=given) as producer:
        with pytest.raises(BrokerSystemError, match="Check signature failed") as caught:
            await producer.send(Message("T", b"x"))
    assert "12345678" not in repr(caught.value)


def test_the_encoding_of_headers_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ProducerSettings().header_encoding is SerializeType.JSON
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "ROCKETMQ")
    assert ProducerSettings().header_encoding is SerializeType.ROCKETMQ
    assert ProducerSettings(serialize_type="JSON").header_encoding is SerializeType.JSON
    given = PushConsumerSettings(serialize_type=SerializeType.JSON)
    assert given.header_encoding is SerializeType.JSON
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "XML")
    with pytest.raises(ConfigError, match=r"\$ROCKETMQ_SERIALIZE_TYPE is 'XML'"):
        ProducerSettings()
    with pytest.raises(ConfigError, match="serialize_type is 'YAML'"):
        ProducerSettings(serialize_type="YAML")
