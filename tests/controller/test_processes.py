"""Three controllers as processes: what a kill leaves, and what one that comes back knows."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

import pytest

from kerolox.errors import ClientError, RemotingError
from kerolox.protocol.bodies import decode_body
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.controller import (
    ElectMasterHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdHeader,
    GetReplicaInfoHeader,
    GetReplicaInfoResponseHeader,
    SyncStateSet,
)
from tests.controller.asking import IDS, Asking
from tests.support.eventually import until
from tests.support.servers.command import Server
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.asyncio

HOST = "127.0.0.1"
ELECTION_SECONDS_MAX = 10
"""A second or two without a leader, an election that is lost, and a machine that is busy."""


class Processes(Asking):
    """The controllers, by address."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        ports = [free_port() for _ in range(3)]
        peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(ports))
        self.servers: dict[str, Server] = {}
        self.running: set[str] = set()
        for number, port in enumerate(ports):
            home = folder / f"n{number}"
            home.mkdir()
            conf = home / "controller.conf"
            conf.write_text(
                f"controllerDLegerPeers={peers}\ncontrollerDLegerSelfId=n{number}\n"
                "controllerSecret=s3cret\n"
            )
            arguments = ("controller", "--host", HOST, "--data", home, "-c", conf)
            self.servers[f"{HOST}:{port}"] = Server(home, *arguments)

    async def start(self, address: str) -> None:
        server = self.servers[address]
        server.ready_file.unlink(missing_ok=True)
        await asyncio.to_thread(server.__enter__)
        self.running.add(address)

    async def kill(self, address: str) -> None:
        server = self.servers[address]
        server.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.process.wait)
        self.running.discard(address)

    def addresses(self) -> Iterable[str]:
        return self.running

    async def leader_address(self) -> str:
        found: list[str] = []

        async def one_leads() -> bool:
            for address in self.running:
                with contextlib.suppress(RemotingError, ClientError, OSError):
                    told = await self.ask(RequestCode.CONTROLLER_GET_METADATA_INFO, at=address)
                    if GetMetaDataResponseHeader.decode(told.ext_fields).is_leader:
                        found[:] = [address]
            return bool(found)

        await until(one_leads, what="a leader")
        return found[0]

    async def next_broker_id(self) -> str:
        asked = GetNextBrokerIdHeader(**IDS)
        answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, asked)
        return answer.ext_fields["nextBrokerId"]


async def test_a_killed_controller_is_replaced_and_catches_up(tmp_path: Path) -> None:
    controllers = Processes(tmp_path)
    try:
        for address in controllers.servers:
            await controllers.start(address)
        first = await controllers.leader_address()
        await controllers.enter(1, f"{HOST}:1")
        elected = ElectMasterHeader(**IDS, broker_id=1)
        await controllers.ask(RequestCode.CONTROLLER_ELECT_MASTER, elected)
        await controllers.apply(2, f"{HOST}:2")

        await controllers.kill(first)
        begin = time.monotonic()
        second = await controllers.leader_address()
        assert time.monotonic() - begin < ELECTION_SECONDS_MAX
        # The second broker goes on where it was, with the id that the first leader gave it.
        await controllers.register(2, f"{HOST}:2")
        asked = GetReplicaInfoHeader(broker_name="b")
        told = await controllers.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, asked)
        info = GetReplicaInfoResponseHeader.decode(told.ext_fields)
        assert (info.master_broker_id, info.master_epoch) == (1, 1)
        assert decode_body(told.body, SyncStateSet).sync_state_set == [1]

        # With the third one gone, the one that comes back is needed for a majority.
        await controllers.start(first)
        (third,) = controllers.running - {first, second}
        await controllers.kill(third)
        await controllers.enter(3, f"{HOST}:3")
        # Of the two that run now, it alone has the third broker, so it alone can be elected.
        await controllers.kill(second)
        await controllers.start(third)
        assert await controllers.leader_address() == first
        assert await controllers.next_broker_id() == "4"
    finally:
        for address in list(controllers.running):
            await asyncio.to_thread(controllers.servers[address].stop)
        await controllers.client.close()
