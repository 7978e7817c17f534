"""A name server with two brokers of one name, whose roles tests change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerolox.admin import Access, Admin
from kerolox.broker.broker import Broker
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.remoting.client import RemotingClient
from tests.support.clients.peer import small_config
from tests.support.eventually import until
from tests.support.servers.up import free_port

QUICK = {"ha_send_heartbeat_interval": 50}
NAME = "broker-t"


@dataclass
class Cluster:
    """What there is, and a way to it."""

    namesrv: NameServer
    admin: Admin
    brokers: dict[str, Broker]
    folder: Path
    kernel: str
    ports: dict[str, int]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.namesrv.port}"

    def __getitem__(self, name: str) -> Broker:
        return self.brokers[name]

    def at(self, name: str) -> str:
        """The address of a broker, whether it runs or not."""
        return f"127.0.0.1:{self.ports[name]}"

    def config(self, name: str, **more: Any) -> Any:
        if name not in self.ports:
            self.ports[name] = free_port()
        values = {**QUICK, "listen_port": self.ports[name], "vip_port_enable": False}
        values["namesrv_addr"] = self.address
        return small_config(self.folder / name, **{**values, **more})

    async def start(self, name: str, **more: Any) -> Broker:
        """Start a broker, again where it was stopped before."""
        broker = Broker(self.config(name, **more), kernel=self.kernel)
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def start_slave(self, name: str, broker_id: int = 1, **more: Any) -> Broker:
        return await self.start(name, broker_role="SLAVE", broker_id=broker_id, **more)

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def lose_master(self, name: str) -> None:
        """Stop a master, and wait until the name server and its slaves know of it."""
        await self.stop(name)
        await until(lambda: 0 not in self.route)
        for slave in self.brokers:
            await self.until_left(slave)

    @property
    def route(self) -> dict[int, str]:
        """Address by broker id, as the name server has them."""
        data = self.namesrv.routes.brokers.get(NAME)
        return {} if data is None else dict(data.addresses)

    async def until_following(self, name: str) -> None:
        """Wait until a slave has what its master has."""
        await until(lambda: self[name].parts.roles.status().is_following)

    async def until_left(self, name: str) -> None:
        """Wait until a slave knows that its master is gone."""
        await until(lambda: not self[name].parts.roles.status().is_following)


@asynccontextmanager
async def cluster_of(folder: Path, kernel: str) -> AsyncIterator[Cluster]:
    config = NamesrvConfig.load(None, listen_port=0, kv_config_path=folder / "kv.json")
    async with NameServer(config) as namesrv, RemotingClient() as client:
        admin = Admin.on(Access(client, (f"127.0.0.1:{namesrv.port}",)))
        cluster = Cluster(namesrv, admin, {}, folder, kernel, {})
        try:
            yield cluster
        finally:
            await asyncio.gather(*(each.stop() for each in cluster.brokers.values()))


@asynccontextmanager
async def pair_of(
    folder: Path, kernel: str, role: str = "ASYNC_MASTER", **more: Any
) -> AsyncIterator[Cluster]:
    """A master ``a`` and its slave ``b``, which follows it."""
    async with cluster_of(folder, kernel) as cluster:
        await cluster.start("a", broker_role=role, **more)
        await cluster.start_slave("b", **more)
        await cluster.until_following("b")
        yield cluster
