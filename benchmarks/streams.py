"""Claim: protocols with one buffer cost a server less CPU per frame than asyncio's streams.

A server answers frames of a length and a body with the same bytes: once by ``StreamReader`` and
``StreamWriter``, with a task for each connection, once by a ``BufferedProtocol`` whose connections
share one buffer and which answers each chunk with one write. A client on blocking sockets keeps
some frames open on each connection. Told is the server's CPU per frame, the median of some turns
and their range, on uvloop.

    python benchmarks/streams.py [--frames 200000] [--turns 3] [--shape 64x4]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import struct
import time
from multiprocessing.connection import Connection
from threading import Thread
from typing import cast

import uvloop

BODY = b"x" * 128
FRAME = struct.pack(">I", len(BODY)) + BODY
LENGTH = struct.Struct(">I")
BUFFER_BYTES = 256 * 1024


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            head = await reader.readexactly(4)
            body = await reader.readexactly(LENGTH.unpack(head)[0])
        except asyncio.IncompleteReadError:
            writer.close()
            return
        writer.write(head + body)
        await writer.drain()


class Answering(asyncio.BufferedProtocol):
    buffer = memoryview(bytearray(BUFFER_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport by class, only by what they do.
        self.transport = cast("asyncio.Transport", transport)
        self.kept = b""

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        chunk = self.kept + bytes(self.buffer[:nbytes])
        answers, at, end = [], 0, len(chunk)
        while at + 4 <= end:
            behind = at + 4 + LENGTH.unpack_from(chunk, at)[0]
            if behind > end:
                break
            answers.append(chunk[at:behind])
            at = behind
        self.kept = chunk[at:]
        if answers:
            self.transport.write(b"".join(answers))


async def listen(kind: str, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    if kind == "streams":
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
    else:
        server = await loop.create_server(Answering, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    before = time.process_time()
    await loop.run_in_executor(None, pipe.recv)
    pipe.send(time.process_time() - before)


def serve(kind: str, pipe: Connection) -> None:
    uvloop.run(listen(kind, pipe))


def load(port: int, frames: int, in_flight: int) -> None:
    """Send frames, so many at a time, and read their answers."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(frames // in_flight):
            connection.sendall(FRAME * in_flight)
            left = len(FRAME) * in_flight
            while left:
                left -= len(connection.recv(left))


def measured(kind: str, frames: int, in_flight: int, connections: int) -> float:
    """Microseconds of the server's CPU per frame."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(kind, theirs))
    server.start()
    port = ours.recv()
    args = (port, frames // connections, in_flight)
    threads = [Thread(target=load, args=args) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.send(None)
    seconds: float = ours.recv()
    server.join()
    return seconds / frames * 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shape", default="64x4", help="open frames x connections")
    options = parser.parse_args()
    in_flight, connections = map(int, options.shape.split("x"))
    found: dict[str, list[float]] = {"streams": [], "protocol": []}
    for _ in range(options.turns):
        for kind, times in found.items():
            times.append(measured(kind, options.frames, in_flight, connections))
    for kind, times in found.items():
        median = statistics.median(times)
        print(f"{kind}: {median:.2f} us a frame ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
