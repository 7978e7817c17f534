"""The processes of a cluster: started, stopped, killed, paused, and started again.

Hosts have a name and an address of their own; a process that starts again has the same host, the
same disk and new clocks. The driver of a run, which is no process, calls what stands here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kerolox.broker.broker import Broker
from kerolox.broker.config import BrokerConfig
from kerolox.broker.role import Role
from kerolox.client.aio.life import LifeCycle
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from tests.simulation.disk import Died, Disk
from tests.simulation.history import CRASHED, KILLED, STARTED, STOPPED, Event, History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.process import Process
from tests.simulation.trace import Trace

NAME_SERVER_PORT = 9876
BROKER_PORT = 10911
LOG_FILE_BYTES = 16 * 1024
QUEUE_FILE_ENTRIES = 60
STOP_SECONDS_MAX = 60.0

_Result = TypeVar("_Result")

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_FILE_BYTES,
    "mapped_file_size_consume_queue": QUEUE_FILE_ENTRIES * 20,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
    "max_message_size": 4_096,
    "listen_port": BROKER_PORT,
    "ha_listen_port": BROKER_PORT + 1,
}
"""Settings of brokers here that have no part in what is tested."""


@dataclass
class Node:
    """One host with one process, or none at the moment."""

    name: str
    host: str
    disk: Disk | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    process: Process | None = None
    server: Broker | NameServer | None = None
    lives: int = 0
    clock_offset_seconds: float = 0.0
    is_retired: bool = False
    """A client that stopped for ever."""

    @property
    def is_running(self) -> bool:
        """A process of it is alive."""
        return self.process is not None and self.process.is_alive

    @property
    def is_broker(self) -> bool:
        """It has settings of a broker."""
        return bool(self.settings)

    @property
    def broker(self) -> Broker:
        """The broker that runs in it."""
        assert isinstance(self.server, Broker)
        return self.server


class Cluster:
    """All nodes. Made inside the loop's patches."""

    def __init__(
        self, loop: SimulatedLoop, root: Path, seed: int, trace: Trace, history: History
    ) -> None:
        """Nothing runs yet. ``root``: an empty folder on tmpfs."""
        self.loop = loop
        self.root = root
        self.trace = trace
        self.history = history
        self.network = loop.network
        self.nodes: dict[str, Node] = {}
        self._random = random.Random(seed)
        self._kept: list[object] = []
        """Servers of dead processes: to free one would run code of it."""
        self.clients: list[LifeCycle] = []
        """All that were made."""

    def forget(self) -> None:
        """The run is over."""
        self._kept.clear()
        for client in self.clients:
            client._forget_unclosed()  # one whose process was killed has no close
        self.clients.clear()
        for node in self.nodes.values():
            node.server = node.process = None

    # -- nodes ----------------------------------------------------------------------------------
    def add_node(self, name: str, **settings: Any) -> Node:
        """A host; with settings it is a broker's."""
        host = f"10.0.0.{len(self.nodes) + 1}"
        node = Node(name, host, settings=settings)
        if settings or name.startswith("namesrv"):
            disk_random = random.Random(self._random.getrandbits(64))
            node.disk = Disk(self.root / name, disk_random, self.trace)
        self.nodes[name] = node
        return node

    def disks(self) -> list[Disk]:
        """Of all nodes."""
        return [node.disk for node in self.nodes.values() if node.disk is not None]

    @property
    def name_servers(self) -> str:
        """Their addresses, as clients and brokers are given them."""
        return ";".join(
            f"{node.host}:{NAME_SERVER_PORT}"
            for node in self.nodes.values()
            if node.name.startswith("namesrv")
        )

    @property
    def brokers(self) -> dict[str, Broker]:
        """The brokers that run, by the name of their node."""
        return {
            node.name: node.server
            for node in self.nodes.values()
            if isinstance(node.server, Broker) and node.is_running
        }

    # -- processes ------------------------------------------------------------------------------
    def new_process(self, node: Node) -> Process:
        """The next life of a node's process."""
        node.lives += 1
        self.network.power_on(node.host)
        pid = 1_000 + node.lives
        process = Process(node.name, node.host, self.loop.time, self._random.getrandbits(64), pid)
        process.clock.offset_seconds = node.clock_offset_seconds
        self.loop.adopt(process)
        node.process = process
        return process

    def spawn(self, process: Process, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Run a coroutine as a task of a process."""
        return self.loop.create_task(work, context=process.context.copy())

    async def call(self, node: Node, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine as a node's process, and wait for it.

        Raises:
            DiedError: the process died meanwhile.
        """
        process = node.process
        assert process is not None
        task = self.spawn(process, work)
        death = process.death(self.loop)
        await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or isinstance(task.exception(), Died):
            raise DiedError(node.name)
        return task.result()

    async def start(self, node: Node) -> None:
        """Start a server.

        Raises:
            DiedError: it died while it started.
            KeroloxError: it refuses to start.
        """
        process = self.new_process(node)
        server = process.run(self._made, node)
        node.server = server
        self.trace.add(f"start {node.name}")
        try:
            await self.call(node, server.start())
        except DiedError:
            raise
        except BaseException as error:
            self.trace.add(f"{node.name} refuses to start: {error}")
            process.kill()
            self.loop.forget_readers(process)
            if node.disk is not None:
                node.disk.killed()
            raise
        self.trace.add(f"started {node.name}")
        is_broker = isinstance(server, Broker)
        self._note(STARTED, node, server.recovery.max_offset if is_broker else -1)

    def _made(self, node: Node) -> Broker | NameServer:
        assert node.disk is not None
        if not node.is_broker:
            config = NamesrvConfig(
                listen_host=node.host,
                listen_port=NAME_SERVER_PORT,
                kv_config_path=node.disk.root / "kvConfig.json",
                config_store_path=node.disk.root / "namesrv.properties",
            )
            return NameServer(config)
        return Broker(
            BrokerConfig(
                **{
                    **SMALL_FILES,
                    "listen_host": node.host,
                    "broker_ip1": node.host,
                    "broker_ip2": node.host,
                    "namesrv_addr": self.name_servers,
                    "store_path_root_dir": node.disk.root,
                    **node.settings,
                }
            ),
            kernel="python",
        )

    async def stop(self, node: Node, *, end: bool = True) -> None:
        """Stop a server in order (SIGTERM). ``end``: and let the process be over.

        Raises:
            DiedError: it died meanwhile.
        """
        self.trace.add(f"stop {node.name}")
        process, server = node.process, node.server
        assert process is not None
        assert server is not None
        end_before = -1
        if isinstance(server, Broker) and hasattr(server, "parts") and node.disk is not None:
            end_before = server.parts.store.max_physical_offset if node.disk.is_full else -1
        await self.call(node, server.stop())
        if node.server is not server:  # somebody else stopped it, too
            raise DiedError(node.name)
        self.trace.add(f"stopped {node.name}")
        self._note(STOPPED, node, end_before)
        if end:
            self._end(node)

    async def rebuild(self, node: Node) -> None:
        """What an operator does with a slave whose log is not its master's: an empty folder."""
        self.trace.add(f"rebuild {node.name}")
        await self.stop(node)
        assert node.disk is not None
        node.disk.wipe()
        await self.start(node)

    def kill(self, node: Node) -> None:
        """kill -9."""
        self.trace.add(f"kill {node.name}")
        self._note(KILLED, node)
        self._end(node)

    def crash(self, node: Node) -> None:
        """The power of its host fails: what is not on its disk is lost."""
        self.trace.add(f"crash {node.name}")
        self._note(CRASHED, node)
        self.network.power_off(node.host)
        self._end(node, crashed=True)

    def _end(self, node: Node, *, crashed: bool = False) -> None:
        process = node.process
        assert process is not None
        self.loop.forget_readers(process)
        process.kill()
        if node.disk is not None:
            if crashed:
                node.disk.crashed()
            else:
                node.disk.killed()
        self._kept.append(node.server)
        node.server = None

    def _note(self, what: str, node: Node, log_end: int = -1) -> None:
        if not node.is_broker:
            return
        has_parts = hasattr(node.broker, "parts")
        config = node.broker.config
        role = node.broker.parts.role.current if has_parts else Role.of(config)
        flushed = -1
        ends: dict[tuple[str, int], int] = {}
        if what not in (STARTED, STOPPED) and has_parts:
            store: Any = node.broker.parts.store  # the engine in Python
            log_end, flushed = store.max_physical_offset, store.flushed_offset
            # Nothing is read: its disk may have died.
            queues = store.files.queues.by_key
            ends = {key: queue.max_offset for key, queue in queues.items() if queue.starts}
        self.history.event(
            Event(
                self.loop.time(),
                what,
                config.broker_name,
                node.name,
                log_end,
                flushed,
                not role.is_slave,
                ends,
            )
        )


class DiedError(Exception):
    """The process that was to do it died."""
