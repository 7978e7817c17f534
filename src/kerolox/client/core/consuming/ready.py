"""Pulled messages that wait for a listener: pull after pull, cut into calls as they are taken."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from kerolox.message import MessageExt

_Queue = TypeVar("_Queue")


class _Pulled(Generic[_Queue]):
    """Messages of one queue; those before ``next`` are taken."""

    __slots__ = ("messages", "next", "queue", "size")

    def __init__(self, queue: _Queue, messages: list[MessageExt], size: int) -> None:
        self.queue = queue
        self.messages = messages
        self.size = size
        self.next = 0


class ReadyList(Generic[_Queue]):
    """First in, first out. One entry per pull, however many calls of a listener it gives."""

    def __init__(self) -> None:
        self._entries: deque[_Pulled[_Queue]] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, queue: _Queue, messages: list[MessageExt], size: int) -> None:
        """Messages of one queue, for calls with at most ``size`` of them each."""
        if messages:
            self._entries.append(_Pulled(queue, messages, size))

    def take(self) -> tuple[_Queue, list[MessageExt]]:
        """The messages of the next call, and their queue.

        Raises:
            IndexError: none is left.
        """
        entry = self._entries[0]
        start = entry.next
        entry.next = end = start + entry.size
        if end >= len(entry.messages):
            self._entries.popleft()
            if not start:
                return entry.queue, entry.messages
        return entry.queue, entry.messages[start:end]
