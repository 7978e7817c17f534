"""A master and a slave in one loop, and what their logs hold."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.replication import follower
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

QUICK = {"ha_send_heartbeat_interval": 50, "ha_transfer_batch_size": 5_000}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave connects again at once."""
    monkeypatch.setattr(follower, "RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr(follower, "RETRY_SECONDS_MAX", 0.05)


def master_config(folder: Path, **more: Any) -> Any:
    return small_config(folder / "master", **{**QUICK, **more})


def slave_config(folder: Path, ha_port: int, **more: Any) -> Any:
    role = {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": f"127.0.0.1:{ha_port}"}
    return small_config(folder / "slave", **{**QUICK, **role, **more})


async def fill(broker: Broker, count: int, size: int = 900, mark: bytes = b"x") -> None:
    """Send messages to four queues of ``T``; ``mark`` is what their bodies are made of."""
    async with peer_of(broker) as peer:
        await peer.create_topic("T")
        sends = (
            peer.send("T", b"%d " % number + mark * size, queue_id=number % 4)
            for number in range(count)
        )
        answers = await asyncio.gather(*sends)
    assert {answer.code for answer in answers} == {0}


def ha_port(broker: Broker) -> int:
    """Where the slaves of a master connect."""
    return broker.parts.identity.ha_port


def log_of(broker: Broker) -> bytes:
    """All bytes of a broker's log."""
    store = broker.parts.store
    at, data = store.min_physical_offset, b""
    while part := store.read_log(at, 1 << 20):
        data += part
        at += len(part)
    return data


def queues_of(broker: Broker) -> list[tuple[object, ...]]:
    return sorted(map(tuple, broker.parts.store.queues()))


async def until_equal(master: Broker, slave: Broker) -> None:
    """Wait until the slave has its master's log."""
    one, other = master.parts.store, slave.parts.store
    await until(lambda: one.max_physical_offset == other.max_physical_offset)
    assert log_of(slave) == log_of(master)
    assert queues_of(slave) == queues_of(master)


@asynccontextmanager
async def pair(
    folder: Path, kernel: str, *, of_master: Any = None, of_slave: Any = None
) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master and a slave that follows it."""
    async with Broker(master_config(folder, **(of_master or {})), kernel=kernel) as master:
        config = slave_config(folder, ha_port(master), **(of_slave or {}))
        async with Broker(config, kernel=kernel) as slave:
            await until(lambda: master.parts.peers.replication.waits.replicated.slaves == 1)
            yield master, slave


class RawSlave:
    """A slave that the test speaks for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def report(self, *offsets: int) -> None:
        self.writer.write(struct.pack(f">{len(offsets)}q", *offsets))

    async def frame(self) -> tuple[int, bytes]:
        offset, size = struct.unpack(">qi", await self.reader.readexactly(12))
        return offset, await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Read to the end of the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            return True
        return True


@asynccontextmanager
async def raw_slave(master: Broker) -> AsyncIterator[RawSlave]:
    reader, writer = await asyncio.open_connection("127.0.0.1", ha_port(master))
    try:
        yield RawSlave(reader, writer)
    finally:
        writer.close()
