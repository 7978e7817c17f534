"""A broker on each kernel in turn, with a neighbour whose service is watched all the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.records import decode_records
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import until
from tests.support.kernels import KERNELS
from tests.support.stores.memory import tmp_path as memory_path

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from kerolox.protocol.command import RemotingCommand

__all__ = ["broker", "memory_path", "peer"]


class Neighbour:
    """Sends and reads on connections of its own, before, during and after the bad input."""

    def __init__(self, sender: Peer, reader: Peer) -> None:
        self.sender, self.reader = sender, reader
        self.sent = 0

    async def use(self) -> None:
        """A held pull is answered by the send that comes after it."""
        held = asyncio.ensure_future(
            self.reader.pull("Neighbour", offset=self.sent, suspend_ms=60_000)
        )
        body = b"%d" % self.sent
        answer = await self.sender.send("Neighbour", body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.sent += 1
        got: RemotingCommand = await held
        assert [message.body for message in decode_records(got.body)] == [body]

    async def use_always(self) -> None:
        while True:
            await self.use()
            # Often enough to be hurt by what else the broker does; without it a processor is taken.
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(broker: Broker) -> AsyncIterator[Neighbour]:
    """Inside, a neighbour is served without a break; at the end all that it sent is there."""
    async with peer_of(broker) as sender, peer_of(broker) as reader:
        assert (await sender.create_topic("Neighbour", queues=1)).code == ResponseCode.SUCCESS
        neighbour = Neighbour(sender, reader)
        await neighbour.use()
        using = asyncio.ensure_future(neighbour.use_always())
        yield neighbour
        seen = neighbour.sent

        def is_served() -> bool:
            assert not using.done(), using.exception()
            return neighbour.sent >= seen + 2

        await until(is_served, what="the neighbour's service")
        using.cancel()
        await asyncio.wait([using])
        bodies: list[bytes] = []
        while messages := await reader.messages("Neighbour", offset=len(bodies)):
            bodies += [message.body for message in messages]
        assert bodies[: neighbour.sent] == [b"%d" % index for index in range(neighbour.sent)]


@pytest_asyncio.fixture(params=KERNELS)
async def broker(request: pytest.FixtureRequest, memory_path: Path) -> AsyncIterator[Broker]:
    config = small_config(memory_path, tls_server_handshake_timeout_millis=1_000)
    async with Broker(config, kernel=request.param) as started, served(started):
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(broker) as client:
        yield client
