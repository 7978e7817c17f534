"""Replies that the broker is bringing to the clients that asked.

Whoever replied is answered when the client that asked has the reply, which may take
``PUSH_SECONDS_MAX``. Both may share one connection. So the wait does not count among the requests
in flight of that connection. At their limit it is read no further: the answer would never come.
"""

from __future__ import annotations

from kerolox.broker.errors import system_busy

PUSH_SECONDS_MAX = 10.0
"""How long the client that asked may take to say that it has the reply."""

REPLY_BYTES_MAX = 64 * 1024 * 1024


class RepliesInFlight:
    """Counts them; there is a bound in number (``replyThreadPoolQueueCapacity``) and in bytes."""

    def __init__(self, count_max: int) -> None:
        """None is in flight. ``count_max``: how many may be."""
        self._count_max = count_max
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def start(self, size: int) -> None:
        """One more, of so many bytes; :meth:`end` it whatever comes. BrokerError, code 2: there are
        too many already.
        """
        if self._count >= self._count_max or self._bytes >= REPLY_BYTES_MAX:
            raise system_busy("[OVERLOAD]system busy, start flow control for a while")
        self._count += 1
        self._bytes += size

    def end(self, size: int) -> None:
        """It arrived, or did not."""
        self._count -= 1
        self._bytes -= size
