"""A task that waits for messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from kerolox.client import SimpleConsumerSettings
from kerolox.errors import ConfigError
from kerolox.integrations.airflow.hooks import KeroloxHook
from kerolox.integrations.airflow.messages import as_json
from kerolox.integrations.airflow.triggers import AwaitMessageTrigger
from kerolox.message import ALL_TAGS

try:
    from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
except ImportError as error:
    raise ConfigError(f"Airflow 3 can't be imported ({error}); install kerolox[airflow]") from error

__all__ = ["KeroloxSensor"]

POKE_SECONDS = 1.0
"""So long one look for messages waits."""


class KeroloxSensor(BaseSensorOperator):
    """Waits for messages of a topic; what it returns is the list of them.

    It is deferred while it waits, so that it holds no worker. With ``deferrable=False`` it looks
    every ``poke_interval`` seconds.
    """

    template_fields: Sequence[str] = ("topic", "group", "expression")

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        expression: str = ALL_TAGS,
        kerolox_conn_id: str = KeroloxHook.default_conn_name,
        max_messages: int = 1,
        deferrable: bool = True,
        **more: object,
    ) -> None:
        """Arguments and errors: see :class:`AwaitMessageTrigger`; ``more``: those of every
        sensor."""
        super().__init__(**more)
        self.topic = topic
        self.group = group
        self.expression = expression
        self.kerolox_conn_id = kerolox_conn_id
        self.max_messages = max_messages
        self.deferrable = deferrable

    def execute(self, context: Context) -> object:
        """Wait, in the triggerer or here."""
        trigger = AwaitMessageTrigger(
            self.topic, self.group, self.expression, self.kerolox_conn_id, self.max_messages
        )
        if not self.deferrable:
            return super().execute(context)
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Messages came."""
        messages: list[dict[str, Any]] = event["messages"]
        return messages

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        settings = SimpleConsumerSettings(from_first=True)
        with KeroloxHook(self.kerolox_conn_id).get_conn() as connection:
            consumer = connection.simple_consumer(self.group, settings=settings)
            consumer.subscribe(self.topic, self.expression)
            with consumer:
                messages = consumer.receive(self.max_messages, wait=POKE_SECONDS)
                consumer.ack(messages)
        return PokeReturnValue(bool(messages), [as_json(each) for each in messages])
