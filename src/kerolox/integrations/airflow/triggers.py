"""What waits for messages in Airflow's triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kerolox.client import SimpleConsumer, SimpleConsumerSettings, connect
from kerolox.errors import ConfigError, KeroloxError
from kerolox.integrations.airflow.hooks import KeroloxHook, client_of
from kerolox.integrations.airflow.messages import as_json
from kerolox.integrations.common import is_passing
from kerolox.message import ALL_TAGS
from kerolox.protocol.pop_names import POP_MESSAGES_MAX

try:
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
except ImportError as error:
    raise ConfigError(f"Airflow 3 can't be imported ({error}); install kerolox[airflow]") from error

__all__ = ["AwaitMessageTrigger"]

AGAIN_SECONDS = 5.0
"""A receive that failed is tried again after so long."""


class AwaitMessageTrigger(BaseEventTrigger):
    """Waits for messages of a topic, for a task that is deferred or for an asset.

    Its event is ``{"messages": [...]}``. They are acknowledged when Airflow has the event: after a
    crash in between they come again.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        expression: str = ALL_TAGS,
        kerolox_conn_id: str = KeroloxHook.default_conn_name,
        max_messages: int = 1,
    ) -> None:
        """Nothing is connected yet.

        Args:
            topic: which one; it has to exist.
            group: consumer group: of those with the same one each gets its share of the messages.
            expression: ``*`` for all, tags joined by ``||``, or a condition (SQL92) on properties.
            kerolox_conn_id: the connection's name in Airflow.
            max_messages: most messages of an event, 1 to 32; one that comes is not kept waiting.

        Raises:
            ConfigError: ``max_messages`` is out of range.
        """
        super().__init__()
        if not 1 <= max_messages <= POP_MESSAGES_MAX:
            raise ConfigError(
                f"max_messages is {max_messages}; it must be from 1 to {POP_MESSAGES_MAX}"
            )
        self.topic = topic
        self.group = group
        self.expression = expression
        self.kerolox_conn_id = kerolox_conn_id
        self.max_messages = max_messages

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How Airflow makes it anew in the triggerer."""
        return (
            f"{__name__}.{type(self).__name__}",
            {
                "topic": self.topic,
                "group": self.group,
                "expression": self.expression,
                "kerolox_conn_id": self.kerolox_conn_id,
                "max_messages": self.max_messages,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, as soon as there are messages."""
        found = await KeroloxHook.aget_connection(self.kerolox_conn_id)
        name_servers, settings = client_of(found)
        async with connect(name_servers, settings=settings) as connection:
            consumer = connection.simple_consumer(
                self.group, settings=SimpleConsumerSettings(from_first=True)
            )
            consumer.subscribe(self.topic, self.expression)
            async with consumer:
                messages = await self._received(consumer)
                yield TriggerEvent({"messages": [as_json(each) for each in messages]})
                # Airflow may cancel the trigger as soon as it has the event.
                await asyncio.shield(consumer.submit_ack(messages))

    async def _received(self, consumer: SimpleConsumer) -> list[Any]:
        while True:
            try:
                messages = await consumer.receive(self.max_messages)
            except KeroloxError as error:
                if not is_passing(error):
                    raise
                self.log.warning("no messages from %s, trying again: %s", self.topic, error)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                if messages:
                    return messages
