"""What gRPC clients say of themselves, and what they are told."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.eventually import until
from tests.unit.broker.grpc.test_calls import ID, message, resource, sent
from tests.unit.broker.grpc.test_receives import GROUP, acked, answer_of, one, receive

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import renewals
from kerolox.clock import now_ms
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.pop import PopReceipt


def publishing(*topics: str) -> dict[str, Any]:
    return {
        "client_type": pb.PRODUCER,
        "publishing": pb.Publishing(topics=[resource(topic) for topic in topics]),
    }


def subscribing(
    group: str = GROUP, *, kind: int = pb.PUSH_CONSUMER, language: int = pb.PYTHON
) -> dict[str, Any]:
    entry = pb.SubscriptionEntry(topic=resource("T"))
    entry.expression.expression = "*"
    return {
        "client_type": kind,
        "subscription": pb.Subscription(group=resource(group), subscriptions=[entry]),
        "user_agent": pb.UA(language=language),
    }


async def test_a_producer_is_told_how_to_send(client: GrpcPeer, grpc_broker: Broker) -> None:
    _, answer = await client.settled(**publishing("T", "X"))
    assert answer.status.code == pb.OK
    settings = answer.settings
    assert settings.publishing.max_body_size == grpc_broker.config.max_message_size
    assert settings.publishing.validate_message_type
    assert [topic.name for topic in settings.publishing.topics] == ["T", "X"]
    policy = settings.backoff_policy
    assert policy.max_attempts == 3
    assert policy.exponential_backoff.initial.nanos == 10_000_000
    assert policy.exponential_backoff.max.seconds == 1
    assert settings.HasField("metric")
    assert not settings.metric.on


async def test_a_producer_is_in_a_group_of_each_topic(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    await client.settled(**publishing("T", "X"))
    table = grpc_broker.parts.tables.clients
    assert {group: [c.client_id for c in table.producers(group)] for group in ("T", "X")} == {
        "T": ["client"],
        "X": ["client"],
    }


async def test_a_producer_without_topics_is_answered(client: GrpcPeer) -> None:
    _, answer = await client.settled(**publishing())
    assert answer.status.code == pb.OK


@pytest.mark.parametrize(("group", "is_fifo"), [(GROUP, False), ("ordered", True)])
async def test_a_consumer_is_told_how_to_receive(
    client: GrpcPeer, grpc_broker: Broker, group: str, is_fifo: bool
) -> None:
    _, answer = await client.settled(**subscribing(group))
    subscription = answer.settings.subscription
    assert subscription.fifo is is_fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    policy = answer.settings.backoff_policy
    assert policy.max_attempts == 17
    waits = [each.seconds for each in policy.customized_backoff.next]
    assert (waits[:4], waits[-1], len(waits)) == ([1, 5, 10, 30], 7_200, 18)
    online = grpc_broker.parts.tables.clients.group(group)
    assert (online.client_ids, online.consume_type) == (["client"], "CONSUME_PASSIVELY")
    assert list(online.subscriptions) == ["T"]


async def test_a_consumer_of_node_gets_a_policy_that_it_knows(client: GrpcPeer) -> None:
    _, answer = await client.settled(**subscribing(language=pb.NODE_JS))
    policy = answer.settings.backoff_policy
    assert policy.max_attempts == 17
    assert policy.WhichOneof("strategy") == "exponential_backoff"


async def test_settings_are_answered_each_time_on_the_same_stream(client: GrpcPeer) -> None:
    stream, _ = await client.settled(**subscribing())
    stream.send(pb.TelemetryCommand(settings=pb.Settings(**subscribing())))
    assert (await stream.message()).status.code == pb.OK


async def test_settings_that_repeat_make_nothing_anew(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream, _ = await client.settled(**subscribing())
    clients = grpc_broker._ports.grpc._service.clients
    first = clients.get("client").heartbeat
    stream.send(pb.TelemetryCommand(settings=pb.Settings(**subscribing())))
    assert (await stream.message()).status.code == pb.OK
    assert clients.get("client").heartbeat is first
    other = subscribing()
    other["subscription"].subscriptions[0].expression.expression = "a"
    # What is refused after it was noted does not count as said.
    for group, code in ((GROUP, pb.OK), ("g" * 256, pb.ILLEGAL_CONSUMER_GROUP), (GROUP, pb.OK)):
        other["subscription"].group.name = group
        stream.send(pb.TelemetryCommand(settings=pb.Settings(**other)))
        assert (await stream.message()).status.code == code
    online = grpc_broker.parts.tables.clients.group(GROUP)
    assert online.subscriptions["T"].sub_string == "a"


async def test_settings_of_nothing_end_the_stream(client: GrpcPeer) -> None:
    stream, answer = await client.settled(client_type=pb.PRODUCER)
    assert (answer, stream.status) == (None, 3)


async def test_a_type_of_client_that_is_not_served_is_told_so(client: GrpcPeer) -> None:
    _, answer = await client.settled(**subscribing(kind=pb.LITE_PUSH_CONSUMER))
    assert answer.status.code == pb.UNRECOGNIZED_CLIENT_TYPE
    answer = await client.ask("Heartbeat", client_type=pb.LITE_PUSH_CONSUMER)
    assert answer.status.code == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_the_last_stream_of_a_client_is_the_one_that_counts(client: GrpcPeer) -> None:
    first, _ = await client.settled(**publishing("X"))
    await client.settled(**publishing("X"))
    assert await first.message() is None
    assert first.status == 0


async def test_heartbeats_keep_a_client_and_a_stream_s_end_does_not_drop_it(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream, _ = await client.settled(**subscribing())
    stream.cancel()
    for members in ({"group": resource(GROUP), "client_type": pb.PUSH_CONSUMER}, {}):
        assert (await client.ask("Heartbeat", **members)).status.code == pb.OK
    assert grpc_broker.parts.tables.clients.group(GROUP).client_ids == ["client"]


async def test_clients_without_settings_are_served(client: GrpcPeer) -> None:
    """As after a restart of the broker: some clients send them again after minutes, or never."""
    answer = await client.ask("Heartbeat", group=resource(GROUP), client_type=pb.PUSH_CONSUMER)
    assert answer.status.code == pb.OK
    await sent(client, message())
    found = await one(client, invisible_seconds=None, auto_renew=True)
    assert await acked(client, found) == pb.OK
    assert (await client.ask("Heartbeat")).status.code == pb.UNRECOGNIZED_CLIENT_TYPE


async def test_a_client_that_leaves_is_in_no_group(client: GrpcPeer, grpc_broker: Broker) -> None:
    stream, _ = await client.settled(**subscribing())
    answer = await client.ask("NotifyClientTermination", group=resource(GROUP))
    assert answer.status.code == pb.OK
    assert await stream.message() is None
    assert grpc_broker.parts.tables.clients.group(GROUP) is None
    answer = await client.ask("NotifyClientTermination", group=resource(GROUP))
    assert answer.status.code == pb.OK


async def test_a_producer_of_the_topic_is_asked_how_a_transaction_ends(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream, _ = await client.settled(**publishing("X"))
    await sent(client, message("X", b"half", pb.TRANSACTION, born_seconds=int(time.time())))
    transactions = grpc_broker.parts.writing.transactions
    transactions._immunity_ms = lambda half: -1  # its time is over at once

    async def is_asked() -> bool:
        return await transactions.check() == 1

    await until(is_asked, what="the check")
    asked = (await stream.message()).recover_orphaned_transaction_command
    assert (asked.message.body, asked.message.topic.name) == (b"half", "X")
    assert asked.message.system_properties.message_id == ID
    answer = await client.ask(
        "EndTransaction",
        topic=resource("X"),
        message_id=ID,
        transaction_id=asked.transaction_id,
        resolution=pb.COMMIT,
        source=pb.SOURCE_SERVER_CHECK,
    )
    assert answer.status.code == pb.OK
    assert (await one(client, "X")).body == b"half"


@pytest.mark.parametrize("step_ms", [0, -3_600_000, 4 * 3_600_000])
async def test_a_message_without_a_time_is_renewed_and_its_first_receipt_counts(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """Also where the broker's wall clock is set meanwhile."""
    await client.settled(**subscribing())
    await sent(client, message())
    found = await one(client, invisible_seconds=None, auto_renew=True)
    table = grpc_broker._ports.grpc._service.renewals
    monkeypatch.setattr(renewals, "AHEAD_MS", 61_000)
    monkeypatch.setattr(renewals, "STEPS_MS", (180_000,))
    parts = replace(grpc_broker.parts, now_ms=lambda: now_ms() + step_ms)
    monkeypatch.setattr(table, "_broker", parts)
    await table.run()
    [entry] = table._all.values()
    assert entry.times == 1
    assert entry.receipt.text != found.system_properties.receipt_handle
    assert await acked(client, found) == pb.OK
    assert len(table) == 0


async def test_an_end_of_one_delivery_leaves_the_next_one_renewed(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    """A message that is given back for a moment may be out again before its handler goes on."""
    await client.settled(**subscribing())
    service = grpc_broker._ports.grpc._service
    member, table = service.clients.get("client"), service.renewals
    first, second = (PopReceipt.parse(f"0 {ms} 60000 0 0 broker-t 0 0 0") for ms in (1_000, 2_000))
    for receipt in (first, second):
        table.add(member, GROUP, "T", receipt)
    table.remove(GROUP, "T", first)
    assert table.newest(GROUP, "T", second) == second
    table.remove(GROUP, "T", second)
    assert len(table) == 0


async def test_messages_of_a_client_that_leaves_come_again_soon(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "GIVEN_BACK_MS", 1)
    await client.settled(**subscribing())
    await sent(client, message())
    await one(client, invisible_seconds=None, auto_renew=True)
    async with grpc_peer(grpc_broker.config.grpc_server_port, "other") as other:
        stream = receive(other)
        await client.ask("NotifyClientTermination", group=resource(GROUP))
        code, [again] = await answer_of(stream)
    assert (code, again.system_properties.delivery_attempt) == (pb.OK, 2)


async def test_a_broker_that_stops_has_its_clients_go_elsewhere(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream, _ = await client.settled(**subscribing())
    waiting = receive(client)
    await until(lambda: len(grpc_broker.parts.popping.held) == 1, what="the wait")
    await grpc_broker.stop()
    await client.gone
    assert client.has_goaway
    assert (stream.is_over, stream.status) == (True, 0)
    parts = await waiting.messages()
    assert parts[0].status.code == pb.MESSAGE_NOT_FOUND
