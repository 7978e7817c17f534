"""A TCP proxy that misbehaves on demand: drops, resets, delays, cuts, leads nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from kerolox.remoting.listening import close_listeners
from tests.support.eventually import SECONDS_MAX

__all__ = ["Proxy"]

CHUNK_BYTES = 64 * 1024
_Result = TypeVar("_Result")


class _Pair:
    """One connection of a client, and the proxy's own to the target."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.ends = client, target
        self.is_deaf = False
        """Half open: nothing is forwarded any more, in either direction, and nobody is notified."""
        self.is_left = False
        """The client has closed its end."""
        self.bytes_left: int | None = None
        """After so many bytes of answers it is reset."""

    def reset(self) -> None:
        for end in self.ends:
            sock = end.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    def drop(self) -> None:
        for end in self.ends:
            end.close()


class Proxy:
    """Forwards connections to a target; runs in a thread of its own between enter and exit."""

    def __init__(self) -> None:
        self.target = ("", 0)
        """Where to; set it before the first connection."""
        self.delay_seconds = 0.0
        """Each chunk is late by so much."""
        self.rewrites: tuple[bytes, bytes] | None = None
        """What answers have instead of what; of one length, and not across chunks."""
        self.refuses = False
        """New connections are closed at once."""
        self.connections = 0
        """How many were taken."""
        self._pairs: set[_Pair] = set()
        """Those that are half open stay so, though the client has gone."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        serving = asyncio.start_server(self._take, sock=self._listener)
        started = asyncio.run_coroutine_threadsafe(serving, self._loop)
        self._server = started.result(SECONDS_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(SECONDS_MAX)
        self._in_loop(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        self._listener.close()

    @property
    def open(self) -> int:
        """Connections that clients have open."""
        return sum(not pair.is_left for pair in list(self._pairs))

    # -- faults -----------------------------------------------------------------------------------
    def drop(self) -> None:
        """All connections end, as if both sides had closed them."""
        self._in_loop(lambda: [pair.drop() for pair in self._pairs])

    def reset(self) -> None:
        """All connections end with a reset."""
        self._in_loop(lambda: [pair.reset() for pair in self._pairs])

    def half_open(self) -> None:
        """All connections lead nowhere from now on; new ones work."""

        def deafen() -> None:
            for pair in self._pairs:
                pair.is_deaf = True

        self._in_loop(deafen)

    def cut(self, answer_bytes: int) -> None:
        """All connections are reset after so many further bytes of answers, maybe in a frame."""

        def cut() -> None:
            for pair in self._pairs:
                pair.bytes_left = answer_bytes

        self._in_loop(cut)

    # -- forwarding -------------------------------------------------------------------------------
    def _in_loop(self, action: Callable[[], _Result]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                action()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(SECONDS_MAX)

    async def _stop(self) -> None:
        await close_listeners([self._server])
        for pair in self._pairs:
            pair.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, there[1])
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(pair, reader, there[1], answers=False),
                self._pump(pair, there[0], writer, answers=True),
            )
        finally:
            self._pairs.discard(pair)
            for end in pair.ends:
                end.transport.abort()

    async def _pump(
        self,
        pair: _Pair,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if pair.is_deaf:
                    continue
                if answers and self.rewrites is not None:
                    data = data.replace(*self.rewrites)
                if answers and pair.bytes_left is not None:
                    data, pair.bytes_left = data[: pair.bytes_left], pair.bytes_left - len(data)
                writer.write(data)
                await writer.drain()
                if pair.bytes_left is not None and pair.bytes_left <= 0:
                    pair.reset()
        pair.is_left |= not answers
        if not pair.is_deaf:
            writer.close()
