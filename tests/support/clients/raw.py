"""What hostile scenarios share: raw sockets, and requests that real clients would not send."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kerolox.protocol.codes import SerializeType
from kerolox.protocol.command import RemotingCommand
from tests.support.clients.requests import pull_fields, send_fields
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from tests.support.servers.up import Up

__all__ = ["connect", "connected", "drain", "frame", "pull", "push", "raw_frame", "send"]


def connect(up: Up, *, receive_bytes: int = 0) -> socket.socket:
    """A plain connection to the broker."""
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.connect(("127.0.0.1", up.port))
    return made


@contextlib.contextmanager
def connected(up: Up, count: int, *, receive_bytes: int = 0) -> Iterator[list[socket.socket]]:
    """Many connections, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(up, receive_bytes=receive_bytes)) for _ in range(count)]


def raw_frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    """A frame of any header."""
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def frame(
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    oneway: bool = False,
    serialize_type: SerializeType = SerializeType.JSON,
) -> bytes:
    """A frame that is one."""
    command = RemotingCommand.request(code, fields, body=body, oneway=oneway)
    command.opaque, command.serialize_type = opaque, serialize_type
    return command.encode()


def push(
    connections: Iterable[socket.socket],
    data: bytes,
    *,
    seconds: float = SECONDS_MAX,
    stalled: float = 0.2,
) -> int:
    """Write the same bytes to all connections at once, until all took them, nobody takes any more,
    or the time is over; how many bytes were taken in all. Never reads."""
    left = {connection: memoryview(data) for connection in connections}
    for connection in left:
        connection.setblocking(False)
    taken = 0
    deadline = time.monotonic() + seconds
    while left and (rest := deadline - time.monotonic()) > 0:
        _, ready, _ = select.select([], list(left), [], min(rest, stalled))
        if not ready:
            break
        for connection in ready:
            try:
                size = connection.send(left[connection][: 1 << 18])
            except BlockingIOError:
                continue
            except OSError:
                del left[connection]
                continue
            taken += size
            left[connection] = left[connection][size:]
            if not left[connection]:
                del left[connection]
    return taken


def drain(connection: socket.socket, *, seconds: float = 60.0) -> bytes:
    """All that the broker says until it closes the connection, which it must within that time."""
    connection.settimeout(seconds)
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            said += data
    return said


def send(
    topic: str, body: bytes, *, properties: str = "", sys_flag: int = 0, queue_id: int = 0
) -> tuple[int, dict[str, str], bytes]:
    """Code, fields and body of a send."""
    return 310, send_fields(b=topic, e=queue_id, f=sys_flag, i=properties), body


def pull(
    topic: str, offset: int, *, suspend_ms: int = 0, expression: str = "*", kind: str = "TAG"
) -> dict[str, str]:
    """Fields of a pull that brings its own subscription."""
    return pull_fields(
        consumerGroup="hostile",
        topic=topic,
        queueOffset=offset,
        sysFlag=4 | (2 if suspend_ms else 0),
        suspendTimeoutMillis=suspend_ms,
        subscription=expression,
        expressionType=kind,
    )
