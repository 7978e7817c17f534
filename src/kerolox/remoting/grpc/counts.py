"""What the connections of a gRPC server count."""

from __future__ import annotations

from collections import Counter


class GrpcCounts:
    """Of all connections, since the start."""

    def __init__(self) -> None:
        self.streams = 0
        """Open calls."""
        self.calls_refused: Counter[str] = Counter()
        """Calls that ended with another status than OK, by its name. UNREAD: nobody took its
        answer; REFUSED_STREAM: its connection had too many."""
        self.connections_closed: Counter[str] = Counter()
        """Connections that were closed for an error of the peer, by its name in HTTP/2."""
