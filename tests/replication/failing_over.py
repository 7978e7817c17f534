"""A load that goes on while masters are killed: sends until it is acknowledged, receives all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from kerolox import (
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
    SendStatus,
)
from kerolox.errors import KeroloxError
from tests.support.eventually import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["TOPIC", "Load"]

TOPIC = "Orders"
SEND_MS = 500
"""How long a client waits for an answer before it tries again."""


class Load:
    """Sends one message after the other, again until it is acknowledged, and receives all."""

    def __init__(self, namesrv: str, *, route_ms: int = 30_000) -> None:
        often = ProducerSettings(route_poll_interval_ms=route_ms, send_timeout_ms=SEND_MS)
        self.producer = Producer("failing-over", namesrv, settings=often)
        first = PushConsumerSettings(
            consume_from_where="CONSUME_FROM_FIRST_OFFSET", route_poll_interval_ms=route_ms
        )
        self.consumer = PushConsumer("failing-over", namesrv, settings=first)
        self.consumer.subscribe(TOPIC, "*", self._receive)
        self.acknowledged: dict[bytes, float] = {}
        """Body → when."""
        self.received: set[bytes] = set()

    async def _receive(self, messages: list[MessageExt]) -> None:
        self.received.update(each.body for each in messages)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.producer, self.consumer:
            sending = asyncio.ensure_future(self._send())
            try:
                yield
            finally:
                sending.cancel()
                await asyncio.wait([sending])

    async def more(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        before = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) > before + count)

    async def until_acknowledged(self, since: float) -> float:
        """Wait until one is acknowledged after a time; seconds from there."""
        await until(lambda: any(at > since for at in self.acknowledged.values()))
        return min(at for at in self.acknowledged.values() if at > since) - since

    async def _send(self) -> None:
        number = 0
        while True:
            body = b"%d" % number
            with contextlib.suppress(KeroloxError):
                result = await self.producer.send(Message(TOPIC, body))
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged[body] = time.monotonic()
                    number += 1
            # The pace of the load, which leaves the brokers processors to fail over with.
            await asyncio.sleep(0.002)
