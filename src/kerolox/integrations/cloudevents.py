"""Events of CloudEvents 1.0 as messages, in both modes of RocketMQ's binding.

::

    event = CloudEvent("shop.order.created", "/shop", b'{"amount": 5}', subject="o-1")
    await producer.send(message_of(event, "Orders"))
    ...
    event = event_of(message)

In binary mode the body is the event's data, and properties ``CE_id``, ``CE_source`` ... are its
attributes (``CE_contenttype`` is ``datacontenttype``). In structured mode the body is the event as
JSON. The names are those of RocketMQ's binding; ``ce_...`` and ``content-type``, as Kafka's has
them, are read, too. Nothing of the official library is needed.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from kerolox.errors import ConfigError, SerializationError
from kerolox.message import Message, MessageExt
from kerolox.text import quoted

__all__ = ["CloudEvent", "event_of", "is_event", "message_of"]

SPEC_VERSION = "1.0"
PREFIX = "CE_"
CONTENT_TYPE = "contenttype"
NO_DATA = b"\0"
"""The body of an event without data, as the official library for Java has it: brokers refuse an
empty one."""
STRUCTURED = "application/cloudevents"
STRUCTURED_JSON = "application/cloudevents+json; charset=UTF-8"
NAME_CHARACTERS_MAX = 64
ATTRIBUTES_MAX = 128

_NAME = re.compile(rf"[a-z0-9]{{1,{NAME_CHARACTERS_MAX}}}")
_JSON_TYPE = re.compile(r"[^/]+/(?:[^;]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OWN = ("id", "source", "type", "specversion", "datacontenttype", "dataschema", "subject", "time")

Value = str | int | bool | bytes | datetime.datetime


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """One event. ``type`` and ``source`` together say what happened where; ``source`` and ``id``
    are unique. ConfigError: an attribute is empty, or has a name or a value that none may have.
    """

    type: str
    source: str
    data: bytes | None = None
    """As ``datacontenttype`` says; None: there is none, and none is read of an empty one."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    time: datetime.datetime | None = None
    """With a zone."""
    subject: str = ""
    datacontenttype: str = "application/json"
    dataschema: str = ""
    extensions: Mapping[str, Value] = field(default_factory=dict)
    """Names of small letters and digits; of an event that was read values are texts."""

    def __post_init__(self) -> None:
        for name in ("type", "source", "id"):
            if not getattr(self, name):
                raise ConfigError(f"a cloud event needs {name}; give it a text")
        if self.time is not None and self.time.tzinfo is None:
            raise ConfigError("the time of a cloud event has no zone; give it one")
        for name, value in self.attributes().items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{quoted(name)} is no name of a cloud event's attribute: small letters and "
                    f"digits, {NAME_CHARACTERS_MAX} at most"
                )
            if _CONTROL.search(value):
                raise ConfigError(f"the attribute {name} has a control character in it")
        if taken := [name for name in self.extensions if name in (*_OWN, "data", "data_base64")]:
            raise ConfigError(f"{taken[0]} is an attribute of its own, and no extension")

    def attributes(self) -> dict[str, str]:
        """All that are set, as texts, without the data."""
        own = {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "datacontenttype": self.datacontenttype if self.data is not None else "",
            "dataschema": self.dataschema,
            "subject": self.subject,
            "time": "" if self.time is None else _text(self.time),
        }
        return {name: value for name, value in own.items() if value} | {
            name: _text(value) for name, value in self.extensions.items()
        }


def _text(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime():
            return value.isoformat().replace("+00:00", "Z")
    return str(value)


def message_of(
    event: CloudEvent,
    topic: str,
    *,
    structured: bool = False,
    tags: str = "",
    keys: str | Iterable[str] = "",
    properties: Mapping[str, str] | None = None,
) -> Message:
    """The message of an event.

    Args:
        event: what happened.
        topic: where it is sent.
        structured: the body is the whole event as JSON; else the data, beside properties.
        tags, keys, properties: of the message, beside those of the event.

    Raises:
        ConfigError: a property is an attribute of the event, too.
        MessageRejectedError: a property has a name or a value that none may have.
    """
    own = {CONTENT_TYPE: STRUCTURED_JSON} if structured else _renamed(event.attributes())
    made = {PREFIX + name: value for name, value in own.items()}
    more = dict(properties or {})
    if twice := made.keys() & more.keys():
        raise ConfigError(f"property {min(twice)} is the event's own; leave it out")
    body = _structured(event) if structured else event.data or NO_DATA
    return Message(topic, body, tags=tags, keys=keys, properties={**more, **made})


def _renamed(attributes: Mapping[str, str]) -> dict[str, str]:
    return {
        CONTENT_TYPE if name == "datacontenttype" else name: value
        for name, value in attributes.items()
    }


def _structured(event: CloudEvent) -> bytes:
    numbers = {name: each for name, each in event.extensions.items() if isinstance(each, int)}
    members: dict[str, object] = {**event.attributes(), **numbers}
    data = event.data
    if data is not None:
        try:
            if not _JSON_TYPE.fullmatch(event.datacontenttype):
                raise ValueError
            msgspec.json.decode(data)
            members["data"] = msgspec.Raw(data)
        except (ValueError, RecursionError):
            members["data_base64"] = base64.b64encode(data).decode()
    return msgspec.json.encode(members)


def is_event(message: MessageExt) -> bool:
    """Whether a message says that it is an event of CloudEvents."""
    found = _properties(message)
    return found.get(CONTENT_TYPE, "").lower().startswith(STRUCTURED) or "specversion" in found


def event_of(message: MessageExt) -> CloudEvent:
    """The event of a message that was read, in whichever mode.

    Raises:
        SerializationError: it is none, of another version, or its body can't be read.
    """
    found = _properties(message)
    kind = found.get(CONTENT_TYPE, "")
    try:
        if message.body_error:
            raise ValueError(message.body_error)
        if kind.lower().startswith(STRUCTURED):
            return _of_structured(kind, message.body)
        content_type = found.pop(CONTENT_TYPE, "") or found.pop("datacontenttype", "")
        data = None if message.body in (b"", NO_DATA) else message.body
        return _event(found, data, content_type)
    except (ValueError, RecursionError, ConfigError) as error:
        name = f"message {message.message_id} of topic {message.topic}"
        raise SerializationError(f"{name} is no cloud event: {error}") from None


def _properties(message: MessageExt) -> dict[str, str]:
    """Attributes by name, as properties have them; those of RocketMQ's binding first."""
    found: dict[str, str] = {}
    for name, value in message.properties.items():
        if name[: len(PREFIX)].upper() == PREFIX:
            own = name[len(PREFIX) :].lower()
            if own not in found or name.startswith(PREFIX):
                found[own] = value
    for name in ("content-type", "Content-Type"):
        if name in message.properties:
            found.setdefault(CONTENT_TYPE, message.properties[name])
    return found


def _of_structured(kind: str, body: bytes) -> CloudEvent:
    form = kind.partition(";")[0].strip().lower()
    if form not in (STRUCTURED, f"{STRUCTURED}+json"):
        raise ValueError(f"its format is {quoted(form)}; application/cloudevents+json is read")
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise ValueError(f"its body is no JSON object: {error}") from None
    raw, in_base64 = members.pop("data", None), members.pop("data_base64", None)
    if raw is not None and in_base64 is not None:
        raise ValueError("it has data and data_base64")
    attributes = {
        name: _member(name, value) for name, value in members.items() if bytes(value) != b"null"
    }
    content_type = attributes.pop("datacontenttype", "")
    data = None if raw is None else _data(bytes(raw), content_type)
    if in_base64 is not None:
        try:
            data = base64.b64decode(msgspec.json.decode(in_base64, type=str), validate=True)
        except binascii.Error as error:
            raise ValueError(f"data_base64: {error}") from None
    return _event(attributes, data, content_type)


def _data(raw: bytes, content_type: str) -> bytes | None:
    if raw == b"null":
        return None
    if content_type and not _JSON_TYPE.fullmatch(content_type) and raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str).encode()
    return raw


def _member(name: str, raw: msgspec.Raw) -> str:
    value = msgspec.json.decode(raw)
    if not isinstance(value, str | int | bool):
        raise ValueError(f"the attribute {quoted(name)} is no text, whole number or boolean")
    return _text(value)


def _event(attributes: dict[str, str], data: bytes | None, content_type: str) -> CloudEvent:
    version = attributes.pop("specversion", "")
    if not version:
        raise ValueError("it has no specversion")
    if version != SPEC_VERSION:
        raise ValueError(f"its version is {quoted(version)}; {SPEC_VERSION} is read")
    if len(attributes) > ATTRIBUTES_MAX:
        raise ValueError(f"it has {len(attributes)} attributes; {ATTRIBUTES_MAX} are read")
    time = attributes.pop("time", "")
    own = {name: attributes.pop(name, "") for name in ("id", "source", "type", "subject")}
    if missing := [name for name in ("id", "source", "type") if not own[name]]:
        raise ValueError(f"it has no {missing[0]}")
    return CloudEvent(
        own["type"],
        own["source"],
        data,
        id=own["id"],
        time=_moment(time) if time else None,
        subject=own["subject"],
        datacontenttype=content_type or "application/json",
        dataschema=attributes.pop("dataschema", ""),
        extensions=attributes,
    )


def _moment(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"its time is {quoted(text)}; RFC 3339 is read") from None
    if moment.tzinfo is None:
        raise ValueError(f"its time is {quoted(text)}, without a zone")
    return moment
