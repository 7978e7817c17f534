"""Offsets that a store of the user's keeps."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

from kerolox.client.core.consuming.offsets import OffsetTable
from kerolox.client.core.namespaces import queue_without_namespace
from kerolox.client.threads import to_thread
from kerolox.errors import ClientError, KeroloxError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kerolox.client.core.consuming.offsets import OffsetStorage
    from kerolox.message import MessageQueue

_log = logging.getLogger(__name__)


class CustomOffsets:
    """Keeps a member's offsets in an :class:`OffsetStorage`."""

    def __init__(self, storage: OffsetStorage, namespace: str) -> None:
        self.table = OffsetTable()
        self._storage = storage
        self._namespace = namespace

    async def load(self, queue: MessageQueue) -> int:
        """Ask the store."""
        offset = await _call(self._storage.load, queue_without_namespace(self._namespace, queue))
        if offset is None:
            return -1
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ClientError(
                f"the offset store gave {offset!r} for {queue}; it must give a number or None"
            )
        if offset >= 0:
            self.table.update(queue, offset, increase_only=False)
        return offset

    async def persist(self, queues: Collection[MessageQueue], *, wait: bool = False) -> None:
        """Give the store the offsets of these queues; it is always waited for."""
        changed = {
            queue_without_namespace(self._namespace, queue): offset
            for queue, offset in self.table
            if queue in queues
        }
        if not changed:
            return
        try:
            await _call(self._storage.store, changed)
        except KeroloxError as error:
            _log.warning("offsets of %d queues were not stored: %s", len(changed), error)


async def _call(function: Callable[..., object], argument: object) -> object:
    """Call an async method here, a plain one in a thread, since it waits for something.

    Raises:
        ClientError: it failed.
    """
    try:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        result = await to_thread(function, argument)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ClientError(f"{name} of the offset store failed: {error!r}") from error
