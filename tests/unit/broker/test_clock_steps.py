"""The wall clock is set, forth or back: who is alive stays so, and what ends does so in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.message import MessageQueue
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.fastjson import loads
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

STEPS = [-3_600, 3_600]
"""In seconds."""


def step(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + seconds * 1_000_000_000)


@pytest.mark.parametrize("seconds", STEPS)
async def test_clients_are_not_dropped_by_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    async with Broker(small_config(tmp_path)) as broker, peer_of(broker) as peer:
        await peer.heartbeat("c", topics={"T": "*"}, producers=["p"])
        step(monkeypatch, seconds)
        clients = broker.parts.tables.clients
        clients.expire()
        assert clients.group("readers") is not None
        assert clients.producers("p") is not None
        answer = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
        told = loads(answer.body)["data"]["p"][0]["lastUpdateTimestamp"]
        assert abs(told - time.time_ns() // 1_000_000) < 60_000, "it is shown by the wall clock"


@pytest.mark.parametrize("seconds", STEPS)
async def test_locks_end_when_their_time_is_over_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    queue = MessageQueue("T", "broker-t", 0)
    long, short = (
        small_config(tmp_path / "1"),
        small_config(tmp_path / "2", rebalance_lock_max_live_time=50),
    )
    async with Broker(long) as patient, Broker(short) as quick:
        for broker in (patient, quick):
            assert broker.parts.tables.locks.lock("g", [queue], "one") == [queue]
        step(monkeypatch, seconds)
        patient.parts.tables.locks.expire()
        assert patient.parts.tables.locks.lock("g", [queue], "two") == []
        await until(
            lambda: quick.parts.tables.locks.lock("g", [queue], "two") == [queue], seconds=30
        )


@pytest.mark.parametrize("seconds", STEPS)
async def test_brokers_stay_in_their_routes_over_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    config = NamesrvConfig.load(None, listen_port=0, kv_config_path=tmp_path / "kv.json")
    async with NameServer(config) as namesrv:
        address = f"127.0.0.1:{namesrv.port}"
        async with Broker(small_config(tmp_path, namesrv_addr=address)) as broker:
            assert "broker-t" in namesrv.routes.brokers
            step(monkeypatch, seconds)
            namesrv.scan()
            assert "broker-t" in namesrv.routes.brokers
        async with Broker(small_config(tmp_path, namesrv_addr=address)) as broker:
            place = namesrv.routes.place("broker-t", 0)
            assert place is not None
            assert place["address"] == broker.parts.identity.address
