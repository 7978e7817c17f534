"""The command ``kerolox`` of a shell, as a process of the fork server.

An example says what an operator types: a shell runs it, and each of its commands would be a fresh
interpreter. Here ``kerolox`` is a script on the shell's path: it has :mod:`forked` start the real
one with its arguments, variables, folder and files, passes on signals, and ends as that one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.clients import python_forked
from tests.support.servers import forked
from tests.support.servers.spark_forks import guard

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forked_commands"]


@contextlib.contextmanager
def forked_commands(path: str) -> Iterator[dict[str, str]]:
    """Serve until the end of the block; the variables of a shell whose ``PATH`` was this one."""
    with (
        tempfile.TemporaryDirectory(prefix="kerolox-forks-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
    ):
        asker = shlex.join(
            (sys.executable, "-I", "-S", python_forked.__file__, "-m", "kerolox.cli")
        )
        script = Path(folder) / "kerolox"
        script.write_text(f'#!/bin/sh\nexec {asker} "$@"\n')
        script.chmod(0o755)
        listening.bind(address := f"{folder}/socket")
        listening.listen()
        serving = threading.Thread(target=_serve, args=[listening])
        serving.start()
        try:
            yield {"PATH": f"{folder}{os.pathsep}{path}", python_forked.VARIABLE: address}
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving.join()


def _serve(listening: socket.socket) -> None:
    """Start a command for each who connects, until nobody can."""
    guards = []
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            guards.append(threading.Thread(target=_run, args=[connection]))
            guards[-1].start()
    for each in guards:
        each.join()


def _run(connection: socket.socket) -> None:
    """Run a command to its end, or to that of who asked."""
    size, most = forked.REQUEST_BYTES_MAX, forked.STANDARD_FILES
    with connection:
        data, files, *_ = socket.recv_fds(connection, size, most)
        if not data:
            return
        [module, *arguments], environment, folder, _ = json.loads(data)
        names = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
        with forked.start(module, arguments, environment, cwd=folder, **names) as process:
            for file in files:
                os.close(file)
            guard(connection, process.pid, process.wait)
