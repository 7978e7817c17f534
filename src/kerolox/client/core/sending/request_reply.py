"""Requests that wait for a reply, as messages: what marks them, and what a reply is made of.

A request is a plain message with three more properties. CORRELATION_ID pairs it with its reply,
REPLY_TO_CLIENT names the client that waits, and TTL how long. A reply repeats them and goes to the
reply topic of the cluster that stored the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.errors import MessageRejectedError, RemoteProtocolError, ReplyError
from kerolox.message import Message, MessageExt, PropertyKey, decode_properties
from kerolox.protocol.compression import inflate_body
from kerolox.protocol.names import REPLY_TOPIC_SUFFIX
from kerolox.text import printable, wrong_type

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

REPLY_TYPE = "reply"
"""MSG_TYPE of a reply."""

REPLY_ERROR = "KEROLOX_REPLY_ERROR"
"""Property of a reply: why there is no answer. RocketMQ has none such, so its clients get a reply
like any other."""

ERROR_CHARACTERS_MAX = 2_048
"""A longer text of an error is cut: properties have little space."""


@dataclass(slots=True)
class ReplyMessage(Message):
    """The reply to a request. :func:`create_reply` makes it; a producer sends it."""

    correlation_id: str = ""
    reply_to_client: str = ""
    ttl_ms: str = ""
    error: str = ""
    """Why there is no answer; empty: there is one."""

    def wire_properties(self) -> dict[str, str]:
        """As of any message, and which request it answers."""
        # No super(): a dataclass with slots is another class than the one that is written here.
        wire = Message.wire_properties(self)
        wire[PropertyKey.MESSAGE_TYPE] = REPLY_TYPE
        wire[PropertyKey.CORRELATION_ID] = self.correlation_id
        wire[PropertyKey.REPLY_TO_CLIENT] = self.reply_to_client
        if self.ttl_ms:
            wire[PropertyKey.TTL] = self.ttl_ms
        if self.error:
            wire[REPLY_ERROR] = self.error
        return wire


def create_reply(request: MessageExt, body: bytes = b"", *, error: str = "") -> ReplyMessage:
    """The reply to a request that a consumer received (``MessageUtil.createReplyMessage``).

    Send it with any producer; tags, keys and properties may be set before. The broker answers the
    send when the client that asked has the reply, and with an error when that one is gone.

    Args:
        request: the message with the request.
        body: what to reply; empty: the error.
        error: why there is no answer: the caller's ``request`` ends with a :class:`ReplyError` that
            has this text, instead of a timeout. Callers of RocketMQ get the body alone.

    Raises:
        MessageRejectedError: the message waits for no reply, or no broker has stored it; the body
            is no bytes, the error no text.
    """
    if not isinstance(error, str):
        raise MessageRejectedError(f"error {wrong_type(error, 'str')}")
    if not isinstance(request, MessageExt):
        raise MessageRejectedError(f"request {wrong_type(request, 'MessageExt')}")
    error = printable(error, characters_max=ERROR_CHARACTERS_MAX)
    properties = request.properties
    for name in (
        PropertyKey.CLUSTER,
        PropertyKey.CORRELATION_ID,
        PropertyKey.REPLY_TO_CLIENT,
    ):
        if not properties.get(name):
            raise MessageRejectedError(
                f"message {request.unique_key!r} of topic {request.topic!r} has no property {name};"
                " only what a producer sent with `request` can be replied to"
            )
    return ReplyMessage(
        reply_topic(properties[PropertyKey.CLUSTER]),
        body or error.encode(),
        correlation_id=properties[PropertyKey.CORRELATION_ID],
        reply_to_client=properties[PropertyKey.REPLY_TO_CLIENT],
        ttl_ms=properties.get(PropertyKey.TTL, ""),
        error=error,
    )


def check_reply(reply: MessageExt, what: str) -> MessageExt:
    """The same reply; ReplyError, which names the request by ``what``: it is that of an error."""
    error = reply.properties.get(REPLY_ERROR)
    if error:
        said = printable(error, characters_max=ERROR_CHARACTERS_MAX)
        raise ReplyError(f"{what} was answered with an error: {said}", reply)
    return reply


def reply_topic(cluster: str) -> str:
    """The topic that replies to requests of a cluster go to."""
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"


def correlation_of(command: RemotingCommand) -> str:
    """Which request a reply that a broker brings belongs to; empty: it does not say."""
    properties = decode_properties(command.ext_fields.get("properties", ""))
    return properties.get(PropertyKey.CORRELATION_ID, "")


def pushed_reply(command: RemotingCommand, *, now_ms: int) -> MessageExt:
    """The reply that a broker brings (PUSH_REPLY_MESSAGE_TO_CLIENT); RemoteProtocolError: a field
    is missing or no number.

    It was not read from a queue, so it has no offsets. A body that can't be inflated stays as it
    is, and ``body_error`` says why.
    """
    fields = command.ext_fields
    properties = decode_properties(fields.get("properties", ""))
    properties[PropertyKey.REPLY_ARRIVE_TIME] = str(now_ms)
    try:
        message = MessageExt(
            topic=fields["topic"],
            body=command.body,
            queue_id=int(fields["queueId"]),
            queue_offset=0,
            commit_log_offset=0,
            properties=properties,
            flag=int(fields["flag"]),
            sys_flag=int(fields["sysFlag"]),
            born_timestamp=int(fields["bornTimestamp"]),
            store_timestamp=int(fields["storeTimestamp"]),
            born_host=_host(fields.get("bornHost", "")),
            store_host=_host(fields.get("storeHost", "")),
            reconsume_times=int(fields.get("reconsumeTimes") or 0),
        )
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"a pushed reply is malformed: {error!r}") from None
    try:
        message.body = inflate_body(message.body, message.sys_flag)
    except RemoteProtocolError as error:
        message.body_error = str(error)
    return message


def _host(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("/"), int(port or 0)
