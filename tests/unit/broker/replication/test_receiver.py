"""What a slave reads of its master goes into the log at once, and what it answers has a bound."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from kerolox.broker.replication.follower import LogReceiver, StreamThread
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.wire import HEAD, Note, ReplicationError, ReplicationSettings
from kerolox.kernel.values import StreamPosition

from .memory_log import MemoryLog

pytestmark = pytest.mark.asyncio

FILE_SIZE = 1_000


class Wire:
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        self.written = b""
        self.done: list[str] = []
        self.unsent = 0
        self.socket: socket.socket | None = None

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


class Master:
    """What comes to the slave, as a socket hands it over."""

    def __init__(self) -> None:
        self.wire, self.log = Wire(), MemoryLog()
        self.link = MasterLink(self.log, FILE_SIZE, ReplicationSettings(), 0)
        wire: Any = self.wire
        self.receiver = LogReceiver(self.link, wire)
        self.send(Note(file_size=FILE_SIZE, begin=0, end=0).frame())

    def send(self, data: bytes) -> None:
        buffer = memoryview(self.receiver.get_buffer(-1))
        buffer[: len(data)] = data
        self.receiver.buffer_updated(len(data))


async def test_bytes_are_in_the_log_when_the_read_is_over() -> None:
    master = Master()
    before = len(master.wire.written)
    for at, part in ((0, b"ab\n"), (3, b"de\n")):
        master.send(HEAD.pack(at, len(part)) + part)
    assert master.log.read_log(0, 100) == b"ab\nde\n"
    assert master.wire.written[before:] == (3).to_bytes(8, "big") + (6).to_bytes(8, "big")
    await master.receiver.wait(0)


class Stream:
    """A kernel's stream that never reads; it stands in the head of a frame."""

    def __init__(self, stream_position: StreamPosition) -> None:
        self._standing = stream_position

    def stream_position(self) -> StreamPosition:
        return self._standing._replace(rest=HEAD.pack(6, 3)[:5])

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class StreamingLog(MemoryLog):
    """A log whose kernel reads connections."""

    def read_master(
        self, _descriptor: int, stream_position: StreamPosition, *_sizes: int
    ) -> Stream:
        return Stream(stream_position)


@contextmanager
def handed_over() -> Iterator[tuple[Master, StreamThread]]:
    """A master of whose log six bytes came, and the thread that is to read on."""
    master = Master()
    master.send(HEAD.pack(0, 6) + b"ab\nde\n")
    log: Any = StreamingLog()
    with socket.socket() as master.wire.socket:
        thread = StreamThread.begin(master.link, master.receiver.transport, log)
        assert thread is not None
        assert master.wire.done == ["pause_reading"]
        yield master, thread


async def test_a_kernel_reads_nothing_while_a_report_may_be_half_sent() -> None:
    log: Any = StreamingLog()
    with handed_over() as (master, thread):
        master.wire.unsent = 3
        assert await thread.read(1) is False
        await thread.close(ends_connection=False)
        assert master.wire.done == ["pause_reading", "resume_reading"]
        assert StreamThread.begin(master.link, master.receiver.transport, log) is None
    master.send(HEAD.pack(6, 3)[5:] + b"gh\n")
    assert master.log.read_log(0, 100) == b"ab\nde\ngh\n"


async def test_a_thread_that_cannot_start_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    with handed_over() as (_master, thread):
        with pytest.raises(OSError, match="can't start new thread"):
            await thread.read(1)
        await thread.close()


async def test_a_master_that_takes_no_answers_is_not_read() -> None:
    master = Master()
    master.receiver.pause_writing()
    assert master.wire.done == ["pause_reading"]
    master.receiver.resume_writing()
    assert master.wire.done == ["pause_reading", "resume_reading"]


async def test_an_error_ends_the_connection_and_what_comes_after_is_dropped() -> None:
    master = Master()
    master.send(HEAD.pack(50, 3) + b"abc" + HEAD.pack(60, 1) + b"x")
    assert master.wire.done == ["abort"]
    master.send(HEAD.pack(53, 1) + b"y")
    master.receiver.connection_lost(ConnectionResetError())
    with pytest.raises(ReplicationError, match="goes on at 60, and 53 comes next"):
        await master.receiver.wait(10)


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
async def test_a_wait_ends_with_the_connection(error: Exception | None) -> None:
    master = Master()
    waiting = asyncio.ensure_future(master.receiver.wait(60))
    await asyncio.sleep(0)
    master.receiver.connection_lost(error)
    with pytest.raises((ReplicationError, ConnectionResetError)):
        await waiting
