"""What is forged, torn, or of last week: it is refused with a reason, and changes nothing."""

from __future__ import annotations

import dataclasses
import shutil
import socket
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.controller.asking import IDS
from tests.support.eventually import until
from tests.unit.controller.test_server import HOST, scene_of

from kerolox.controller.group import RaftGroup
from kerolox.controller.raft.messages import Message, MessageType, Snapshot
from kerolox.controller.raft.raft import Raft
from kerolox.controller.raft_wire import raft_command
from kerolox.controller.replicas_info import ReplicasInfoManager
from kerolox.controller.server import ReplicasStateMachine
from kerolox.controller.storage import RaftStorage
from kerolox.controller.trust import CHECK_SECONDS, MemberHosts
from kerolox.errors import ConfigError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.controller import (
    ElectMasterHeader,
    GetNextBrokerIdHeader,
    GetReplicaInfoHeader,
    GetReplicaInfoResponseHeader,
    MasterHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


async def test_without_a_secret_only_addresses_of_members_are_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene_of(tmp_path, secret="") as scene:
        assert "controllerSecret is empty" in caplog.text
        leader = await scene.leader()
        raft, node_id = leader.group.raft, leader.config.controller_d_leger_self_id
        term = raft.term
        forged = Message(MessageType.HEARTBEAT, "n1", node_id, term + 1_000)
        address = leader.config.own_address.split(":")
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.2", 0))
            stranger.connect((address[0], int(address[1])))
            stranger.sendall(raft_command(forged, "g", "").encode())
            await until(
                lambda: "no controller is at that address" in caplog.text, what="the refusal"
            )
        assert raft.term == term


async def test_names_of_members_are_looked_up_again_but_not_for_each_message() -> None:
    now = 0.0
    members = {"n0": "127.0.0.1:1"}
    hosts = MemberHosts(lambda: [members], clock=lambda: now)
    await hosts.look_up()
    assert hosts.has("127.0.0.1")
    members["n1"] = "127.0.0.9:1"
    assert not hosts.has("127.0.0.9")
    await until(lambda: hosts.has("127.0.0.9"), what="the look-up")
    members["n2"] = "127.0.0.10:1"
    assert not hosts.has("127.0.0.10")
    now = CHECK_SECONDS
    await until(lambda: hosts.has("127.0.0.10"), what="the look-up")
    members["n3"] = "no.such.host.invalid:1"
    await hosts.look_up()
    assert hosts.has("127.0.0.1")
    await hosts.stop()


async def test_a_broker_of_an_epoch_from_the_future_stops_elections_until_somebody_decides(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path, size=1) as scene:
        for broker_id in (1, 2):
            await scene.enter(broker_id, f"{HOST}:{broker_id}")
            await scene.heartbeat(broker_id, f"{HOST}:{broker_id}", epoch=0, timeout_ms=60_000)
        elect = ElectMasterHeader(**IDS, broker_id=1)
        await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
        # The controllers were put back: a broker knows the masters of the week after.
        await scene.heartbeat(2, f"{HOST}:2", epoch=9, timeout_ms=60_000)
        refused = await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
        assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert "a broker of b knows epoch 9, and the controllers 1" in (refused.remark or "")
        told = await scene.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RegisterBrokerHeader(**IDS, broker_id=1, broker_address=f"{HOST}:1"),
        )
        header = RegisterBrokerResponseHeader.decode(told.ext_fields)
        assert header.master_broker_id is None
        # Nor has the master of before its lease renewed.
        asked = await scene.ask(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoHeader(broker_name="b")
        )
        info = GetReplicaInfoResponseHeader.decode(asked.ext_fields)
        assert (info.master_broker_id, info.master_epoch) == (None, 1)

        async def is_seen() -> bool:
            state = await scene.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
            return state.ext_fields.get("behind") == "b"

        await until(is_seen, what="the name whose broker knows more")
        designated = ElectMasterHeader(**IDS, broker_id=2, designate_elect=True)
        elected = await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, designated)
        master = MasterHeader.decode(elected.ext_fields)
        assert (master.master_broker_id, master.master_epoch) == (2, 10)
        for epoch in ((1 << 30) + 1, (1 << 31) - 1):
            with pytest.raises(AssertionError):
                await scene.heartbeat(2, f"{HOST}:2", epoch=epoch)


async def test_a_controller_that_is_a_copy_has_an_operator_name_each_master(tmp_path: Path) -> None:
    """Its set says that 1 is in sync, and a later master may be off."""
    async with scene_of(tmp_path, size=1) as scene:
        elect = ElectMasterHeader(**IDS, broker_id=1)

        async def named() -> int | None:
            asked = GetReplicaInfoHeader(broker_name="b")
            answer = await scene.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, asked)
            return GetReplicaInfoResponseHeader.decode(answer.ext_fields).master_broker_id

        async def restart(**settings: bool) -> None:
            await scene.stop("n0")
            scene.configs["n0"] = dataclasses.replace(scene.configs["n0"], **settings)
            await scene.start("n0")

        for broker_id in (1, 2):
            await scene.enter(broker_id, f"{HOST}:{broker_id}")
        await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
        assert await named() == 1
        folder = scene.configs["n0"].controller_store_path
        await scene.stop("n0")
        shutil.copytree(folder, tmp_path / "backup")
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        scene.configs["n0"] = dataclasses.replace(scene.configs["n0"], controller_accepts_copy=True)
        await scene.start("n0")
        assert await named() is None
        await scene.heartbeat(1, f"{HOST}:1", timeout_ms=60_000)
        refused = await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, elect)
        assert refused.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert "no broker of b is known to be in sync" in (refused.remark or "")
        storage = scene.running["n0"].group.storage
        await until(lambda: not storage.wants_snapshot, what="a file that is its own")
        await restart(controller_accepts_copy=False)
        assert await named() is None
        await scene.heartbeat(1, f"{HOST}:1", timeout_ms=60_000)
        designated = ElectMasterHeader(**IDS, broker_id=1, designate_elect=True)
        elected = await scene.ask(RequestCode.CONTROLLER_ELECT_MASTER, designated)
        assert MasterHeader.decode(elected.ext_fields).master_epoch == 2
        await restart(controller_accepts_copy=True)
        assert await named() == 1


async def test_a_registration_of_what_nobody_applied_for_is_refused(tmp_path: Path) -> None:
    async with scene_of(tmp_path, size=1) as scene:
        await scene.enter(1, f"{HOST}:1")
        for wrong in ({"broker_id": 7}, {"broker_name": "x"}, {"cluster_name": "other"}):
            header = RegisterBrokerHeader(
                **{**IDS, "broker_id": 1, **wrong}, broker_address=f"{HOST}:66"
            )
            refused = await scene.ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)
            assert refused.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            assert refused.remark
        with pytest.raises(AssertionError, match="Fail to apply brokerId: 1"):
            await scene.apply(1, f"{HOST}:66")
        (broker_set,) = next(iter(scene.running.values())).replicas.broker_sets.values()
        assert [each.address for each in broker_set.brokers.values()] == [f"{HOST}:1"]


async def test_a_controller_of_a_backup_does_not_start_and_an_emptied_one_learns(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path) as scene:
        await scene.enter(1, f"{HOST}:1")
        leader = (await scene.leader()).config.controller_d_leger_self_id
        restored = next(each for each in scene.configs if each != leader)
        folder = scene.configs[restored].controller_store_path
        await scene.stop(restored)
        shutil.copytree(folder, tmp_path / "backup")
        await scene.enter(2, f"{HOST}:2")
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        with pytest.raises(ConfigError, match="is a copy: votes and entries may be missing"):
            await scene.start(restored)
        shutil.rmtree(folder)
        await scene.start(restored)
        raft = scene.running[restored].group.raft
        await until(lambda: not raft.learns, what="what the others know")
        # Now it counts again: the leader goes, and one of the two that are left takes over.
        await scene.stop(leader)
        answer = await scene.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdHeader(**IDS)
        )
        assert answer.ext_fields["nextBrokerId"] == "3"


@pytest.mark.parametrize("data", [b"{}", b'[{"broker_name":1}]', b"\x00"])
async def test_a_snapshot_that_makes_no_sense_ends_the_part_of_who_gets_it(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    storage = RaftStorage(tmp_path, group="g", node_id="n0")
    storage.open({"n0": "a", "n1": "b"})
    raft = Raft(
        "n0",
        hard_state=storage.hard_state,
        snapshot=storage.snapshot,
        entries=(),
        random=Random(1),
    )
    machine = ReplicasStateMachine(ReplicasInfoManager())
    group = RaftGroup(raft, storage, machine, lambda _: None, tick_seconds=60)
    group.start()
    try:
        group.step(Message(MessageType.SNAPSHOT, "n1", "n0", 2, snapshot=Snapshot(9, 2, {}, data)))
        await until(lambda: group.fault, what="the fault")
        assert "its log has what it does not understand" in (group.fault or "")
        assert "use the version of the other controllers" in caplog.text
    finally:
        await group.stop()
        storage.close()
    again = RaftStorage(tmp_path, group="g", node_id="n0")
    again.open({"n0": "a", "n1": "b"})
    assert again.snapshot.index == 0
    again.close()
