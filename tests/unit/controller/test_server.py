"""Three controllers on one event loop, over sockets; brokers are headers and one small server."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from tests.controller.asking import IDS, Asking
from tests.support.eventually import until
from tests.support.servers.up import free_port

from kerolox.admin import Admin
from kerolox.controller.config import ControllerConfig
from kerolox.controller.raft.messages import Entry, Message, MessageType
from kerolox.controller.raft_wire import (
    RaftMessageError,
    RaftMessageHeader,
    raft_command,
    raft_message,
)
from kerolox.controller.server import Controller
from kerolox.errors import BrokerError, ConfigError
from kerolox.protocol.bodies import decode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    BrokerReplicasInfo,
    ElectMasterHeader,
    GetMetaDataResponseHeader,
    GetNextBrokerIdHeader,
    GetReplicaInfoHeader,
    MasterHeader,
    SyncStateSet,
)
from kerolox.remoting.server import RemotingServer

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.asyncio

HOST = "127.0.0.1"
TICK_SECONDS = 0.02


class Scene(Asking):
    """The controllers that run, and who asks them."""

    def __init__(self, folder: Path, size: int, secret: str) -> None:
        super().__init__()
        ports = [free_port() for _ in range(size)]
        peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(ports))
        self.configs = {
            f"n{number}": ControllerConfig(
                controller_d_leger_group="g",
                controller_d_leger_peers=peers,
                controller_d_leger_self_id=f"n{number}",
                controller_store_path=folder / f"n{number}",
                controller_secret=secret,
                listen_host=HOST,
                scan_not_active_broker_interval=20,
            )
            for number in range(size)
        }
        self.running: dict[str, Controller] = {}
        self.notified: list[tuple[str, RemotingCommand]] = []

    async def start(self, node_id: str) -> None:
        controller = Controller(self.configs[node_id], tick_seconds=TICK_SECONDS)
        await controller.start()
        self.running[node_id] = controller

    async def stop(self, node_id: str) -> None:
        await self.running.pop(node_id).stop()

    async def leader(self) -> Controller:
        def leaders() -> list[Controller]:
            return [each for each in self.running.values() if each.group.is_leader]

        await until(leaders, what="a leader")
        return leaders()[0]

    async def leader_address(self) -> str:
        return (await self.leader()).config.own_address

    def addresses(self) -> Iterable[str]:
        return [each.config.own_address for each in self.running.values()]


@asynccontextmanager
async def scene_of(folder: Path, size: int = 3, secret: str = "s3cret") -> AsyncIterator[Scene]:
    scene = Scene(folder, size, secret)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(scene.client.close)
        for node_id in scene.configs:
            await scene.start(node_id)
        try:
            yield scene
        finally:
            for node_id in list(scene.running):
                await scene.stop(node_id)


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_of(tmp_path) as made:
        yield made


@asynccontextmanager
async def broker_server(scene: Scene) -> AsyncIterator[str]:
    """A broker that only hears who is the master."""

    async def handle(command: RemotingCommand, _: object) -> None:
        scene.notified.append((address, command))

    server = RemotingServer(handle, host=HOST, port=0)
    await server.start()
    address = server.addresses[0]
    try:
        yield address
    finally:
        await server.stop()


async def test_a_broker_gets_an_id_and_becomes_master(scene: Scene) -> None:
    asked = GetNextBrokerIdHeader(**IDS)
    answer = await scene.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, asked)
    assert answer.ext_fields["nextBrokerId"] == "1"
    await scene.enter(1, f"{HOST}:1")
    elected = await scene.ask(
        RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterHeader(**IDS, broker_id=1)
    )
    assert MasterHeader.decode(elected.ext_fields) == MasterHeader(
        master_broker_id=1, master_address=f"{HOST}:1", master_epoch=1, sync_state_set_epoch=1
    )
    info = await scene.ask(
        RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoHeader(broker_name="b")
    )
    assert decode_body(info.body, SyncStateSet).sync_state_set == [1]
    data = await scene.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["b","other"]')
    assert list(decode_body(data.body, BrokerReplicasInfo).replicas_info_table) == ["b"]
    settings = await scene.ask(RequestCode.GET_CONTROLLER_CONFIG)
    assert b"enableElectUncleanMaster=false" in settings.body
    assert b"s3cret" not in settings.body


async def test_who_is_no_leader_says_who_is(scene: Scene) -> None:
    leader = (await scene.leader()).config
    other = next(each for each in scene.configs.values() if each is not leader)
    refused = await scene.ask(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        GetNextBrokerIdHeader(**IDS),
        at=other.own_address,
    )
    assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER

    async def metadata() -> GetMetaDataResponseHeader:
        answer = await scene.ask(RequestCode.CONTROLLER_GET_METADATA_INFO, at=other.own_address)
        return GetMetaDataResponseHeader.decode(answer.ext_fields)

    async def knows_leader() -> bool:
        return (await metadata()).controller_leader_address == leader.own_address

    await until(knows_leader, what="the leader's address")
    told = await metadata()
    assert (told.group, told.is_leader) == ("g", False)
    assert sorted((told.peers or "").split(";")[:-1]) == sorted(
        f"{node}:{address}" for node, address in leader.members.items()
    )


async def test_a_silent_master_is_replaced_and_all_are_notified(scene: Scene) -> None:
    async with broker_server(scene) as address:
        await scene.enter(1, f"{HOST}:1")
        await scene.enter(2, address)
        await scene.heartbeat(1, f"{HOST}:1", epoch=0)
        await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterHeader(**IDS, broker_id=1))
        await scene.heartbeat(2, address)
        grown = await scene.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetHeader(broker_name="b", master_broker_id=1, master_epoch=1),
            b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}',
        )
        assert grown.code == ResponseCode.SUCCESS, grown.remark

        async def is_replaced() -> bool:
            await scene.heartbeat(2, address)
            return any(command.ext_fields["masterBrokerId"] == "2" for _, command in scene.notified)

        await until(is_replaced, what="the notification")
        master = MasterHeader.decode(scene.notified[-1][1].ext_fields)
        assert (master.master_broker_id, master.master_epoch) == (2, 2)
        assert decode_body(scene.notified[-1][1].body, SyncStateSet).sync_state_set == [2]


async def test_metadata_outlives_a_leader_and_all_of_them(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.enter(1, f"{HOST}:1")
        first = (await scene.leader()).config.controller_d_leger_self_id
        begin = time.monotonic()
        await scene.stop(first)
        await scene.leader()
        assert time.monotonic() - begin < 10
        await scene.enter(2, f"{HOST}:2")
        await scene.start(first)
        for node_id in list(scene.running):
            await scene.stop(node_id)
        for node_id in scene.configs:
            await scene.start(node_id)
        answer = await scene.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdHeader(**IDS)
        )
        assert answer.ext_fields["nextBrokerId"] == "3"


async def test_messages_of_raft_need_the_secret(scene: Scene) -> None:
    leader = await scene.leader()
    term = leader.group.raft.term
    node_id = leader.config.controller_d_leger_self_id
    forged = Message(MessageType.HEARTBEAT, "n9", node_id, term + 1_000)
    for group, secret in (("g", ""), ("g", "guess"), ("other", "s3cret")):
        await scene.client.invoke_oneway(
            leader.config.own_address, raft_command(forged, group, secret)
        )
    await scene.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert leader.group.raft.term < term + 1_000


def opened(message: Message, body: bytes | None = None) -> Message:
    command = raft_command(message, "g", "")
    header = RaftMessageHeader.decode(command.ext_fields)
    return raft_message(header, command.body if body is None else body, "g", "")


async def test_a_message_is_checked_before_raft_has_it() -> None:
    message = Message(
        MessageType.APPEND, "n0", "n1", 3, index=4, log_term=2, entries=(Entry(5, 3, b"x"),)
    )
    assert opened(message) == message
    for wrong in (
        Message(MessageType.APPEND, "n0", "n1", 3, index=4, entries=(Entry(6, 3),)),
        Message(MessageType.APPEND, "n0", "n1", 3, index=4, entries=(Entry(5, 4),)),
        Message(MessageType.APPEND, "n0", "n1", -1),
        Message(MessageType.APPEND, "n0", "n1", 3, commit=-1),
    ):
        with pytest.raises(RaftMessageError):
            opened(wrong)
    for body in (b"", b"\xc1", b"{}", b"\x80"):
        with pytest.raises(RaftMessageError, match="no message of Raft"):
            opened(message, body)


async def test_settings_that_name_no_controller_are_refused() -> None:
    for peers, fault in (
        ("n1-127.0.0.1:1", "has no n0"),
        ("n0-127.0.0.1", "controllerDLegerPeers"),
        ("n0-127.0.0.1:1;n0-127.0.0.1:2", "with an id of its own"),
        ("", "has to name 1 to 15"),
    ):
        with pytest.raises(ConfigError, match=fault):
            ControllerConfig(controller_d_leger_peers=peers)


async def test_members_are_taken_in_and_out_while_others_go_on(scene: Scene) -> None:
    await scene.enter(1, f"{HOST}:1")
    first = (await scene.leader()).config
    address = f"{HOST}:{free_port()}"
    scene.configs["n3"] = dataclasses.replace(
        first,
        controller_d_leger_peers=f"{first.controller_d_leger_peers};n3-{address}",
        controller_d_leger_self_id="n3",
        controller_store_path=first.controller_store_path.parent / "n3",
    )
    await scene.start("n3")
    async with Admin(first.own_address) as admin:
        with pytest.raises(BrokerError, match="another controller is there"):
            await admin.add_controller(first.own_address, "n4", address)
        await admin.add_controller(first.own_address, "n3", address)
        # The leader goes, and hands nothing over: the others elect, the new one among them.
        await admin.remove_controller(first.own_address, first.controller_d_leger_self_id)
        await scene.stop(first.controller_d_leger_self_id)
        raft = scene.running["n3"].group.raft
        await until(lambda: not raft.learns, what="what the others know")
        leader = await scene.leader()

        async def all_know() -> bool:
            states = await admin.controller_states(leader.config.own_address)
            members = sorted(leader.group.raft.configuration.values())
            # The new leader has the change in its log; its own first entry commits that, too.
            return len(members) == 3 and sorted(states) == members

        await until(all_know, what="three members that all agree upon")
        stopped = next(each for each in scene.running if each not in ("n3",))
        await scene.stop(stopped)
        answer = await scene.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdHeader(**IDS)
        )
        assert answer.ext_fields["nextBrokerId"] == "2"


async def test_a_request_waits_for_the_election_that_the_one_before_has_caused(
    scene: Scene,
) -> None:
    leader = (await scene.leader()).config
    addresses = [each.own_address for each in scene.configs.values()]
    async with Admin(addresses) as admin:
        await admin.remove_controller(addresses, leader.controller_d_leger_self_id)
        await admin.add_controller(addresses, leader.controller_d_leger_self_id, leader.own_address)
    assert (await scene.leader()).config is not leader


async def test_metrics_tell_raft_and_brokers(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1, "")
    config = dataclasses.replace(
        scene.configs["n0"], metrics_exporter_type="PROM", metrics_prom_exporter_port=0
    )
    scene.configs["n0"] = config
    await scene.start("n0")
    controller = scene.running["n0"]

    async def lines(path: str) -> list[str]:
        url = f"http://{HOST}:{controller.metrics_port}/{path}"
        answer = await asyncio.to_thread(urllib.request.urlopen, url, timeout=30)
        return [line.decode().strip() for line in answer]

    try:
        await scene.leader()
        assert await lines("health/ready") == ["ready"]
        await scene.enter(1, f"{HOST}:1")
        await scene.heartbeat(1, f"{HOST}:1", epoch=0, timeout_ms=60_000)
        await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterHeader(**IDS, broker_id=1))
        told = dict(line.rsplit(" ", 1) for line in await lines("metrics") if line[0] != "#")
        own = f'address="{config.own_address}",group="g",peer_id="n0"'
        of_set = f'{own},cluster="c",broker_set="b"'
        elected = 'request_type="CONTROLLER_ELECT_MASTER"'
        expected = {
            f"role{{{own}}}": "3",
            f"active_broker_num{{{of_set}}}": "1",
            f'election_total{{{own},election_result="new_master_elected"}}': "1",
            f'request_total{{{own},{elected},request_handle_status="success"}}': "1",
            f'request_latency_bucket{{{own},{elected},le="+Inf"}}': "1",
            f"kerolox_controller_has_master{{{of_set}}}": "1",
            f"kerolox_controller_master_epoch{{{of_set}}}": "1",
            f"kerolox_controller_sync_state_set_size{{{of_set}}}": "1",
        }
        assert {key: float(told.get(key, "-1")) for key in expected} == {
            key: float(value) for key, value in expected.items()
        }
    finally:
        await scene.stop("n0")
        await scene.client.close()


async def test_a_single_controller_serves_alone(tmp_path: Path) -> None:
    async with scene_of(tmp_path, size=1) as scene:
        await scene.enter(1, f"{HOST}:1")
