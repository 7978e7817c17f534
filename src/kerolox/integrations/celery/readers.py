"""Queues that are bound to an exchange whose messages go to all: remote control, events, fanout.

Such an exchange is a topic with one queue on each broker. Whoever is bound reads it for himself,
from its end at that moment on; brokers keep nothing of that. The first word of a routing key is the
message's tag, so that brokers leave out what cannot match.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING

from kerolox.client.core.failures import note_failure
from kerolox.errors import KeroloxError
from kerolox.integrations.celery.envelope import is_expired, payload_of
from kerolox.integrations.celery.intakes import Delivery
from kerolox.message import ALL_TAGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.consumers.pull_consumer import PullConsumer
    from kerolox.integrations.celery.intakes import Inbox, Intake
    from kerolox.message import MessageExt, MessageQueue

KEPT_MAX = 10_000
"""Messages of a reader that nobody took; the oldest goes."""

AGAIN_SECONDS = 1.0
"""A reader waits so long after a broker did not answer."""

TAG = re.compile(r"[a-zA-Z0-9_-]{1,127}")
"""A word of a routing key that can be a tag."""

_log = logging.getLogger(__name__)


def tag_of(routing_key: str) -> str:
    """The tag of a message with this routing key."""
    word = routing_key.split(".", 1)[0]
    return word if TAG.fullmatch(word) else ""


class Reader:
    """A queue that is bound to such exchanges."""

    def __init__(self) -> None:
        self.bindings: dict[str, dict[str, re.Pattern[str]]] = {}
        """By topic: routing keys, with what these match."""
        self.kept: deque[Delivery] = deque(maxlen=KEPT_MAX)
        """What came while nobody consumes."""
        self.intake: Intake | None = None
        self.tasks: list[asyncio.Task[None]] = []

    def expression(self, topic: str) -> str:
        """Tags of what is wanted of a topic."""
        tags = {tag_of(key) for key in self.bindings[topic]}
        return ALL_TAGS if "" in tags else " || ".join(sorted(tags))

    def wants(self, topic: str, routing_key: str) -> bool:
        """Whether one of its bindings matches."""
        return any(each.fullmatch(routing_key) for each in self.bindings[topic].values())


class Readers:
    """The readers of a connection, in its loop."""

    def __init__(self, puller: PullConsumer, inbox: Inbox, now: Callable[[], float]) -> None:
        """``now``: in seconds since the epoch."""
        self._puller = puller
        self._inbox = inbox
        self._now = now
        self.by_queue: dict[str, Reader] = {}

    async def bind(self, queue: str, topic: str, key: str, pattern: re.Pattern[str]) -> None:
        """Bind a queue: what is sent from now on is brought. Errors as those of a pull."""
        reader = self.by_queue.setdefault(queue, Reader())
        if topic in reader.bindings:
            reader.bindings[topic][key] = pattern
            return
        starts = [
            (each, await self._puller.max_offset(each)) for each in await self._puller.queues(topic)
        ]
        reader.bindings[topic] = {key: pattern}
        loop = asyncio.get_running_loop()
        reader.tasks += [loop.create_task(self._read(reader, *start)) for start in starts]

    def unbind(self, queue: str) -> None:
        """A queue is bound no more."""
        reader = self.by_queue.pop(queue, None)
        for task in reader.tasks if reader is not None else ():
            task.cancel()

    def close(self) -> None:
        """Unbind all."""
        for queue in list(self.by_queue):
            self.unbind(queue)

    def attach(self, queue: str, intake: Intake) -> None:
        """Bring messages to a consumer, first those that are there."""
        reader = self.by_queue[queue]
        reader.intake = intake
        while reader.kept:
            self._bring(reader, reader.kept.popleft())

    def detach(self, intake: Intake) -> None:
        """The consumer is gone; what it was not given stays."""
        for reader in self.by_queue.values():
            if reader.intake is intake:
                reader.intake = None
                reader.kept.extendleft(reversed(intake.arrived))
        intake.arrived.clear()

    def _bring(self, reader: Reader, delivery: Delivery) -> None:
        if reader.intake is None:
            reader.kept.append(delivery)
            return
        if len(reader.intake.arrived) < KEPT_MAX:
            reader.intake.arrived.append(delivery)
            self._inbox.put(reader.intake)

    async def _read(self, reader: Reader, queue: MessageQueue, offset: int) -> None:
        while True:
            try:
                expression = reader.expression(queue.topic)
                result = await self._puller.pull(queue, offset, expression=expression, wait=True)
            except KeroloxError as error:
                what = f"reading {queue.topic} failed, trying again"
                note_failure(None, _log, what, error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            offset = result.next_offset
            for received in result.messages:
                self._arrived(reader, queue.topic, received)

    def _arrived(self, reader: Reader, topic: str, received: MessageExt) -> None:
        payload = payload_of(received)
        key = payload["properties"]["delivery_info"].get("routing_key")
        is_wanted = reader.wants(topic, key if isinstance(key, str) else "")
        if is_wanted and not is_expired(payload, self._now()):
            self._bring(reader, Delivery(received, payload, None, None))
