"""Commands of ours on a terminal, and what that shows."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import threading

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND

__all__ = ["on_terminal", "read_to_end"]


def on_terminal(*arguments: object, **environment: str) -> str:
    """What a terminal gets of a command of ours, on stdout and stderr."""
    ours, theirs = pty.openpty()
    read = bytearray()
    reader = threading.Thread(target=lambda: read.extend(read_to_end(ours)))
    reader.start()
    try:
        subprocess.run(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment},
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return read.decode().replace("\r\n", "\n")


def read_to_end(terminal: int) -> bytes:
    """All that a terminal shows until nobody writes to it any more. It comes in parts, later than
    it is written."""
    read = bytearray()
    while True:
        try:
            some = os.read(terminal, 65_536)
        except OSError as error:
            # The answer to who reads when nobody has its other end any more.
            if error.errno != errno.EIO:
                raise
            return bytes(read)
        read.extend(some)
