"""Our slave of a Java master whose log is another one from some offset on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.store.recovery.log_cut import kept_parts
from tests.replication.members import JavaMember, NameServerProcess
from tests.support.clients.peer import Peer, peer_at, peer_of
from tests.support.eventually import until

pytestmark = [pytest.mark.asyncio, pytest.mark.java, pytest.mark.timeout(600)]

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "haSendHeartbeatInterval": 300,
}


def own_config(folder: Path, **more: object) -> BrokerConfig:
    """Settings of ours on a store that Java's broker made."""
    values: dict[str, object] = {
        "listen_port": 0,
        "listen_host": "127.0.0.1",
        "broker_name": "broker-a",
        "store_path_root_dir": folder,
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20 * 3_000,
        "max_hash_slot_num": 5_000,
        "max_index_num": 20_000,
        "ha_send_heartbeat_interval": 300,
    }
    return BrokerConfig(**{**values, **more})  # type: ignore[arg-type]


def about_of(folder: str) -> dict[str, object]:
    """What is said of a part that is kept."""
    told: dict[str, object] = json.loads(Path(folder, "cut.json").read_text())
    return told


async def send(peer: Peer, count: int, mark: bytes) -> None:
    for number in range(count):
        answer = await peer.send("T", mark * 1_000, queue_id=number % 4)
        assert answer.code == 0


@pytest.mark.parametrize(("of_master", "of_slave"), [(300, 200), (0, 150)])
async def test_our_slave_keeps_aside_what_its_java_master_has_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, of_master: int, of_slave: int
) -> None:
    with NameServerProcess(tmp_path / "namesrv") as namesrv:
        master = JavaMember(tmp_path / "master", namesrv.address, SIZES)
        try:
            master.start()
            async with peer_at(master.address) as peer:
                await peer.create_topic("T")
                await send(peer, 100, b"c")
            master.stop()
            shutil.copytree(master.store, tmp_path / "slave")
            async with Broker(own_config(tmp_path / "slave")) as alone, peer_of(alone) as peer:
                end = alone.parts.store.max_physical_offset
                await send(peer, of_slave, b"s")
            master.start()
            if of_master:
                async with peer_at(master.address) as peer:
                    await send(peer, of_master, b"m")
            role = {"broker_role": "SLAVE", "broker_id": 1}
            address = f"127.0.0.1:{master.port + 1}"
            config = own_config(tmp_path / "slave", ha_master_address=address, **role)
            async with Broker(config) as slave:
                await until(lambda: "restarts in its process" in caplog.text)
                await until(lambda: len(kept_parts(config.store_settings())) == 1)
                async with peer_at(master.address) as peer:
                    await send(peer, 20, b"n")
                bound = end + (of_master + 20) * 1_000
                await until(lambda: slave.parts.store.max_physical_offset > bound)
                await until(lambda: slave.parts.peers.replication.follower.is_following)
            [folder] = kept_parts(config.store_settings())
            about = about_of(folder)
            assert about["begin"] == end
            assert int(str(about["end"])) > end + of_slave * 1_000
            master.stop()
        finally:
            master.end()
    for file in sorted((tmp_path / "slave" / "commitlog").iterdir()):
        theirs = (master.store / "commitlog" / file.name).read_bytes()
        assert file.read_bytes().rstrip(b"\0") == theirs.rstrip(b"\0"), file.name
