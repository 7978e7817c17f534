"""Ready-made choices of a message's queue, for ``selector=`` of a send.

The queues that a selector gets are in the order that Java's producers see: by broker name, then by
number; where the name servers have an ordered-topic setting, in its order. So Java and Kerolox
choose alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kerolox.client.core.routes import ROOM_END
from kerolox.errors import MessageRejectedError
from kerolox.message import Message, MessageQueue, java_hash

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

OrderingKey = str | int
"""What keeps messages in order: those with the same key go to the same queue."""


def key_hash(key: OrderingKey) -> int:
    """``hashCode`` of a key in Java: a text as ``String``; a number as ``Integer`` where it is one,
    else as ``Long``.

    Raises:
        MessageRejectedError: it is neither a text nor a number of 64 bits.
    """
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
        raise MessageRejectedError(
            f"key {key!r} is neither a text nor a number of 64 bits; give str(...) of it"
        )
    if -(2**31) <= key < 2**31:
        return key
    low = (key ^ (key & 0xFFFF_FFFF_FFFF_FFFF) >> 32) & 0xFFFF_FFFF
    return low - 2**32 if low >= 2**31 else low


def queue_by_key(queues: Sequence[MessageQueue], key: OrderingKey) -> MessageQueue:
    """The queue of a key: the absolute remainder of its hash code (``SelectMessageQueueByHash``).

    Raises:
        MessageRejectedError: as :func:`key_hash`.
    """
    return queues[abs(key_hash(key)) % len(queues)]


def select_by_hash(key: OrderingKey) -> Selector:
    """One queue for all messages of a key, as Java's ``SelectMessageQueueByHash`` with that key.

    Another number of queues gives keys other queues; an ordered-topic setting keeps their number
    when a broker is away.

    Args:
        key: a text or a number of 64 bits.

    Raises:
        MessageRejectedError: it is something else.
    """
    code = abs(key_hash(key))
    return lambda queues, message: queues[code % len(queues)]


def select_by_random() -> Selector:
    """Any queue (``SelectMessageQueueByRandom``)."""
    return lambda queues, message: random.choice(queues)


def select_by_machine_room(*rooms: str) -> Selector:
    """Any queue of the brokers in some machine rooms, which their names begin with
    (``room1@broker-a``). Java's ``SelectMessageQueueByMachineRoom`` is left to do; its consumers
    know rooms by the same names (``AllocateMessageQueueByMachineRoom``).

    A send raises :class:`MessageRejectedError` when no broker of the topic is in them.
    """
    beginnings = tuple(f"{room}{ROOM_END}" for room in rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.startswith(beginnings)]
        if not near:
            names = ", ".join(sorted({queue.broker_name for queue in queues}))
            raise MessageRejectedError(
                f"no broker of topic {message.topic!r} is in machine room {' or '.join(rooms)};"
                f" its brokers are {names}"
            )
        return random.choice(near)

    return select
