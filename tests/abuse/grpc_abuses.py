"""What is wrong with a request by gRPC, one field at a time, by the descriptors of its message.

A message of each call is filled with values of use; then each field of it has, in turn, what no
client writes. Bytes that are no message of the call are among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kerolox.protocol.grpc import messages as pb
from tests.abuse.abuses import TEXTS

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

__all__ = ["CALLS", "GROUP", "TOPIC", "abuses_of", "filled", "request_type"]

TOPIC, GROUP = "Abused", "abusers"

CALLS = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "ReceiveMessage",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "EndTransaction",
    "NotifyClientTermination",
    "ChangeInvisibleDuration",
    "RecallMessage",
    "Telemetry",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "SyncLiteSubscription",
)

LONG = "900 KB"
TEXTS_OF_FIELDS = {
    **{what: text for what, text in TEXTS.items() if what != "half a pair"},
    LONG: "z" * 900_000,
    "empty": "",
    "digits": "9" * 5_000,
    "nothing but separators": "|" * 60_000,
}
BYTES_OF_FIELDS = {
    "none": b"",
    "64 KiB": b"y" * (64 << 10),
    LONG: b"z" * 900_000,
    "torn gzip": b"\x1f\x8b\x08" + bytes(50),
    "torn zlib": b"\x78\x9c\xff\xff",
}
NUMBERS_OF_BITS = {
    32: (-(1 << 31), -1, 0, (1 << 31) - 1),
    64: (-(1 << 63), -1, 0, 1 << 53, (1 << 63) - 1),
}
ENUMS = -1, 0, 99, (1 << 31) - 1
COUNTS = 0, 1_000, 30_000
REAL_NUMBERS = float("nan"), float("inf"), -1.0, 1e300

VALUES: dict[str, Any] = {
    "client_type": pb.PUSH_CONSUMER,
    "message_type": pb.NORMAL,
    "body_encoding": pb.IDENTITY,
    "resolution": pb.COMMIT,
    "source": pb.SOURCE_CLIENT,
    "max_delivery_attempts": 3,
    "batch_size": 1,
    "queue_id": 0,
    "message_id": "01" + "AB" * 16,
    "body": b"abused",
    "expression": "*",
    "type": 1,
    "language": 2,
    "tag": "tag",
    "host": "127.0.0.1",
    "port": 8081,
    "auto_renew": False,
    "transaction_id": "0" * 32,
}
"""By the names of fields; others are texts of their own name, and 1."""

SECONDS = {"invisible_duration": 30, "long_polling_timeout": 5, "request_timeout": 3}
"""Of durations; others, and moments, have none."""

LEFT_OUT = frozenset(
    (
        "broker",
        "delivery_timestamp",
        "message_group",
        "lite_topic",
        "orphaned_transaction_recovery_duration",
    )
)
"""Fields that make another kind of message; they are abused all the same."""


def request_type(call: str) -> type[Message]:
    """The class of a call's request."""
    found: type[Message] = getattr(pb, f"{call}Request", None) or pb.TelemetryCommand
    return found


def filled(call: str, **values: Any) -> Any:
    """A request with all its fields."""
    request = request_type(call)()
    if call == "Telemetry":
        settings = request.settings
        _fill(settings, values)
        settings.subscription.group.name = GROUP
        del settings.subscription.subscriptions[1:]
        return request
    _fill(request, values)
    return request


def _fill(message: Any, values: dict[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name in LEFT_OUT:
            continue
        if field.name in ("topic", "group") and field.message_type is not None:
            getattr(message, field.name).name = TOPIC if field.name == "topic" else GROUP
        elif _is_map(field):
            getattr(message, field.name)["name"] = "value"
        elif field.message_type is None:
            value = values.get(field.name, VALUES.get(field.name, _plain(field)))
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif field.message_type.full_name.startswith("google.protobuf"):
            time = getattr(message, field.name)
            time = time.add() if field.is_repeated else time
            time.seconds = SECONDS.get(field.name, 0)
        elif field.is_repeated:
            _fill(getattr(message, field.name).add(), values)
        else:
            _fill(getattr(message, field.name), values)


def _plain(field: FieldDescriptor) -> Any:
    if field.type == field.TYPE_STRING:
        return field.name
    if field.type == field.TYPE_BYTES:
        return field.name.encode()
    return 1


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def abuses_of(request: Any) -> Iterator[tuple[str, bytes]]:
    """What is wrong, and the bytes of the request."""
    for path, field in list(_fields(request, ())):
        for what, change in _changes(field):
            changed = type(request)()
            changed.CopyFrom(request)
            owner = changed
            for name in path:
                owner = getattr(owner, name)
                owner = owner[0] if hasattr(owner, "add") else owner
            change(owner)
            yield f"{'.'.join((*path, field.name))}: {what}", changed.SerializeToString()
    data = request.SerializeToString()
    yield "nothing", b""
    yield "torn", data[:-3]
    yield "noise", b"\xff\xfe\x00x" * 100
    yield "no UTF-8", data.replace(b"A", b"\xff")
    yield "a megabyte that nobody knows", data + b"\xfa\x3f" + b"\x80\x80\x38" + bytes(0xE0000)
    yield "groups in groups", b"\x0b" * 50_000
    yield "itself again and again", data * (60_000 // max(len(data), 1))


def _fields(
    message: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    for field in message.DESCRIPTOR.fields:
        yield path, field
        if field.message_type is None or _is_map(field):
            continue
        if field.is_repeated:
            items = getattr(message, field.name)
            if len(items):
                yield from _fields(items[0], (*path, field.name))
        elif message.HasField(field.name) or field.name in LEFT_OUT:
            yield from _fields(getattr(message, field.name), (*path, field.name))


def _changes(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    name = field.name
    yield "none", lambda owner: owner.ClearField(name)
    if _is_map(field):
        yield "1,000", lambda owner: getattr(owner, name).update(_pairs(1_000))
        yield "10,000", lambda owner: getattr(owner, name).update(_pairs(10_000))
        for what, text in TEXTS_OF_FIELDS.items():
            yield (
                f"a name: {what}",
                lambda owner, text=text: getattr(owner, name).update({text: "v"}),
            )
            yield (
                f"a value: {what}",
                lambda owner, text=text: getattr(owner, name).update({"n": text}),
            )
        return
    if field.is_repeated:
        for count in COUNTS:
            yield f"{count} times", lambda owner, count=count: _repeat(owner, name, count)
    if field.message_type is None:
        for what, value in _values(field):
            yield what, lambda owner, value=value: _set(owner, field, value)


def _pairs(count: int) -> dict[str, str]:
    return {f"n{number}": "v" for number in range(count)}


def _repeat(owner: Any, name: str, count: int) -> None:
    items = getattr(owner, name)
    first = items[0] if len(items) else None
    del items[:]
    if first is not None:
        items.extend([first] * count)


def _set(owner: Any, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(owner, field.name).append(value)
    else:
        setattr(owner, field.name, value)


def _values(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    if field.type == field.TYPE_STRING:
        yield from TEXTS_OF_FIELDS.items()
    elif field.type == field.TYPE_BYTES:
        yield from BYTES_OF_FIELDS.items()
    elif field.type == field.TYPE_BOOL:
        yield from (("true", True), ("false", False))
    elif field.type == field.TYPE_ENUM:
        yield from ((str(number), number) for number in ENUMS)
    elif field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        yield from ((str(number), number) for number in REAL_NUMBERS)
    else:
        bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 64
        yield from ((str(number), number) for number in NUMBERS_OF_BITS[bits])
