"""What the clients in C++ and C# send, as their sources say (``cpp`` and ``csharp`` 5.2.1 of
``apache/rocketmq-clients``). Both are hard to build for a test.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import pytest
import pytest_asyncio
from tests.support.clients.grpc_peer import GrpcPeer
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.unit.broker.grpc.test_calls import ENDPOINTS, ID, resource, sent
from tests.unit.broker.grpc.test_receives import GROUP, answer_of

from kerolox.broker.broker import Broker
from kerolox.protocol.grpc import messages as pb

NAMESPACE = "space"
CPP = {
    "x-mq-language": "CPP",
    "x-mq-client-version": "5.0.0",
    "x-mq-protocol-version": "v2",
    "x-mq-namespace": NAMESPACE,
    "x-mq-date-time": "20261128T180000Z",
}
CSHARP = {
    "x-mq-language": "DOTNET",
    "x-mq-client-version": "5.2.1",
    "x-mq-request-id": "7b4ab5a6-3c7a-4b41-a7c2-90d5a3cbe1c6",
    "x-mq-namespace": NAMESPACE,
    "x-mq-session-token": "token",
    "x-mq-date-time": "20261128T190000Z",
}
LANGUAGES = {"cpp": (CPP, pb.CPP), "csharp": (CSHARP, pb.DOT_NET)}
PINGS = 200


@pytest_asyncio.fixture(params=LANGUAGES)
async def peer(client: GrpcPeer, request: pytest.FixtureRequest) -> GrpcPeer:
    """A client of each language: it has its metadata."""
    metadata, _ = LANGUAGES[request.param]
    del client.metadata["x-mq-language"]
    client.metadata |= metadata
    return client


@pytest.fixture
def language(request: pytest.FixtureRequest) -> int:
    """As settings name it."""
    return LANGUAGES[request.node.callspec.params["peer"]][1]


def spaced(name: str) -> Any:
    return pb.Resource(resource_namespace=NAMESPACE, name=name)


def settings(language: int, **members: Any) -> dict[str, Any]:
    made = pb.Settings(access_point=ENDPOINTS, user_agent=pb.UA(language=language), **members)
    made.request_timeout.seconds = 3
    return {each.name: value for each, value in made.ListFields()}


def producing(language: int, *topics: str) -> dict[str, Any]:
    publishing = pb.Publishing(topics=[spaced(topic) for topic in topics])
    if language == pb.CPP:
        publishing.max_body_size = 4 * 1024 * 1024
    return settings(language, client_type=pb.PRODUCER, publishing=publishing)


def message(topic: str, body: bytes = b"body", kind: int = pb.NORMAL) -> Any:
    made = pb.Message(topic=spaced(topic), body=body)
    system = made.system_properties
    system.message_id, system.message_type, system.born_host = ID, kind, "host"
    system.born_timestamp.seconds, system.body_encoding = int(time.time()), pb.IDENTITY
    return made


async def test_a_producer_is_answered_with_its_own_namespace(peer: GrpcPeer, language: int) -> None:
    """The client in C++ takes its namespace from there."""
    _, answer = await peer.settled(**producing(language, "T", "X"))
    assert answer.status.code == pb.OK
    topics = answer.settings.publishing.topics
    assert {(each.resource_namespace, each.name) for each in topics} == {
        (NAMESPACE, "T"),
        (NAMESPACE, "X"),
    }
    assert answer.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert (await peer.ask("Heartbeat", client_type=pb.PRODUCER)).status.code == pb.OK
    assert (await peer.ask("NotifyClientTermination")).status.code == pb.OK


async def test_a_push_consumer_receives_and_leaves(
    peer: GrpcPeer, language: int, grpc_broker: Broker
) -> None:
    entry = pb.SubscriptionEntry(topic=spaced("T"))
    entry.expression.type, entry.expression.expression = pb.TAG, "*"
    subscription = pb.Subscription(group=spaced(GROUP), subscriptions=[entry])
    if language == pb.CPP:
        subscription.receive_batch_size = 32
        subscription.long_polling_timeout.seconds = 30
    told = settings(language, client_type=pb.PUSH_CONSUMER, subscription=subscription)
    stream, answer = await peer.settled(**told)
    assert answer.status.code == pb.OK
    assert answer.settings.subscription.group == spaced(GROUP)
    beat = await peer.ask("Heartbeat", client_type=pb.PUSH_CONSUMER, group=spaced(GROUP))
    assert beat.status.code == pb.OK
    assigned = await peer.ask(
        "QueryAssignment", topic=spaced("T"), group=spaced(GROUP), endpoints=ENDPOINTS
    )
    [assignment] = assigned.assignments
    assert (await sent(peer, message("T"))).status.code == pb.OK
    request = pb.ReceiveMessageRequest(
        group=spaced(GROUP),
        message_queue=assignment.message_queue,
        batch_size=32,
        auto_renew=True,
        attempt_id="attempt",
    )
    request.filter_expression.CopyFrom(entry.expression)
    request.long_polling_timeout.seconds = 20
    if language == pb.CPP:
        request.invisible_duration.seconds = 0
    code, [found] = await answer_of(peer.call("ReceiveMessage", request))
    assert (code, found.body) == (pb.OK, b"body")
    done = pb.AckMessageEntry(message_id=ID, receipt_handle=found.system_properties.receipt_handle)
    answer = await peer.ask("AckMessage", group=spaced(GROUP), topic=spaced("T"), entries=[done])
    assert answer.status.code == pb.OK
    left = await peer.ask("NotifyClientTermination", group=spaced(GROUP))
    assert left.status.code == pb.OK
    assert await stream.message() is None
    assert grpc_broker.parts.tables.clients.group(GROUP) is None


async def test_a_transaction_ends_without_saying_who_asked(peer: GrpcPeer) -> None:
    [entry] = (await sent(peer, message("X", b"half", pb.TRANSACTION))).entries
    answer = await peer.ask(
        "EndTransaction",
        topic=spaced("X"),
        message_id=ID,
        transaction_id=entry.transaction_id,
        resolution=pb.COMMIT,
    )
    assert answer.status.code == pb.OK


async def test_a_delayed_message_of_cpp_was_never_delivered_before(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    """It writes the moment where the number of attempts stands, too, as far as it fits."""
    made = message("D", kind=pb.DELAY)
    at_ms = (int(time.time()) + 1) * 1000
    made.system_properties.delivery_timestamp.seconds = at_ms // 1000
    for attempts in (at_ms & 0x7FFFFFFF, -1):
        made.system_properties.delivery_attempt = attempts
        assert (await sent(client, made)).status.code == pb.OK

    async def delivered() -> list[Any]:
        async with peer_of(grpc_broker) as reader:
            return [m for queue in (0, 1) for m in await reader.messages("D", queue)]

    async def are_there() -> bool:
        return len(await delivered()) == 2

    await until(are_there, what="both messages")
    assert [each.reconsume_times for each in await delivered()] == [0, 0]


async def test_a_body_that_cpp_deflates_is_received_as_it_was(client: GrpcPeer) -> None:
    """It calls zlib GZIP."""
    body = b"text " * 1_000
    made = message("T", zlib.compress(body))
    made.system_properties.body_encoding = pb.GZIP
    assert (await sent(client, made)).status.code == pb.OK
    request = pb.ReceiveMessageRequest(group=resource(GROUP), batch_size=1, auto_renew=True)
    request.message_queue.topic.name = "T"
    _, [found] = await answer_of(client.call("ReceiveMessage", request))
    assert (found.body, found.system_properties.body_encoding) == (body, pb.IDENTITY)


async def test_pings_without_calls_are_answered(client: GrpcPeer) -> None:
    """The client in C++ sends one each minute, also while it has no call."""
    for number in range(PINGS):
        client.http2.ping(number.to_bytes(8, "big"))
        client.flush()
    assert (await client.ask("Heartbeat", client_type=pb.PRODUCER)).status.code == pb.OK
    assert not client.has_goaway


@pytest.mark.parametrize(
    ("kind", "expression"), [(pb.TAG, "a || b"), (pb.SQL, "TAGS = 'a' OR TAGS = 'b'")]
)
async def test_a_simple_consumer_filters_changes_and_forwards(
    peer: GrpcPeer, language: int, kind: int, expression: str
) -> None:
    entry = pb.SubscriptionEntry(topic=spaced("T"))
    entry.expression.type, entry.expression.expression = kind, expression
    subscription = pb.Subscription(group=spaced(GROUP), subscriptions=[entry])
    told = settings(language, client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
    assert (await peer.settled(**told))[1].status.code == pb.OK
    for tag in ("a", "other", "b"):
        made = message("T", tag.encode())
        made.system_properties.tag = tag
        assert (await sent(peer, made)).status.code == pb.OK
    request = pb.ReceiveMessageRequest(group=spaced(GROUP), batch_size=16)
    request.message_queue.topic.CopyFrom(spaced("T"))
    request.filter_expression.CopyFrom(entry.expression)
    request.invisible_duration.seconds = 15
    request.long_polling_timeout.seconds = 20
    found: dict[bytes, str] = {}
    while len(found) < 2:
        _, some = await answer_of(peer.call("ReceiveMessage", request))
        found |= {each.body: each.system_properties.receipt_handle for each in some}
    assert found.keys() == {b"a", b"b"}
    place: dict[str, Any] = {"group": spaced(GROUP), "topic": spaced("T"), "message_id": ID}
    changing = pb.ChangeInvisibleDurationRequest(receipt_handle=found[b"a"], **place)
    changing.invisible_duration.seconds = 30
    [changed] = await peer.call("ChangeInvisibleDuration", changing).messages()
    assert changed.status.code == pb.OK
    done = pb.AckMessageEntry(message_id=ID, receipt_handle=changed.receipt_handle)
    answer = await peer.ask("AckMessage", group=spaced(GROUP), topic=spaced("T"), entries=[done])
    assert answer.status.code == pb.OK
    forwarded = await peer.ask(
        "ForwardMessageToDeadLetterQueue",
        receipt_handle=found[b"b"],
        delivery_attempt=17,
        max_delivery_attempts=17,
        **place,
    )
    assert forwarded.status.code == pb.OK


async def test_messages_of_a_group_share_a_queue_and_one_for_later_is_recalled(
    peer: GrpcPeer, grpc_broker: Broker
) -> None:
    for number in range(3):
        made = message("F", b"%d" % number, pb.FIFO)
        made.system_properties.message_group = "group"
        assert (await sent(peer, made)).status.code == pb.OK
    async with peer_of(grpc_broker) as reader:
        queues = [[each.body for each in await reader.messages("F", queue)] for queue in (0, 1)]
    assert sorted(queues) == [[], [b"0", b"1", b"2"]]
    made = message("D", b"later", pb.DELAY)
    made.system_properties.delivery_timestamp.seconds = int(time.time()) + 600
    [entry] = (await sent(peer, made)).entries
    answer = await peer.ask("RecallMessage", topic=spaced("D"), recall_handle=entry.recall_handle)
    assert answer.status.code == pb.OK
