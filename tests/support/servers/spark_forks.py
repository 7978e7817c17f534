"""Python processes of Spark, forked from one that has imported what they need.

Spark starts a Python process for each stream and for each kind of work: a second of a processor,
most of it imports of PySpark, NumPy and Arrow. Here `python_first.sh` is what Spark starts; it has
the process that serves :func:`forks` fork the real one, hands over its three files, passes on
signals, and ends as that one ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.servers.forked import REQUEST_BYTES_MAX, STANDARD_FILES, become, preload

__all__ = ["forks", "guard"]

PROGRAM = "pyspark.sql.streaming.python_streaming_source_runner"
"""What it imports is there, but the program itself is not: it is to run."""

WHOLE = ("kerolox.spark", "pyspark.sql.worker")
IMPORTED = ("pyspark.worker", "pandas", "numpy", "pyspark_rocketmq", "pyspark_rocketmq_store")


@contextlib.contextmanager
def forks() -> Iterator[str]:
    """Serve until the end of the block; the value of the variable for Spark's start."""
    with tempfile.TemporaryDirectory(prefix="kerolox-forks-") as folder:
        path = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(path)
            listening.listen()
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", __name__, str(listening.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )
        try:
            yield path
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Fork for each who connects; the child's guard waits for its end, or for that of the asker."""
    with contextlib.suppress(PermissionError):
        os.nice(-15)  # Spark gives a process ten seconds to start
    preload(WHOLE, (PROGRAM, *IMPORTED))
    sys.modules.pop(PROGRAM, None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, *_ = socket.recv_fds(connection, REQUEST_BYTES_MAX, STANDARD_FILES)
    child = os.fork()
    if child:
        for file in files:
            os.close(file)
        guard(connection, child, lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    connection.close()
    command, environment, folder, umask = json.loads(data)
    for path in environment.get("PYTHONPATH", "").split(os.pathsep):
        if path and path not in sys.path:
            sys.path.append(path)
    become(files, command, environment, folder, umask)


def guard(connection: socket.socket, child: int, wait: Callable[[], int]) -> None:
    """Pass on signals, and how the child ended: what ``wait`` returns. It ends with the asker."""
    with open(os.pidfd_open(child), "rb", closefd=True) as ended:
        while True:
            ready, _, _ = select.select([ended, connection], [], [])
            if ended in ready:
                status = wait()
                with contextlib.suppress(OSError):
                    connection.send(b"%d" % status)
                return
            number = connection.recv(64)
            os.kill(child, int(number) if number else signal.SIGKILL)
            if not number:
                wait()
                return


if __name__ == "__main__":
    main()
