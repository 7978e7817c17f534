"""Connections that the tasks of one worker process take in turn.

Spark keeps its Python workers for further tasks. A connection that a task has used up to its last
answer serves the next one, which saves the time of making it, of TLS above all.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kerolox.remoting.blocking import BlockingConnection

POOLED_MAX = 16
"""Most idle connections of a process."""

IDLE_SECONDS_MAX = 60.0
"""A server closes connections that are idle for 120 s."""


class ConnectionPool:
    """Idle connections by what they are for. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[tuple[Hashable, float, BlockingConnection]] = []

    def take(self, key: Hashable) -> BlockingConnection | None:
        """A connection for ``key`` that nothing is open on; None: make one."""
        with self._lock:
            self._forget_old()
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] != key:
                    continue
                connection = self._idle.pop(place)[2]
                if connection.is_quiet():
                    return connection
                connection.close()
        return None

    def give(self, key: Hashable, connection: BlockingConnection) -> None:
        """Keep a connection whose answers have all been taken."""
        with self._lock:
            self._forget_old()
            if connection.closed:
                return
            self._idle.append((key, time.monotonic(), connection))
            while len(self._idle) > POOLED_MAX:
                self._idle.pop(0)[2].close()

    def close(self) -> None:
        """Close all; the pool can be used again."""
        with self._lock:
            for _, _, connection in self._idle:
                connection.close()
            self._idle.clear()

    def _forget_old(self) -> None:
        if self._process != os.getpid():
            # A forked process shares sockets with its parent, which goes on using them.
            self._process = os.getpid()
            for _, _, connection in self._idle:
                connection.close()
            self._idle.clear()
        oldest = time.monotonic() - IDLE_SECONDS_MAX
        while self._idle and self._idle[0][1] < oldest:
            self._idle.pop(0)[2].close()


POOL = ConnectionPool()
"""That of this process."""
