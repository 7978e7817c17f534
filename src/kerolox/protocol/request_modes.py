"""Whether members of a group pull or pop a topic whose queues the broker shares out."""

from __future__ import annotations

from typing import Literal

import msgspec

from kerolox.protocol.names import Int32, Name, TopicName


class MessageRequestMode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a group consumes a topic whose members leave it to the broker: the body of
    SET_MESSAGE_REQUEST_MODE (401), and a member of ``config/messageRequestMode.json``."""

    consumer_group: Name
    mode: Literal["PULL", "POP"] = "PULL"
    pop_share_queue_num: Int32 = 0
    """With POP: how many of the members after it each one helps; 0 or less: all."""
    topic: TopicName


class MessageRequestModes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to GET_ALL_MESSAGE_REQUEST_MODE (402) and ``config/messageRequestMode.json``."""

    message_request_mode_map: dict[TopicName, dict[Name, MessageRequestMode]] = {}
    """By topic and group."""
