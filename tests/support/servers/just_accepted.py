"""A connection that a server accepts in the moment of its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

from tests.support.eventually import SECONDS_MAX

__all__ = ["STEPS", "ends_with_it"]

STEPS = range(4)
"""Numbers of steps of the loop, in which asyncio accepts and opens a connection."""


async def ends_with_it(port: int, steps: int, end: Callable[[], Awaitable[None]]) -> bool:
    """Whether a connection that came so many steps before the server's end is ended by it."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
        await end()
        async with asyncio.timeout(SECONDS_MAX):
            with contextlib.suppress(ConnectionResetError):
                return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
            return True
