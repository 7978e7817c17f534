"""Receives, and what becomes of their messages."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from tests.support.clients.grpc_peer import GrpcPeer, Stream
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.unit.broker.grpc.test_calls import ID, message, resource, sent

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import receiving
from kerolox.broker.grpc.answers import AnswerError
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.requests.pop_fast import FastPops
from kerolox.message import MessageExt, PropertyKey
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.pop import PopReceipt

GROUP = "readers"
HOUR = 3_600


def receive(
    client: GrpcPeer,
    topic: str = "T",
    *,
    group: str = GROUP,
    tag: str = "*",
    batch: int = 32,
    invisible_seconds: int | None = 30,
    poll_seconds: int | None = 20,
    metadata: dict[str, str] | None = None,
    end: bool = True,
    **more: Any,
) -> Stream:
    request = pb.ReceiveMessageRequest(group=resource(group), batch_size=batch, **more)
    request.message_queue.topic.name = topic
    request.message_queue.broker.name = "broker-t"
    request.filter_expression.expression = tag
    if invisible_seconds is not None:
        request.invisible_duration.seconds = invisible_seconds
    if poll_seconds is not None:
        request.long_polling_timeout.seconds = poll_seconds
    stream = client.open("ReceiveMessage", metadata)
    stream.send(request, end=end)
    return stream


async def answer_of(stream: Stream) -> tuple[int, list[Any]]:
    """The code and the messages of a receive, whose order is status, messages, time."""
    parts = await stream.messages()
    assert stream.status == 0, stream.text
    kinds = [part.WhichOneof("content") for part in parts]
    assert kinds == ["status", *["message"] * (len(parts) - 2), "delivery_timestamp"]
    return parts[0].status.code, [part.message for part in parts[1:-1]]


def is_out(broker: Broker) -> bool:
    """Whether any message of the group is neither done nor to come again."""
    queues = broker.parts.tables.pops.state.queues
    return any(queues.has_out(QueueKey(GROUP, "T", queue)) for queue in (0, 1))


async def one(client: GrpcPeer, topic: str = "T", **more: Any) -> Any:
    code, [found] = await answer_of(receive(client, topic, **more))
    assert code == pb.OK
    return found


async def test_a_message_comes_with_all_its_parts(client: GrpcPeer) -> None:
    made = message(tag="tag", keys=["a", "b"], properties={"name": "value"}, born_host="host")
    await sent(client, made)
    found = await one(client)
    system = found.system_properties
    assert (found.topic.name, found.body) == ("T", b"body")
    assert dict(found.user_properties) == {"name": "value"}
    assert (system.message_id, system.tag, list(system.keys)) == (ID, "tag", ["a", "b"])
    assert (system.message_type, system.body_encoding) == (pb.NORMAL, pb.IDENTITY)
    assert (system.body_digest.type, system.body_digest.checksum) == (
        pb.MD5,
        "841A2D689AD86BD1611447453C22C6FC",
    )
    assert (system.delivery_attempt, system.queue_offset, system.born_host) == (1, 0, "host")
    assert system.born_timestamp.seconds == 1_700_000_000
    receipt = PopReceipt.parse(system.receipt_handle)
    assert receipt.invisible_time == 30_000
    assert receipt.commit_log_offset >= 0


async def test_a_receive_waits_until_a_message_comes(client: GrpcPeer, grpc_broker: Broker) -> None:
    stream = receive(client)
    await until(lambda: len(grpc_broker.parts.popping.held) == 1, what="the wait")
    await sent(client, message())
    code, [found] = await answer_of(stream)
    assert (code, found.body) == (pb.OK, b"body")


async def test_a_receive_that_finds_nothing_says_so_in_time(
    client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "POLL_MS_MIN", 20)
    monkeypatch.setattr(receiving, "POLL_MS_MAX", 50)
    assert await answer_of(receive(client)) == (pb.MESSAGE_NOT_FOUND, [])


async def test_a_receive_that_is_cancelled_takes_nothing(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    stream = receive(client)
    held = grpc_broker.parts.popping.held
    await until(lambda: len(held) == 1, what="the wait")
    stream.cancel()
    await until(lambda: not len(held), what="its end")
    await sent(client, message())
    assert (await one(client)).system_properties.delivery_attempt == 1


async def test_waits_end_with_their_connection(client: GrpcPeer, grpc_broker: Broker) -> None:
    for _ in range(3):
        receive(client)
    held = grpc_broker.parts.popping.held
    await until(lambda: len(held) == 3, what="the waits")
    client.close()
    await until(lambda: not len(held), what="their end")


async def test_only_wanted_tags_come(client: GrpcPeer) -> None:
    # Both have one hash, so the broker's first look can't tell them apart.
    for tag in ("Aa", "BB", "C"):
        await sent(client, message("Any", tag.encode(), tag=tag))
    code, found = await answer_of(receive(client, "Any", tag="Aa || C"))
    assert code == pb.OK
    assert sorted(each.body for each in found) == [b"Aa", b"C"]
    code, found = await answer_of(receive(client, "Any", tag="BB", group="others"))
    assert [each.body for each in found] == [b"BB"]


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"topic": "Missing"}, pb.TOPIC_NOT_FOUND),
        ({"topic": ""}, pb.ILLEGAL_TOPIC),
        ({"group": ""}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": "CID_RMQ_SYS_X"}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": "x" * 121}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"invisible_seconds": 9}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_seconds": None}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_seconds": 12 * HOUR + 1}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"tag": " || "}, pb.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_a_receive_that_is_refused_says_why(
    client: GrpcPeer, members: Any, code: int
) -> None:
    assert await answer_of(receive(client, **members)) == (code, [])


async def test_an_expression_that_is_none_is_refused(client: GrpcPeer) -> None:
    request = pb.ReceiveMessageRequest(group=resource(GROUP), batch_size=1)
    request.message_queue.topic.name = "T"
    request.invisible_duration.seconds = 30
    request.filter_expression.type = pb.SQL
    request.filter_expression.expression = "a >"
    stream = client.call("ReceiveMessage", request)
    assert await answer_of(stream) == (pb.ILLEGAL_FILTER_EXPRESSION, [])


@pytest.mark.parametrize(
    ("version", "code"),
    [("5.0.4", pb.ILLEGAL_POLLING_TIME), ("5.0.2", pb.BAD_REQUEST), ("", pb.BAD_REQUEST)],
)
async def test_a_deadline_too_near_to_wait_is_refused(
    client: GrpcPeer, version: str, code: int
) -> None:
    metadata = {"grpc-timeout": "2S", "x-mq-client-version": version}
    assert await answer_of(receive(client, metadata=metadata)) == (code, [])


def ack(found: Any, topic: str = "T", group: str = GROUP) -> pb.AckMessageRequest:
    system = found.system_properties
    entry = pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return pb.AckMessageRequest(group=resource(group), topic=resource(topic), entries=[entry])


async def acked(client: GrpcPeer, found: Any, topic: str = "T", group: str = GROUP) -> int:
    [answer] = await client.call("AckMessage", ack(found, topic, group)).messages()
    assert answer.entries[0].status == answer.status
    return answer.status.code


@pytest.mark.parametrize("by_request", [False, True])
async def test_what_is_acknowledged_is_done(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch, *, by_request: bool
) -> None:
    if by_request:
        monkeypatch.setattr(FastPops, "acknowledge", lambda *_: False)
    await sent(client, message())
    found = await one(client)
    assert await acked(client, found) == pb.OK
    assert await acked(client, found) == pb.OK
    assert not is_out(grpc_broker)


async def test_a_usual_acknowledgement_needs_no_request(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent(client, message())
    found = await one(client)
    monkeypatch.delattr(receiving, "_acked")
    assert await acked(client, found) == pb.OK
    assert not is_out(grpc_broker)


async def test_receipts_that_mean_nothing_are_forgotten_by_clients(client: GrpcPeer) -> None:
    """Clients ask for ever after any other code."""
    await sent(client, message())
    found = await one(client)
    good = found.system_properties.receipt_handle
    parts = good.split(" ")
    wrong = ["", "nonsense", " ".join(["0", "1", "30000", *parts[3:]])]
    wrong += [" ".join([*parts[:5], "other", *parts[6:]]), " ".join([*parts[:6], "99", *parts[7:]])]
    for text in wrong:
        found.system_properties.receipt_handle = text
        assert await acked(client, found) == pb.INVALID_RECEIPT_HANDLE
    found.system_properties.receipt_handle = good
    assert await acked(client, found, "Missing") == pb.INVALID_RECEIPT_HANDLE
    assert await acked(client, found) == pb.OK


async def test_a_batch_of_acknowledgements_has_an_entry_each(client: GrpcPeer) -> None:
    await sent(client, message())
    request = ack(await one(client))
    request.entries.append(pb.AckMessageEntry(message_id="x", receipt_handle="nonsense"))
    [answer] = await client.call("AckMessage", request).messages()
    assert answer.status.code == pb.MULTIPLE_RESULTS
    codes = [each.status.code for each in answer.entries]
    assert codes == [pb.OK, pb.INVALID_RECEIPT_HANDLE]


async def test_acknowledgements_too_many_are_refused(client: GrpcPeer) -> None:
    entries = [pb.AckMessageEntry(receipt_handle="x")] * 4_097
    answer = await client.ask(
        "AckMessage", group=resource(GROUP), topic=resource("T"), entries=entries
    )
    assert answer.status.code == pb.BAD_REQUEST


async def test_a_body_that_inflates_to_too_much_goes_on_as_it_is_stored(
    client: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "INFLATED_OF_ALL_MAX", 10_000)
    for size in (5_000, 50_000):
        packed = message(body=gzip.compress(bytes(size)), body_encoding=pb.GZIP)
        assert (await sent(client, packed)).status.code == pb.OK
    code, found = await answer_of(receive(client))
    assert code == pb.OK
    encodings = sorted((each.system_properties.body_encoding, len(each.body)) for each in found)
    assert encodings[0] == (pb.IDENTITY, 5_000)
    assert encodings[1][0] == pb.GZIP
    assert encodings[1][1] < 1_000


async def changed(client: GrpcPeer, found: Any, seconds: int, topic: str = "T") -> Any:
    request = pb.ChangeInvisibleDurationRequest(
        group=resource(GROUP),
        topic=resource(topic),
        receipt_handle=found.system_properties.receipt_handle,
        message_id=found.system_properties.message_id,
    )
    request.invisible_duration.seconds = seconds
    [answer] = await client.call("ChangeInvisibleDuration", request).messages()
    return answer


async def test_a_message_that_is_given_back_comes_again(client: GrpcPeer) -> None:
    await sent(client, message())
    found = await one(client)
    answer = await changed(client, found, 0)
    assert answer.status.code == pb.OK
    again = await one(client)
    assert again.system_properties.delivery_attempt == 2
    assert (again.topic.name, again.system_properties.message_id) == ("T", ID)
    found.system_properties.receipt_handle = answer.receipt_handle
    assert await acked(client, found) == pb.INVALID_RECEIPT_HANDLE
    assert await acked(client, again) == pb.OK


async def test_a_changed_receipt_counts_and_so_does_the_first(client: GrpcPeer) -> None:
    await sent(client, message())
    found = await one(client)
    first = found.system_properties.receipt_handle
    answer = await changed(client, found, 60)
    assert answer.receipt_handle != first
    found.system_properties.receipt_handle = answer.receipt_handle
    assert await acked(client, found) == pb.OK


@pytest.mark.parametrize("seconds", [-1, 12 * HOUR + 1])
async def test_a_change_to_no_time_is_refused(client: GrpcPeer, seconds: int) -> None:
    await sent(client, message())
    answer = await changed(client, await one(client), seconds)
    assert answer.status.code == pb.ILLEGAL_INVISIBLE_TIME


async def test_a_forwarded_message_is_a_dead_letter_and_done(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    await sent(client, message())
    assert await forwarded(client, await one(client)) == pb.OK
    [dead] = await dead_letters(grpc_broker)
    assert (dead.body, dead.properties[PropertyKey.UNIQUE_KEY]) == (b"body", ID)
    assert not is_out(grpc_broker)


async def forwarded(client: GrpcPeer, found: pb.Message) -> int:
    answer = await client.ask(
        "ForwardMessageToDeadLetterQueue",
        group=resource(GROUP),
        topic=resource("T"),
        receipt_handle=found.system_properties.receipt_handle,
        message_id=ID,
        delivery_attempt=17,
        max_delivery_attempts=17,
    )
    code: int = answer.status.code
    return code


async def dead_letters(broker: Broker) -> list[MessageExt]:
    async with peer_of(broker) as peer:
        return await peer.messages(f"%DLQ%{GROUP}")


async def test_a_message_that_is_forwarded_again_is_one_dead_letter(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    await sent(client, message())
    found = await one(client)
    codes = await asyncio.gather(*(forwarded(client, found) for _ in range(3)))
    assert [*codes, await forwarded(client, found)] == [pb.OK] * 4
    assert len(await dead_letters(grpc_broker)) == 1


async def test_a_receipt_that_counts_no_more_makes_no_dead_letter(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    for _ in range(2):
        await sent(client, message())
    done, late = await one(client, batch=1), await one(client, batch=1)
    assert await acked(client, done) == pb.OK
    assert (await changed(client, late, 0)).status.code == pb.OK
    again = await one(client)
    for found in (done, late):
        assert await forwarded(client, found) == pb.OK
    assert await forwarded(client, again) == pb.OK
    assert len(await dead_letters(grpc_broker)) == 1


async def test_a_message_that_could_not_be_forwarded_comes_again_in_seconds(
    client: GrpcPeer, grpc_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise AnswerError(pb.INTERNAL_SERVER_ERROR, "the disk is full")

    await sent(client, message())
    found = await one(client, invisible_seconds=HOUR)
    monkeypatch.setattr(receiving, "_send_dead_letter", fails)
    monkeypatch.setattr(receiving, "FORWARDING_MS", 10)
    assert await forwarded(client, found) == pb.INTERNAL_SERVER_ERROR
    again = await one(client)
    assert again.system_properties.delivery_attempt == 2


async def test_an_ordered_group_waits_for_its_messages(client: GrpcPeer) -> None:
    for number in range(2):
        made = message("F", b"%d" % number, pb.FIFO, message_group="group")
        await sent(client, made)
    first = await one(client, "F", group="ordered", batch=1)
    stream = receive(client, "F", group="ordered", batch=1)
    assert await acked(client, first, "F", "ordered") == pb.OK
    _, [second] = await answer_of(stream)
    assert (first.body, second.body) == (b"0", b"1")
    assert second.system_properties.message_group == "group"
    assert second.system_properties.message_type == pb.FIFO
