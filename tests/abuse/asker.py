"""Many requests over a few connections at once, each of which is answered."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from kerolox.protocol.command import RemotingCommand
from tests.support.eventually import SECONDS_MAX

if TYPE_CHECKING:
    from tests.abuse.abuses import Abuse

__all__ = ["ask_all"]

UNDER_WAY_MAX = 8
"""Requests of one connection without an answer."""

STALLED_SECONDS_MAX = SECONDS_MAX
"""Without any answer."""

CHUNK_BYTES = 1 << 18


@dataclass
class _Asking:
    address: tuple[str, int]
    connection: socket.socket
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)
    open: dict[int, Abuse] = field(default_factory=dict)
    """By opaque: without an answer."""
    following: Abuse | None = None

    @classmethod
    def begun(cls, address: str) -> Self:
        host, port = address.split(":")
        asking = cls((host, int(port)), socket.create_connection((host, int(port))))
        asking.connection.setblocking(False)
        return asking

    def take(self, left: Iterator[Abuse]) -> bool:
        """Begin with the next one when it may be; False: all are answered."""
        if self.following is None:
            self.following = next(left, None)
        following = self.following
        is_room = not self.unsent and len(self.open) < UNDER_WAY_MAX
        is_alone = any(each.may_end for each in self.open.values())
        must_wait = is_alone or (following is not None and following.may_end and bool(self.open))
        if following is not None and is_room and not must_wait:
            self.open[following.opaque] = following
            self.unsent = memoryview(following.frame)
            self.following = None
        return bool(self.open)

    def send(self) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.unsent = self.unsent[self.connection.send(self.unsent[:CHUNK_BYTES]) :]


def ask_all(
    address: str, abuses: Iterable[Abuse], *, connections: int
) -> Iterator[tuple[str, RemotingCommand | None]]:
    """Ask; gives what was asked and its answer, as answers come; None: the connection ended, as it
    may at that one.

    Raises:
        AssertionError: a connection ended, or nothing was answered for ``STALLED_SECONDS_MAX``.
    """
    left = iter(abuses)
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            asking = _Asking.begun(address)
            selector.register(asking.connection, selectors.EVENT_READ, asking)
            _go_on(asking, left, selector)
        deadline = time.monotonic() + STALLED_SECONDS_MAX
        try:
            while selector.get_map():
                for key, events in selector.select(1.0):
                    asking = key.data
                    if events & selectors.EVENT_WRITE:
                        asking.send()
                    if events & selectors.EVENT_READ:
                        deadline = time.monotonic() + STALLED_SECONDS_MAX
                        yield from _answers(asking, selector)
                    _go_on(asking, left, selector)
                under_way = [each.data.open.values() for each in selector.get_map().values()]
                waiting = [abuse.what for each in under_way for abuse in each]
                assert time.monotonic() < deadline, f"not answered: {waiting[:9]}"
        finally:
            for key in list(selector.get_map().values()):
                key.data.connection.close()


def _go_on(asking: _Asking, left: Iterator[Abuse], selector: selectors.DefaultSelector) -> None:
    if not asking.take(left):
        selector.unregister(asking.connection)
        asking.connection.close()
        return
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if asking.unsent else 0)
    selector.modify(asking.connection, events, asking)


def _answers(
    asking: _Asking, selector: selectors.DefaultSelector
) -> Iterator[tuple[str, RemotingCommand | None]]:
    try:
        data = asking.connection.recv(CHUNK_BYTES)
    except ConnectionResetError:
        data = b""
    if not data:
        ended = list(asking.open.values())
        assert [each.may_end for each in ended] == [True], f"the connection ended at {ended}"
        selector.unregister(asking.connection)
        asking.connection.close()
        asking.connection = socket.create_connection(asking.address)
        asking.connection.setblocking(False)
        selector.register(asking.connection, selectors.EVENT_READ, asking)
        asking.unsent = memoryview(b"")
        asking.received.clear()
        asking.open.clear()
        yield ended[0].what, None
        return
    asking.received += data
    for frame in _whole_frames(asking.received):
        answer = RemotingCommand.decode(frame)
        if answer.is_response:
            yield asking.open.pop(answer.opaque).what, answer


def _whole_frames(received: bytearray) -> list[bytes]:
    """Those that are there; they are taken out."""
    frames = []
    start = 0
    while start + 4 <= len(received):
        end = start + 4 + int.from_bytes(received[start : start + 4], "big")
        if end > len(received):
            break
        frames.append(bytes(received[start + 4 : end]))
        start = end
    del received[:start]
    return frames
