"""What our port answers to routes, assignments, settings and receives, beside RocketMQ's proxy
5.3.3: all of it is the same, but for what :data:`DIFFERENCES` names. ``KEROLOX_SOFTWARE=all``.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import text_format

from kerolox.protocol.grpc import messages as pb
from tests.interop.grpc5 import calls
from tests.interop.grpc5.calls import GROUP, ORDERED, TOPICS, Caller, prepared_for_calls
from tests.interop.grpc5.servers import Served, admin_of, java_proxy, our_server
from tests.support.eventually import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.interop.grpc5.driver import Drivers

pytestmark = [
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("grpc-oracle"),
]

UNTYPED = "Untyped"
OF_EACH_RUN = (
    *("born_timestamp", "store_timestamp", "store_host", "receipt_handle", "delivery_timestamp"),
    "queue_offset",
)
"""Parts of a message that no two servers have in common."""

SENT = {
    "T": calls.message(
        body="bödy".encode(),
        tag="tag",
        keys=["one", "two"],
        properties={"name": "value"},
        trace_context="trace",
    ),
    "F": calls.message("F", kind=pb.FIFO, message_group="group"),
    "D": calls.message("D", kind=pb.DELAY, delivery_timestamp=calls.NOW),
    "X": calls.message("X", kind=pb.TRANSACTION),
    "E": calls.message("E", body=gzip.compress(b"text " * 100), body_encoding=pb.GZIP),
}
for _message in SENT.values():
    _message.system_properties.born_host = "host"
HIDDEN = "Java gives it as a property of the user, too"
DIFFERENCES = {
    "route of Untyped": "a topic without a type takes all, as by remoting",
    "settings of a push consumer in Node.js": "it gets a policy that it knows",
    "message of T": f"TRACE_CONTEXT: {HIDDEN}",
    "message that comes again": f"TRACE_CONTEXT: {HIDDEN}",
    "message of F": f"__SHARDINGKEY: {HIDDEN}",
    "message of X": f"__transactionId__: {HIDDEN}",
    "message of E": "it is inflated here, and has the digest of that",
    "answer to a forward": "the text of Java's is 0",
}
"""What is not the same, and why."""


def gathered(served: Served) -> dict[str, str]:
    """All answers, as texts."""
    with admin_of(served) as admin:
        prepared_for_calls(admin)
        admin.create_topic(UNTYPED, queues=2)
        caller = Caller(served.server.endpoint)
        try:
            return {name: _text(each) for name, each in _answers(caller)}
        finally:
            caller.close()


def _text(message: Any) -> str:
    return text_format.MessageToString(message, as_utf8=True)


def _answers(caller: Caller) -> Iterator[tuple[str, Any]]:
    metadata = caller.metadata()
    for topic in (*TOPICS, UNTYPED):
        [route] = caller.ask("QueryRoute", calls.routes(topic), metadata)
        for queue in route.message_queues:
            queue.broker.ClearField("endpoints")
        yield f"route of {topic}", route
    for group in (GROUP, ORDERED):
        [assigned] = caller.ask("QueryAssignment", calls.assigns(group=group), metadata)
        for each in assigned.assignments:
            each.message_queue.broker.ClearField("endpoints")
        yield f"assignment of {group}", assigned
    told = {
        "a producer": calls.publishing("T"),
        "a push consumer": calls.subscribing(),
        "a push consumer in order": calls.subscribing(ORDERED),
        "a simple consumer": calls.subscribing(kind=pb.SIMPLE_CONSUMER),
        "a push consumer in Node.js": calls.subscribing(),
    }
    told["a push consumer in Node.js"].settings.user_agent.language = pb.NODE_JS
    for name, command in told.items():
        stream = caller.settled(command, caller.metadata())
        yield f"settings of {name}", stream.settings
        stream.close()
    yield from _received(caller)


def _received(caller: Caller) -> Iterator[tuple[str, Any]]:
    metadata = caller.metadata()
    stream = caller.settled(calls.subscribing(), metadata)
    for topic, message in SENT.items():
        [sent] = caller.ask("SendMessage", calls.sends(message), metadata)
        [entry] = sent.entries
        if topic == "X":
            end = calls.ends(entry.transaction_id)
            assert caller.ask("EndTransaction", end, metadata)[0].status.code == pb.OK
        for part in ("transaction_id", "offset", "recall_handle"):
            entry.ClearField(part)
        yield f"receipt of {topic}", sent
        yield f"message of {topic}", _one(caller, topic, metadata)
    # Two messages more of T: one that comes again, and a dead letter.
    caller.ask("SendMessage", calls.sends(SENT["T"]), metadata)
    first = _one(caller, "T", metadata, is_plain=False)
    change = calls.changes(first.system_properties.receipt_handle, 1)
    assert caller.ask("ChangeInvisibleDuration", change, metadata)[0].status.code == pb.OK
    again = _one(caller, "T", metadata, is_plain=False)
    forward = calls.forwards(again.system_properties.receipt_handle)
    yield "message that comes again", _plain(again)
    [answer] = caller.ask("ForwardMessageToDeadLetterQueue", forward, metadata)
    yield "answer to a forward", answer
    stream.close()


def _one(caller: Caller, topic: str, metadata: dict[str, str], *, is_plain: bool = True) -> Any:
    """The next message of a topic."""
    found: list[Any] = []

    def is_there() -> bool:
        parts = caller.ask("ReceiveMessage", calls.receives(topic, seconds=30), metadata)
        found.extend(part.message for part in parts if part.HasField("message"))
        return bool(found)

    wait_until(is_there, what=f"a message of {topic}")
    [message] = found
    if is_plain:
        ack = calls.acks(message.system_properties.receipt_handle, topic=topic)
        assert caller.ask("AckMessage", ack, metadata)[0].status.code == pb.OK
    return _plain(message) if is_plain else message


def _plain(message: Any) -> Any:
    """Without what is another at each run, once it is there."""
    system = message.system_properties
    system.ClearField("queue_id")  # 0 is not there.
    for field, _value in system.ListFields():
        if field.name in OF_EACH_RUN:
            system.ClearField(field.name)
            message.user_properties[f"has {field.name}"] = "yes"
    return message


def test_answers_are_those_of_java(tmp_path: Path, grpc_drivers: Drivers) -> None:
    (tmp_path / "ours").mkdir()
    with our_server(tmp_path / "ours", grpc_drivers.authority) as served:
        ours = gathered(served)
    with java_proxy(tmp_path, grpc_drivers.authority) as served:
        java = gathered(served)
    assert list(ours) == list(java)
    different = {name: (ours[name], java[name]) for name in ours if ours[name] != java[name]}
    assert different.keys() == DIFFERENCES.keys(), different
