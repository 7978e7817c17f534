"""The name server behind its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.eventually import until

from kerolox.errors import ConfigError
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import RemotingCommand
from kerolox.remoting.client import RemotingClient


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Running:
    def __init__(self, server: NameServer, client: RemotingClient, clock: Clock) -> None:
        self.server, self.client, self.clock = server, client, clock

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        command = RemotingCommand.request(code, fields, body=body)
        return await self.client.invoke(self.address, command)

    async def register(self) -> RemotingCommand:
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T"}}}}'
        return await self.ask(
            RequestCode.REGISTER_BROKER,
            body,
            brokerName="broker-a",
            brokerAddr="10.0.0.1:10911",
            clusterName="C",
            haServerAddr="10.0.0.1:10912",
            brokerId=0,
        )


def config(folder: Path, **settings: object) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        listen_host="127.0.0.1",
        kv_config_path=folder / "kvConfig.json",
        config_store_path=folder / "namesrv.properties",
        **settings,
    )


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    clock = Clock()
    async with (
        NameServer(config(tmp_path), clock_ms=clock) as server,
        RemotingClient() as client,
    ):
        yield Running(server, client, clock)


async def test_a_broker_registers_and_a_client_finds_it(running: Running) -> None:
    assert (await running.register()).code == 0
    assert (await running.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0


async def test_a_broker_whose_connection_closes_is_gone_at_once(running: Running) -> None:
    await running.register()
    running.client.disconnect(running.address)
    await until(lambda: not running.server.routes.live)
    assert (await running.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 17


async def test_the_many_topics_of_a_broker_that_is_gone_leave_memory_by_themselves(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.namesrv.route_table.SWEPT_AT_ONCE", 0)
    await running.register()
    routes = running.server.routes
    assert routes.topics
    running.client.disconnect(running.address)
    await until(lambda: routes.is_swept and not routes.topics)


async def test_a_scan_takes_out_silent_brokers_and_closes_their_connections(
    running: Running,
) -> None:
    await running.register()
    running.clock.now_ms += 120_000
    assert running.server.scan() == 0
    running.clock.now_ms += 1
    assert running.server.scan() == 1
    assert running.server.scan() == 0
    await until(lambda: not running.client._connections)
    assert (await running.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 17


async def test_the_scan_comes_after_5_seconds_and_every_10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await (sleep(0) if len(pauses) < 3 else asyncio.Event().wait())

    async with NameServer(config(tmp_path)):
        monkeypatch.setattr(asyncio, "sleep", note)
        try:
            while len(pauses) < 3:
                await sleep(0)
        finally:
            monkeypatch.undo()
    assert pauses == [5.0, 10.0, 10.0]


async def test_the_scan_runs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kerolox.namesrv.server.SCAN_FIRST_SECONDS", 0.001)
    monkeypatch.setattr("kerolox.namesrv.server.SCAN_INTERVAL_SECONDS", 0.001)
    clock = Clock()
    async with NameServer(config(tmp_path), clock_ms=clock) as server, RemotingClient() as client:
        await Running(server, client, clock).register()
        clock.now_ms += 120_001
        await until(lambda: not server.routes.live)


async def test_an_unknown_code_is_code_3_and_the_connection_goes_on(running: Running) -> None:
    answer = await running.client.invoke(running.address, RemotingCommand.request(99_999))
    assert answer.code == 3
    assert (await running.register()).code == 0


async def test_a_name_server_starts_and_stops_again_and_again(tmp_path: Path) -> None:
    for _ in range(3):
        server = NameServer(config(tmp_path))
        await server.start()
        await server.stop()
        await server.stop()


async def test_damaged_key_values_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        await NameServer(config(tmp_path)).start()


async def test_a_cluster_test_server_says_what_it_does_not_do(tmp_path: Path, caplog) -> None:
    async with NameServer(config(tmp_path, cluster_test=True)):
        assert "clusterTest" in caplog.text
