"""Two brokers in one loop: one whose fast path answers what it can, one without a fast path."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from kerolox.remoting.server import RemotingServer
from tests.support.clients.peer import small_config

if TYPE_CHECKING:
    import pytest

__all__ = ["CLOSED", "HELD", "ONEWAY", "Outcome", "Pair"]

NOW_MS = 1_760_000_000_000
"""What the clocks of both brokers show, so that nothing expires and all bytes are the same."""

ANSWER_SECONDS_MAX = 20.0

QUIET_SECONDS_MAX = 5.0
"""A request that has no answer after so long, while pulls are held, is one of them."""

HELD, ONEWAY, CLOSED = "held", "one way", "closed"
"""What became of a request that has no answer."""

Outcome = RemotingCommand | str

_BEHIND = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, {"topic": "none", "queueId": 0})
_BEHIND.opaque = 1 << 30


@dataclass
class Handled:
    """What the handlers of one broker see."""

    codes: Counter[int] = field(default_factory=Counter)
    """How often each came."""
    oneway: int = 0
    """Those without an answer that are in work."""


class Side:
    """One broker, and a socket for each connection of its clients."""

    def __init__(self, broker: Broker, handled: Handled) -> None:
        self.broker = broker
        self.slow_codes = handled.codes
        """How often its handlers saw each code."""
        self._handled = handled
        self.answers: dict[tuple[int, int], RemotingCommand] = {}
        """By connection and opaque."""
        self._waits = 0
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._closed: set[int] = set()
        self._progress = asyncio.Event()

    async def connect(self, connection: int, made: socket.socket) -> None:
        """Connect a socket that is bound."""
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, ("127.0.0.1", self.broker.port))
        reader, self._writers[connection] = await asyncio.open_connection(sock=made)
        self._readers.append(asyncio.create_task(self._read(connection, reader)))

    async def _read(self, connection: int, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                for frame in decoder.feed(data):
                    command = RemotingCommand.decode(frame)
                    if command.is_response:
                        self.answers[connection, command.opaque] = command
                self._progress.set()
        self._closed.add(connection)
        self._progress.set()

    async def ask(self, connection: int, frame: bytes, request: RemotingCommand | None) -> Outcome:
        """Send a frame, wait for what becomes of it. ``request``: the frame, if it is one."""
        random.seed(len(frame))
        await self._tick()
        held, quiet_from = self.held, monotonic()
        self._writers[connection].write(frame)
        key = (connection, request.opaque if request is not None else 0)
        if request is not None and request.is_oneway:
            # It is begun when what comes behind it is answered.
            self._writers[connection].write(_BEHIND.encode())
            key = (connection, _BEHIND.opaque)
        self.answers.pop(key, None)
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not self._is_over(key):
                # One that was held before may end meanwhile.
                held = min(held, self.held)
                if self.held > held or (held and monotonic() > quiet_from + QUIET_SECONDS_MAX):
                    return HELD
                self._progress.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._progress.wait(), 0.002)
        if request is not None and request.is_oneway:
            return ONEWAY if self.answers.pop(key, None) else CLOSED
        return self.answers.get(key, CLOSED)

    def _is_over(self, key: tuple[int, int]) -> bool:
        """A request is answered, and nothing without an answer is in work; or nothing follows."""
        return key[0] in self._closed or (key in self.answers and not self._handled.oneway)

    async def _tick(self) -> None:
        """What the broker does ten times a second, done between two requests. Held pulls that a
        change of the tables ends have their answers here, and none while the next one is asked."""
        if self.broker.parts.store.tick(NOW_MS):
            self.broker._ports.deliver_ready()
            # Those with expressions answer in their next turn.
            await asyncio.sleep(0)
            for connection in self._writers.keys() - self._closed:
                await self._hear_all(connection)

    async def _hear_all(self, connection: int) -> None:
        """Wait for all that was written to a connection."""
        key = (connection, _BEHIND.opaque)
        self._writers[connection].write(_BEHIND.encode())
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while key not in self.answers and connection not in self._closed:
                self._progress.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._progress.wait(), 0.002)
        self.answers.pop(key, None)

    @property
    def held(self) -> int:
        """How many pulls wait for messages."""
        return self.broker.parts.store.stats()["held_pulls"] + self._waits

    def count_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pulls with expressions wait beside the held ones: count them, too."""
        wait = self.broker.parts.arrivals.wait

        async def counted(*arguments: Any) -> bool:
            self._waits += 1
            try:
                return await wait(*arguments)
            finally:
                self._waits -= 1

        monkeypatch.setattr(self.broker.parts.arrivals, "wait", counted)

    async def close(self) -> None:
        """Close the connections."""
        for writer in self._writers.values():
            writer.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def stored(self) -> dict[str, bytes]:
        """The bytes of the log and of the queues, by file; after the broker's stop."""
        root = self.broker.config.store_path_root_dir
        files = [*root.glob("commitlog/*"), *root.glob("consumequeue/*/*/*")]
        found = {str(path.relative_to(root)): path.read_bytes().rstrip(b"\0") for path in files}
        return {name: data for name, data in found.items() if data}


class Pair:
    """The same requests, to a broker with a fast path and to one without."""

    def __init__(self, fast: Side, slow: Side) -> None:
        self.fast, self.slow = fast, slow
        self._connections: set[int] = set()

    @classmethod
    async def start(
        cls, folder: Path, kernel: str, monkeypatch: pytest.MonkeyPatch, **settings: Any
    ) -> Self:
        """Start both on a kernel."""
        # Ticks come by hand, and no pull ends because it took long.
        monkeypatch.setattr("kerolox.broker.broker.TICK_SECONDS", 1e6)
        for limit in ("SCAN_SECONDS_MAX", "SCAN_CPU_SECONDS_MAX"):
            monkeypatch.setattr(f"kerolox.broker.services.filtered_pull.{limit}", math.inf)
        sides = []
        for name in ("fast", "slow"):
            handled = Handled()
            server = _server(handled, has_fast_path=name == "fast")
            monkeypatch.setattr("kerolox.broker.ports.RemotingServer", server)
            config = small_config(folder / name, advertised_address="127.0.0.1:10911", **settings)
            broker = Broker(config, kernel=kernel, clock_ms=lambda: NOW_MS)
            await broker.start()
            broker.parts.store.set_clock(NOW_MS)
            sides.append(Side(broker, handled))
            sides[-1].count_waits(monkeypatch)
        return cls(*sides)

    async def ask(self, connection: int, frame: bytes) -> tuple[Outcome, Outcome]:
        """What both answer to a whole frame."""
        request = None
        with contextlib.suppress(Exception):
            request = RemotingCommand.decode(frame[4:])
        if connection not in self._connections:
            await self._connect(connection)
        fast = await self.fast.ask(connection, frame, request)
        slow = await self.slow.ask(connection, frame, request)
        if CLOSED in (fast, slow):
            self._connections.discard(connection)
        return fast, slow

    async def _connect(self, connection: int) -> None:
        """The same address and port for both brokers, since records hold it."""
        with socket.socket() as first, socket.socket() as second:
            for made in (first, second):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            first.bind(("127.0.0.1", 0))
            second.bind(first.getsockname())
            await self.fast.connect(connection, socket.socket(fileno=first.detach()))
            await self.slow.connect(connection, socket.socket(fileno=second.detach()))
        self._connections.add(connection)

    async def stop(self) -> None:
        """End what is held, close the connections, stop both brokers."""
        for side in (self.fast, self.slow):
            await side.broker.stop()
            await side.close()


def _server(handled: Handled, *, has_fast_path: bool) -> Callable[..., RemotingServer]:
    """Makes a server that counts what its handler sees, and feeds a kernel or not."""

    def made(handler: Any, *, fast_path: Any, **rest: Any) -> RemotingServer:
        async def counted(command: RemotingCommand, connection: Any) -> Any:
            handled.codes[command.code] += 1
            handled.oneway += command.is_oneway
            try:
                return await handler(command, connection)
            finally:
                handled.oneway -= command.is_oneway

        return RemotingServer(counted, fast_path=fast_path if has_fast_path else None, **rest)

    return made
