"""A broker of ours and one of RocketMQ 5.3.3 under one controller of ours: each follows the other,
and takes its place.

``tests/replication/test_failover.py`` has two of ours; ``tests/unit/broker/replication`` what
RocketMQ's brokers send to each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kerolox.controller.config import ControllerConfig
from kerolox.controller.server import Controller
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.replication.members import OurMember
from tests.support.clients.peer import peer_at
from tests.support.eventually import until
from tests.support.programs import build_broker_53
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.java,
    pytest.mark.software,
    pytest.mark.timeout(600),
]

HOST, NAME, TOPIC = "127.0.0.1", "broker-a", "Orders"


class Java:
    """A broker of RocketMQ 5.3.3."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        folder.mkdir(exist_ok=True)
        lines = tuple(f"{key}={value}" for key, value in settings.items())
        self.peer = JavaPeer(folder, settings=lines, with_namesrv=False, built=build_broker_53)
        self.peer.__enter__()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.peer.port}"

    def end(self) -> None:
        with contextlib.suppress(Exception):
            self.peer.kill()


async def send(address: str, numbers: range) -> None:
    async with peer_at(address) as peer:
        await peer.create_topic(TOPIC)
        for number in numbers:
            answer = await peer.send(TOPIC, b"%d" % number, queue_id=0)
            assert answer.code == 0, answer.remark


async def bodies(address: str) -> list[bytes]:
    async with peer_at(address) as peer:
        found: list[bytes] = []
        while messages := await peer.messages(TOPIC, 0, len(found)):
            found += [each.body for each in messages]
        return found


async def test_each_follows_the_other_and_takes_its_place(tmp_path: Path) -> None:
    config = ControllerConfig(
        controller_d_leger_peers=f"n0-{HOST}:{free_port()}",
        controller_store_path=tmp_path / "controller",
        listen_host=HOST,
    )
    names = NamesrvConfig(listen_port=0, listen_host=HOST, kv_config_path=tmp_path / "kv.json")
    async with Controller(config) as controller, NameServer(names) as namesrv:
        settings: dict[str, object] = {
            "brokerName": NAME,
            "brokerId": -1,
            "brokerRole": "SLAVE",
            "enableControllerMode": "true",
            "controllerAddr": config.own_address,
            "allAckInSyncStateSet": "true",
            "namesrvAddr": f"{HOST}:{namesrv.port}",
            "mappedFileSizeCommitLog": 1 << 20,
        }

        def state() -> tuple[int | None, set[int]]:
            found = controller.replicas.broker_sets.get(NAME)
            return (
                (None, set())
                if found is None
                else (
                    found.master_broker_id,
                    set(found.sync_state_set),
                )
            )

        ours = OurMember(tmp_path / "ours", f"{HOST}:{namesrv.port}", settings)
        java: Java | None = None
        try:
            await asyncio.to_thread(ours.start)
            await until(lambda: state() == (1, {1}))
            await send(ours.address, range(100))
            of_java = {**settings, "haListenPort": free_port()}
            java = await asyncio.to_thread(Java, tmp_path / "java", of_java)
            await until(lambda: state() == (1, {1, 2}), seconds=90)
            await send(ours.address, range(100, 200))
            ours.kill()
            await until(lambda: state() == (2, {2}), seconds=90)
            # A slave of RocketMQ may not know a topic that its master made lately.
            await send(java.address, range(200, 300))
            expected = [b"%d" % number for number in range(300)]
            await until(lambda: bodies_are(java.address, expected), seconds=60)
            await asyncio.to_thread(ours.start)
            await until(lambda: state() == (2, {1, 2}), seconds=90)
            await send(java.address, range(300, 400))
            java.end()
            await until(lambda: state() == (1, {1}), seconds=90)
            expected = [b"%d" % number for number in range(400)]
            await until(lambda: bodies_are(ours.address, expected))
        finally:
            print(ours.log[-4_000:])
            ours.end()
            if java is not None:
                java.end()


async def bodies_are(address: str, expected: list[bytes]) -> bool:
    return await bodies(address) == expected
