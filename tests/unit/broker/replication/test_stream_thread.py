"""A slave whose log is its master's has the kernel read, and goes on itself with anything else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.replication.wire import HEAD, HELLO, REPORT, Note
from tests.support.eventually import SECONDS_MAX, until

from .pairs import fill, log_of, master_config, pair, quick_retries, slave_config, until_equal

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


def is_read_by_a_thread() -> bool:
    return any(each.name.startswith("kerolox-slave") for each in threading.enumerate())


class Master:
    """A master that the test speaks for: it sends the log of a real one."""

    def __init__(self, log: bytes, file_size: int) -> None:
        self.log = log
        self.file_size = file_size
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    def note(self) -> bytes:
        return Note(0, len(self.log), self.file_size).frame()

    async def slave(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The next connection of a slave with an empty log, greeted."""
        async with asyncio.timeout(SECONDS_MAX):
            reader, writer = await self.connections.get()
            assert await reader.readexactly(8) == HELLO
            writer.write(self.note())
            assert await reader.readexactly(8) == REPORT.pack(0)
            return reader, writer

    def frame(self, begin: int, end: int) -> bytes:
        return HEAD.pack(begin, end - begin) + self.log[begin:end]


async def reported(reader: asyncio.StreamReader, offset: int) -> None:
    """Wait for a report of an offset, or of one beyond it."""
    async with asyncio.timeout(SECONDS_MAX):
        while REPORT.unpack(await reader.readexactly(8))[0] < offset:
            pass


@asynccontextmanager
async def followed(folder: Path, kernel: str) -> AsyncIterator[tuple[Master, Broker]]:
    """A master of the test, and a slave that follows it."""
    async with Broker(master_config(folder), kernel=kernel) as real:
        await fill(real, 200)
        log, file_size = log_of(real), real.config.mapped_file_size_commit_log
    master = Master(log[:file_size], file_size)
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        master.connections.put_nowait((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Broker(slave_config(folder, port), kernel=kernel) as slave:
            yield master, slave
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def test_a_thread_reads_for_the_native_kernel_while_both_logs_are_equal(
    tmp_path: Path, kernel: str
):
    async with pair(tmp_path, kernel) as (master, slave):
        await fill(master, 20)
        await until_equal(master, slave)
        if kernel == "native":
            await until(is_read_by_a_thread)
        await fill(master, 500)
        await until_equal(master, slave)
        assert is_read_by_a_thread() == (kernel == "native")
        await slave.stop()
        await until(lambda: not is_read_by_a_thread())


async def test_a_note_that_comes_late_is_read_and_the_log_goes_on(tmp_path: Path, kernel: str):
    async with followed(tmp_path, kernel) as (master, slave):
        reader, writer = await master.slave()
        at, step = 0, 5_000
        for round_ in range(4):
            writer.write(master.frame(at, at + step))
            at += step
            await reported(reader, at - 2_000)
            if kernel == "native":
                await until(is_read_by_a_thread)
            note = master.note()
            for part in (note, note[:5], note[5:])[: 1 if round_ % 2 else 3]:
                writer.write(part)
                await writer.drain()
        writer.write(master.frame(at, len(master.log)))
        await until(lambda: slave.parts.store.max_physical_offset > len(master.log) - 2_000)
        assert master.log.startswith(log_of(slave))


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (Note(refused="no more of you").frame(), "the master refuses: no more of you"),
        (HEAD.pack(1 << 40, 4) + b"abcd", "the master goes on at 1099511627776"),
        (HEAD.pack(20_000, -5), "a frame of -5 bytes at 20000"),
        (HEAD.pack(20_000, 900) + b"\xff" * 900, "bytes at 20000 are refused"),
        (b"", "the master closed the connection"),
    ],
)
async def test_why_a_connection_ended_is_said_and_it_is_made_again(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture, last: bytes, words: str
):
    async with followed(tmp_path, kernel) as (master, slave):
        reader, writer = await master.slave()
        writer.write(master.frame(0, 20_000))
        await reported(reader, 18_000)
        if kernel == "native":
            await until(is_read_by_a_thread)
        writer.write(last)
        if not last:
            writer.close()
        async with asyncio.timeout(SECONDS_MAX):
            await master.connections.get()
        assert words in caplog.text
        assert master.log.startswith(log_of(slave))


async def test_a_slave_stops_at_once_while_its_master_sends(tmp_path: Path, kernel: str):
    async with followed(tmp_path, kernel) as (master, slave):
        reader, writer = await master.slave()
        writer.write(master.frame(0, 20_000))
        await reported(reader, 18_000)
        writer.write(HEAD.pack(20_000, 1 << 20) + master.log[20_000:30_000])
        async with asyncio.timeout(SECONDS_MAX):
            await slave.stop()
        await until(lambda: not is_read_by_a_thread())


async def test_silence_of_the_master_ends_a_connection(
    tmp_path: Path, kernel: str, caplog: pytest.LogCaptureFixture
):
    async with followed(tmp_path, kernel) as (master, slave):
        follower = slave.parts.peers.replication.follower
        follower._timing = follower._timing._replace(housekeeping_ms=300)
        reader, writer = await master.slave()
        for at in range(0, 20_000, 2_000):
            writer.write(master.frame(at, at + 2_000))
            await reported(reader, at)
        async with asyncio.timeout(SECONDS_MAX):
            await master.connections.get()
        assert "the master sent nothing for" in caplog.text
