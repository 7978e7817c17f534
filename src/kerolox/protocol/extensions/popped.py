"""Messages that are out, popped and not acknowledged: requests of Kerolox's own.

GET_POPPED_MESSAGES (31040) says what a group has out at a broker: by queue, by member, and the
first messages one by one. RELEASE_POPPED_MESSAGES (31041) lets messages come again at once. Both
have a :class:`PoppedSelection` as their body and are answered with :class:`PoppedAnswer`. A broker
of RocketMQ answers both with code 3 (REQUEST_CODE_NOT_SUPPORTED).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kerolox.protocol.names import Int32, Int64, Name, TopicName

LISTED_MAX = 1_000
"""Messages that an answer names one by one, at the most."""

OWNERS_MAX = 1_000
"""Members that an answer names; those with the most messages."""

ANY = -1
"""Of a number of a selection: each."""

_Listed = Annotated[int, msgspec.Meta(ge=0, le=LISTED_MAX)]


class PoppedSelection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which messages that are out are meant; each member that is given narrows it."""

    group: Name
    topic: TopicName = ""
    """As it was sent to, with its retries; empty: all."""
    queue_id: Int32 = ANY
    offset: Int64 = ANY
    owner: Name = ""
    """Who has it, as an answer names it."""
    held_ms: Int64 = 0
    """Out for so long at least."""
    popped_until: Int64 = ANY
    """Popped at this time of the broker's clock at the latest: ``now`` of an answer, so that only
    what it showed is released."""
    listed: _Listed = LISTED_MAX
    """How many messages are named one by one."""


class PoppedQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is out of a queue."""

    topic: TopicName
    """The queue's own: of retries, that of retries."""
    queue_id: Int32
    messages: Int32
    oldest_ms: Int64
    """For how long the oldest is out."""
    oldest_owner: Name = ""
    """Who has that."""
    is_order: bool = False
    """Popped in order: nothing more of the queue goes out before. They are released together."""
    overdue_ms: Int64 = 0
    """For how long one is overdue that waits to come again, the longest; 0: none is."""
    tries: Int32 = 0
    """How often a copy of one failed, the most; of ordered ones, how often one was delivered before
    and was not acknowledged."""


class PoppedOwner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a member has."""

    owner: Name
    """Its client id, or its address if it sends no heartbeats; empty: not known."""
    messages: Int32
    oldest_ms: Int64


class PoppedMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One message that is out."""

    topic: TopicName
    queue_id: Int32
    offset: Int64
    owner: Name = ""
    held_ms: Int64 = 0
    """For how long it is out."""
    left_ms: Int64 = 0
    """Until it comes again by itself; negative: so long it is overdue."""
    is_order: bool = False


class PoppedAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is out, or was released."""

    now: Int64
    """By the broker's clock."""
    messages: Int32
    """How many there are."""
    queues: list[PoppedQueue] = []
    owners: list[PoppedOwner] = []
    """Those with the most messages first."""
    listed: list[PoppedMessage] = []
    """The first of each queue, lowest first."""
