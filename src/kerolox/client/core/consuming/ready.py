"""Pulled messages that wait for a listener: pull after pull, cut into calls as they are taken."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from kerolox.message import MessageExt

_Queue = TypeVar("_Queue")


class Ready(Generic[_Queue]):
    """Messages of one queue, of which those before ``next`` are taken; true while some are left."""

    __slots__ = ("messages", "next", "queue", "size")

    def __init__(self, queue: _Queue, messages: list[MessageExt], size: int) -> None:
        self.queue = queue
        self.messages = messages
        self.size = size
        """Most messages of one call."""
        self.next = 0

    def __bool__(self) -> bool:
        return self.next < len(self.messages)

    def take(self) -> list[MessageExt]:
        """The messages of the next call; none when all are taken."""
        start = self.next
        self.next = end = start + self.size
        return self.messages[start:end]

    def drop(self) -> None:
        """Nobody is to take the rest."""
        self.next = len(self.messages)


class ReadyList(Generic[_Queue]):
    """First in, first out. One entry per pull, however many calls of a listener it gives."""

    def __init__(self) -> None:
        self._entries: deque[Ready[_Queue]] = deque()

    def __bool__(self) -> bool:
        return self.first() is not None

    def add(self, queue: _Queue, messages: list[MessageExt], size: int) -> None:
        """Messages of one queue, for calls with at most ``size`` of them each."""
        self._entries.append(Ready(queue, messages, size))

    def first(self) -> Ready[_Queue] | None:
        """The oldest entry of which something is left."""
        entries = self._entries
        while entries:
            entry = entries[0]
            if entry:
                return entry
            entries.popleft()
        return None
