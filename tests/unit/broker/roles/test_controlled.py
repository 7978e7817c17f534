"""Two brokers under a controller in one loop: roles that change while both live, and what a broker
does without its controller. ``tests/replication/test_failover.py`` kills processes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.admin import Admin
from kerolox.broker import broker as broker_module
from kerolox.broker.broker import Broker
from kerolox.controller import server as server_module
from kerolox.controller import storage
from kerolox.controller.config import ControllerConfig
from kerolox.controller.handlers import ControllerHandlers
from kerolox.controller.server import Controller
from kerolox.errors import ConfigError, StoreError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.bodies import decode_body, encode_body
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import ElectMasterHeader, EpochEntryCache, MasterHeader
from kerolox.protocol.extensions.roles import SYNC_MASTER, RoleAction, RoleChange
from kerolox.remoting.client import RemotingClient
from kerolox.store.layout import EPOCH_FILE, LEFT_FILE
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

pytestmark = pytest.mark.asyncio

HOST, NAME = "127.0.0.1", "broker-t"
QUICK = {
    "enable_controller_mode": True,
    "all_ack_in_sync_state_set": True,
    "controller_heart_beat_timeout_mills": 600,
    "sync_controller_metadata_period": 50,
    "vip_port_enable": False,
}


class Site:
    """A controller, a name server and the brokers of one name."""

    def __init__(self, folder: Path, namesrv: NameServer, controller: Controller) -> None:
        self.folder, self.controller = folder, controller
        self.namesrv = namesrv
        self.brokers: list[Broker] = []

    async def start(self, **more: Any) -> Broker:
        values = {
            **QUICK,
            "controller_addr": self.controller.config.own_address,
            "namesrv_addr": f"{HOST}:{self.namesrv.port}",
            "listen_port": free_port(),
            **more,
        }
        broker = Broker(small_config(self.folder / f"b{len(self.brokers)}", **values))
        await broker.start()
        self.brokers.append(broker)
        return broker

    async def pair(self, **more: Any) -> tuple[Broker, Broker]:
        one = await self.start(**more)
        await until(lambda: takes_messages(one))
        other = await self.start(**more)
        await until(lambda: self.in_sync() == {1, 2})
        return one, other

    async def run_controller(self, config: ControllerConfig) -> None:
        self.controller = Controller(config, tick_seconds=0.02)
        await self.controller.start()

    def in_sync(self) -> set[int]:
        found = self.controller.replicas.broker_sets.get(NAME)
        return set() if found is None else set(found.sync_state_set)

    async def elect(self, broker_id: int) -> int:
        header = ElectMasterHeader(broker_name=NAME, broker_id=broker_id, designate_elect=True)
        request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header.encode())
        client = RemotingClient()
        try:
            answer = await client.invoke(self.controller.config.own_address, request)
        finally:
            await client.close()
        return answer.code


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    config = ControllerConfig(
        controller_d_leger_peers=f"n0-{HOST}:{free_port()}",
        controller_store_path=folder / "controller",
        listen_host=HOST,
    )
    names = NamesrvConfig(listen_port=0, listen_host=HOST, kv_config_path=folder / "kv.json")
    controller = Controller(config, tick_seconds=0.02)
    async with NameServer(names) as namesrv:
        await controller.start()
        made = Site(folder, namesrv, controller)
        try:
            yield made
        finally:
            for broker in made.brokers:
                await broker.stop()
            await made.controller.stop()


def takes_messages(broker: Broker) -> bool:
    return broker.parts.writing.gate.writable


async def send(broker: Broker, count: int, mark: bytes) -> None:
    async with peer_of(broker) as peer:
        for number in range(count):
            assert (await peer.send("TBW102", mark + b"%d" % number)).code == 0


async def bodies(broker: Broker) -> list[bytes]:
    async with peer_of(broker) as peer:
        return [message.body for message in await peer.messages("TBW102")]


async def epoch_cache(broker: Broker) -> EpochEntryCache:
    async with peer_of(broker) as peer:
        answer = await peer.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
    return decode_body(answer.body, EpochEntryCache)


async def epochs(broker: Broker) -> list[int]:
    return [each.epoch for each in (await epoch_cache(broker)).epoch_list]


async def test_roles_change_back_and_forth_and_nothing_is_lost(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 3, b"one ")
        assert await it.elect(2) == 0
        await until(lambda: takes_messages(other))
        assert not takes_messages(one)
        await until(lambda: it.in_sync() == {1, 2})
        await send(other, 3, b"other ")
        assert await it.elect(1) == 0
        await until(lambda: takes_messages(one))
        await until(lambda: it.in_sync() == {1, 2})
        await send(one, 3, b"again ")
        marks = ("one", "other", "again")
        expected = [f"{mark} {number}".encode() for mark in marks for number in range(3)]
        assert await bodies(one) == expected
        ends = [broker.parts.store.max_physical_offset for broker in (one, other)]
        assert ends[0] == ends[1]
        assert await epochs(one) == await epochs(other) == [1, 2, 3]
        # As in a route: a master's id is 0.
        assert [(await epoch_cache(broker)).broker_id for broker in (one, other)] == [0, 2]


def fill(broker: Broker, monkeypatch: pytest.MonkeyPatch, used: float = 1.0) -> Awaitable[None]:
    """Have a broker's disk be so full."""
    cleaner = broker.parts.writing.cleaner
    monkeypatch.setattr(cleaner, "_ratio", lambda path: used)
    return cleaner.check_disk()


async def test_a_master_that_was_restarted_passes_on_what_clients_send(tmp_path: Path) -> None:
    """They take it for the master until they ask for the route again, every 30 s."""
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 3, b"one ")
        await one.stop()
        await until(lambda: takes_messages(other))
        again = Broker(one.config)
        await again.start()
        it.brokers.append(again)
        await until(lambda: it.in_sync() == {1, 2})
        await send(again, 3, b"other ")
        expected = [f"{mark} {number}".encode() for mark in ("one", "other") for number in range(3)]
        assert await bodies(other) == expected


async def test_a_master_with_a_full_disk_has_a_broker_with_space_elected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 3, b"one ")
        await fill(one, monkeypatch)
        await until(lambda: takes_messages(other))
        assert not takes_messages(one)
        # Clients that have not heard of it yet: the former master passes on what they send.
        await send(one, 3, b"other ")
        expected = [f"{mark} {number}".encode() for mark in ("one", "other") for number in range(3)]
        assert await bodies(other) == expected


async def test_a_master_whose_store_has_failed_gives_its_place_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 3, b"one ")
        store = one.parts.store
        trouble = property(lambda it: "no space left on device" if it is store else "")
        monkeypatch.setattr(type(store), "trouble", trouble)
        await until(lambda: takes_messages(other))
        # It has the trouble still, and its place again: nobody else is asked for.
        assert await it.elect(1) in (0, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
        await until(lambda: it.in_sync() == {1, 2})
        assert await it.elect(1) in (0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        await until(lambda: takes_messages(one))
        await send(one, 3, b"again ")


async def test_a_new_master_does_not_go_by_what_its_disk_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_CHECK_SECONDS", "FIRST_CLEAN_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(broker_module, name, 3_600.0)
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await fill(other, monkeypatch)
        monkeypatch.setattr(other.parts.writing.cleaner, "_ratio", lambda path: 0.5)
        await fill(one, monkeypatch)
        await until(lambda: takes_messages(other), seconds=20)


async def test_a_master_stays_where_nobody_in_sync_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await fill(other, monkeypatch)
        await fill(one, monkeypatch)
        await until(lambda: "no broker that is in sync has a disk with space" in caplog.text)
        await fill(one, monkeypatch, 0.5)
        await until(lambda: takes_messages(one))
        await send(one, 3, b"one ")
        assert await epochs(one) == await epochs(other) == [1]


async def test_without_its_controller_a_master_takes_no_messages_and_gives_them(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as it:
        one, _ = await it.pair()
        await send(one, 1, b"before ")
        await it.controller.stop()
        await until(lambda: not takes_messages(one))
        async with peer_of(one) as peer:
            answer = await peer.send("TBW102", b"meanwhile")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "service not available now" in (answer.remark or "")
        assert await bodies(one) == [b"before 0"]
        it.controller = Controller(it.controller.config, tick_seconds=0.02)
        await it.controller.start()
        await until(lambda: takes_messages(one))
        await until(lambda: it.in_sync() == {1, 2})
        await send(one, 1, b"after ")
        assert await bodies(one) == [b"before 0", b"after 0"]


async def test_a_slave_that_is_gone_leaves_the_set_and_sends_go_on(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await other.stop()
        await send(one, 3, b"alone ")
        assert it.in_sync() == {1}
        await other.start()
        await until(lambda: it.in_sync() == {1, 2})
        await send(one, 1, b"together ")
        assert other.parts.store.max_physical_offset == one.parts.store.max_physical_offset


async def test_after_all_were_stopped_only_one_of_the_set_becomes_the_master(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await one.stop()
        await until(lambda: takes_messages(other))
        await send(other, 1, b"alone ")
        await other.stop()
        await one.start()
        await until(lambda: one.parts.controlled is not None and one.parts.controlled.broker_id)
        assert it.in_sync() == {2}
        await other.start()
        await until(lambda: takes_messages(other))
        assert not takes_messages(one)
        await until(lambda: it.in_sync() == {1, 2})
        assert await bodies(other) == [b"alone 0"]


async def test_a_forged_notice_changes_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one = await it.start()
        await until(lambda: takes_messages(one))
        forged = MasterHeader(
            master_broker_id=7, master_address="10.0.0.7:1", master_epoch=99, sync_state_set_epoch=9
        )
        async with peer_of(one) as peer:
            answer = await peer.ask(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, forged.encode())
        assert answer.code == 0
        await send(one, 1, b"still ")
        assert await epochs(one) == [1]


async def test_a_controller_of_last_weeks_backup_has_nothing_cut_off(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        config = it.controller.config
        folder, backup = config.controller_store_path, tmp_path / "backup"
        await it.controller.stop()
        shutil.copytree(folder, backup)
        await it.run_controller(config)
        await send(one, 1, b"one ")

        async def is_elected() -> bool:
            return await it.elect(2) == 0

        await until(is_elected)
        await until(lambda: takes_messages(other))
        await until(lambda: it.in_sync() == {1, 2})
        await send(other, 1, b"other ")
        ends = [broker.parts.store.max_physical_offset for broker in (one, other)]
        before = await epochs(other)
        await it.controller.stop()
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        await it.run_controller(dataclasses.replace(config, controller_accepts_copy=True))
        async with Admin(config.own_address) as admin:

            async def is_behind() -> bool:
                return (await admin.controller_state(config.own_address)).behind == (NAME,)

            await until(is_behind)
        await until(lambda: not takes_messages(other))
        assert not takes_messages(one)
        assert await bodies(other) == [b"one 0", b"other 0"]
        assert [broker.parts.store.max_physical_offset for broker in (one, other)] == ends
        assert await epochs(one) == await epochs(other) == before
        await until(is_elected)
        await until(lambda: takes_messages(other))
        await until(lambda: it.in_sync() == {1, 2})
        await send(other, 1, b"again ")
        assert await bodies(other) == [b"one 0", b"other 0", b"again 0"]
        assert await epochs(other) == [*before, before[-1] + 1]


async def test_a_broker_follows_no_master_that_is_older_than_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own rule alone: the controller sees no copy, and compares no epochs, as RocketMQ's."""
    monkeypatch.setattr(storage, "birth_of", lambda descriptor: "")
    monkeypatch.setattr(ControllerHandlers, "newer_epoch", lambda self, name: 0)
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 1, b"one ")
        config = it.controller.config
        folder, backup = config.controller_store_path, tmp_path / "backup"
        shutil.copytree(folder, backup)
        # What it has is what the controller of the backup knows: it can lead by that again.
        await one.stop()
        await until(lambda: takes_messages(other))
        await send(other, 1, b"other ")
        end = other.parts.store.max_physical_offset
        await other.stop()
        await it.controller.stop()
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        await it.run_controller(config)
        await one.start()
        await until(lambda: one.parts.role.current.is_sync_master)
        await other.start()
        advice = "was it restored from an old copy? This broker stays as it is"
        await until(lambda: advice in caplog.text, seconds=10)
        assert not takes_messages(other)
        assert (other.parts.store.max_physical_offset, await epochs(other)) == (end, [1, 2])
        # The way out; the set of this controller would not allow it by itself.
        monkeypatch.undo()
        assert await it.elect(2) == 0
        await until(lambda: takes_messages(other))
        await until(lambda: it.in_sync() == {1, 2})
        assert await bodies(other) == [b"one 0", b"other 0"]


async def test_an_operator_is_sent_to_the_controller(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one = await it.start()
        async with peer_of(one) as peer:
            change = RoleChange(action=RoleAction.PROMOTE, epoch=9, broker_role=SYNC_MASTER)
            answer = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, body=encode_body(change))
        assert answer.code != 0
        assert "enableControllerMode" in (answer.remark or "")


async def test_too_small_a_set_takes_no_messages(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one = await it.start(min_in_sync_replicas=2)
        await until(lambda: one.parts.role.current.is_sync_master)
        assert not takes_messages(one)
        async with peer_of(one) as peer:
            answer = await peer.send("Orders", b"refused")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "fewer than minInSyncReplicas=2 brokers" in (answer.remark or "")
        await it.start(min_in_sync_replicas=2)
        await until(lambda: takes_messages(one))


async def test_a_broker_whose_epochs_are_torn_does_not_start(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        one = await it.start()
        await until(lambda: takes_messages(one))
        await one.stop()
        it.brokers.clear()
        path = one.config.store_path_root_dir / EPOCH_FILE
        path.with_name(EPOCH_FILE + ".bak").write_bytes(path.read_bytes())
        path.write_bytes(b"torn")
        with pytest.raises(StoreError, match="may lack an epoch"):
            await Broker(one.config).start()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"controller_addr": ""}, "controllerAddr has to name"),
        ({"controller_addr": "nowhere"}, "controllerAddr"),
        ({"acl_enable": True, "ha_acl_enable": True}, "haAclEnable=true"),
        ({"transient_store_pool_enable": True}, "transientStorePoolEnable=true"),
    ],
)
async def test_settings_that_a_controlled_broker_can_not_have(
    tmp_path: Path, settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        small_config(tmp_path, **{**QUICK, "controller_addr": "h:1", **settings})


PAIR = {"broker_role": "ASYNC_MASTER"}, {"broker_role": "SLAVE", "broker_id": 1}
"""Settings of a master and a slave without a controller."""


async def leave_controllers(it: Site) -> None:
    """Both brokers run without a controller for a time, and stop. The master has more then, and the
    controller knows what it knew before."""
    await it.controller.stop()
    for broker in it.brokers:
        await broker.stop()
    configs = [dataclasses.replace(each.config, **PAIR[n]) for n, each in enumerate(it.brokers)]
    it.brokers = [
        Broker(dataclasses.replace(each, enable_controller_mode=False)) for each in configs
    ]
    one, other = it.brokers
    await one.start()
    await other.start()
    await until(lambda: other.parts.roles.status().is_following)
    await other.stop()
    await send(one, 1, b"alone ")
    await one.stop()
    await it.run_controller(it.controller.config)
    it.brokers = [Broker(each) for each in configs]


async def test_a_slave_of_a_time_without_controllers_is_not_elected_before_its_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await send(one, 1, b"before ")
        assert (it.in_sync(), it.controller.replicas.broker_sets[NAME].master_broker_id) == (
            {1, 2},
            1,
        )
        await leave_controllers(it)
        # A controller that has waited for the master of before has another one elected.
        monkeypatch.setattr(server_module, "HEARTBEAT_TIMEOUT_MS", 0)
        one, other = it.brokers
        await other.start()
        await until(lambda: "remove the file leftControllers" in caplog.text)
        await until(lambda: it.controller.replicas.broker_sets[NAME].master_broker_id is None)
        assert await it.elect(2) == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        async with peer_of(other) as peer:
            assert (await peer.send("TBW102", b"too soon")).code != 0
        await one.start()
        await until(lambda: takes_messages(one))
        await until(lambda: it.in_sync() == {1, 2})
        assert await bodies(one) == [b"before 0", b"alone 0"]
        # It is one as others are from now on.
        await one.stop()
        await until(lambda: takes_messages(other))
        assert await bodies(other) == [b"before 0", b"alone 0"]


async def test_after_a_time_without_controllers_an_operator_makes_the_old_slave_the_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as it:
        await it.pair()
        await leave_controllers(it)
        _, other = it.brokers
        await other.start()
        await until(lambda: "remove the file leftControllers" in caplog.text)
        await other.stop()
        (other.config.store_path_root_dir / LEFT_FILE).unlink()
        await other.start()
        await until(lambda: takes_messages(other))


async def test_a_master_of_a_time_without_controllers_waits_where_they_knew_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as it:
        one, other = await it.pair()
        await one.stop()
        await until(lambda: takes_messages(other))
        assert it.in_sync() == {2}
        await leave_controllers(it)
        one, other = it.brokers
        await other.start()
        await one.start()
        await until(lambda: "their sync state set is from before: kerolox contr" in caplog.text)
        async with Admin(it.controller.config.own_address) as admin:
            address = it.controller.config.own_address
            await admin.clean_broker_metadata(address, NAME, even_if_alive=True)

            async def are_alive() -> bool:
                sets = await admin.sync_state_sets(address)
                brokers = sets[NAME].replicas if NAME in sets else ()
                return [each.is_alive for each in brokers] == [True, True]

            await until(are_alive)
        # Nobody is elected without an operator.
        assert it.controller.replicas.broker_sets[NAME].master_epoch == 0
        assert await it.elect(1) == 0
        await until(lambda: it.in_sync() == {1, 2})
        assert await bodies(one) == [b"alone 0"]
        assert (await epochs(one))[-1] == 3


async def test_a_master_of_a_time_without_controllers_waits_for_one_that_was_promoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(tmp_path) as it:
        one, _ = await it.pair()
        await send(one, 1, b"before ")
        await leave_controllers(it)
        one, other = it.brokers
        alone = Broker(dataclasses.replace(other.config, enable_controller_mode=False))
        await alone.start()
        async with Admin(f"{HOST}:{it.namesrv.port}") as admin:
            await admin.promote_broker(alone.parts.identity.address, accept_loss=True)
        await send(alone, 1, b"promoted ")
        await one.start()
        await until(lambda: "remove the file leftControllers" in caplog.text)
        await alone.stop()
        await other.start()
        await until(lambda: takes_messages(other))
        await until(lambda: it.in_sync() == {1, 2})
        assert await bodies(other) == [b"before 0", b"promoted 0"]
