"""What came for the consumers of a connection, and who may have how much."""

from __future__ import annotations

import asyncio
import os
import queue
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kerolox.client.aio.consumers.simple_consumer import SimpleConsumer
    from kerolox.integrations.celery.envelope import Payload
    from kerolox.message import MessageExt

PREFETCH_MAX = 1_000
"""Messages of a channel that may be unacknowledged when it says no number."""


class Prefetch:
    """How many messages a channel may have that nobody acknowledged."""

    def __init__(self) -> None:
        """No limit but our own."""
        self.limit = 0
        self.taken = 0
        self.feeds: set[Feed] = set()

    @property
    def free(self) -> int:
        """How many more it may have."""
        return max((self.limit or PREFETCH_MAX) - self.taken, 0)

    def changed(self) -> None:
        """Feeds may go on."""
        for feed in self.feeds:
            feed.wake.set()


class Delivery:
    """A message that a channel has. Without a consumer nobody waits for its acknowledgement."""

    __slots__ = ("consumer", "payload", "prefetch", "received")

    def __init__(
        self,
        received: MessageExt,
        payload: Payload,
        consumer: SimpleConsumer | None,
        prefetch: Prefetch | None,
    ) -> None:
        self.received = received
        self.payload = payload
        self.consumer = consumer
        self.prefetch = prefetch

    def left(self) -> None:
        """The channel has it no more. In the loop."""
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.taken -= 1
            prefetch.changed()


class Intake:
    """One consumer of a channel: what came for it."""

    def __init__(
        self, topic: str, prefetch: Prefetch, deliver: Callable[[Delivery], object]
    ) -> None:
        self.topic = topic
        self.prefetch = prefetch
        self.deliver = deliver
        self.arrived: deque[Delivery] = deque()


class Inbox:
    """What came, for the thread that drains; a hub of kombu may watch its descriptor."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Intake | BaseException] = queue.SimpleQueue()
        self._pipe: tuple[int, int] | None = None
        self._is_signalled = False

    def put(self, item: Intake | BaseException) -> None:
        """An intake has one more message, or its feed has failed."""
        self._items.put(item)
        self.signal()

    def signal(self) -> None:
        """Have the descriptor be readable."""
        if self._pipe is not None and not self._is_signalled:
            self._is_signalled = True
            os.write(self._pipe[1], b"1")

    def take(self, timeout: float | None) -> Intake | BaseException:
        """The next one; queue.Empty: none in time. ``timeout``: in seconds; None: without end."""
        if timeout is not None and timeout <= 0:
            return self._items.get_nowait()
        return self._items.get(timeout=timeout)

    def descriptor(self) -> int:
        """Readable when something is there."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            if not self._items.empty():
                self.signal()
        return self._pipe[0]

    def clear_signal(self) -> None:
        """Before what is there is taken."""
        if self._pipe is not None and self._is_signalled:
            os.read(self._pipe[0], 16)
            self._is_signalled = False

    def close(self) -> None:
        """End the descriptor."""
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            os.close(descriptor)


class Feed:
    """Reads one queue for all intakes of it."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self.consumer = consumer
        self.intakes: list[Intake] = []
        self.wake = asyncio.Event()
        """An intake may have more."""
        self.arrival = asyncio.Event()
        """Something came."""
        self.task: asyncio.Task[None] | None = None

    @property
    def freest(self) -> Intake | None:
        """The intake that may have most; None: there is none that may have any."""
        most = max(self.intakes, key=lambda each: each.prefetch.free, default=None)
        return most if most is not None and most.prefetch.free else None
