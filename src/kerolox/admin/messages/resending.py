"""Sending messages again: a copy of a stored message to a topic."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kerolox.admin.cluster import ClusterRequests
from kerolox.admin.messages.sending import GROUP, QueueSender, writable_queues
from kerolox.client.core.checking import checked
from kerolox.client.core.validate import check_send_topic
from kerolox.message import (
    DEAD_LETTER_REASON,
    RESERVED_PROPERTIES,
    Message,
    MessageExt,
    PropertyKey,
)

if TYPE_CHECKING:
    from kerolox.client.core.sending.send import SendResult

_NOT_OF_THE_COPY = RESERVED_PROPERTIES | {DEAD_LETTER_REASON, PropertyKey.POP_RECEIPT}


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
        if name not in _NOT_OF_THE_COPY and name.strip() and value.strip()
    }
    return Message(
        topic or origin,
        message.body if body is None else body,
        tags=message.tags,
        keys=message.keys,
        flag=message.flag,
        properties=own,
    )


@checked()
class MessageCopyRequests(ClusterRequests):
    """Sends copies of messages."""

    async def send_copy(
        self, message: MessageExt, *, topic: str = "", body: bytes | None = None
    ) -> SendResult:
        """Send a stored message once more, to all groups of a topic (:func:`copy_of`). An empty
        body is sent as it is: RocketMQ's clients refuse one, its brokers store it.

        Args:
            message: a stored one.
            topic: where the copy goes; empty: the topic that the message was sent to first.
            body: another body; None: the same.

        Raises:
            MessageRejectedError: the topic is illegal, or the message's properties can't be sent.
            TopicRouteNotFoundError: no name server knows the topic.
            ClientError: the topic has no queue to write.
            BrokerError: the message was not stored.
            RemotingError: the broker does not answer; whether it is stored is unknown.
        """
        copy = copy_of(message, topic=topic, body=body)
        check_send_topic(copy.topic)
        route = await self.access.route(copy.topic)
        queue = random.choice(writable_queues(route, copy.topic))
        return await QueueSender(self.access, GROUP).send(copy, queue, route)
