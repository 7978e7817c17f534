"""Disks, replication and settings files."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from kerolox.admin.sync import Admin
from kerolox.client.sync import Producer
from kerolox.message import Message
from tests.doctor.patients import broker, found, name_server, named, said, wait_registered
from tests.support.eventually import wait_until
from tests.support.faults.proxy import Proxy
from tests.support.faults.small_disk import disk_kinds, small_disk
from tests.support.servers.command import kerolox
from tests.support.servers.up import Up, free_port

LEVELS = {"diskMaxUsedSpaceRatio": 75, "diskSpaceWarningLevelRatio": 0.9}
DISK_BYTES = 64 << 20


def test_a_disk_that_fills_up_is_named_by_its_levels(tmp_path: Path) -> None:
    kind = disk_kinds()[0]
    disk = tmp_path / "disk"
    small = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    small |= {"cleanFileForciblyEnable": "true", "mappedFileSizeConsumeQueue": 20_000}
    with small_disk(kind, disk, tmp_path, size=DISK_BYTES):
        # Where nothing may be mounted, the disk is the machine's, and the levels come down to it.
        is_mounted = kind != "pretended"
        levels = LEVELS if is_mounted else {**LEVELS, "diskMaxUsedSpaceRatio": 10}
        with Up(disk, settings={**small, **levels}) as up, Admin(up.namesrv) as admin:
            fill(disk, 0.80 if is_mounted else 0.0)
            filling = found(up.namesrv)
            if is_mounted:
                named(
                    said(filling, "disk-filling", up.broker), "% full: from 75%", "fileReservedTime"
                )
                fill(disk, 0.95)
            else:
                admin.update_broker_settings({"diskSpaceWarningLevelRatio": "0.001"})
            named(said(found(up.namesrv), "disk-full", up.broker), "no messages", "make space")
            (disk / "filler").unlink(missing_ok=True)


def fill(disk: Path, part: float) -> None:
    """Let a disk be so full."""
    state = os.statvfs(disk)
    used = (state.f_blocks - state.f_bfree) * state.f_frsize
    missing = int(part * state.f_blocks * state.f_frsize) - used
    if missing > 0:
        with (disk / "filler").open("ab") as file:
            file.write(bytes(missing))


def test_a_pair_that_is_well_and_a_slave_that_falls_behind(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        server = enter(name_server(tmp_path / "n"))
        at, ha_port, way = server.addresses["namesrv"], free_port(), enter(Proxy())
        way.target = ("127.0.0.1", ha_port)
        master = {"brokerRole": "SYNC_MASTER", "haListenPort": ha_port}
        patient = {"haHousekeepingInterval": 600_000, "haSlaveFallbehindMax": 10_000}
        slave = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": way.address}
        enter(broker(tmp_path / "m", "pair", at, **master, **patient))
        enter(broker(tmp_path / "s", "pair", at, **slave, **patient))
        admin, producer = enter(Admin(at)), enter(Producer("sends", at))

        def is_following() -> bool:
            node = admin.cluster_info().brokers.get("pair")
            if node is None or len(node.addresses) < 2:
                return False
            in_sync = admin.replication_status(node.addresses[0]).in_sync
            # The master knows it first: the slave waits for what the master sends.
            return in_sync == 1 and admin.broker_role(node.addresses[1]).is_following

        wait_until(is_following, what="a slave that follows")
        wait_registered(at, "pair")
        admin.create_topic("Orders", queues=1)
        assert found(at) == []
        way.half_open()
        for _ in range(3):
            producer.send(Message("Orders", os.urandom(60_000)), timeout_ms=20_000)
        named(said(found(at), "slave-behind"), "haSlaveFallbehindMax is 10000", "the network")


def test_a_slave_that_copies_nothing_is_found_while_its_master_is_up(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        server = enter(name_server(tmp_path / "n"))
        at, nowhere = server.addresses["namesrv"], f"127.0.0.1:{free_port()}"
        slave = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": nowhere}
        enter(broker(tmp_path / "m", "pair", at))
        enter(broker(tmp_path / "s", "pair", at, **slave))
        wait_registered(at, "pair")
        admin = enter(Admin(at))
        wait_until(lambda: len(admin.cluster_info().brokers["pair"].addresses) == 2)
        named(said(found(at), "slave-not-following"), "copied nothing", "log", "haListenPort")


def test_a_settings_file_is_judged_line_by_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=a\nlistenPrt=10911\nflushDiskType=SYNC\nsendMessageThreadPoolNums=4\n"
        "brokerRole=SLAVE\nbrokerIP1=127.0.0.1\nnamesrvAddr=10.0.0.1:9876\nbrokerPermission=2\n"
    )
    done = kerolox("doctor", "--offline", "--config", conf, "-o", "ndjson")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    named(said(lines, "setting-unknown", "listenPrt"), "RocketMQ ignores it", "write listenPort")
    named(said(lines, "setting-wrong", "flushDiskType"), "SYNC_FLUSH")
    [whole] = [each for each in lines if each["where"] == str(conf) and "slave" in each["what"]]
    named(whole, "a slave (brokerRole=SLAVE) has an id above 0", "correct the value")
    named(said(lines, "setting-without-effect", "sendMessageThreadPoolNums"), "take the line out")
    named(said(lines, "advertised-loopback", "brokerIP1"), "the address that clients reach")
    named(said(lines, "broker-permission"), "may not read")
    assert len(lines) == 6
    shown = kerolox("doctor", "--offline", "--config", conf).stdout
    assert f"error    setting-unknown  {conf}, line 2: listenPrt\n" in shown


def test_a_file_is_compared_with_the_broker_that_runs(tmp_path: Path) -> None:
    with Up(tmp_path, settings={"brokerName": "a", "maxMessageSize": 65_536}) as up:
        conf = tmp_path / "broker.conf"
        assert [each["code"] for each in found(up.namesrv, "--config", conf)] == ["no-name-server"]
        conf.write_text(conf.read_text().replace("65536", "131072"))
        changed = said(found(up.namesrv, "--config", conf), "setting-not-in-force")
        named(changed, "maxMessageSize", "131072", "65536", "restart the broker")


@pytest.mark.parametrize(
    "arguments", [["--offline"], ["--config", "/no/such.conf"], ["--timeout", "0"], ["-o", "yaml"]]
)
def test_wrong_usage_is_told_with_code_2(arguments: list[str]) -> None:
    done = kerolox("doctor", *arguments)
    assert done.returncode == 2
    assert "Error" in done.stderr or "error" in done.stderr
