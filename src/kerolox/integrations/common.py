"""What the adapters for frameworks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.core.consuming.popping import NoPopsError
from kerolox.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    KeroloxError,
    TopicRouteNotFoundError,
)

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
            raise ClientError(
                f"topic {topic} does not exist, and can't be made ({error}); make it by: "
                f"kerolox topic create {topic}"
            ) from error


def is_passing(error: KeroloxError) -> bool:
    """Whether what failed at a broker may succeed later, without a change of the program."""
    return not isinstance(error, ClientClosedError | ConfigError | NoPopsError)
