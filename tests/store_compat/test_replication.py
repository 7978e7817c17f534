"""Pairs with a real Java broker: its log is ours byte for byte, whoever is the master."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol import fastjson
from kerolox.protocol.codes import RequestCode, ResponseCode
from tests.support.clients.peer import Peer, peer_at, small_config
from tests.support.eventually import until
from tests.support.servers.clusters import JavaPeer
from tests.support.servers.up import free_port

pytestmark = [pytest.mark.asyncio, pytest.mark.java]

FILE_SIZE = 1 << 20
OURS = {"mapped_file_size_commit_log": FILE_SIZE, "ha_send_heartbeat_interval": 200}
JAVA = (
    f"mappedFileSizeCommitLog={FILE_SIZE}",
    "haSendHeartbeatInterval=200",
    "slaveReadEnable=true",
)
ROUND = int(os.environ.get("KEROLOX_REPLICATED_MESSAGES", "6000"))
"""Messages of a round; there are two, with a kill between them."""


TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)


@asynccontextmanager
async def java_broker(data: Path, *settings: str) -> AsyncIterator[JavaPeer]:
    """A Java broker without a name server; the loop goes on while it starts and stops."""
    peer = JavaPeer(data, settings=(*JAVA, *settings), with_namesrv=False)
    await asyncio.to_thread(peer.__enter__)
    try:
        yield peer
    finally:
        await asyncio.to_thread(peer.__exit__)


async def restart_after_kill(java: JavaPeer) -> None:
    await asyncio.to_thread(java.kill)
    await asyncio.to_thread(java.__enter__)


async def send(peer: Peer, count: int) -> None:
    """Messages of many sizes to four queues."""
    for begin in range(0, count, 500):
        answers = await asyncio.gather(*(
            peer.send(
                "T",
                b"%d " % number + b"x" * (number % 700),
                queue_id=number % 4,
                properties=f"KEYS\x01k{number}\x02TAGS\x01t{number % 3}",
            )
            for number in range(begin, begin + 500)
        ))  # fmt: skip
        assert {answer.code for answer in answers} <= {
            ResponseCode.SUCCESS,
            # While the slave is away.
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        }


async def end_of(peer: Peer) -> int:
    """Where the log of a broker ends."""
    answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(fastjson.loads(answer.body)["table"]["commitLogMaxOffset"])


async def max_offsets(peer: Peer) -> list[str]:
    fields = [{"topic": "T", "queueId": queue_id} for queue_id in range(4)]
    answers = [await peer.ask(RequestCode.GET_MAX_OFFSET, each) for each in fields]
    return [answer.ext_fields["offset"] for answer in answers]


async def until_equal(master: Peer, slave: Peer) -> None:
    async def is_there() -> bool:
        return await end_of(slave) == await end_of(master)

    await until(is_there)

    async def is_dispatched() -> bool:
        return await max_offsets(slave) == await max_offsets(master)

    await until(is_dispatched)


def log_files(store: Path, end: int) -> dict[str, bytes]:
    """The files of a log up to its end; those made ahead are left out."""
    files = {}
    for path in sorted((store / "commitlog").iterdir()):
        start = int(path.name)
        if start < end:
            files[path.name] = path.read_bytes()[: end - start]
    return files


def port_with_vip() -> int:
    """A free port whose VIP port is free, too."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port - 2))
            return port


@asynccontextmanager
async def our_master(folder: Path) -> AsyncIterator[tuple[Broker, NameServer]]:
    """A SYNC_MASTER of ours, which a name server knows."""
    config = NamesrvConfig.load(None, listen_port=0, kv_config_path=folder / "kv.json")
    async with NameServer(config) as namesrv:
        known = {"namesrv_addr": f"127.0.0.1:{namesrv.port}", "broker_name": "broker-a"}
        # A Java slave asks for topics at the VIP port, for everything else at the other.
        ports = {"listen_port": port_with_vip(), "ha_listen_port": free_port()}
        settings = small_config(folder, broker_role="SYNC_MASTER", **ports, **known, **OURS)
        async with Broker(settings) as master:
            yield master, namesrv


async def table_of(peer: Peer, code: int) -> dict[str, object]:
    """What a slave asks its master for."""
    table = fastjson.loads((await peer.ask(code)).body)
    assert isinstance(table, dict)
    return table


async def commit(peer: Peer, offset: int) -> None:
    fields = {"consumerGroup": "readers", "topic": "T", "queueId": 1, "commitOffset": offset}
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def test_a_java_slave_has_our_masters_log_and_tables_over_kills(tmp_path: Path):
    async with (
        our_master(tmp_path) as (master, namesrv),
        peer_at(f"127.0.0.1:{master.port}") as ours,
    ):
        await ours.create_topic("T")
        assert (await ours.send("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        role = ("brokerRole=SLAVE", "brokerId=1")
        known = f"namesrvAddr=127.0.0.1:{namesrv.port}"
        async with (
            java_broker(tmp_path / "java", *role, known) as java,
            peer_at(f"127.0.0.1:{java.port}") as its,
        ):
            replicated = master.parts.replication.waits.replicated
            await until(lambda: replicated.slaves == 1)
            await send(ours, ROUND)
            assert (await ours.send("T")).code == ResponseCode.SUCCESS
            await until_equal(ours, its)
            await commit(ours, 7)
            both = send(ours, ROUND), restart_after_kill(java)
            await asyncio.gather(*both)
            await until_equal(ours, its)

            async def has_tables() -> bool:
                return [await table_of(its, code) for code in TABLES] == [
                    await table_of(ours, code) for code in TABLES
                ]

            await until(has_tables)
            end = await end_of(ours)
        assert log_files(tmp_path / "java" / "store", end) == log_files(tmp_path / "store", end)
        assert end > 4 * FILE_SIZE


async def test_our_slave_has_a_java_masters_log_over_kills(tmp_path: Path):
    async with java_broker(tmp_path / "java", "brokerRole=SYNC_MASTER") as java:
        role = {"broker_role": "SLAVE", "broker_id": 1}
        ha_master = {"ha_master_address": f"127.0.0.1:{java.port + 1}"}
        config = small_config(tmp_path, **role, **ha_master, **OURS)
        async with peer_at(f"127.0.0.1:{java.port}") as its:
            await its.create_topic("T")
            async with Broker(config) as slave, peer_at(f"127.0.0.1:{slave.port}") as ours:
                await until(lambda: slave.parts.replication.follower.is_following)
                await send(its, ROUND)
                assert (await its.send("T")).code == ResponseCode.SUCCESS
                await until_equal(its, ours)
                await commit(its, 7)
                await slave.parts.replication.tables.sync_from(its.address)
                for code in TABLES:
                    assert await table_of(ours, code) == await table_of(its, code)
            await send(its, 500)
            async with Broker(config) as slave, peer_at(f"127.0.0.1:{slave.port}") as ours:
                await until_equal(its, ours)
                await restart_after_kill(java)
                await send(its, ROUND)
                await until_equal(its, ours)
                end = await end_of(its)
    assert log_files(tmp_path / "store", end) == log_files(tmp_path / "java" / "store", end)
    assert end > 4 * FILE_SIZE
