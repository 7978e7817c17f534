"""Raft's messages between controllers: RAFT_MESSAGE (31042), one-way.

The body is a message as MessagePack. ``mac`` is an HMAC-SHA256 of group and body under the secret
that the controllers share. A message that is recorded and sent again does no harm: Raft bears
messages that come late and twice.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from kerolox.controller.raft.messages import Message
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.headers import Header
from kerolox.protocol.names import Name

MESSAGE_BYTES_MAX = 12 * 1024 * 1024
"""Longest message: a snapshot of the metadata."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class RaftMessageError(ValueError):
    """It is no message of this group; the text says why."""


class RaftMessageHeader(Header, frozen=True, kw_only=True):
    """RAFT_MESSAGE (31042)."""

    group: Name
    mac: Name = ""


def raft_command(message: Message, group: str, secret: str) -> RemotingCommand:
    """The request that carries a message."""
    body = _encode(message)
    header = RaftMessageHeader(group=group, mac=_mac(group, secret, body))
    return RemotingCommand.request(
        RequestCode.RAFT_MESSAGE, header.encode(), body=body, oneway=True
    )


def raft_message(header: RaftMessageHeader, body: bytes, group: str, secret: str) -> Message:
    """The message of a request. RaftMessageError: of another group, not signed with the secret, or
    not as a controller makes it."""
    if header.group != group:
        raise RaftMessageError(f"it is of group {header.group!r}, this one is of {group!r}")
    if len(body) > MESSAGE_BYTES_MAX:
        raise RaftMessageError(f"{len(body)} bytes; at most {MESSAGE_BYTES_MAX} are taken")
    if not hmac.compare_digest(header.mac.encode(), _mac(group, secret, body).encode()):
        raise RaftMessageError("it is not signed with the controllerSecret of this controller")
    try:
        message = _decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise RaftMessageError(f"it is no message of Raft: {error}") from None
    follows = message.index
    for entry in message.entries:
        if entry.index != follows + 1 or entry.term > message.term:
            raise RaftMessageError(f"its entry {entry.index} is not behind {follows}")
        follows = entry.index
    if min(message.term, message.index, message.log_term, message.commit) < 0:
        raise RaftMessageError("it has a number below 0")
    return message


def _mac(group: str, secret: str, body: bytes) -> str:
    if not secret:
        return ""
    return hmac.new(secret.encode(), group.encode() + b"\0" + body, hashlib.sha256).hexdigest()
