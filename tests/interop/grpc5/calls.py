"""Calls, most of them wrong, each with the code that our port answers. :data:`DIFFERENCES` has the
code of RocketMQ's proxy 5.3.3 where that is another, and why.

A case has a client id of its own. What needs the settings of a client has them told first.
"""

from __future__ import annotations

import itertools
import queue
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from kerolox.protocol.bodies import SubscriptionGroupConfig
from kerolox.protocol.grpc import messages as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.admin.sync import Admin

__all__ = ["CASES", "DIFFERENCES", "Call", "Caller", "Telemetry", "prepared_for_calls"]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
SECONDS_MAX = 30
TOPICS = {"T": "NORMAL", "E": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
GROUP, ORDERED = "G", "O"
ENDPOINTS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
MESSAGE_ID = "01" + "AB" * 16
NOW = int(time.time())
HANDLE = f"0 {NOW * 1000} 7200000 0 0 broker-a 0 0 0"
"""Counts, and no message is out with it."""

EXPIRED = "0 1700000000000 60000 0 0 broker-a 0 0 0"


def prepared_for_calls(admin: Admin) -> None:
    """Make the topics and groups of all cases."""
    for name, kind in TOPICS.items():
        admin.create_topic(name, queues=2, attributes={"message.type": kind})
    for name in (GROUP, ORDERED):
        ordered = name == ORDERED
        admin.put_group(SubscriptionGroupConfig(group_name=name, consume_message_orderly=ordered))


class Call(NamedTuple):
    """One case."""

    name: str
    """Of the call: ``SendMessage``."""
    request: Any
    code: str
    """Of the answer; of gRPC's own, lower case."""
    settings: str = ""
    """``producer`` or ``consumer``: told first."""
    seconds: float = SECONDS_MAX
    """Its deadline."""
    metadata: tuple[tuple[str, str], ...] = ()


def resource(name: str) -> Any:
    return pb.Resource(name=name)


def message(topic: str = "T", body: bytes = b"body", kind: int = pb.NORMAL, **system: Any) -> Any:
    made = pb.Message(topic=resource(topic), body=body)
    made.user_properties.update(system.pop("properties", {}))
    parts = made.system_properties
    parts.message_id, parts.message_type = system.pop("message_id", MESSAGE_ID), kind
    parts.born_timestamp.seconds = NOW
    for name in ("delivery_timestamp", "orphaned_transaction_recovery_duration"):
        if (seconds := system.pop(name, None)) is not None:
            getattr(parts, name).seconds = seconds
    parts.keys.extend(system.pop("keys", ()))
    for name, value in system.items():
        setattr(parts, name, value)
    return made


def sends(*messages: Any) -> Any:
    return pb.SendMessageRequest(messages=messages)


def receives(topic: str = "T", group: str = GROUP, seconds: int = 30, **more: Any) -> Any:
    request = pb.ReceiveMessageRequest(
        group=resource(group),
        message_queue=pb.MessageQueue(topic=resource(topic), id=-1),
        batch_size=more.pop("batch_size", 1),
        **more,
    )
    request.message_queue.broker.name = "broker-a"
    request.filter_expression.expression = request.filter_expression.expression or "*"
    request.invisible_duration.seconds = seconds
    request.long_polling_timeout.seconds = 5
    return request


def sql(text: str) -> Any:
    return pb.FilterExpression(type=pb.SQL, expression=text)


def routes(topic: str = "T", endpoints: Any = ENDPOINTS) -> Any:
    return pb.QueryRouteRequest(topic=resource(topic), endpoints=endpoints)


def assigns(topic: str = "T", group: str = GROUP, endpoints: Any = ENDPOINTS) -> Any:
    return pb.QueryAssignmentRequest(
        topic=resource(topic), group=resource(group), endpoints=endpoints
    )


def acks(*handles: str, topic: str = "T", group: str = GROUP) -> Any:
    entries = [pb.AckMessageEntry(message_id=MESSAGE_ID, receipt_handle=each) for each in handles]
    return pb.AckMessageRequest(group=resource(group), topic=resource(topic), entries=entries)


def changes(handle: str, seconds: int = 60, topic: str = "T", group: str = GROUP) -> Any:
    made = pb.ChangeInvisibleDurationRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle, message_id=MESSAGE_ID
    )
    made.invisible_duration.seconds = seconds
    return made


def forwards(handle: str, topic: str = "T", group: str = GROUP) -> Any:
    return pb.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group), topic=resource(topic), receipt_handle=handle, message_id=MESSAGE_ID
    )


def ends(transaction_id: str, topic: str = "X", resolution: int = pb.COMMIT) -> Any:
    return pb.EndTransactionRequest(
        topic=resource(topic),
        message_id=MESSAGE_ID,
        transaction_id=transaction_id,
        resolution=resolution,
    )


def recalls(handle: str, topic: str = "D") -> Any:
    return pb.RecallMessageRequest(topic=resource(topic), recall_handle=handle)


def beats(client_type: int = 0, group: str = "") -> Any:
    request = pb.HeartbeatRequest(client_type=client_type)
    if group:
        request.group.name = group
    return request


def settles(**members: Any) -> Any:
    return pb.TelemetryCommand(settings=pb.Settings(**members))


def subscribing(
    group: str = GROUP, topic: str = "T", expression: Any = None, kind: int = pb.PUSH_CONSUMER
) -> Any:
    entry = pb.SubscriptionEntry(topic=resource(topic))
    entry.expression.CopyFrom(expression or pb.FilterExpression(type=pb.TAG, expression="*"))
    subscription = pb.Subscription(group=resource(group), subscriptions=[entry])
    return settles(client_type=kind, subscription=subscription)


def publishing(*topics: str) -> Any:
    made = pb.Publishing(topics=[resource(topic) for topic in topics])
    return settles(client_type=pb.PRODUCER, publishing=made)


NAMES = {
    "blank": " ",
    "empty": "",
    "with other characters": "a b",
    "of two lines": "a\nb",
    "too long": "x" * 256,
}
SYSTEM_TOPIC, SYSTEM_GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"


def _names() -> Iterator[tuple[str, Call]]:
    """Wrong names of topics and groups in each call that has one."""
    handle = EXPIRED
    of_topic = {
        "QueryRoute": routes,
        "QueryAssignment": assigns,
        "SendMessage": lambda topic: sends(message(topic)),
        "ReceiveMessage": receives,
        "AckMessage": lambda topic: acks(handle, topic=topic),
        "ChangeInvisibleDuration": lambda topic: changes(handle, topic=topic),
        "ForwardMessageToDeadLetterQueue": lambda topic: forwards(handle, topic=topic),
        "EndTransaction": lambda topic: ends("x", topic=topic),
        "RecallMessage": lambda topic: recalls("x", topic=topic),
    }
    of_group = {
        "QueryAssignment": lambda group: assigns(group=group),
        "ReceiveMessage": lambda group: receives(group=group),
        "AckMessage": lambda group: acks(handle, group=group),
        "ChangeInvisibleDuration": lambda group: changes(handle, group=group),
        "ForwardMessageToDeadLetterQueue": lambda group: forwards(handle, group=group),
    }
    for kind, calls, system, code in (
        ("topic", of_topic, SYSTEM_TOPIC, "ILLEGAL_TOPIC"),
        ("group", of_group, SYSTEM_GROUP, "ILLEGAL_CONSUMER_GROUP"),
    ):
        for name, make in calls.items():
            for what, text in {**NAMES, "of the system": system}.items():
                settings = "consumer" if name == "ReceiveMessage" else ""
                yield f"{name}: {kind} {what}", Call(name, make(text), code, settings=settings)


CASES: dict[str, Call] = {
    **dict(_names()),
    "QueryRoute: no such topic": Call("QueryRoute", routes("Missing"), "TOPIC_NOT_FOUND"),
    "QueryRoute: no endpoints": Call(
        "QueryRoute", routes(endpoints=pb.Endpoints()), "ILLEGAL_ACCESS_POINT"
    ),
    "QueryRoute: no client id": Call(
        "QueryRoute", routes(), "CLIENT_ID_REQUIRED", metadata=(("x-mq-client-id", ""),)
    ),
    "QueryRoute: blank client id": Call(
        "QueryRoute", routes(), "CLIENT_ID_REQUIRED", metadata=(("x-mq-client-id", " "),)
    ),
    "QueryRoute: unknown language": Call(
        "QueryRoute", routes(), "OK", metadata=(("x-mq-language", "KLINGON"),)
    ),
    "QueryRoute: no message": Call("QueryRoute", b"\xff\xff", "internal"),
    "QueryAssignment: no such topic": Call(
        "QueryAssignment", assigns("Missing"), "TOPIC_NOT_FOUND"
    ),
    "QueryAssignment: no such group": Call("QueryAssignment", assigns(group="Missing"), "OK"),
    "QueryAssignment: group of 255 characters": Call(
        "QueryAssignment", assigns(group="x" * 255), "ILLEGAL_CONSUMER_GROUP"
    ),
    "QueryAssignment: no endpoints": Call(
        "QueryAssignment", assigns(endpoints=pb.Endpoints()), "ILLEGAL_ACCESS_POINT"
    ),
    "SendMessage: good": Call("SendMessage", sends(message()), "OK"),
    "SendMessage: none": Call("SendMessage", sends(), "MESSAGE_CORRUPTED"),
    "SendMessage: two topics": Call(
        "SendMessage", sends(message(), message("F")), "MESSAGE_CORRUPTED"
    ),
    "SendMessage: no such topic": Call(
        "SendMessage", sends(message("Missing")), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    ),
    "SendMessage: empty body": Call("SendMessage", sends(message(body=b"")), "MESSAGE_BODY_EMPTY"),
    "SendMessage: large body": Call(
        "SendMessage", sends(message(body=bytes((4 << 20) + 1))), "MESSAGE_BODY_TOO_LARGE"
    ),
    "SendMessage: no gzip": Call(
        "SendMessage",
        sends(message(body_encoding=pb.GZIP, body=b"\x1f\x8bno")),
        "MESSAGE_CORRUPTED",
    ),
    "SendMessage: no id": Call("SendMessage", sends(message(message_id="")), "ILLEGAL_MESSAGE_ID"),
    "SendMessage: control character in the id": Call(
        "SendMessage", sends(message(message_id="a\x01b")), "ILLEGAL_MESSAGE_ID"
    ),
    "SendMessage: blank tag": Call("SendMessage", sends(message(tag=" ")), "ILLEGAL_MESSAGE_TAG"),
    "SendMessage: empty tag": Call("SendMessage", sends(message(tag="")), "OK"),
    "SendMessage: tag with a bar": Call(
        "SendMessage", sends(message(tag="a|b")), "ILLEGAL_MESSAGE_TAG"
    ),
    "SendMessage: tag with a control character": Call(
        "SendMessage", sends(message(tag="a\nb")), "ILLEGAL_MESSAGE_TAG"
    ),
    "SendMessage: empty key": Call("SendMessage", sends(message(keys=[""])), "OK"),
    "SendMessage: key with a control character": Call(
        "SendMessage", sends(message(keys=["a\x02b"])), "ILLEGAL_MESSAGE_KEY"
    ),
    "SendMessage: blank message group": Call(
        "SendMessage", sends(message("F", kind=pb.FIFO, message_group=" ")), "ILLEGAL_MESSAGE_GROUP"
    ),
    "SendMessage: long message group": Call(
        "SendMessage",
        sends(message("F", kind=pb.FIFO, message_group="x" * 64)),
        "ILLEGAL_MESSAGE_GROUP",
    ),
    "SendMessage: ordered without a message group": Call(
        "SendMessage", sends(message("F", kind=pb.FIFO)), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    ),
    "SendMessage: property of the system": Call(
        "SendMessage", sends(message(properties={"UNIQ_KEY": "x"})), "ILLEGAL_MESSAGE_PROPERTY_KEY"
    ),
    "SendMessage: name with a control character": Call(
        "SendMessage", sends(message(properties={"a\x01b": "x"})), "ILLEGAL_MESSAGE_PROPERTY_KEY"
    ),
    "SendMessage: value with a control character": Call(
        "SendMessage", sends(message(properties={"a": "x\x02y"})), "ILLEGAL_MESSAGE_PROPERTY_KEY"
    ),
    "SendMessage: many properties": Call(
        "SendMessage",
        sends(message(properties={str(n): "x" for n in range(129)})),
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    "SendMessage: large properties": Call(
        "SendMessage",
        sends(message(properties={"a": "x" * 16_384})),
        "MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    "SendMessage: normal to a topic for moments": Call(
        "SendMessage", sends(message("D")), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    ),
    "SendMessage: transaction to a normal topic": Call(
        "SendMessage",
        sends(message(kind=pb.TRANSACTION)),
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    "SendMessage: type without a name": Call("SendMessage", sends(message(kind=0)), "OK"),
    "SendMessage: for no moment": Call(
        "SendMessage",
        sends(message("D", kind=pb.DELAY, delivery_timestamp=0)),
        "ILLEGAL_DELIVERY_TIME",
    ),
    "SendMessage: for a moment in four days": Call(
        "SendMessage",
        sends(message("D", kind=pb.DELAY, delivery_timestamp=NOW + 4 * 86_400)),
        "ILLEGAL_DELIVERY_TIME",
    ),
    "SendMessage: for a moment that is over": Call(
        "SendMessage", sends(message("D", kind=pb.DELAY, delivery_timestamp=1)), "OK"
    ),
    "SendMessage: transaction that recovers late": Call(
        "SendMessage",
        sends(message("X", kind=pb.TRANSACTION, orphaned_transaction_recovery_duration=3_601)),
        "BAD_REQUEST",
    ),
    "ReceiveMessage: nothing there": Call(
        "ReceiveMessage", receives("E", ORDERED), "MESSAGE_NOT_FOUND", settings="consumer"
    ),
    "ReceiveMessage: no settings": Call("ReceiveMessage", receives("E"), "MESSAGE_NOT_FOUND"),
    "ReceiveMessage: no such topic": Call(
        "ReceiveMessage", receives("Missing"), "TOPIC_NOT_FOUND", settings="consumer"
    ),
    "ReceiveMessage: no such group": Call(
        "ReceiveMessage", receives("E", "Missing"), "MESSAGE_NOT_FOUND", settings="consumer"
    ),
    "ReceiveMessage: SQL92 that is none": Call(
        "ReceiveMessage",
        receives(filter_expression=sql("a >")),
        "ILLEGAL_FILTER_EXPRESSION",
        settings="consumer",
    ),
    "ReceiveMessage: SQL92 of blanks": Call(
        "ReceiveMessage",
        receives(filter_expression=sql(" ")),
        "ILLEGAL_FILTER_EXPRESSION",
        settings="consumer",
    ),
    "ReceiveMessage: invisible too short": Call(
        "ReceiveMessage", receives(seconds=9), "ILLEGAL_INVISIBLE_TIME", settings="consumer"
    ),
    "ReceiveMessage: invisible too long": Call(
        "ReceiveMessage", receives(seconds=43_201), "ILLEGAL_INVISIBLE_TIME", settings="consumer"
    ),
    "ReceiveMessage: no batch": Call(
        "ReceiveMessage",
        receives("E", ORDERED, batch_size=0),
        "MESSAGE_NOT_FOUND",
        settings="consumer",
    ),
    "ReceiveMessage: little time": Call(
        "ReceiveMessage", receives("E"), "BAD_REQUEST", settings="consumer", seconds=4
    ),
    "ReceiveMessage: little time, newer client": Call(
        "ReceiveMessage",
        receives("E"),
        "ILLEGAL_POLLING_TIME",
        settings="consumer",
        seconds=4,
        metadata=(("x-mq-client-version", "5.0.4"),),
    ),
    "AckMessage: no entries": Call("AckMessage", acks(), "OK"),
    "AckMessage: no receipt": Call("AckMessage", acks("x"), "INVALID_RECEIPT_HANDLE"),
    "AckMessage: old receipt": Call("AckMessage", acks(EXPIRED), "INVALID_RECEIPT_HANDLE"),
    "AckMessage: old receipt and none": Call(
        "AckMessage", acks(EXPIRED, "x"), "INVALID_RECEIPT_HANDLE"
    ),
    "AckMessage: no such message": Call("AckMessage", acks(HANDLE), "OK"),
    "ChangeInvisibleDuration: no receipt": Call(
        "ChangeInvisibleDuration", changes("x"), "INVALID_RECEIPT_HANDLE"
    ),
    "ChangeInvisibleDuration: old receipt": Call(
        "ChangeInvisibleDuration", changes(EXPIRED), "INVALID_RECEIPT_HANDLE"
    ),
    "ChangeInvisibleDuration: negative": Call(
        "ChangeInvisibleDuration", changes(HANDLE, -1), "ILLEGAL_INVISIBLE_TIME"
    ),
    "ChangeInvisibleDuration: too long": Call(
        "ChangeInvisibleDuration", changes(HANDLE, 43_201), "ILLEGAL_INVISIBLE_TIME"
    ),
    "ForwardMessageToDeadLetterQueue: no receipt": Call(
        "ForwardMessageToDeadLetterQueue", forwards("x"), "INVALID_RECEIPT_HANDLE"
    ),
    "ForwardMessageToDeadLetterQueue: old receipt": Call(
        "ForwardMessageToDeadLetterQueue", forwards(EXPIRED), "OK"
    ),
    "EndTransaction: no id": Call("EndTransaction", ends(""), "INVALID_TRANSACTION_ID"),
    "EndTransaction: blank id": Call("EndTransaction", ends(" "), "INVALID_TRANSACTION_ID"),
    "EndTransaction: unknown id": Call("EndTransaction", ends("x"), "INVALID_TRANSACTION_ID"),
    "EndTransaction: no resolution": Call("EndTransaction", ends("0" * 32, resolution=0), "OK"),
    "RecallMessage: no handle": Call("RecallMessage", recalls(""), "INTERNAL_SERVER_ERROR"),
    "RecallMessage: handle that is none": Call(
        "RecallMessage", recalls("x"), "INTERNAL_SERVER_ERROR"
    ),
    "RecallMessage: of a normal topic": Call(
        "RecallMessage", recalls("x", "T"), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    ),
    "RecallMessage: no such topic": Call(
        "RecallMessage", recalls("x", "Missing"), "TOPIC_NOT_FOUND"
    ),
    "Heartbeat: no settings": Call("Heartbeat", beats(pb.PRODUCER), "OK"),
    "Heartbeat: consumer without settings": Call("Heartbeat", beats(pb.PUSH_CONSUMER, GROUP), "OK"),
    "Heartbeat: nothing": Call("Heartbeat", beats(), "UNRECOGNIZED_CLIENT_TYPE"),
    "Heartbeat: light consumer": Call(
        "Heartbeat", beats(pb.LITE_PUSH_CONSUMER, GROUP), "UNRECOGNIZED_CLIENT_TYPE"
    ),
    "Heartbeat: producer": Call("Heartbeat", beats(pb.PRODUCER), "OK", settings="producer"),
    "Heartbeat: consumer": Call(
        "Heartbeat", beats(pb.PUSH_CONSUMER, GROUP), "OK", settings="consumer"
    ),
    "Heartbeat: nothing, of a known client": Call("Heartbeat", beats(), "OK", settings="producer"),
    "NotifyClientTermination: no settings": Call(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(), "OK"
    ),
    "NotifyClientTermination: producer": Call(
        "NotifyClientTermination", pb.NotifyClientTerminationRequest(), "OK", settings="producer"
    ),
    "Telemetry: producer": Call("Telemetry", publishing("T"), "OK"),
    "Telemetry: producer without topics": Call("Telemetry", publishing(), "OK"),
    "Telemetry: producer of no such topic": Call("Telemetry", publishing("Missing"), "OK"),
    "Telemetry: producer of a topic with other characters": Call(
        "Telemetry", publishing("a b"), "ILLEGAL_TOPIC"
    ),
    "Telemetry: consumer": Call("Telemetry", subscribing(), "OK"),
    "Telemetry: consumer of no such group": Call("Telemetry", subscribing("Missing"), "OK"),
    "Telemetry: group with other characters": Call(
        "Telemetry", subscribing("a b"), "ILLEGAL_CONSUMER_GROUP"
    ),
    "Telemetry: consumer of a topic with other characters": Call(
        "Telemetry", subscribing(topic="a b"), "ILLEGAL_TOPIC"
    ),
    "Telemetry: SQL92 that is none": Call(
        "Telemetry", subscribing(expression=sql("a >")), "ILLEGAL_FILTER_EXPRESSION"
    ),
    "Telemetry: settings of nothing": Call(
        "Telemetry", settles(client_type=pb.PRODUCER), "invalid_argument"
    ),
    "Telemetry: no client id": Call(
        "Telemetry", publishing("T"), "CLIENT_ID_REQUIRED", metadata=(("x-mq-client-id", ""),)
    ),
    **{
        f"{name}: not served": Call(name, b"", "unimplemented")
        for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "Unheard")
    },
}


OWN_ADDRESS = "in local mode it names its own address; here it is the client's that counts"
SETTINGS_ALONE = "it knows a client by its settings alone, which a restart loses"
AGAIN = "an exception in Java, which clients try again for ever"
NOT_LATER = "what can't be served is said at once, and not when a receive comes"

DIFFERENCES = {
    "QueryRoute: no endpoints": ("OK", OWN_ADDRESS),
    "QueryAssignment: no endpoints": ("OK", OWN_ADDRESS),
    "QueryRoute: no message": ("unknown", "gRPC names INTERNAL for it"),
    "QueryAssignment: group of 255 characters": ("OK", "records have no such topics here"),
    "SendMessage: no gzip": ("OK", "bodies are stored as zlib, which clients of 4.x read, too"),
    "SendMessage: control character in the id": ("OK", "it would begin another property"),
    "SendMessage: for no moment": ("OK", "a moment that was never set"),
    "ReceiveMessage: no settings": ("INTERNAL_SERVER_ERROR", SETTINGS_ALONE),
    "ReceiveMessage: no such topic": ("INTERNAL_SERVER_ERROR", AGAIN),
    "ReceiveMessage: SQL92 that is none": ("INTERNAL_SERVER_ERROR", AGAIN),
    "ReceiveMessage: SQL92 of blanks": ("INTERNAL_SERVER_ERROR", AGAIN),
    "AckMessage: no entries": ("INTERNAL_SERVER_ERROR", "nothing failed"),
    "AckMessage: no receipt": ("INTERNAL_SERVER_ERROR", AGAIN),
    "AckMessage: old receipt and none": ("MULTIPLE_RESULTS", AGAIN),
    "ChangeInvisibleDuration: no receipt": ("INTERNAL_SERVER_ERROR", AGAIN),
    "ChangeInvisibleDuration: old receipt": ("INTERNAL_SERVER_ERROR", AGAIN),
    "ForwardMessageToDeadLetterQueue: no receipt": ("INTERNAL_SERVER_ERROR", AGAIN),
    "ForwardMessageToDeadLetterQueue: old receipt": ("INTERNAL_SERVER_ERROR", AGAIN),
    "EndTransaction: unknown id": ("INTERNAL_SERVER_ERROR", AGAIN),
    "EndTransaction: no resolution": ("INTERNAL_SERVER_ERROR", "its client is asked again"),
    "RecallMessage: no such topic": (
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        "the text of Java's says UNSPECIFIED, and not that there is no topic",
    ),
    "Heartbeat: no settings": ("UNRECOGNIZED_CLIENT_TYPE", SETTINGS_ALONE),
    "Heartbeat: consumer without settings": ("UNRECOGNIZED_CLIENT_TYPE", SETTINGS_ALONE),
    "NotifyClientTermination: no settings": ("UNRECOGNIZED_CLIENT_TYPE", SETTINGS_ALONE),
    "Telemetry: producer of a topic with other characters": (
        "invalid_argument",
        "a status of RocketMQ, as for all wrong names",
    ),
    "Telemetry: group with other characters": (
        "invalid_argument",
        "a status of RocketMQ, as for all wrong names",
    ),
    "Telemetry: consumer of a topic with other characters": ("OK", NOT_LATER),
    "Telemetry: SQL92 that is none": ("OK", NOT_LATER),
}
"""What RocketMQ's proxy answers to a case, and why it is not the same here."""


class Caller:
    """Makes calls at a server, by the package ``grpc``."""

    _ids = itertools.count(1)

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)

    def close(self) -> None:
        self._channel.close()

    def metadata(self) -> dict[str, str]:
        """That of a new client."""
        return {
            "x-mq-client-id": f"case-{next(self._ids)}",
            "x-mq-language": "PYTHON",
            "x-mq-client-version": "5.0.2",
        }

    def answer(self, call: Call) -> tuple[str, str]:
        """Code and text of the answer to a call."""
        metadata = self.metadata() | dict(call.metadata)
        held = None
        try:
            if call.settings:
                told = publishing("T") if call.settings == "producer" else subscribing()
                held = self.settled(told, metadata)
            if call.name == "Telemetry":
                stream = Telemetry(self._channel, call.request, metadata)
                try:
                    status = stream.answer().status
                finally:
                    stream.close()
            else:
                [first, *_] = self.ask(call.name, call.request, metadata, call.seconds)
                status = first.status
        except grpc.RpcError as error:
            return error.code().name.lower(), error.details() or ""
        finally:
            if held is not None:
                held.close()
        return pb.Code.Name(status.code), status.message

    def settled(self, command: Any, metadata: dict[str, str]) -> Telemetry:
        """A stream whose settings were taken: ``settings`` is the answer."""
        stream = Telemetry(self._channel, command, metadata)
        answer = stream.answer()
        assert answer.status.code == pb.OK, answer.status.message
        stream.settings = answer.settings
        return stream

    def ask(
        self, name: str, request: Any, metadata: dict[str, str], seconds: float = SECONDS_MAX
    ) -> list[Any]:
        """All that a call is answered with."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answers = getattr(pb, f"{name}Response", pb.QueryRouteResponse)
        many = name in ("ReceiveMessage", "PullMessage")
        make = self._channel.unary_stream if many else self._channel.unary_unary
        made = make(SERVICE + name, None, answers.FromString)
        answer = made(data, timeout=seconds, metadata=tuple(metadata.items()))
        return list(answer) if many else [answer]


class Telemetry:
    """A stream that is open until it is closed."""

    def __init__(self, channel: grpc.Channel, command: Any, metadata: dict[str, str]) -> None:
        self.settings: Any = None
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._commands.put(command)
        make = channel.stream_stream(
            f"{SERVICE}Telemetry",
            pb.TelemetryCommand.SerializeToString,
            pb.TelemetryCommand.FromString,
        )
        requests = iter(self._commands.get, None)
        self._stream = make(requests, timeout=SECONDS_MAX, metadata=tuple(metadata.items()))

    def answer(self) -> Any:
        """The next command of the server."""
        return next(self._stream)

    def close(self) -> None:
        self._commands.put(None)
        self._stream.cancel()
