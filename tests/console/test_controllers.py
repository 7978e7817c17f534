"""The page of brokers shows the controllers that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.broker import Broker
from kerolox.controller.config import ControllerConfig
from kerolox.controller.server import Controller
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.console.site import Visitor, running_console
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


async def test_controllers_and_sync_state_sets_stand_on_the_page_of_brokers(tmp_path: Path) -> None:
    config = ControllerConfig(
        controller_d_leger_peers=f"n0-{HOST}:{free_port()}",
        controller_store_path=tmp_path / "controller",
        listen_host=HOST,
    )
    names = NamesrvConfig(listen_port=0, listen_host=HOST, kv_config_path=tmp_path / "kv.json")
    async with Controller(config, tick_seconds=0.02) as controller, NameServer(names) as namesrv:
        at = f"{HOST}:{namesrv.port}"
        settings = small_config(
            tmp_path / "broker",
            namesrv_addr=at,
            enable_controller_mode=True,
            controller_addr=config.own_address,
        )
        async with Broker(settings) as broker, running_console(tmp_path, at) as console:
            viewer = Visitor(console, "viewer")

            async def main() -> str:
                console.cache.clear()
                return (await viewer.look("/brokers")).text.partition("<main")[2]

            async def has_master() -> bool:
                return "<td>master</td><td>" + address in await main()

            address = f"{HOST}:{broker.port}"
            await until(has_master, what="the master's line")
            page = await main()
            assert f"<td>{config.own_address}</td>" in page
            assert "<td>n0</td><td>leader</td>" in page
            await controller.stop()
            page = await main()
            assert "Sync state sets" not in page
            assert f"can&#39;t connect to {config.own_address}" in page
