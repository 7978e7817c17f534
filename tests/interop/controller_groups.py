"""Three controllers that agree: of Kerolox, or of RocketMQ 5.3.3 by DLedger or by jRaft."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kerolox.controller.config import ControllerConfig
from kerolox.controller.server import Controller
from tests.support.eventually import SECONDS_MAX
from tests.support.programs import build_broker_53
from tests.support.servers.clusters import NO_TLS, start_java
from tests.support.servers.up import free_port

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from typing import Self

__all__ = ["GROUPS", "ControllerGroup"]

HOST = "127.0.0.1"
COUNT = 3


class ControllerGroup(ABC):
    """Three controllers; an asynchronous context manager: all run inside.

    Args:
        folder: for their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(COUNT)]

    @property
    def addresses(self) -> list[str]:
        """Where brokers and tools reach them."""
        return [f"{HOST}:{port}" for port in self.ports]

    async def __aenter__(self) -> Self:
        # One of RocketMQ's is up when it listens: it does not wait for the others.
        await asyncio.gather(*(self.start(number) for number in range(COUNT)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.end(number) for number in range(COUNT)))

    @abstractmethod
    async def start(self, number: int) -> None:
        """Have one run, with the files that it has."""

    @abstractmethod
    async def end(self, number: int) -> None:
        """Have one gone. Idempotent."""


class OurControllers(ControllerGroup):
    """In the test's loop."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._running: dict[int, Controller] = {}

    async def start(self, number: int) -> None:
        peers = ";".join(f"n{each}-{address}" for each, address in enumerate(self.addresses))
        config = ControllerConfig(
            controller_d_leger_peers=peers,
            controller_d_leger_self_id=f"n{number}",
            controller_store_path=self.folder / f"n{number}",
            listen_host=HOST,
        )
        self._running[number] = await Controller(config).__aenter__()

    async def end(self, number: int) -> None:
        if (controller := self._running.pop(number, None)) is not None:
            await controller.__aexit__(None, None, None)


class JavaControllers(ControllerGroup):
    """In processes of their own, which agree by DLedger."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    async def start(self, number: int) -> None:
        folder = self.folder / f"n{number}"
        (folder / "home").mkdir(parents=True, exist_ok=True)
        settings = [
            f"controllerStorePath={folder / 'store'}",
            f"mappedFileSize={16 << 20}",
            *self._settings(number),
        ]
        self._processes[number] = await asyncio.to_thread(
            start_java,
            folder,
            "controller",
            "controller.ControllerStartup",
            settings,
            built=build_broker_53,
            options=(*NO_TLS, "--add-opens=java.base/java.lang=ALL-UNNAMED"),
        )

    async def end(self, number: int) -> None:
        if (process := self._processes.pop(number, None)) is not None:
            process.kill()
            await asyncio.to_thread(process.wait, SECONDS_MAX)

    def _settings(self, number: int) -> list[str]:
        peers = ";".join(f"n{each}-{address}" for each, address in enumerate(self.addresses))
        return [
            "controllerDLegerGroup=controllers",
            f"controllerDLegerPeers={peers}",
            f"controllerDLegerSelfId=n{number}",
        ]


class JRaftControllers(JavaControllers):
    """The same, which agree by jRaft."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._among = [f"{HOST}:{free_port()}" for _ in range(COUNT)]
        """Where they speak to each other."""

    def _settings(self, number: int) -> list[str]:
        return [
            "controllerType=jRaft",
            # A busy machine is no reason for another leader.
            "jRaftElectionTimeoutMs=5000",
            f"jRaftServerId={self._among[number]}",
            f"jRaftInitConf={','.join(self._among)}",
            f"jRaftControllerRPCAddr={','.join(self.addresses)}",
        ]


GROUPS: dict[str, type[ControllerGroup]] = {
    "ours": OurControllers,
    "dledger": JavaControllers,
    "jraft": JRaftControllers,
}
