"""Connections that their peer resets before the server has taken them up, as health checks do."""

from __future__ import annotations

import socket
import struct

LINGER_NOT = struct.pack("ii", 1, 0)


def reset_at_once(port: int, count: int, host: str = "127.0.0.1") -> None:
    """Connect and reset so often. Called in the server's own loop it lets none of them be taken up
    before all are reset."""
    for _ in range(count):
        with socket.create_connection((host, port), 5) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
