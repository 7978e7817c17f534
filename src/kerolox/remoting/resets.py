"""Ending a connection by a reset, which Java clients hear at once.

A Java client whose connection is reset fails the requests that wait on it, and tries again. When
the stream just ends it waits for each of them until its time is over (``NettyRemotingClient`` calls
``failFast`` for an exception only), and one may always be on its way when a server stops. A reset
drops what the peer's system has not received, so it comes after that. What it has received, a Linux
system still gives to its reader.
"""

from __future__ import annotations

import socket
import struct
import sys

_RESETS = struct.pack("ii", 1, 0)
"""``SO_LINGER``, on, for no time: to close is to reset."""

if sys.platform == "linux":
    import fcntl
    import termios

    def has_arrived(descriptor: int) -> bool:
        """Whether the peer's system has all that a socket was given (``SIOCOUTQ``).

        Raises:
            OSError: the socket is closed.
        """
        unsent = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        return not any(unsent)

    CAN_RESET = True
else:

    def has_arrived(descriptor: int) -> bool:
        """Not known on this system."""
        return False

    CAN_RESET = False
"""Whether this system says what has arrived."""


def have_reset(sock: socket.socket) -> None:
    """Make the next close of a socket a reset.

    Raises:
        OSError: the socket is closed.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
