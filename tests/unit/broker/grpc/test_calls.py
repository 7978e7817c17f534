"""Calls of gRPC clients and their codes, as RocketMQ 5.3.3's proxy answers them."""

from __future__ import annotations

import gzip
import time
from typing import Any

import pytest
from tests.support.clients.grpc_peer import GrpcPeer
from tests.support.clients.peer import peer_of
from tests.support.eventually import until

from kerolox.broker.broker import Broker
from kerolox.broker.grpc.sending import consistent_hash
from kerolox.message import PropertyKey
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.records import decode_records

ENDPOINTS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.1.2.3", port=18081)])
ID = "01" + "AB" * 16
NOW = 1_700_000_000


def resource(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def message(topic: str = "T", body: bytes = b"body", kind: int = pb.NORMAL, **system: Any) -> Any:
    made = pb.Message(topic=resource(topic), body=body)
    made.system_properties.message_id = system.pop("message_id", ID)
    made.system_properties.message_type = kind
    made.system_properties.born_timestamp.seconds = system.pop("born_seconds", NOW)
    seconds = system.pop("delivery_seconds", None)
    if seconds is not None:
        made.system_properties.delivery_timestamp.seconds = seconds
    recovery = system.pop("recovery_seconds", None)
    if recovery is not None:
        made.system_properties.orphaned_transaction_recovery_duration.seconds = recovery
    made.user_properties.update(system.pop("properties", {}))
    made.system_properties.keys.extend(system.pop("keys", ()))
    for name, value in system.items():
        setattr(made.system_properties, name, value)
    return made


async def sent(client: GrpcPeer, *messages: Any) -> Any:
    answer = await client.ask("SendMessage", messages=messages)
    return answer


async def test_a_route_names_the_endpoints_that_the_client_knows(client: GrpcPeer) -> None:
    answer = await client.ask("QueryRoute", topic=resource("F"), endpoints=ENDPOINTS)
    assert answer.status.code == pb.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1]
    for queue in answer.message_queues:
        assert queue.broker.endpoints == ENDPOINTS
        assert (queue.broker.name, queue.broker.id) == ("broker-t", 0)
        assert queue.permission == pb.READ_WRITE
        assert list(queue.accept_message_types) == [pb.FIFO]


async def test_a_topic_without_a_type_takes_all_messages(client: GrpcPeer) -> None:
    answer = await client.ask("QueryRoute", topic=resource("Any"), endpoints=ENDPOINTS)
    types = [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]
    assert list(answer.message_queues[0].accept_message_types) == types
    assert (await sent(client, message("Any", kind=pb.FIFO))).status.code == pb.OK


async def test_queues_are_one_for_a_group_and_each_one_in_order(client: GrpcPeer) -> None:
    for group, ids in (("readers", [-1]), ("ordered", [0, 1])):
        answer = await client.ask(
            "QueryAssignment", topic=resource("T"), group=resource(group), endpoints=ENDPOINTS
        )
        assert [each.message_queue.id for each in answer.assignments] == ids


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"topic": resource("Missing")}, pb.TOPIC_NOT_FOUND),
        ({"topic": resource(" ")}, pb.ILLEGAL_TOPIC),
        ({"topic": resource("a b")}, pb.ILLEGAL_TOPIC),
        ({"topic": resource("x" * 128)}, pb.ILLEGAL_TOPIC),
        ({"topic": resource("RMQ_SYS_TRANS_HALF_TOPIC")}, pb.ILLEGAL_TOPIC),
        ({"topic": pb.Resource(name="T", resource_namespace="x" * 256)}, pb.ILLEGAL_TOPIC),
        ({"topic": resource("T"), "endpoints": pb.Endpoints()}, pb.ILLEGAL_ACCESS_POINT),
        (
            {
                "topic": resource("T"),
                "endpoints": pb.Endpoints(addresses=[pb.Address(host="x" * 5_000)]),
            },
            pb.ILLEGAL_ACCESS_POINT,
        ),
    ],
)
async def test_a_route_that_is_refused_says_why(client: GrpcPeer, members: Any, code: int) -> None:
    answer = await client.ask("QueryRoute", **{"endpoints": ENDPOINTS, **members})
    assert answer.status.code == code
    assert answer.status.message


async def test_a_call_without_a_client_id_is_refused(client: GrpcPeer) -> None:
    for client_id in ("", " "):
        client.metadata["x-mq-client-id"] = client_id
        answer = await client.ask("QueryRoute", topic=resource("T"), endpoints=ENDPOINTS)
        assert answer.status.code == pb.CLIENT_ID_REQUIRED


@pytest.mark.parametrize(
    "name", ["PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"]
)
async def test_calls_that_are_not_served_are_unimplemented(client: GrpcPeer, name: str) -> None:
    stream = client.call(name, getattr(pb, f"{name}Request")())
    assert await stream.messages() == []
    assert stream.status == 12


async def test_a_request_that_is_no_message_is_an_error_of_grpc(client: GrpcPeer) -> None:
    stream = client.open("QueryRoute")
    client.http2.send_data(stream.stream_id, b"\0\0\0\0\x02\xff\xff", end_stream=True)
    client.flush()
    assert await stream.messages() == []
    assert stream.status == 13


async def test_a_message_is_stored_with_all_its_parts(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    made = message(
        tag="tag", keys=["one", "two"], properties={"name": "value"}, trace_context="trace"
    )
    answer = await sent(client, made)
    [entry] = answer.entries
    assert (answer.status.code, entry.status.code) == (pb.OK, pb.OK)
    assert (entry.message_id, entry.offset) == (ID, 0)
    async with peer_of(grpc_broker) as peer:
        [stored] = [m for queue in (0, 1) for m in await peer.messages("T", queue)]
    assert stored.body == b"body"
    assert stored.born_timestamp == NOW * 1000
    assert stored.born_host[0] == "127.0.0.1"
    wanted = {
        PropertyKey.UNIQUE_KEY: ID,
        PropertyKey.TAGS: "tag",
        PropertyKey.KEYS: "one two",
        PropertyKey.PRODUCER_GROUP: "T",
        "name": "value",
        "TRACE_CONTEXT": "trace",
    }
    assert wanted.items() <= stored.properties.items()


WRONG = [
    (message(body=b""), pb.MESSAGE_BODY_EMPTY),
    (message(body=bytes(64 * 1024 + 1)), pb.MESSAGE_BODY_TOO_LARGE),
    (message(message_id=""), pb.ILLEGAL_MESSAGE_ID),
    (message(message_id="a\x01b"), pb.ILLEGAL_MESSAGE_ID),
    (message(tag=" "), pb.ILLEGAL_MESSAGE_TAG),
    (message(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
    (message(tag="a\nb"), pb.ILLEGAL_MESSAGE_TAG),
    (message(keys=[" "]), pb.ILLEGAL_MESSAGE_KEY),
    (message(keys=["a\x02b"]), pb.ILLEGAL_MESSAGE_KEY),
    (message("F", kind=pb.FIFO, message_group=" "), pb.ILLEGAL_MESSAGE_GROUP),
    (message("F", kind=pb.FIFO, message_group="x" * 64), pb.ILLEGAL_MESSAGE_GROUP),
    (message(properties={"UNIQ_KEY": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message(properties={"TIMER_DELIVER_MS": "1"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message(properties={"a\x01b": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message(properties={"a": "x\x02y"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (message(trace_context="a\x02TAGS\x01b"), pb.BAD_REQUEST),
    (message(born_host="a\x02TAGS\x01b"), pb.BAD_REQUEST),
    (message(properties={str(n): "x" for n in range(129)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    (message(properties={"a": "x" * 16_384}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    (message("D", kind=pb.NORMAL), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("T", kind=pb.TRANSACTION), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("T", kind=pb.PRIORITY), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("F", kind=pb.FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("D", kind=pb.DELAY), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("Missing"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (message("D", kind=pb.DELAY, delivery_seconds=0), pb.ILLEGAL_DELIVERY_TIME),
    (message("D", kind=pb.DELAY, delivery_seconds=1 << 40), pb.ILLEGAL_DELIVERY_TIME),
    (message("X", kind=pb.TRANSACTION, recovery_seconds=3_601), pb.BAD_REQUEST),
    (message(body_encoding=pb.GZIP, body=b"\x1f\x8bno"), pb.MESSAGE_CORRUPTED),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
async def test_a_message_that_is_wrong_is_refused(
    client: GrpcPeer, grpc_broker: Broker, number: int
) -> None:
    wrong, code = WRONG[number]
    answer = await sent(client, wrong)
    assert answer.status.code == code
    assert grpc_broker.parts.store.stats()["put_count"] == 0


async def test_a_client_in_rust_gets_no_code_at_which_it_panics(client: GrpcPeer) -> None:
    client.metadata["x-mq-language"] = "RUST"
    assert (await sent(client, message(body=b""))).status.code == pb.BAD_REQUEST


async def test_an_empty_tag_key_or_group_is_none(client: GrpcPeer, grpc_broker: Broker) -> None:
    made = message(tag="", keys=["", "key"], message_group="")
    assert (await sent(client, made, message(keys=[""]))).status.code == pb.OK
    async with peer_of(grpc_broker) as peer:
        stored = [m.properties for queue in (0, 1) for m in await peer.messages("T", queue)]
    assert sorted(each.get(PropertyKey.KEYS, "") for each in stored) == ["", "key"]
    assert [name in each for each in stored for name in (PropertyKey.TAGS, "__SHARDINGKEY")] == [
        False
    ] * 4


@pytest.mark.parametrize(
    ("topic", "parts"),
    [("F", {"message_group": "group"}), ("D", {"delivery_seconds": int(time.time()) + 60})],
)
async def test_a_message_is_of_the_type_that_its_parts_make_it(
    client: GrpcPeer, topic: str, parts: dict[str, Any]
) -> None:
    for said in (pb.NORMAL, pb.FIFO, pb.MESSAGE_TYPE_UNSPECIFIED):
        assert (await sent(client, message(topic, kind=said, **parts))).status.code == pb.OK


async def test_messages_of_several_topics_or_none_are_refused(client: GrpcPeer) -> None:
    assert (await sent(client)).status.code == pb.MESSAGE_CORRUPTED
    answer = await sent(client, message("T"), message("Any"))
    assert answer.status.code == pb.MESSAGE_CORRUPTED


async def test_several_messages_have_an_entry_each(client: GrpcPeer) -> None:
    far = int(time.time()) + 4 * 86_400
    good = message("D", kind=pb.DELAY, delivery_seconds=int(time.time()) + 60)
    answer = await sent(client, good, message("D", kind=pb.DELAY, delivery_seconds=far))
    assert answer.status.code == pb.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [pb.OK, pb.ILLEGAL_DELIVERY_TIME]
    assert answer.entries[0].recall_handle


async def test_a_group_of_messages_has_one_queue(client: GrpcPeer, grpc_broker: Broker) -> None:
    for number in range(6):
        made = message("F", b"%d" % number, pb.FIFO, message_group="group")
        assert (await sent(client, made)).status.code == pb.OK
    async with peer_of(grpc_broker) as peer:
        found = [[m.body for m in await peer.messages("F", queue)] for queue in (0, 1)]
    assert sorted(found) == [[], [b"%d" % number for number in range(6)]]


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    # Of Guava's own tests of Hashing.consistentHash.
    [(10863919174838991, 11, 6), (2016238256797177309, 11, 3), (1673758223894951030, 11, 5),
     (2, 100001, 80343), (2201, 100001, 22152), (2202, 100001, 15018)],
)  # fmt: skip
def test_the_queue_of_a_group_is_that_of_guavas_hash(key: int, buckets: int, bucket: int) -> None:
    assert consistent_hash(key, buckets) == bucket


async def test_a_body_of_gzip_is_stored_as_zlib_and_received_inflated(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    body = b"text " * 1_000
    answer = await sent(client, message(body=gzip.compress(body), body_encoding=pb.GZIP))
    assert answer.status.code == pb.OK
    async with peer_of(grpc_broker) as peer:
        found = [m for queue in (0, 1) for m in await peer.messages("T", queue)]
    assert [each.body for each in found] == [body]
    assert found[0].store_size < 1_000


async def ended(client: GrpcPeer, entry: Any, resolution: int, **more: Any) -> int:
    members = {
        "topic": resource("X"),
        "message_id": ID,
        "transaction_id": entry.transaction_id,
        "resolution": resolution,
        **more,
    }
    return (await client.ask("EndTransaction", **members)).status.code


async def test_a_transaction_is_committed_or_rolled_back_once(
    client: GrpcPeer, grpc_broker: Broker
) -> None:
    entries = []
    for body in (b"commit", b"rollback"):
        [entry] = (await sent(client, message("X", body, pb.TRANSACTION))).entries
        entries.append(entry)
    assert await ended(client, entries[0], pb.COMMIT) == pb.OK
    assert await ended(client, entries[0], pb.COMMIT) == pb.OK
    assert await ended(client, entries[1], pb.ROLLBACK) == pb.OK
    assert await ended(client, entries[1], pb.COMMIT) == pb.OK
    async with peer_of(grpc_broker) as peer:
        found = [m.body for queue in (0, 1) for m in await peer.messages("X", queue)]
    assert found == [b"commit"]


async def test_an_end_of_no_transaction_is_refused(client: GrpcPeer) -> None:
    [entry] = (await sent(client, message("X", b"half", pb.TRANSACTION))).entries
    for text in ("", "nonsense", "é" * 32, "F" * 33):
        code = await ended(client, entry, pb.COMMIT, transaction_id=text)
        assert code == pb.INVALID_TRANSACTION_ID
    other = await ended(client, entry, pb.COMMIT, message_id="another")
    assert other == pb.INVALID_TRANSACTION_ID
    nowhere = await ended(client, entry, pb.COMMIT, transaction_id="0" * 15 + "9" + "0" * 16)
    assert nowhere == pb.INTERNAL_SERVER_ERROR
    assert await ended(client, entry, pb.COMMIT, topic=resource("T")) == pb.INTERNAL_SERVER_ERROR


async def test_a_message_is_taken_back_before_its_moment(client: GrpcPeer) -> None:
    made = message("D", kind=pb.DELAY, delivery_seconds=int(time.time()) + 60)
    [entry] = (await sent(client, made)).entries
    answer = await client.ask(
        "RecallMessage", topic=resource("D"), recall_handle=entry.recall_handle
    )
    assert (answer.status.code, answer.message_id) == (pb.OK, ID)
    for topic, handle, code in (
        ("D", "nonsense", pb.INTERNAL_SERVER_ERROR),
        ("T", entry.recall_handle, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("Missing", entry.recall_handle, pb.TOPIC_NOT_FOUND),
    ):
        answer = await client.ask("RecallMessage", topic=resource(topic), recall_handle=handle)
        assert answer.status.code == code


async def test_many_calls_at_once_are_all_answered(client: GrpcPeer, grpc_broker: Broker) -> None:
    streams = [
        client.call("SendMessage", pb.SendMessageRequest(messages=[message(body=b"%d" % number)]))
        for number in range(200)
    ]
    for stream in streams:
        [answer] = await stream.messages()
        assert (answer.status.code, stream.status) == (pb.OK, 0)

    def is_stored() -> bool:
        return grpc_broker.parts.store.stats()["put_count"] == 200

    await until(is_stored, what="all messages")
    assert decode_records(b"") == []
