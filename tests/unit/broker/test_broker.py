"""Starting, stopping, restarting; what a broker says when it can't start, and what remains."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.client import Producer
from kerolox.errors import ConfigError, ConnectError, StoreError
from kerolox.message import Message
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient
from kerolox.store.layout import EPOCH_FILE
from kerolox.store.log.epochs import EpochFile, EpochStart, EpochTable
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.eventually import SECONDS_MAX, until
from tests.support.servers.up import free_port

pytestmark = pytest.mark.asyncio


async def test_everything_is_there_again_after_a_restart(tmp_path, kernel: str):
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", 2)
        await peer.send("T", b"x", queue_id=1, properties="KEYS\x01k")
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        await peer.pull("T", group="g")
        version = broker.parts.tables.topics.version
    assert not (tmp_path / "store" / "abort").exists()
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        assert broker.recovery.clean
        assert broker.parts.tables.topics.version == version
        assert broker.parts.tables.groups.get("g") is not None
        assert [m.body for m in await peer.messages("T", 1)] == [b"x"]
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.ext_fields["offset"] == "1"


async def test_a_group_gets_what_comes_in_the_places_of_lost_messages(tmp_path, kernel: str):
    config = small_config(tmp_path)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 7}
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"kept")
        # As a loss of power leaves it: the offset is on the disk, six messages are not.
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.send("T", b"new")
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.ext_fields["offset"] == "1"


async def test_a_stop_answers_held_pulls_is_bounded_and_can_be_repeated(tmp_path, kernel: str):
    broker = Broker(small_config(tmp_path, enable_property_filter=True), kernel=kernel)
    await broker.start()
    async with peer_of(broker) as peer:
        await peer.create_topic("T")
        await peer.pull("T")
        held = asyncio.create_task(peer.pull("T", suspend_ms=60_000))
        sql = {"tags": "a = 1", "expressionType": "SQL92"}
        filtered = asyncio.create_task(peer.pull("T", suspend_ms=60_000, **sql))
        await until(lambda: broker.parts.store.stats()["held_pulls"] == 2)
        async with asyncio.timeout(SECONDS_MAX):
            await broker.stop()
            await broker.stop()
        # A Java client whose connection just ended would notice when the pull's time is over.
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        assert (await filtered).code == ResponseCode.PULL_NOT_FOUND
        peer.client.disconnect(peer.address)
        with pytest.raises(ConnectError):
            await peer.send("T")


async def test_a_store_in_use_is_named_and_its_owner_not_disturbed(tmp_path, kernel: str):
    config = small_config(tmp_path)
    async with Broker(config, kernel=kernel) as broker, peer_of(broker) as peer:
        second = Broker(config, kernel=kernel)
        with pytest.raises(StoreError) as caught:
            await second.start()
        assert f"store {config.store_path_root_dir} is in use" in str(caught.value)
        assert "storePathRootDir" in str(caught.value)
        assert (await peer.send("T")).code == ResponseCode.SUCCESS


async def test_a_port_in_use_is_named_and_the_store_is_free_again(tmp_path, kernel: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = small_config(tmp_path, listen_port=port, vip_port_enable=False)
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1 is in use") as caught:
            await Broker(config, kernel=kernel).start()
        assert f"the VIP port of a broker with listenPort={port + 2}" in str(caught.value)
    async with Broker(small_config(tmp_path), kernel=kernel):
        pass


async def test_a_vip_port_in_use_closes_the_main_port_again(tmp_path):
    port = free_port()
    vip = port - 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", vip))
        taken.listen()
        broker = Broker(small_config(tmp_path, listen_port=port))
        with pytest.raises(ConfigError, match=f"port {vip} of") as caught:
            await broker.start()
    told = str(caught.value)
    assert f"the VIP port, 2 below listenPort={port}" in told
    assert "vipPortEnable=false" in told
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("folder", ["/proc/kerolox-store", "{tmp}/file/store"])
async def test_a_folder_that_can_t_be_written_is_named(tmp_path, folder: str):
    (tmp_path / "file").touch()
    root = folder.format(tmp=tmp_path)
    broker = Broker(small_config(tmp_path, store_path_root_dir=root))
    with pytest.raises(StoreError) as caught:
        await broker.start()
    assert f"store {root} can't be used" in str(caught.value)
    assert "storePathRootDir" in str(caught.value)


async def test_a_file_of_the_wrong_size_is_named_and_stays(tmp_path, kernel: str):
    async with Broker(small_config(tmp_path), kernel=kernel) as broker, peer_of(broker) as peer:
        await peer.send("T")
    config = small_config(tmp_path, mapped_file_size_commit_log=2 << 20)
    with pytest.raises(StoreError) as caught:
        await Broker(config, kernel=kernel).start()
    assert "00000000000000000000" in str(caught.value)
    assert "1048576" in str(caught.value)
    async with Broker(small_config(tmp_path), kernel=kernel) as broker, peer_of(broker) as peer:
        assert sum(q[3] for q in broker.parts.store.queues()) == 1


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
async def test_a_broken_table_is_named_unless_its_backup_is_good(tmp_path, name: str, caplog):
    config = small_config(tmp_path)
    async with Broker(config) as broker, peer_of(broker) as peer:
        await peer.create_topic("T", 3)
        await peer.pull("T", group="g")
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    path = config.config_folder / name
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    path.with_name(name + ".bak").write_bytes(good)
    async with Broker(config) as broker:
        assert broker.parts.tables.topics.get("T") is not None
        assert broker.parts.tables.groups.get("g") is not None
        assert broker.parts.tables.offsets.query("g", "T", 0) == 1
        for table in (
            broker.parts.tables.topics,
            broker.parts.tables.groups,
            broker.parts.tables.offsets,
        ):
            table.file.mark()
            await table.file.flush()
        assert len(path.with_name(name + ".bak").read_bytes()) == len(good)
    assert "the backup" in caplog.text
    for each in (path, path.with_name(name + ".bak")):
        each.write_bytes(b"\x00\x00")
    with pytest.raises(StoreError) as caught:
        await Broker(config).start()
    assert str(path) in str(caught.value)
    assert "restore" in str(caught.value)
    assert path.read_bytes() == b"\x00\x00"


async def test_a_half_frame_or_a_broken_one_disturbs_nobody(any_broker: Broker, any_peer: Peer):
    await any_peer.create_topic("T")
    for data in (
        b"\x00\x00\x00\x02xx",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff\x00\x00\x00\x10",
        b"\x00\x00\x00\x10\x00\x00\xff\xff" + bytes(12),
        b"\x00\x00\x00\x0e\x00\x00\x00\x0a{not json" + bytes(1),
        b"\x00\x00\x00\x0c\x07\x00\x00\x02{}" + bytes(6),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
        writer.write(data)
        assert await asyncio.wait_for(reader.read(), SECONDS_MAX) == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    _, writer = await asyncio.open_connection("127.0.0.1", any_broker.port)
    writer.write(b"\x00\x00\x01")
    writer.close()
    assert (await any_peer.send("T")).code == ResponseCode.SUCCESS


# -- name servers -------------------------------------------------------------------------------
def name_server(folder: Path, port: int = 0) -> NameServer:
    """One with files of its own; without a folder it would share those of this user."""
    files = {"kv_config_path": folder / "kv.json", "config_store_path": folder / "namesrv.conf"}
    return NameServer(NamesrvConfig(listen_port=port, **files))


async def route(client: RemotingClient, port: int, topic: str) -> dict[object, object] | None:
    request = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    answer = await client.invoke(f"127.0.0.1:{port}", request)
    return fastjson.members_of(fastjson.loads(answer.body)) if answer.code == 0 else None


async def test_name_servers_know_topics_at_once_and_forget_a_stopped_broker(tmp_path):
    names = [name_server(tmp_path / each) for each in "ab"]
    for server in names:
        await server.start()
    try:
        addresses = ";".join(f"127.0.0.1:{server.port}" for server in names)
        async with RemotingClient() as client:
            config = small_config(tmp_path, namesrv_addr=addresses)
            async with Broker(config) as broker, peer_of(broker) as peer:
                for server in names:
                    assert await route(client, server.port, "TBW102") is not None
                await peer.create_topic("T", 3)
                for server in names:
                    found = await route(client, server.port, "T")
                    assert found["queueDatas"][0]["writeQueueNums"] == 3
                    assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
                await peer.send("Auto")
                # One turn after the send, both name servers have been told.
                await broker.parts.peers.registration.now(timeout_seconds=30)
                assert await route(client, names[0].port, "Auto") is not None
            for server in names:

                async def is_forgotten(port: int = server.port) -> bool:
                    return await route(client, port, "T") is None

                # At the latest when it sees the connection closed.
                await until(is_forgotten)
    finally:
        for server in names:
            await server.stop()


async def test_a_store_that_was_under_a_controller_is_served_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path, store_path_root_dir=str(tmp_path))
    file = EpochFile(tmp_path / EPOCH_FILE)
    table = EpochTable((EpochStart(1, 0), EpochStart(7, 1 << 30)))
    file.save(table)
    file.save(table)
    async with Broker(config):
        assert f"{tmp_path} was under a controller (epoch 7 since offset 1073741824)" in caplog.text
    assert file.load().starts == table.starts
    caplog.clear()
    file.path.write_text("torn")
    async with Broker(config):
        assert f"the epochs are those of {file.path}.bak" in caplog.text
        assert "(epoch 7 since offset" in caplog.text
    caplog.clear()
    file.save(EpochTable())
    file.path.write_text("torn")
    async with Broker(config):
        assert "was under a controller, but its epochs are lost" in caplog.text


async def test_a_broker_of_a_dotted_name_serves_clients_and_operators_over_a_restart(tmp_path):
    name = "mq-1.eu.example.com"
    async with name_server(tmp_path) as server, RemotingClient() as client:
        address = f"127.0.0.1:{server.port}"
        config = small_config(
            tmp_path, broker_name=name, broker_cluster_name="prod.eu", namesrv_addr=address
        )
        async with Broker(config) as broker, peer_of(broker) as peer:
            await peer.create_topic("T")
            async with Producer("p", name_server=address) as producer:
                result = await producer.send(Message("T", b"one"))
            assert result.queue.broker_name == name
            assert (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
        async with Broker(config) as broker, peer_of(broker) as peer:
            [found] = (await route(client, server.port, "T"))["brokerDatas"]
            assert (found["brokerName"], found["cluster"]) == (name, "prod.eu")
            assert {name, "prod.eu"} <= set(broker.parts.tables.topics.names)
            queue = result.queue.queue_id
            pulled = await peer.pull("T", queue)
            assert pulled.code == 0
            wipe = RemotingCommand.request(
                RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name}
            )
            answer = await client.invoke(address, wipe)
            assert int(answer.ext_fields["wipeTopicCount"]) > 0


async def test_a_name_server_that_is_down_is_logged_and_tried_again(tmp_path, caplog):
    port = free_port()
    config = small_config(tmp_path, namesrv_addr=f"127.0.0.1:{port}")
    async with Broker(config) as broker, peer_of(broker) as peer:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert broker.parts.peers.registration.failing == [f"127.0.0.1:{port}"]
        assert f"name server 127.0.0.1:{port}: registration failed" in caplog.text
        server = name_server(tmp_path, port)
        await server.start()
        try:
            await until(lambda: not broker.parts.peers.registration.failing)
            async with RemotingClient() as client:
                assert await route(client, port, "T") is not None
        finally:
            await server.stop()


@pytest.mark.parametrize("compressed", [False, True])
async def test_ordered_topics_come_from_the_name_server(tmp_path, compressed: bool):
    server = name_server(tmp_path)
    await server.start()
    try:
        async with RemotingClient() as client:
            address = f"127.0.0.1:{server.port}"
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-t:4"}
            await client.invoke(address, RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields))
            config = small_config(tmp_path, namesrv_addr=address, compressed_register=compressed)
            async with Broker(config) as broker, peer_of(broker) as peer:
                await peer.create_topic("T")
                await until(lambda: broker.parts.tables.topics.get("T").order)
    finally:
        await server.stop()


async def test_a_broker_without_write_permission_registers_its_topics_so(tmp_path):
    async with Broker(small_config(tmp_path, broker_permission=4)) as broker:
        perms = {
            t.perm for t in broker.parts.tables.topics.registration().topic_config_table.values()
        }
        assert perms == {4}
