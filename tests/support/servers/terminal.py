"""Commands of ours on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import threading

from tests.support.eventually import SECONDS_MAX
from tests.support.servers.command import COMMAND

__all__ = ["on_terminal"]


def on_terminal(*arguments: object, **environment: str) -> str:
    """What a terminal gets of a command of ours, on stdout and stderr."""
    ours, theirs = pty.openpty()
    read = bytearray()

    def drain() -> None:
        # A terminal that nobody writes to any more answers with an error.
        while True:
            try:
                some = os.read(ours, 65_536)
            except OSError:
                return
            read.extend(some)

    reader = threading.Thread(target=drain)
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
