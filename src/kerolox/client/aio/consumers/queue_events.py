"""What users want to be told of: queues that come, queues that go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.aio.user_code import call_user
from kerolox.client.core.consuming.rebalance import QueueChange
from kerolox.client.core.failures import note_failure
from kerolox.client.core.namespaces import queue_without_namespace, without_namespace
from kerolox.message import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kerolox.client.core.failures import FailureCallback

CALLBACK_SECONDS_MAX = 5.0
"""A rebalance waits so long for a callback, then it goes on without."""

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""Is told of queues that this consumer got, or is about to lose."""

QueueChangeCallback = Callable[[QueueChange], Awaitable[None] | None]
"""Is told how the queues of a topic are shared now."""

_Argument = TypeVar("_Argument")
_log = logging.getLogger(__name__)


class QueueEvents:
    """The callbacks of one consumer."""

    def __init__(self, namespace: str, on_failure: FailureCallback | None = None) -> None:
        """``on_failure``: told of what they raise."""
        self._namespace = namespace
        self._on_failure = on_failure
        self.on_assigned: list[QueuesCallback] = []
        self.on_revoked: list[QueuesCallback] = []
        self.on_change: list[QueueChangeCallback] = []

    async def assigned(self, queues: Iterable[MessageQueue]) -> None:
        """Nothing of these was pulled yet."""
        await self._notify(self.on_assigned, self._shown(queues))

    async def revoked(self, queues: Iterable[MessageQueue], seconds: float | None = None) -> None:
        """No listener gets more of these; their offsets are about to be stored."""
        await self._notify(self.on_revoked, self._shown(queues), seconds)

    async def changed(
        self, topic: str, everything: Sequence[MessageQueue], ours: Sequence[MessageQueue]
    ) -> None:
        """The queues of a topic are shared otherwise now."""
        if self.on_change:
            shown = without_namespace(self._namespace, topic)
            change = QueueChange(shown, self._shown(everything), self._shown(ours))
            await call_all(self.on_change, change, on_failure=self._on_failure)

    def _shown(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return sorted(queue_without_namespace(self._namespace, queue) for queue in queues)

    async def _notify(
        self,
        callbacks: list[QueuesCallback],
        queues: list[MessageQueue],
        seconds: float | None = None,
    ) -> None:
        if callbacks and queues:
            await call_all(callbacks, queues, seconds, on_failure=self._on_failure)


async def call_all(
    callbacks: Sequence[Callable[[_Argument], Awaitable[None] | None]],
    argument: _Argument,
    seconds: float | None = None,
    *,
    on_failure: FailureCallback | None = None,
) -> None:
    """Call each in turn, each for at most so long; failures are logged and told."""
    limit = CALLBACK_SECONDS_MAX if seconds is None else seconds
    for callback in list(callbacks):
        name = getattr(callback, "__qualname__", repr(callback))
        try:
            async with asyncio.timeout(limit):
                await call_user(callback, argument)
        except TimeoutError as error:
            what = f"callback {name} takes more than {limit:.1f} s"
            note_failure(on_failure, _log, what, error, is_expected=True)
        except Exception as error:
            note_failure(on_failure, _log, f"callback {name} failed", error)
