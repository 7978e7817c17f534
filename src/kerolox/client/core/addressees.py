"""Whom of a client instance a request of a broker is for (``ClientRemotingProcessor``).

What concerns consumers names their group in a field; a check names the producers' group in the
message's properties; a reply belongs to whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kerolox.client.core.sending.request_reply import correlation_of
from kerolox.errors import RemoteProtocolError
from kerolox.message import PropertyKey
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.records import decode_record

if TYPE_CHECKING:
    from kerolox.protocol.command import RemotingCommand

OF_CONSUMERS = frozenset(
    (
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    )
)
OF_PRODUCERS = frozenset(
    (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
)


class Addressee(Protocol):
    """A producer or consumer."""

    @property
    def group(self) -> str:
        """As brokers know it."""

    @property
    def is_consumer(self) -> bool:
        """A producer otherwise."""

    def waits_for(self, correlation_id: str) -> bool:
        """It has sent a request with this id, to which no reply has come."""


_Member = TypeVar("_Member", bound=Addressee)


def addressees(command: RemotingCommand, members: Sequence[_Member]) -> list[_Member]:
    """The members that a request is for, the first of which answers it; maybe none.

    What is for nobody in particular, or for none of these, goes to the first that knows how to
    refuse it. But a check goes to producers of its group alone: others could not know.
    """
    code = command.code
    able = [
        member
        for member in members
        if code not in (OF_PRODUCERS if member.is_consumer else OF_CONSUMERS)
    ]
    if not able:
        return list(members[:1])
    if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        group = command.ext_fields.get("consumerGroup")
        return [member for member in able if member.is_consumer and group in (None, member.group)]
    if code == RequestCode.CHECK_TRANSACTION_STATE:
        group = _checked_group(command)
        return [member for member in able if group in ("", member.group)][:1]
    if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
        correlation_id = correlation_of(command)
        named = [member for member in able if member.waits_for(correlation_id)]
    else:
        group = command.ext_fields.get("consumerGroup") or command.ext_fields.get("group")
        named = [member for member in able if member.is_consumer and member.group == group]
    return (named or able)[:1]


def _checked_group(command: RemotingCommand) -> str:
    """The group whose producers know how the transaction of a message ended; "": not named."""
    try:
        message, _ = decode_record(command.body)
    except RemoteProtocolError:
        return ""  # whoever gets it says so
    return message.properties.get(PropertyKey.PRODUCER_GROUP, "")
