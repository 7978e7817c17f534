"""Faults, as they befall a cluster: each begins when its time has come and ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerolox.errors import KeroloxError
from tests.simulation.cluster import Cluster, DiedError, Node
from tests.simulation.disk import Disk
from tests.simulation.history import Subscribed
from tests.simulation.scenario import CLOCK_STEP_SECONDS_MAX, Fault

if TYPE_CHECKING:
    from tests.simulation.run import Run

START_SECONDS = 0.5
"""A server that a full disk keeps from starting is started again after so long."""


def is_broken(disk: Disk) -> bool:
    """Whether a disk may keep a server from starting."""
    return disk.is_full or disk.failing_syncs > 0


class Faults:
    """What goes wrong in a run, and its end."""

    def __init__(self, cluster: Cluster, run: Run, seed: int) -> None:
        """Nothing has befallen anything yet."""
        self._cluster = cluster
        self._run = run
        self._random = random.Random(seed)
        self._loop = cluster.loop
        self._undo: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        """Two changes do not end and start the members of a group at a time."""

    def befall(self, fault: Fault) -> None:
        """Begin a fault."""
        self._cluster.trace.add(f"fault {fault}")
        node = self._cluster.nodes[fault.node]
        getattr(self, f"_{fault.kind}")(node, fault)

    async def heal(self) -> None:
        """End all faults; every process runs again when this returns."""
        for disk in self._cluster.disks():
            disk.die_at(0, lambda: None)
            disk.failing_syncs = 0
        for undo in self._undo:
            undo()
        self._undo.clear()
        while self._tasks:
            task = self._tasks.pop()
            await task
        for node in self._cluster.nodes.values():
            if not node.is_running and not node.is_retired and node.name != "operator":
                await self._up(node)
        for node in self._cluster.nodes.values():
            await self._repair(node)

    # -- how faults are made ----------------------------------------------------------------------
    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it then, or when all is healed."""

        def once() -> None:
            if action in self._undo:
                self._undo.remove(action)
                action()

        self._undo.append(action)
        self._loop.call_later(seconds, once)

    def _up_later(self, node: Node, seconds: float) -> None:
        async def up() -> None:
            await asyncio.sleep(seconds)
            await self._up(node)

        self._tasks.append(self._loop.create_task(up()))

    async def _up(self, node: Node) -> None:
        if node.is_running or node.is_retired:
            return
        cluster = self._cluster
        if node.disk is None:
            self._run.start_client(self._run.client_of(node))
            return
        while not node.is_running:
            # It may break while the server starts, or be whole again when that has failed.
            was_broken = is_broken(node.disk)
            try:
                await cluster.start(node)
            except DiedError:
                cluster.trace.add(f"{node.name} died in its start")
            except (KeroloxError, OSError) as error:
                if not (was_broken or is_broken(node.disk)):
                    self._run.faults.append(f"{node.name} refuses to start: {error}")
                    raise
                await asyncio.sleep(START_SECONDS)

    async def _repair(self, node: Node) -> None:
        """A store whose flush failed takes no more writes until it is started again."""
        process = node.process
        if not node.is_broker or not node.is_running or process is None or process.is_paused:
            return
        if not hasattr(node.broker, "parts"):
            return
        store: Any = node.broker.parts.store
        # What a full disk refuses is told first, and hides what the index has.
        if "flush" not in store.trouble and not store.files.index.failure:
            return
        self._cluster.trace.add(f"repair {node.name}")
        with contextlib.suppress(DiedError):
            await self._cluster.stop(node)
        await self._up(node)

    # -- the network ------------------------------------------------------------------------------
    def _partition(self, node: Node, fault: Fault) -> None:
        other = self._cluster.nodes[fault.other]
        network = self._cluster.network
        network.partition(node.host, other.host)
        self._later(fault.seconds, lambda: network.heal(node.host, other.host))

    def _reset(self, node: Node, fault: Fault) -> None:
        other = self._cluster.nodes[fault.other]
        count = self._cluster.network.reset(node.host, other.host)
        self._cluster.trace.add(f"{count} ends of connections broke")

    def _slow_link(self, node: Node, fault: Fault) -> None:
        network = self._cluster.network
        link = network.link(node.host, self._cluster.nodes[fault.other].host)
        link.latency_seconds, link.jitter_seconds = fault.amount * 0.8, fault.amount

        def undo() -> None:
            # Not as it was before: it may have been slow by another fault, which is over then.
            link.latency_seconds, link.jitter_seconds = (
                network.latency_seconds,
                network.jitter_seconds,
            )

        self._later(fault.seconds, undo)

    # -- processes --------------------------------------------------------------------------------
    def _pause(self, node: Node, fault: Fault) -> None:
        process = node.process
        if process is not None and process.is_alive:
            process.pause()
            self._later(fault.seconds, process.resume)

    def _stall(self, node: Node, fault: Fault) -> None:
        if node.process is not None and node.process.is_alive:
            node.process.stall(min(fault.seconds, 1.0))

    def _kill(self, node: Node, fault: Fault) -> None:
        if node.is_running:
            self._cluster.kill(node)
            self._up_later(node, fault.seconds / 2)

    _kill_name_server = _kill

    def _crash(self, node: Node, fault: Fault) -> None:
        if node.is_running:
            self._cluster.crash(node)
            self._up_later(node, fault.seconds)

    def _restart(self, node: Node, fault: Fault) -> None:
        async def again() -> None:
            process = node.process
            if not node.is_running or process is None or process.is_paused:
                return
            try:
                await self._cluster.stop(node)
            except DiedError:
                return
            await asyncio.sleep(fault.seconds / 4)
            await self._up(node)

        if node.server is not None and not getattr(node.server, "is_stopping_here", False):
            self._tasks.append(self._loop.create_task(again()))

    def _die_in_call(self, node: Node, fault: Fault) -> None:
        process, disk = node.process, node.disk
        if disk is None or process is None or not node.is_running:
            return

        def die() -> None:
            # Within a call of the process: the rest follows when that has unwound.
            is_crash = fault.amount < 0.3
            context = contextvars.Context()
            self._loop.call_soon(self._died_in_call, node, process.pid, is_crash, context=context)

        disk.die_at(1 + int(fault.amount * 20), die)

    def _died_in_call(self, node: Node, pid: int, is_crash: bool) -> None:
        if node.process is None or node.process.pid != pid or not node.is_running:
            return
        if is_crash:
            self._cluster.crash(node)
        else:
            self._cluster.kill(node)
        self._up_later(node, 0.2)

    def _tear_timer(self, node: Node, fault: Fault) -> None:
        """The process is killed, and a file of its timer is damaged before it is started again."""
        if not node.is_running or node.disk is None:
            return
        self._cluster.kill(node)
        root = node.disk.root
        path = root / "config" / fault.other if fault.other == "timercheck" else root / fault.other
        if path.is_dir():
            path = max(path.iterdir(), default=path / "none")
        if path.is_file():
            size = path.stat().st_size
            self._cluster.trace.add(f"tears {path.name} of {size} bytes")
            if fault.amount < 0.3:
                path.unlink()
            else:
                os.truncate(path, round(fault.amount * self._used(path)))
                # Of the log the rest is zeros; another length of the others is not theirs.
                if fault.other == "timerlog":
                    os.truncate(path, size)
        self._up_later(node, fault.seconds / 2)

    @staticmethod
    def _used(path: Path) -> int:
        """Bytes up to the zeros at its end."""
        return len(path.read_bytes().rstrip(b"\0")) if path.stat().st_size < 1 << 20 else 1 << 20

    def _kill_client(self, node: Node, fault: Fault) -> None:
        if node.is_running and node.process is not None:
            self._cluster.trace.add(f"kill {node.name}")
            node.process.kill()
            self._run.client_of(node).died()
            self._up_later(node, fault.seconds)

    def _stop_client(self, node: Node, fault: Fault) -> None:
        """It dies, and never comes back: others get what it had."""
        node.is_retired = True
        if node.is_running and node.process is not None:
            self._cluster.trace.add(f"{node.name} is gone for ever")
            node.process.kill()
            self._run.client_of(node).died()

    def _leave_client(self, node: Node, fault: Fault) -> None:
        async def again() -> None:
            client = self._run.client_of(node)
            process = node.process
            if process is None or not node.is_running or process.is_paused:
                return
            try:
                await self._cluster.call(node, client.stop())
            except DiedError:
                return
            self._cluster.trace.add(f"left {node.name}")
            process.kill()
            client.died()
            await asyncio.sleep(fault.seconds / 4)
            await self._up(node)

        self._tasks.append(self._loop.create_task(again()))

    def _clock(self, node: Node, fault: Fault) -> None:
        node.clock_offset_seconds += (fault.amount - 0.5) * 2 * fault.seconds
        self._cluster.history.clock_jumps += 1
        if node.process is not None:
            node.process.clock.offset_seconds = node.clock_offset_seconds

    # -- what operators do --------------------------------------------------------------------
    def _reset_offsets(self, node: Node, fault: Fault) -> None:
        work = self._run.operator.reset_offsets(fault.other, forward=fault.amount < 0.5)
        self._tasks.append(self._loop.create_task(work))

    def _delete_topic(self, node: Node, fault: Fault) -> None:
        work = self._run.operator.delete_topic(fault.other, again=fault.amount < 0.5)
        self._tasks.append(self._loop.create_task(work))

    def _remake_topic(self, node: Node, fault: Fault) -> None:
        """While its consumers run, or while they are away."""
        members = self._members(fault.other, by_topic=True) if fault.amount < 0.6 else []

        async def work() -> None:
            async with self._changing:
                await self._leave(members, is_kill=fault.amount < 0.2)
                await self._run.operator.delete_topic(fault.other, again=True)
                await asyncio.sleep(fault.seconds / 2)
                for member in members:
                    await self._up(member)

        self._tasks.append(self._loop.create_task(work()))

    def _queues(self, node: Node, fault: Fault) -> None:
        operator, now = self._run.operator, self._run.scenario.topics[fault.other]
        if fault.amount < 0.4:
            work = operator.take_queues(fault.other, 1, fault.seconds)
        elif fault.amount < 0.7:
            work = operator.change_queues(fault.other, 1)
        else:
            work = operator.change_queues(fault.other, now + 2)
        self._tasks.append(self._loop.create_task(work))

    def _retry_queues(self, node: Node, fault: Fault) -> None:
        queues = 4 if fault.amount < 0.5 else 1
        work = self._run.operator.change_retry_queues(fault.other, queues)
        self._tasks.append(self._loop.create_task(work))

    def _subscribe(self, node: Node, fault: Fault) -> None:
        """The members of a group end one after the other; each comes back with other tags, and
        after a step of its clock, back or forth."""
        members = self._members(fault.other)
        (plan,) = (each for each in self._run.scenario.groups if each.name == fault.other)
        wanted = [each for each in ("a", "b", "*", "a || b") if each != plan.tags]

        async def work() -> None:
            async with self._changing:
                await change()

        async def change() -> None:
            first_at = self._loop.time()
            plan.tags = self._random.choice(wanted)
            told = self._cluster.history.groups[plan.name]
            # What comes until the last one has ended may be passed over.
            told.subscriptions.append(Subscribed(first_at, math.inf, plan.tags))
            number = len(told.subscriptions) - 1
            for member in members:
                await self._leave([member], is_kill=self._random.random() < 0.5)
                told.subscriptions[number] = Subscribed(first_at, self._loop.time(), plan.tags)
                step = (fault.amount - 0.5) * 2 * CLOCK_STEP_SECONDS_MAX
                member.clock_offset_seconds += step
                await self._up(member)
                await asyncio.sleep(fault.seconds / 2)

        self._tasks.append(self._loop.create_task(work()))

    def _members(self, name: str, *, by_topic: bool = False) -> list[Node]:
        """Nodes of a group, or of all groups of a topic."""
        return [
            each.node
            for each in self._run.consumers
            if (name in each.plan.topics if by_topic else each.plan.name == name)
        ]

    async def _leave(self, members: list[Node], *, is_kill: bool) -> None:
        """End clients, in order or not; those that do not run stay away."""
        for node in members:
            client, process = self._run.client_of(node), node.process
            if process is None or not node.is_running:
                continue
            if not is_kill and not process.is_paused:
                with contextlib.suppress(DiedError):
                    await self._cluster.call(node, client.stop())
            if node.process is not process:
                continue  # it was killed meanwhile, and is in its next life
            self._cluster.trace.add(f"ended {node.name}")
            process.kill()
            client.died()

    def _promote(self, node: Node, fault: Fault) -> None:
        work = self._run.operator.promote(planned=fault.amount < 0.5)
        self._tasks.append(self._loop.create_task(work))

    # -- disks ------------------------------------------------------------------------------------
    def _slow_disk(self, node: Node, fault: Fault) -> None:
        disk = node.disk
        assert disk is not None
        disk.sync_seconds = fault.amount * 0.3

        def undo() -> None:
            disk.sync_seconds = 0.0

        self._later(fault.seconds, undo)

    def _failing_sync(self, node: Node, fault: Fault) -> None:
        disk = node.disk
        assert disk is not None
        disk.failing_syncs = 1

        async def repair() -> None:
            await asyncio.sleep(fault.seconds)
            disk.failing_syncs = 0
            await self._repair(node)

        self._tasks.append(self._loop.create_task(repair()))

    def _full_disk(self, node: Node, fault: Fault) -> None:
        disk = node.disk
        assert disk is not None
        disk.is_full = True

        def undo() -> None:
            disk.is_full = False

        self._later(fault.seconds, undo)
