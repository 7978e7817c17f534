"""What the adapters for frameworks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox import clock
from kerolox.client.core.consuming.popping import NoPopsError
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    KeroloxError,
    TopicRouteNotFoundError,
)
from kerolox.message import Message, MessageExt

if TYPE_CHECKING:
    from kerolox.client import Producer, PullConsumer, SimpleConsumer


async def ensured_topic(client: SimpleConsumer | PullConsumer | Producer, topic: str) -> None:
    """Make a topic that does not exist.

    Raises:
        ClientError: it does not exist, and can't be made.
        RemotingError: no name server answers.
    """
    try:
        await client.queues(topic)
    except TopicRouteNotFoundError:
        try:
            await client.create_topic(topic)
        except (BrokerError, ClientError) as error:
            raise no_topic(topic, error) from error


def no_topic(topic: str, error: KeroloxError) -> ClientError:
    """What to do where a topic does not exist, and can't be made for a reason."""
    return ClientError(
        f"topic {topic} does not exist, and can't be made ({error}); make it by: "
        f"kerolox topic create {topic}"
    )


def is_passing(error: KeroloxError) -> bool:
    """Whether what failed at a broker may succeed later, without a change of the program."""
    return not isinstance(error, ClientClosedError | ConfigError | NoPopsError)


HOP_SECONDS_MAX = 86_400.0
"""A longer delay is kept in several parts: brokers keep a message for three days at most
(``timerMaxDelaySec``), proxies of RocketMQ for one."""

RUN_AT = "KEROLOX_RUN_AT_MS"
"""The property of a message whose delay has further parts: when it is to be delivered at last, in
milliseconds since the epoch."""

MOMENT_DIGITS_MAX = 18

DUE_SECONDS = 1.0
"""A message is due that much ahead of its moment: clocks differ."""


def delayed_message(topic: str, body: bytes, key: str, seconds: float) -> tuple[Message, float]:
    """A message with its key, and for how long the broker is to keep it now."""
    message = Message(topic, body, keys=key)
    if seconds > HOP_SECONDS_MAX:
        message.properties[RUN_AT] = str(clock.now_ms() + round(seconds * 1000))
    return message, min(seconds, HOP_SECONDS_MAX)


def further_delay(message: MessageExt) -> tuple[Message, float] | None:
    """The message of the next part of a delay, and for how long; None: it is due."""
    given = message.properties.get(RUN_AT, "")
    if not (given.isascii() and given.isdigit() and len(given) <= MOMENT_DIGITS_MAX):
        return None
    seconds = (int(given) - clock.now_ms()) / 1000
    if seconds < DUE_SECONDS:
        return None
    later = Message(message.topic, message.body, keys=message.keys, properties={RUN_AT: given})
    return later, min(seconds, HOP_SECONDS_MAX)
