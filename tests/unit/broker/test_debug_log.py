"""What the level debug adds to the log of a server, and that it adds nothing otherwise."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from kerolox.broker.broker import Broker
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.protocol.codes import RequestCode
from tests.support.clients.peer import peer_of, small_config
from tests.support.eventually import until

if TYPE_CHECKING:
    from pathlib import Path


def namesrv_config(folder: Path) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        listen_host="127.0.0.1",
        kv_config_path=folder / "kvConfig.json",
        config_store_path=folder / "namesrv.properties",
    )


async def work(folder: Path) -> None:
    """Some of everything that has a line."""
    async with NameServer(namesrv_config(folder)) as server:
        address = f"127.0.0.1:{server.port}"
        config = small_config(folder / "store", namesrv_addr=address)
        async with Broker(config) as broker:
            async with peer_of(broker) as peer:
                await peer.create_topic("T", 1)
                await peer.heartbeat("c1", "readers", {"T": "*"}, producers=["senders"])
                await peer.heartbeat("c1", "readers", {"T": "*", "U": "*"}, producers=["senders"])
                fields = {"consumerGroup": "readers", "topic": "T", "queueId": 0}
                await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": 0})
                # A field that the kernel does not know: Python holds it.
                await peer.pull("T", suspend_ms=20, unusual=1)
                await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            await until(lambda: broker.parts.tables.clients.group("readers") is None)


async def test_debug_tells_what_a_server_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.remoting.router.SLOW_SECONDS", 0.0)
    caplog.set_level(logging.DEBUG, "kerolox")
    await work(tmp_path)
    told = "\n".join(r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG)
    for wanted in (
        ": connection opened",
        ": connection closed",
        "client c1 at 127.0.0.1:",
        "joined group readers, 1 members",
        "joined producers senders, 1 members",
        "changed what group readers subscribes to",
        "group readers: 1 members are told to share",
        "left group readers, 0 members",
        "left producers senders, 0 members",
        "topic made: ",
        "topic deleted: T",
        "a pull of group readers is held for 20 ms at most: T, queue 0 from 0 on",
        "HEART_BEAT (34) of 127.0.0.1:",
        "answered with code 0",
        "consumerOffset.json written",
        "heard of all ",
        "registers",
    ):
        assert wanted in told, wanted


async def test_without_debug_none_of_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kerolox")
    await work(tmp_path)
    assert [r for r in caplog.records if r.levelno < logging.INFO] == []


async def test_only_slow_requests_have_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.remoting.router.SLOW_SECONDS", 3_600.0)
    caplog.set_level(logging.DEBUG, "kerolox")
    await work(tmp_path)
    assert [line for line in caplog.messages if " took " in line] == []
