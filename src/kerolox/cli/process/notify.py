"""Telling systemd how a server is doing (``sd_notify``), where it asks (``Type=notify``)."""

from __future__ import annotations

import logging
import os
import socket
import time

VARIABLE = "NOTIFY_SOCKET"

_log = logging.getLogger(__name__)


def notify_ready(status: str) -> None:
    """The servers answer; or, after a reload, it is done."""
    notify(f"READY=1\nSTATUS={status}")


def notify_reloading() -> None:
    """Settings are read again; ``notify_ready`` ends it. The time is what ``Type=notify-reload``
    needs to tell reloads apart."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def notify_stopping() -> None:
    """The servers stop."""
    notify("STOPPING=1")


def notify(state: str) -> bool:
    """Send lines of ``NAME=value`` to the socket that ``$NOTIFY_SOCKET`` names: a path, or a name
    after ``@`` (an abstract socket). Whether they were sent; a failure is a line in the log."""
    address = os.environ.get(VARIABLE, "")
    if address[:1] not in ("/", "@"):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            # Nobody may be reading: a server must not wait for that.
            sending.setblocking(False)
            sending.sendto(state.encode(), address.replace("@", "\0", 1))
    except (OSError, ValueError) as error:
        _log.warning("%s=%s: not notified: %s", VARIABLE, address, error)
        return False
    return True
