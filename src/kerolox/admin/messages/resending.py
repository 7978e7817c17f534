"""Sending messages again: a copy to a topic, a dead letter to the group that gave it up."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

from kerolox.admin.asking import current_route
from kerolox.admin.messages.reading import read_messages
from kerolox.admin.messages.sending import GROUP, Sender, writable_queues
from kerolox.client.core.sending.send import passed_on_message
from kerolox.errors import TopicRouteNotFoundError
from kerolox.message import (
    RESERVED_PROPERTIES,
    Message,
    MessageExt,
    PropertyKey,
)
from kerolox.protocol.names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kerolox.admin.positions import Position
    from kerolox.client.aio.network.access import Access
    from kerolox.client.core.sending.send import SendResult


def copy_of(message: MessageExt, *, topic: str = "", body: bytes | None = None) -> Message:
    """A message as its producer made it, to be sent again: body, tags, keys, flag and the
    producer's properties. Its id, delay and transaction are not those of the copy.

    Args:
        message: a stored one.
        topic: where the copy goes; empty: the topic that the message was sent to first.
        body: another body; None: the same.
    """
    origin = message.properties.get(PropertyKey.RETRY_TOPIC) or message.topic
    own = {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_PROPERTIES and name.strip() and value.strip()
    }
    return Message(
        topic or origin,
        message.body if body is None else body,
        tags=message.tags,
        keys=message.keys,
        flag=message.flag,
        properties=own,
    )


async def dead_letters(
    access: Access,
    group: str,
    *,
    start: Position | None = None,
    stop: Position | None = None,
    max_messages: int | None = None,
) -> AsyncIterator[MessageExt]:
    """The messages that a group gave up (topic ``%DLQ%group``), in order; none where the group has
    no such topic, which is made with the first one. Arguments and other errors: see
    :func:`kerolox.admin.read_messages`."""
    found = read_messages(
        access, DLQ_PREFIX + group, start=start, stop=stop, max_messages=max_messages
    )
    with contextlib.suppress(TopicRouteNotFoundError):
        async for message in found:
            yield message


async def resend_dead_letter(
    access: Access, group: str, message: MessageExt, *, body: bytes | None = None
) -> SendResult:
    """Give a dead letter to its group again, and to no other group: a copy goes to the group's
    retry topic with all its retries before it. The dead letter itself stays.

    Args:
        access: the cluster.
        group: who gave it up.
        message: the dead letter.
        body: another body; None: the same.

    Raises:
        TopicRouteNotFoundError: the group has no retry topic.
        MessageRejectedError: the message's properties can't be sent.
        BrokerError: the copy was not stored.
        RemotingError: the broker does not answer; whether it is stored is unknown.
    """
    origin = message.properties.get(PropertyKey.RETRY_TOPIC, "")
    outgoing = passed_on_message(message, group, delay_level=0, topic=origin)
    outgoing = outgoing._replace(reconsume_times=0, max_reconsume_times=None)
    if body is not None:
        outgoing = outgoing._replace(body=body, sys_flag=0)
    topic = RETRY_PREFIX + group
    route = await current_route(access, topic)
    queue = random.choice(writable_queues(route, topic))
    return await Sender(access, GROUP).send_outgoing(outgoing, queue, route)
