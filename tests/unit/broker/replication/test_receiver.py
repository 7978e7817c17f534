"""What a slave reads of its master goes into the log at once, and what it answers has a bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kerolox.broker.replication.follower import LogReceiver
from kerolox.broker.replication.slave import MasterLink
from kerolox.broker.replication.wire import HEAD, Note, ReplicationError, ReplicationSettings

from .memory_log import MemoryLog

pytestmark = pytest.mark.asyncio

FILE_SIZE = 1_000


class Wire:
    """A transport that notes what is done with it."""

    def __init__(self) -> None:
        self.written = b""
        self.done: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


class Master:
    """What comes to the slave, as a socket hands it over."""

    def __init__(self) -> None:
        self.wire, self.log = Wire(), MemoryLog()
        link = MasterLink(self.log, FILE_SIZE, ReplicationSettings(), 0)
        wire: Any = self.wire
        self.receiver = LogReceiver(link, wire)
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
