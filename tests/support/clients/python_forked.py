"""What is started in place of Python where `tests.support.servers.spark_forks` serves, or
`tests.support.servers.forked_commands`: ``python_forked.py -m MODULE ARGUMENT ...``.

It runs without the site's packages, and imports little.
"""

import json
import os
import signal
import socket
import sys

VARIABLE = "KEROLOX_FORKS"
"""Where the socket is; without it each process is started as Spark asks."""


def main() -> None:
    """Have a module run with our arguments, variables, folder and files; end as it ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(os.environ[VARIABLE])
        os.umask(umask := os.umask(0o077))
        request = [sys.argv[2:], dict(os.environ), os.getcwd(), umask]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: asking.send(b"%d" % number))
        socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2])
        nothing = os.open(os.devnull, os.O_RDWR)
        for own in range(3):
            os.dup2(nothing, own)
        status = int(asking.recv(64) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
