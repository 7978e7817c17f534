"""Where a process listens, as the system says: a connection could be taken by somebody else who has
the same port on another address."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from pathlib import Path

LISTENING = "0A"


def listens(pid: int, host: str, port: int) -> bool:
    """Whether a process takes connections to an address and port, IPv4 or IPv6."""
    wanted = ipaddress.ip_address(host)
    own = {wanted, ipaddress.ip_address("0.0.0.0" if wanted.version == 4 else "::")}
    return any((address, port) in listening(pid) for address in own)


def listening(pid: int) -> set[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Addresses and ports of a process's listening sockets."""
    sockets = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed already
            sockets.add(os.readlink(each))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                host, port = fields[1].split(":")
                found.add(
                    (ipaddress.ip_address(_network_order(bytes.fromhex(host))), int(port, 16))
                )
    return found


def _network_order(words: bytes) -> bytes:
    """The table has words of four bytes as the machine keeps them."""
    if sys.byteorder == "big":
        return words
    return b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
