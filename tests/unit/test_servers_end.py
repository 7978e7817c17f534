"""Servers that are stopped twice at a time, as by a signal and by the program that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.broker.broker import Broker
from kerolox.controller.config import ControllerConfig
from kerolox.controller.server import Controller
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.support.clients.peer import small_config
from tests.support.servers.up import free_port


def broker(folder: Path) -> Broker:
    return Broker(small_config(folder))


def name_server(folder: Path) -> NameServer:
    config = NamesrvConfig(
        listen_port=0, metrics_prom_exporter_port=0, kv_config_path=folder / "kvConfig.json"
    )
    return NameServer(config)


def controller(folder: Path) -> Controller:
    port = free_port()
    config = ControllerConfig(
        controller_d_leger_peers=f"n0-127.0.0.1:{port}",
        controller_store_path=folder / "raft",
        controller_secret="s3cret",
        metrics_prom_exporter_port=0,
    )
    return Controller(config)


Server = Broker | NameServer | Controller


@pytest.mark.parametrize("made", [broker, name_server, controller], ids=lambda made: made.__name__)
async def test_whoever_stops_a_server_that_is_being_stopped_waits_for_its_end(
    made: Callable[[Path], Server], tmp_path: Path
) -> None:
    server = made(tmp_path)
    await server.start()
    first = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    assert not first.done()
    await server.stop()
    assert first.done()
    await first
    await server.stop()
