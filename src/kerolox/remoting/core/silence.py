"""When a peer has fallen silent.

A request whose time is over says little: its peer may be slow, or its own limit short. A peer of
which nothing at all arrives while requests, one after the other, wait for ``SILENT_SECONDS_MAX``
is stopped or out of reach, or a firewall has forgotten the connection. It is closed then
(clientCloseSocketIfTimeout), so that the next request opens another.
"""

from __future__ import annotations

SILENT_SECONDS_MAX = 2.5
"""A peer that says nothing for so long, while requests to it time out, is given up."""


class Silence:
    """What one connection knows of its peer's silence."""

    __slots__ = ("_since", "received_at")

    def __init__(self) -> None:
        self.received_at: float = 0.0
        """When bytes arrived last; 0: never. The connection sets it with each read."""
        self._since = 0.0
        """When the first request after that was written whose time is over."""

    def timed_out(self, asked_at: float, now: float) -> float | None:
        """A request that was written at ``asked_at`` had no response.

        Returns:
            Since when the peer is silent, if that is for too long: look once more
            (:meth:`lasts`), then give it up. None: it is not, or not yet.
        """
        if self.received_at > asked_at:
            return None
        if self._since <= self.received_at:
            self._since = asked_at
        return self._since if now - self._since >= SILENT_SECONDS_MAX else None

    def lasts(self, since: float) -> bool:
        """Nothing came after that either."""
        return self.received_at <= since
