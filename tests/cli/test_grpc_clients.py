"""What operators see of clients that speak gRPC: in the command line, the console, the doctor and
mqadmin, as of any other client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import PushConsumer
from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.grpc import messages as pb
from tests.console.site import Visitor, running_console
from tests.interop.mqadmin import MqAdminProcess
from tests.support.clients.grpc_peer import GrpcPeer, Stream, grpc_peer
from tests.support.eventually import until
from tests.support.servers.command import kerolox
from tests.support.servers.up import Up, free_port

if TYPE_CHECKING:
    from pathlib import Path

TOPIC, GROUP = "Seen", "seen"
CLIENT = "node-client"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("seen"), grpc=True) as started, Admin(started.namesrv) as admin:
        admin.create_topic(TOPIC, queues=2)
        for group in (GROUP, "mixed"):
            admin.put_group(SubscriptionGroupConfig(group_name=group))
        yield started


@asynccontextmanager
async def member(up: Up, group: str = GROUP) -> AsyncIterator[tuple[GrpcPeer, Stream]]:
    """A push consumer of Node.js by gRPC, which produces as well."""
    resource = pb.Resource(name=TOPIC)
    entry = pb.SubscriptionEntry(topic=resource)
    entry.expression.expression = "a"
    async with grpc_peer(up.grpc_port, CLIENT) as peer, grpc_peer(up.grpc_port, "sender") as other:
        for each in (peer, other):
            each.metadata |= {"x-mq-language": "NODE_JS", "x-mq-client-version": "1.0.7"}
        stream, _ = await peer.settled(
            client_type=pb.PUSH_CONSUMER,
            subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry]),
        )
        await other.settled(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[resource]))
        yield peer, stream


async def told(up: Up, *arguments: object) -> list[dict[str, Any]]:
    """What a command prints as JSON."""
    done = await asyncio.to_thread(kerolox, *arguments, "-o", "json", "-n", up.namesrv)
    assert not done.stderr, done.stderr
    return list(json.loads(done.stdout))


async def test_group_members_and_producers_have_language_version_and_protocol(up: Up) -> None:
    async with member(up) as (peer, _):
        [row] = await told(up, "group", "members", GROUP)
        [sender] = await told(up, "producers", "--group", TOPIC)
        address = "127.0.0.1:{}".format(peer._transport.get_extra_info("sockname")[1])
    assert (row["clientId"], row["address"], row["language"]) == (CLIENT, address, "HTTP")
    assert (row["software"], row["protocol"]) == ("1.0.7", "grpc")
    assert row["subscriptions"] == {TOPIC: "a"}
    assert (sender["clientId"], sender["version"], sender["protocol"]) == (
        *("sender", "1.0.7", "grpc"),
    )


async def test_the_console_shows_them_with_what_they_speak(up: Up, tmp_path: Path) -> None:
    async with member(up), running_console(tmp_path, up.namesrv) as console:
        visitor = Visitor(console, "viewer")
        group = (await visitor.look("/group", name=GROUP)).text
        topic = (await visitor.look("/topic", name=TOPIC)).text
        one = (await visitor.look("/group/member", name=GROUP, client=CLIENT)).text
    for page, parts in (
        (group, (CLIENT, "HTTP", "1.0.7", "gRPC")),
        (topic, ("sender", "gRPC")),
        (one, ("It speaks gRPC (1.0.7)", f"{TOPIC}</a>: <code>a</code>")),
    ):
        for part in parts:
            assert part in page, part


async def test_a_member_tells_its_stacks_by_its_telemetry_stream(up: Up) -> None:
    async with member(up) as (_, stream):
        asked = asyncio.create_task(told(up, "group", "members", GROUP, "--stacks"))
        question = (await stream.message()).print_thread_stack_trace_command
        answer = pb.ThreadStackTrace(nonce=question.nonce, thread_stack_trace="s" * 100_000)
        stream.send(pb.TelemetryCommand(thread_stack_trace=answer))
        [row] = await asked
    assert row["stacks"] == "s" * 100_000


async def test_a_member_is_given_one_message_as_an_operator_asks(up: Up) -> None:
    async with member(up) as (_, stream):
        await told(up, "send", TOPIC, "body", "--keys", "one")
        [message] = await told(up, "message", "list", TOPIC)
        asked = asyncio.create_task(
            asyncio.to_thread(consumed_directly, up, str(message["offsetMsgId"]))
        )
        question = (await stream.message()).verify_message_command
        assert question.message.body == b"body"
        result = pb.VerifyMessageResult(nonce=question.nonce)
        status = pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE, message="no")
        stream.send(pb.TelemetryCommand(status=status, verify_message_result=result))
        assert await asked == ("CR_LATER", "no")


def consumed_directly(up: Up, message_id: str) -> tuple[str, str]:
    with Admin(up.namesrv) as admin:
        found = admin.consume_directly(GROUP, CLIENT, message_id)
    return found.result, found.remark


async def test_the_doctor_finds_a_group_that_pulls_and_pops(up: Up) -> None:
    def doctor() -> list[dict[str, Any]]:
        arguments = ("doctor", "-o", "json", "--between-looks", "0.1", "-n", up.namesrv)
        return [
            each
            for each in json.loads(kerolox(*arguments).stdout)
            if each["code"] == "group-pulls-and-pops"
        ]

    async with member(up, "mixed"):
        assert not await asyncio.to_thread(doctor)
        consumer = PushConsumer("mixed", up.namesrv)
        consumer.subscribe(TOPIC, "a", lambda messages: None)
        with await asyncio.to_thread(consumer.__enter__):

            async def has_queues() -> bool:
                return any(each["queues"] for each in await told(up, "group", "members", "mixed"))

            await until(has_queues, what="the first queue")
            [finding] = await asyncio.to_thread(doctor)
            await asyncio.to_thread(consumer.close)
    assert finding["where"] == "group mixed"
    assert CLIENT in finding["what"]


def test_the_doctor_finds_a_port_that_leads_nowhere_as_clients_are_told_it(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with Up(tmp_path, settings={"grpcAdvertisedAddress": nowhere}, grpc=True) as other:
        arguments = ("doctor", "-o", "json", "--between-looks", "0.1", "-n", other.namesrv)
        found = json.loads(kerolox(*arguments).stdout)
    assert [each["where"] for each in found if each["code"] == "grpc-unreachable"] == [nowhere]


@pytest.mark.java
async def test_mqadmin_shows_them(up: Up, tmp_path: Path) -> None:
    def ask() -> list[str]:
        with MqAdminProcess(tmp_path) as mqadmin:
            at = ("-n", up.namesrv)
            return [
                mqadmin.run("consumerConnection", *at, "-g", GROUP),
                mqadmin.run("producerConnection", *at, "-g", TOPIC, "-t", TOPIC),
                mqadmin.run("consumerStatus", *at, "-g", GROUP),
            ]

    async with member(up):
        connections, producers, status = await asyncio.to_thread(ask)
    for shown, client in ((connections, CLIENT), (producers, "sender"), (status, CLIENT)):
        assert client in shown
        assert "V5_0_0" in shown
    assert "HTTP" in connections
