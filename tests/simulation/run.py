"""One seed, from start to verdict.

The servers start, then the clients; faults come and go; then everything is healed, every process
runs again, and the cluster has to come to rest: all is sent, consumed and resolved. Then
:mod:`tests.simulation.checks` examines the history and the stores, everything is stopped in order,
and nothing may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kerolox.broker.broker import Broker
from kerolox.broker.tables.groups import GroupTable
from kerolox.broker.tables.topics import TopicTable
from kerolox.kernel.choice import KERNEL_VARIABLE
from kerolox.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from tests.simulation import checks, clocks, disk_calls, given, grpc_producers, pace
from tests.simulation.cluster import Cluster, Node
from tests.simulation.faults import Faults
from tests.simulation.grpc_members import GrpcRun
from tests.simulation.grpc_producers import GrpcProducerRun
from tests.simulation.history import CRASHED, PROMOTED, Group, History, Subscribed
from tests.simulation.loop import SimulatedLoop
from tests.simulation.operations import Operator
from tests.simulation.patches import Patches
from tests.simulation.rest import unrest_of
from tests.simulation.scenario import FAULT_SECONDS, ONCE, Scenario, drawn
from tests.simulation.threads import Threads
from tests.simulation.trace import LINES_MAX, Trace
from tests.simulation.workload import HELLO_TOPIC, ConsumerRun, PopRun, ProducerRun

REST_SECONDS_MAX = 240.0
"""Virtual time in which a healed cluster has to come to rest."""
FOLLOW_SECONDS = 15.0
"""A slave that does not follow its master so long after all is healed needs its operator."""
HELD_SECONDS = 4.0
"""Longer than a broker holds a pull whose queue has other messages than it asks for."""
POLL_SECONDS = 0.25
QUIET_LOOKS = 3
"""Looks that find nothing to wait for, before the last one."""
STOP_SECONDS_MAX = 20.0
LEFT_SECONDS = 5.0
"""After so long nothing of a stopped server may be left."""

Client = ProducerRun | ConsumerRun
_BASE = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")


@dataclass
class Result:
    """What became of a seed."""

    seed: int
    faults: list[str]
    digest: str
    lines: list[str]
    virtual_seconds: float
    steps: int
    counts: dict[str, int] = field(default_factory=dict)


class Run:
    """A scenario in its course."""

    def __init__(self, scenario: Scenario, loop: SimulatedLoop, root: Path, trace: Trace) -> None:
        self.scenario = scenario
        self.loop = loop
        self.trace = trace
        self.history = History(scenario.flush, scenario.role)
        self.history.stores_once = scenario.stores_once
        # On a slow link a send may need longer than its producer waits.
        self.history.is_quiet = not scenario.faults and scenario.latency_seconds < 0.01
        kinds = {fault.kind for fault in scenario.faults}
        self.history.has_failing_syncs = "failing_sync" in kinds
        self.history.kinds = frozenset(kinds)
        self.history.has_index = bool(scenario.broker_settings.get("message_index_enable", True))
        self.history.timer_step_ms = scenario.broker_settings.get("timer_precision_ms", 1_000)
        interval_ms = scenario.broker_settings.get("flush_consumer_offset_interval", 5_000)
        self.history.snapshot_seconds = interval_ms / 1_000
        self.history.has_pool = bool(scenario.broker_settings.get("transient_store_pool_enable"))
        self.chance = random.Random(f"run-{scenario.seed}")
        self.cluster = Cluster(loop, root, self.chance.getrandbits(64), trace, self.history)
        self.producers: list[ProducerRun] = []
        self.consumers: list[ConsumerRun] = []
        self.faults: list[str] = []
        self.rest_seconds = REST_SECONDS_MAX
        self._rebuilt: set[str] = set()
        self._programs: set[asyncio.Task[None]] = set()
        self.operator = Operator(self, self.cluster.add_node("operator"))
        network = loop.network
        network.window_bytes = scenario.window_bytes
        network.cut_probability = scenario.cut_probability
        network.latency_seconds = scenario.latency_seconds
        network.jitter_seconds = scenario.jitter_seconds
        self._add_nodes()

    def _add_nodes(self) -> None:
        scenario, cluster = self.scenario, self.cluster
        for number in range(scenario.name_servers):
            cluster.add_node(f"namesrv-{number}")
        shared = {
            **scenario.broker_settings,
            "flush_disk_type": scenario.flush,
            "auto_create_topic_enable": False,
        }
        for number in range(scenario.masters):
            # Slaves are the first one's.
            role = scenario.role if not number else "ASYNC_MASTER"
            name = f"broker-{number}"
            cluster.add_node(name, **shared, broker_name=name, broker_role=role)
        shared["broker_name"] = "broker-0"
        for number in range(scenario.slaves):
            cluster.add_node(
                f"broker-0-slave-{number}",
                **{**shared, "broker_role": "SLAVE", "broker_id": number + 1},
            )
        for plan in scenario.producers:
            node = cluster.add_node(plan.name)
            made = GrpcProducerRun if plan.is_grpc else ProducerRun
            self.producers.append(made(cluster, node, plan, self.chance.getrandbits(64)))
        for group in scenario.groups:
            self.history.groups[group.name] = Group(
                group.name,
                group.topics,
                is_orderly=group.is_orderly,
                is_popped=group.is_popped,
                is_ordered=group.is_ordered,
                retries_max=group.retries_max,
                takes_time=any((group.seconds, group.fails, group.extends, group.doubles)),
                subscriptions=[Subscribed(0.0, 0.0, group.tags)],
            )
            for member in range(group.members):
                node = cluster.add_node(f"{group.name}-{member}")
                kind = PopRun if group.is_popped else ConsumerRun
                kind = GrpcRun if group.is_grpc else kind
                self.consumers.append(kind(cluster, node, group, self.chance.getrandbits(64)))

    @property
    def clients(self) -> list[Client]:
        """All of them."""
        return [*self.producers, *self.consumers]

    # -- the course of a run ----------------------------------------------------------------------
    async def main(self) -> None:
        cluster = self.cluster
        servers = [node for node in cluster.nodes.values() if node.disk is not None]
        for node in servers:
            await cluster.start(node)
        await self._make_topics()
        for client in self.clients:
            self.start_client(client)
        began = self.loop.time()
        faults = Faults(self.cluster, self, self.chance.getrandbits(64))
        for fault in self.scenario.faults:
            await asyncio.sleep(max(began + fault.at - self.loop.time(), 0))
            faults.befall(fault)
        last = max((fault.at + fault.seconds for fault in self.scenario.faults), default=0.0)
        await asyncio.sleep(max(began + min(last, FAULT_SECONDS) - self.loop.time(), 0))
        self.trace.add("heal")
        await faults.heal()
        await self.operator.ensure_master()
        await self.operator.give_back_queues()
        for client in self.clients:
            client.calm()
        await self._rest()
        if not self.faults:
            self.faults += checks.check(self.history, cluster)
        await self._stop_all()

    def start_client(self, client: Client) -> None:
        """Its next life."""
        process = self.cluster.new_process(client.node)
        self.trace.add(f"start {client.node.name}")
        self._programs.add(self.cluster.spawn(process, client.run()))

    def client_of(self, node: Node) -> Client:
        """The client that runs on a node."""
        return next(each for each in self.clients if each.node is node)

    async def _make_topics(self) -> None:
        for node in self.cluster.nodes.values():
            if node.is_broker and not node.broker.parts.role.current.is_slave:
                await self.cluster.call(node, self._put_topics(node.broker.parts.tables.topics))
                await self.cluster.call(node, self._put_groups(node.broker.parts.tables.groups))

        # Slaves ask for them every ten seconds; a promotion before that would be without them.
        address = self.cluster.nodes["broker-0"].broker.address
        for node in self.cluster.nodes.values():
            if node.is_broker and node.broker.parts.role.current.is_slave:
                tables = node.broker.parts.peers.replication.tables
                assert tables is not None
                await self.cluster.call(node, tables.sync_from(address))

    async def _put_topics(self, table: TopicTable) -> None:
        for topic, queues in {**self.scenario.topics, HELLO_TOPIC: 1}.items():
            table.put(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    attributes=ONCE if self.scenario.stores_once else None,
                )
            )
        await table.persist()

    async def _put_groups(self, table: GroupTable) -> None:
        """Those whose messages die after other than the usual number of retries."""
        for plan in self.scenario.groups:
            if plan.is_popped and (plan.retries_max != 16 or plan.is_grpc):
                table.put(
                    SubscriptionGroupConfig(
                        group_name=plan.name,
                        retry_max_times=plan.retries_max,
                        consume_message_orderly=plan.is_grpc and plan.is_ordered,
                    )
                )
                await table.persist()

    async def _rest(self) -> None:
        if self.history.deleted_topics:
            # A pull from before holds an offset of the earlier life, which looks consumed.
            await asyncio.sleep(HELD_SECONDS)
        began = self.loop.time()
        deadline = began + self.rest_seconds
        quiet = 0
        while True:
            reason = self._unrest()
            quiet = 0 if reason else quiet + 1
            # Nothing happens between this check and the check.
            if quiet > QUIET_LOOKS:
                return
            if reason and self.loop.time() > began + FOLLOW_SECONDS:
                await self._rebuild_slaves()
            if self.loop.time() > deadline:
                self.faults.append(f"no rest after {self.rest_seconds:g} s: {reason}")
                return
            await asyncio.sleep(POLL_SECONDS)

    def _unrest(self) -> str:
        """Why the cluster is not at rest; empty: it is."""
        for producer in self.producers:
            if not producer.is_done:
                return f"{producer.node.name} has more to send"
        if any(not sent.status and not sent.error for sent in self.history.sent):
            return "a send has no outcome"
        brokers = list(self.cluster.brokers.values())
        slaves = [broker for broker in brokers if broker.parts.role.current.is_slave]
        masters: set[str] = set()
        for broker in brokers:
            if not broker.parts.role.current.is_slave:
                name = broker.config.broker_name
                if name in masters:
                    # The one that its name server refuses tells the other one before long.
                    return f"{name} has two masters"
                masters.add(name)
                own = [each for each in slaves if each.config.broker_name == name]
                reason = unrest_of(broker, own, self.scenario.groups, self.history.gone_topics)
                if reason:
                    return reason
        return ""

    async def _rebuild_slaves(self) -> None:
        """A master that lost the end of its log in a crash is not followed any more by slaves that
        have it, nor an empty one that was promoted: their operator has them begin anew, once."""
        losses = (CRASHED, PROMOTED)
        crashed = {event.broker for event in self.history.events if event.what in losses}
        for node in list(self.cluster.nodes.values()):
            if not isinstance(node.server, Broker) or node.name in self._rebuilt:
                continue
            follower = node.broker.parts.peers.replication.follower
            is_lost = follower is not None and not follower.is_following
            if is_lost and node.broker.config.broker_name in crashed:
                self._rebuilt.add(node.name)
                await self.cluster.rebuild(node)

    async def _stop_all(self) -> None:
        cluster = self.cluster
        for client in reversed(self.clients):
            if client.node.is_retired:
                continue
            process = client.node.process
            assert process is not None
            await cluster.call(client.node, client.stop())
        order = sorted(
            (node for node in cluster.nodes.values() if node.server is not None),
            key=lambda node: (not node.is_broker, node.name),
        )
        for node in order:
            began = self.loop.time()
            await cluster.stop(node, end=False)
            if (seconds := self.loop.time() - began) > STOP_SECONDS_MAX:
                self.faults.append(f"{node.name} took {seconds:.1f} s to stop")
        await asyncio.sleep(LEFT_SECONDS)
        for node in cluster.nodes.values():
            left = [] if node.process is None else self.loop.tasks_of(node.process)
            # What stands for a client's program waits for ever; all else is the client's.
            left = [task for task in left if task not in self._programs]
            if left:
                self.faults.append(f"{node.name} stopped, and tasks are left: {left[:3]}")


def run_seed(
    seed: int,
    *,
    scenario: Callable[[int], Scenario] = drawn,
    root: Path | None = None,
    on_patched: Callable[[Patches], None] = lambda patches: None,
    lines_max: int = LINES_MAX,
    log_level: int = logging.CRITICAL + 1,
    rest_seconds: float = REST_SECONDS_MAX,
) -> Result:
    """Run a seed.

    Args:
        seed: its number.
        scenario: what makes its scenario.
        root: an empty folder on tmpfs, or None.
        on_patched: called when everything is replaced, to replace more (a deliberate bug).
        lines_max: so many of the last lines of the trace are kept.
        log_level: of the lines of Kerolox's logs that stand between them.
        rest_seconds: virtual time in which the healed cluster has to come to rest.
    """
    made = scenario(seed)
    folder = root or _BASE / f"kerolox-simulation-{os.getpid():08d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    was_collecting = gc.isenabled()
    gc.disable()
    loop = SimulatedLoop(seed)
    trace = Trace(loop.time, lines_max, str(folder))
    with Patches() as patches, _own_surroundings(trace, log_level):
        run = Run(made, loop, folder, trace)
        run.rest_seconds = rest_seconds
        disks = run.cluster.disks()
        disk_calls.install(patches, disks)
        threads = Threads(loop, disks)
        threads.install(patches)
        loop.call_in_thread = threads.call
        clocks.install(patches)
        pace.install(patches)
        given.install(patches, run.cluster)
        grpc_producers.install(patches, run.cluster)
        loop.network.install(patches)
        on_patched(patches)
        try:
            loop.run_until_complete(run.main())
        except Exception as error:
            run.faults.append(f"{type(error).__name__}: {error}")
        run.faults += loop.errors
        for disk in disks:
            disk.is_off = True
        threads.close()
        run.cluster.forget()
        loop.dismantle()
    if was_collecting:
        gc.enable()
    shutil.rmtree(folder, ignore_errors=True)
    counts = {
        "sent": len(run.history.sent),
        "told": sum(bool(sent.status) for sent in run.history.sent),
        "received": len(run.history.received),
        "events": len(run.history.events),
    }
    return Result(
        seed,
        [*dict.fromkeys(run.faults)],
        trace.digest(),
        list(trace.lines),
        loop.time(),
        loop.steps,
        counts,
    )


class _LogLines(logging.Handler):
    """Puts lines of logs between those of the trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        """Put a line there."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._trace.tell(f"{record.levelname.lower()} {text}")


@contextlib.contextmanager
def _own_surroundings(trace: Trace, level: int) -> Iterator[None]:
    """The engine in Python, no log lines, and no complaints about what dead processes leave."""
    kernel = os.environ.get(KERNEL_VARIABLE)
    os.environ[KERNEL_VARIABLE] = "python"
    log = logging.getLogger("kerolox")
    before, propagates = log.level, log.propagate
    handler = _LogLines(trace)
    log.setLevel(level)
    log.addHandler(handler)
    log.propagate = False
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = propagates
        sys.unraisablehook = hook
        if kernel is None:
            del os.environ[KERNEL_VARIABLE]
        else:
            os.environ[KERNEL_VARIABLE] = kernel
