"""Record the frames that the Java, Go and Node.js clients send to a broker.

    python -m tests.differential.record

A proxy stands between the clients' scenarios (``tests/interop``) and a broker that advertises the
proxy's address. What the clients send with the codes of ``corpus`` becomes ``corpus.xz``.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kerolox.client.sync import Producer
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.framing import FrameDecoder
from tests.differential.corpus import CORPUS, FAST_CODES, SETUP_CODES, Recorded, write_corpus
from tests.interop.test_node_clients import SETTINGS, TOPICS
from tests.support.programs import build_go_clients, build_node_clients, java_command
from tests.support.servers.up import Up, free_port


class Recorder:
    """A proxy that keeps what goes through it to the broker."""

    def __init__(self) -> None:
        self.frames: list[Recorded] = []
        self._connections = 0
        self._broker_port = 0

    async def record(self, command: list[str], up: Up, port: int, topics: Sequence[str]) -> int:
        """Run a client program against a broker behind the proxy; how many frames were kept."""
        self._broker_port = up.port
        before = len(self.frames)
        server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        async with server:
            await asyncio.to_thread(make_topics, up, topics)
            process = await asyncio.create_subprocess_exec(*command)
            await asyncio.wait_for(process.wait(), 600)
        return len(self.frames) - before

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._connections
        self._connections += 1
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._broker_port)
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pass_on(reader, broker_writer, connection),
                self._pass_on(broker_reader, writer, None),
            )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int | None
    ) -> None:
        decoder = FrameDecoder()
        try:
            while data := await reader.read(1 << 16):
                if connection is not None:
                    for frame in decoder.feed(data):
                        self._keep(connection, frame)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def _keep(self, connection: int, frame: bytes) -> None:
        if RemotingCommand.decode(frame).code in FAST_CODES | SETUP_CODES:
            whole = len(frame).to_bytes(4, "big") + frame
            self.frames.append(Recorded(connection, whole))


def main() -> None:
    """Record all three clients."""
    recorder = Recorder()
    for client in ("java", "java with binary headers", "go", "node"):
        port = free_port()
        settings: dict[str, object] = {"advertisedAddress": f"127.0.0.1:{port}"}
        if client == "node":
            settings |= SETTINGS
        with (
            tempfile.TemporaryDirectory() as folder,
            Up(Path(folder), settings=settings) as up,
        ):
            if client.startswith("java"):
                options = ("-Drocketmq.serialize.type=ROCKETMQ",) if client != "java" else ()
                command = java_command("interop.Clients", up.namesrv, options=options)
            elif client == "go":
                command = [str(build_go_clients()), up.namesrv, f"127.0.0.1:{port}"]
            else:
                command = ["node", str(build_node_clients()), up.namesrv]
            topics = [f"Node{topic}" for topic in TOPICS] if client == "node" else ()
            count = asyncio.run(recorder.record(command, up, port, topics))
        print(f"{client}: {count} frames")
    write_corpus(CORPUS, recorder.frames)
    print(f"{CORPUS}: {len(recorder.frames)} frames, {CORPUS.stat().st_size} bytes")


def make_topics(up: Up, topics: Sequence[str]) -> None:
    """Topics that a client does not ask for itself."""
    if topics:
        with Producer("maker", up.namesrv) as producer:
            for topic in topics:
                producer.create_topic(topic, queues=4)


if __name__ == "__main__":
    main()
