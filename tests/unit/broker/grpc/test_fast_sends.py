"""Plain messages that the native kernel takes: stored and answered as by the handler in Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients.grpc_peer import GrpcPeer, grpc_peer
from tests.support.clients.peer import small_config
from tests.support.kernels import KERNELS
from tests.support.servers.up import free_port

from kerolox.broker.broker import Broker
from kerolox.broker.grpc import sending
from kerolox.protocol.bodies import TopicConfig
from kerolox.protocol.grpc import messages as pb
from kerolox.protocol.records import decode_records
from kerolox.remoting.grpc.wire import GrpcStatus
from kerolox.remoting.http2.frames import ErrorCode

pytestmark = pytest.mark.skipif("native" not in KERNELS, reason="the native kernel does it")

NOW = 1_700_000_000
UNKNOWN = b"\xf8\x3f\x01"
"""A field that nobody knows: the kernel leaves a message with it to Python, which reads over it."""

ODD: dict[str, dict[str, Any]] = {
    "another type": {"message_type": pb.FIFO, "message_group": "g"},
    "a group of messages": {"message_group": "g"},
    "a group of other characters": {"message_group": "ä"},
    "a long group": {"message_group": "g" * 64},
    "a blank group": {"message_group": " "},
    "a delay": {"delivery_timestamp": {"seconds": NOW}},
    "a body of gzip": {"body_encoding": pb.GZIP},
    "no id": {"message_id": ""},
    "a blank id": {"message_id": " \t"},
    "a long id": {"message_id": "x" * 256},
    "an id with a control": {"message_id": "a\u0085b"},
    "a blank tag": {"tag": " "},
    "a tag of two": {"tag": "a|b"},
    "a blank key": {"keys": ["a", ""]},
    "a key with a control": {"keys": ["a\x02b"]},
    "a host with a control": {"born_host": "a\x01"},
    "a trace with a control": {"trace_context": "a\x7f"},
    "no host": {"born_host": ""},
    "a second attempt": {"delivery_attempt": 2},
    "a time before 1970": {"born_timestamp": {"seconds": -5}},
}
ODD_PROPERTIES: dict[str, dict[str, str]] = {
    "a reserved name": {"KEYS": "a"},
    "a name of another kind": {"DELAY": "3"},
    "a value with a control": {"a": "b\x01c"},
    "a name with a control": {"a\x02b": "c"},
    "too many": {f"name{number}": "v" for number in range(129)},
    "too large": {"a": "x" * 16_400},
    "an empty value": {"a": ""},
}


def request(body: bytes = b"body", topic: str = "T", **changes: Any) -> Any:
    """A usual one."""
    properties = changes.pop("properties", {"zone": "eu", "a": "ä😀", "b": "1"})
    system = {
        "message_id": "01ABCD",
        "message_type": pb.NORMAL,
        "born_host": "somewhere",
        "born_timestamp": {"seconds": NOW, "nanos": 123_456_789},
        "keys": ["one", "two"],
        "tag": "TagA",
        "trace_context": "00-ff",
        "queue_id": 3,
        "body_encoding": pb.IDENTITY,
    }
    message = pb.Message(
        topic=pb.Resource(name=topic),
        body=body,
        user_properties=properties,
        system_properties=pb.SystemProperties(**{**system, **changes}),
    )
    return pb.SendMessageRequest(messages=[message])


def by_python(made: Any) -> Any:
    """The same, which the kernel declines."""
    return pb.SendMessageRequest.FromString(made.SerializeToString() + UNKNOWN)


class Seen:
    """How many calls Python saw."""

    count = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    counted, send_message = Seen(), sending.send_message

    async def counting(*arguments: Any) -> Any:
        counted.count += 1
        return await send_message(*arguments)

    monkeypatch.setattr(sending, "send_message", counting)
    return counted


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, GrpcPeer]]:
    """A broker of the native kernel with topics of one queue, and a client."""
    port = free_port()
    config = small_config(tmp_path, grpc_server_port=port, **settings)
    async with Broker(config, kernel="native") as broker:
        for name, kind in (("T", "NORMAL"), ("F", "FIFO"), ("Any", "")):
            attributes = {"message.type": kind} if kind else None
            topic = TopicConfig(
                topic_name=name, read_queue_nums=1, write_queue_nums=1, attributes=attributes
            )
            broker.parts.tables.topics.put(topic)
        async with grpc_peer(port) as peer:
            yield broker, peer


async def answer_of(peer: GrpcPeer, made: Any) -> Any:
    """The answer, without the offset of what was stored."""
    [answer] = await peer.call("SendMessage", made).messages()
    for entry in answer.entries:
        entry.offset = 0
    return answer


def records(broker: Broker, topic: str = "T", queue_id: int = 0) -> list[Any]:
    """What is stored, but for what no two records have in common."""
    read = broker.parts.store.read(topic, queue_id, 0, 1_000, None)
    return [
        replace(each, queue_offset=0, commit_log_offset=0, store_timestamp=0)
        for each in decode_records(read.records)
    ]


async def test_a_message_is_stored_and_answered_alike_on_both_paths(
    tmp_path: Path, seen: Seen
) -> None:
    async with served(tmp_path) as (broker, peer):
        usual = [
            request(),
            request(b"\x00" * 5_000, "Any", properties={}, keys=[], trace_context=""),
            request(message_type=pb.MESSAGE_TYPE_UNSPECIFIED),
        ]
        for made in usual:
            before = seen.count
            fast = await answer_of(peer, made)
            assert fast.status.code == pb.OK
            assert seen.count == before, "the kernel declined a usual message"
            assert await answer_of(peer, by_python(made)) == fast
            assert seen.count == before + 1
        for topic in ("T", "Any"):
            stored = records(broker, topic)
            assert stored[0::2] == stored[1::2] != []
            texts = [list(each.properties.items()) for each in stored]
            assert texts[0::2] == texts[1::2]


async def test_a_group_of_messages_has_its_queue_on_both_paths(tmp_path: Path, seen: Seen) -> None:
    groups = [f"group {number}" * (1 + number % 5) for number in range(60)]
    async with served(tmp_path) as (broker, peer):
        topic = TopicConfig(topic_name="Many", read_queue_nums=11, write_queue_nums=11)
        broker.parts.tables.topics.put(topic)
        for group in groups:
            made = request(topic="Many", message_type=pb.FIFO, message_group=group)
            fast = await answer_of(peer, made)
            assert await answer_of(peer, by_python(made)) == fast
            assert fast.status.code == pb.OK
        assert seen.count == len(groups)
        used = [stored for queue in range(11) if (stored := records(broker, "Many", queue))]
        assert len(used) > 5
        for stored in used:
            assert stored[0::2] == stored[1::2]
        made = request(topic="F", message_group="g", message_type=pb.FIFO)
        assert (await answer_of(peer, made)).status.code == pb.OK
        assert seen.count == len(groups)


async def test_what_is_not_usual_is_answered_by_python(tmp_path: Path, seen: Seen) -> None:
    async with served(tmp_path) as (broker, peer):
        odd = {name: request(**changes) for name, changes in ODD.items()}
        odd |= {name: request(properties=each) for name, each in ODD_PROPERTIES.items()}
        odd |= {
            "no body": request(b""),
            "a topic of another type": request(topic="F"),
            "no such topic": request(topic="Nobody"),
            "a topic of RocketMQ": request(topic="TBW102"),
            "a namespace": request(),
            "two messages": pb.SendMessageRequest(messages=[*request().messages] * 2),
            "no message": pb.SendMessageRequest(),
            "a body too large": request(bytes(broker.config.max_message_size + 1)),
        }
        odd["a namespace"].messages[0].topic.resource_namespace = "n"
        for name, made in odd.items():
            before = seen.count
            answer = await answer_of(peer, made)
            assert seen.count == before + 1, name
            assert await answer_of(peer, by_python(made)) == answer, name


async def test_a_client_that_names_itself_badly_is_refused(tmp_path: Path, seen: Seen) -> None:
    async with served(tmp_path) as (_, peer):
        for client_id in ("", " ", "x" * 256):
            stream = peer.open("SendMessage", {"x-mq-client-id": client_id})
            stream.send(request(), end=True)
            [answer] = await stream.messages()
            assert answer.status.code != pb.OK, client_id
        stream = peer.open("SendMessage", {"grpc-timeout": "soon"})
        stream.send(request(), end=True)
        assert (await stream.messages(), stream.status) == ([], GrpcStatus.INVALID_ARGUMENT)


async def test_answers_wait_for_the_disk_and_a_call_may_be_given_up(
    tmp_path: Path, seen: Seen
) -> None:
    async with served(tmp_path, flush_disk_type="SYNC_FLUSH") as (_, peer):
        calls = [peer.call("SendMessage", request(b"%d" % number)) for number in range(300)]
        peer.http2.reset_stream(calls[0].stream_id, ErrorCode.CANCEL)
        peer.flush()
        answers = await asyncio.gather(*(call.messages() for call in calls[1:]))
        assert all(each.status.code == pb.OK for [each] in answers)
        offsets = {each.entries[0].offset for [each] in answers}
        assert len(offsets) == 299
        assert all(call.status == 0 for call in calls[1:])
        assert seen.count == 0


async def test_limits_of_requests_count_fast_calls(tmp_path: Path, seen: Seen) -> None:
    limits = {"max_requests_per_second_per_address": 1, "request_burst_millis": 1_000}
    async with served(tmp_path, **limits) as (_, peer):
        codes = [(await answer_of(peer, request())).entries[0].status.code for _ in range(3)]
        assert pb.TOO_MANY_REQUESTS in codes
