"""From received messages to FastStream's, and what travels beside a body.

A header is a user property. Three are FastStream's: ``content-type``, ``correlation_id`` and
``reply_to``. RocketMQ takes no empty body, so that of ``None`` travels as one zero byte with the
property :data:`EMPTY_BODY`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from faststream._internal.constants import ContentTypes
from faststream.message import StreamMessage, decode_message

from kerolox.errors import RemoteProtocolError
from kerolox.integrations.faststream.message import KeroloxMessage, RawMessage, Settler
from kerolox.message import RESERVED_PROPERTIES, TIMERS, MessageExt, PropertyKey

if TYPE_CHECKING:
    from faststream._internal.basic_types import DecodedMessage

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"

EMPTY_BODY = "empty-body"
"""Property of a message whose body, a zero byte, stands for an empty one."""

_NOT_HEADERS = (
    RESERVED_PROPERTIES
    | TIMERS
    | {
        EMPTY_BODY,
        PropertyKey.TIMER_OUT,
        PropertyKey.TIMER_ENQUEUED,
        PropertyKey.TIMER_DEQUEUED,
        PropertyKey.TIMER_ROLL_TIMES,
        PropertyKey.POP_RECEIPT,
        PropertyKey.FIRST_POP_TIME,
        PropertyKey.TRANSACTION_PREPARED_QUEUE_OFFSET,
        PropertyKey.TRANSACTION_CHECK_TIMES,
    }
)


def properties_of(
    headers: dict[str, Any],
    *,
    body: bytes,
    content_type: str | None,
    correlation_id: str | None,
    reply_to: str,
) -> dict[str, str]:
    """The user properties of a message to send. Headers that are None are left out, others are
    texts."""
    properties = {name: str(value) for name, value in headers.items() if value is not None}
    if content_type:
        properties[CONTENT_TYPE] = content_type
    if correlation_id:
        properties.setdefault(CORRELATION_ID, correlation_id)
    if reply_to:
        properties.setdefault(REPLY_TO, reply_to)
    if not body:
        properties[EMPTY_BODY] = "true"
    return properties


def body_of(message: MessageExt) -> bytes:
    """The body as it was published."""
    return b"" if EMPTY_BODY in message.properties else message.body


_from_json = msgspec.json.Decoder().decode


class _Encoded(NamedTuple):
    """What of a message says how its body is decoded."""

    body: bytes
    content_type: str | None


class KeroloxParser:
    """Parses what one subscriber reads, or replies."""

    def __init__(self) -> None:
        self.settler: Settler | None = None
        """Of the subscriber, while it runs."""

    async def parse_message(self, message: MessageExt) -> KeroloxMessage:
        """A message."""
        properties, headers = message.properties, headers_of(message)
        return self._settled(
            KeroloxMessage(
                message,
                body_of(message),
                headers=headers,
                reply_to=headers.get(REPLY_TO) or properties.get(PropertyKey.REPLY_TO_CLIENT, ""),
                content_type=headers.get(CONTENT_TYPE),
                correlation_id=headers.get(CORRELATION_ID),
                message_id=message.message_id,
            )
        )

    async def parse_batch(self, messages: tuple[MessageExt, ...]) -> KeroloxMessage:
        """A batch, of which the first message counts for what a batch has once."""
        headers = [headers_of(message) for message in messages]
        first = headers[0]
        return self._settled(
            KeroloxMessage(
                messages,
                [body_of(message) for message in messages],
                headers=first,
                batch_headers=headers,
                reply_to=first.get(REPLY_TO, ""),
                content_type=first.get(CONTENT_TYPE),
                correlation_id=first.get(CORRELATION_ID),
                message_id=f"{messages[0].message_id}-{messages[-1].message_id}",
            )
        )

    def _settled(self, message: KeroloxMessage) -> KeroloxMessage:
        message.settler = self.settler
        return message

    async def decode_message(self, message: StreamMessage[Any]) -> DecodedMessage:
        """The body, by its content type.

        Raises:
            RemoteProtocolError: the body can't be inflated.
        """
        _check_body(message.raw_message)
        return _decoded(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[DecodedMessage]:
        """The bodies of a batch, each by its own content type.

        Raises:
            RemoteProtocolError: one can't be inflated.
        """
        decoded = []
        for raw, body, headers in zip(
            message.raw_message, message.body, message.batch_headers, strict=True
        ):
            _check_body(raw)
            decoded.append(_decoded(_Encoded(body, headers.get(CONTENT_TYPE))))
        return decoded


def _decoded(message: StreamMessage[Any] | _Encoded) -> DecodedMessage:
    """What FastStream makes of a body; JSON, of which most are, takes it ten times as long."""
    if message.content_type == ContentTypes.JSON.value:
        try:
            return cast("DecodedMessage", _from_json(message.body))
        except ValueError:
            pass  # no number, NaN: Python's reader takes more, and it knows the usual errors
    return decode_message(cast("StreamMessage[Any]", message))


def headers_of(message: MessageExt) -> dict[str, str]:
    """The user properties."""
    return {name: text for name, text in message.properties.items() if name not in _NOT_HEADERS}


def _check_body(raw: MessageExt) -> None:
    if raw.body_error:
        raise RemoteProtocolError(f"message {raw.message_id}: {raw.body_error}")


def first_of(raw: RawMessage) -> MessageExt:
    """The message, or the first of a batch."""
    return raw[0] if isinstance(raw, tuple) else raw


def bytes_of(message: StreamMessage[RawMessage]) -> int:
    """The size of the body, or of those of a batch."""
    body = message.body
    return sum(map(len, body)) if isinstance(body, list) else len(body)
