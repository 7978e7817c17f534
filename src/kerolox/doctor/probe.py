"""Examines a cluster: all servers at once, each question with a time limit of its own.

What could not be learnt is in the facts as an error; nothing here raises because a server is ill.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from kerolox.addresses import join_address, split_address
from kerolox.admin import (
    Access,
    Admin,
    BrokerRuntime,
    ControllerState,
    GroupState,
    SyncStateSetInfo,
)
from kerolox.admin.asking import answers_of
from kerolox.admin.controllers import controllers_named
from kerolox.clock import now_ms
from kerolox.doctor.facts import (
    BrokerFacts,
    ClusterSnapshot,
    GroupFacts,
    NameServerFacts,
    NameServerSnapshot,
    Node,
    PathFacts,
)
from kerolox.doctor.machine import machine_facts
from kerolox.doctor.paths import is_of_this_machine, speaks_tls, try_path, vip_address
from kerolox.doctor.timers import timer_facts
from kerolox.errors import (
    BrokerSystemError,
    ConnectionLostError,
    KeroloxError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
)
from kerolox.protocol.attributes import MESSAGE_TYPE, TopicMessageType
from kerolox.protocol.names import RETRY_PREFIX
from kerolox.protocol.namesrv import ORDER_TOPIC_CONFIG

if TYPE_CHECKING:
    import ssl

TOPICS_MAX = 500
"""Topics whose routes are compared."""
GROUPS_MAX = 200
"""Groups that are examined."""
BROKERS_MAX = 500
CONTROLLERS_MAX = 15
POPPED_TOPICS_MAX = 50
"""Topics of a group that pops whose types are asked for."""
AGAIN_SECONDS = 1.5
"""After a broker has failed at a question it is asked once more."""
PROBE_SECONDS_MAX = 60.0
"""For one server or one group, on top of the time between two checks: one whose answers are slow or
have no end holds up no more than that."""

_RUNNING = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to ask, and how often."""

    tls: ssl.SSLContext | None = None
    """How connections are encrypted, as those of the ``Admin``."""
    signs: bool = False
    """The ``Admin`` signs requests."""
    brokers: tuple[str, ...] = ()
    """``host:port`` of more brokers, whether a name server knows them or not."""
    controllers: tuple[str, ...] = ()
    """``host:port`` of controllers, beside those that settings of brokers name."""
    between_looks_seconds: float = 3.0
    """What changes is examined twice, with so much time between."""
    stuck_after_ms: int = 60_000
    """A queue whose next message has waited for so long stands still."""


async def probe_cluster(admin: Admin, options: ProbeOptions) -> ClusterSnapshot:
    """Examine all name servers of an ``Admin``, the brokers that they know and their groups."""
    seconds = admin.timeout_seconds
    paths = await asyncio.gather(
        *(
            try_path(each, options.tls, timeout_seconds=seconds)
            for each in admin.access.name_servers
        )
    )
    firsts = await _probe_name_servers(admin, paths)
    paths = await asyncio.gather(
        *(
            _with_tls_tried(path, first.fault, options, seconds)
            for path, first in zip(paths, firsts, strict=True)
        )
    )
    answering = tuple(
        path.address for path, first in zip(paths, firsts, strict=True) if first.info is not None
    )
    near = _asking(admin, answering or admin.access.name_servers)
    nodes, groups, left_out = _targets(firsts)
    unseen: dict[str, str] = {}

    async def again() -> list[NameServerSnapshot]:
        await asyncio.sleep(options.between_looks_seconds)
        return await _probe_name_servers(admin, paths)

    seen_brokers, seen_groups, seconds_of = await asyncio.gather(
        _probe_brokers(near, nodes, options, unseen),
        _probe_groups(near, groups, options, unseen),
        again(),
    )
    states, sets = await _probe_controllers(near, seen_brokers, options, unseen)
    return ClusterSnapshot(
        now_ms=now_ms(),
        controllers=states,
        sync_state_sets=sets,
        signs=options.signs,
        encrypts=options.tls is not None,
        stuck_after_ms=options.stuck_after_ms,
        name_servers=tuple(
            NameServerFacts(path=path, first=first, second=second)
            for path, first, second in zip(paths, firsts, seconds_of, strict=True)
        ),
        brokers=tuple(seen_brokers),
        groups=tuple(seen_groups),
        left_out=tuple(left_out),
        unseen=unseen,
    )


def _targets(snapshots: Iterable[NameServerSnapshot]) -> tuple[list[Node], list[str], list[str]]:
    """The brokers and the groups that some name server knows, and what is left out."""
    nodes, left_out = _nodes(snapshots)
    topics = sorted({topic for each in snapshots for topic in each.topics})
    groups = [each.removeprefix(RETRY_PREFIX) for each in topics if each.startswith(RETRY_PREFIX)]
    if len(groups) > GROUPS_MAX:
        left_out.append(f"{len(groups) - GROUPS_MAX} of {len(groups)} groups")
    if len(topics) > TOPICS_MAX:
        left_out.append(f"routes of {len(topics) - TOPICS_MAX} of {len(topics)} topics")
    return nodes, groups[:GROUPS_MAX], left_out


async def _probe_name_servers(admin: Admin, paths: Iterable[PathFacts]) -> list[NameServerSnapshot]:
    return await asyncio.gather(*(_probe_name_server(admin, path) for path in paths))


async def _probe_brokers(
    admin: Admin, nodes: list[Node], options: ProbeOptions, unseen: dict[str, str]
) -> list[BrokerFacts]:
    known = {node.address for node in nodes}
    added = [Node("", "", 0, each) for each in options.brokers if each not in known]

    async def one(node: Node) -> BrokerFacts | None:
        work = _probe_broker(admin, node, options)
        return await _bounded(work, node.address, PROBE_SECONDS_MAX, unseen)

    found, _ = await answers_of([*nodes, *added], one)
    return [each for each in found.values() if each is not None]


async def _probe_controllers(
    admin: Admin, brokers: Iterable[BrokerFacts], options: ProbeOptions, unseen: dict[str, str]
) -> tuple[Mapping[str, ControllerState | str], Mapping[str, SyncStateSetInfo]]:
    named = [a for each in brokers for a in controllers_named(each.settings or {})]
    addresses = list(dict.fromkeys([*options.controllers, *named]))[:CONTROLLERS_MAX]
    if not addresses:
        return {}, {}
    asked = _bounded(
        _tried(admin.controller_states(addresses)), "controllers", PROBE_SECONDS_MAX, unseen
    )
    states = await asked
    if states is None or isinstance(states, KeroloxError):
        return {each: str(states or "no answer in time") for each in addresses}, {}
    # Java's controllers tell no names, so those of the brokers are asked for, too.
    names = sorted({each.node.broker_name for each in brokers if each.node.broker_name})
    told = [each for each in states.values() if isinstance(each, ControllerState)]
    if any(each.version for each in told):
        names = []
    sets = await _tried(admin.sync_state_sets(addresses, names)) if told else {}
    return states, {} if isinstance(sets, KeroloxError) else sets


async def _probe_groups(
    admin: Admin, names: list[str], options: ProbeOptions, unseen: dict[str, str]
) -> list[GroupFacts]:
    most = PROBE_SECONDS_MAX + options.between_looks_seconds
    answer = await _bounded(_tried(admin.group_states()), "all groups", PROBE_SECONDS_MAX, unseen)
    states = answer if isinstance(answer, dict) else {}
    # A group that was made and never online has no topic of its retries, and may be paused.
    others = [name for name, each in states.items() if each.paused and name not in names]

    async def one(name: str) -> GroupFacts | None:
        work = _probe_group(admin, name, options, states)
        return await _bounded(work, f"group {name}", most, unseen)

    found, _ = await answers_of([*names, *others][:GROUPS_MAX], one)
    return [each for each in found.values() if each is not None]


def _nodes(snapshots: Iterable[NameServerSnapshot]) -> tuple[list[Node], list[str]]:
    """All brokers that some name server knows, and what was left out."""
    found = {
        Node(broker.cluster, broker.broker_name, broker_id, address)
        for options in snapshots
        if options.info is not None
        for broker in options.info.nodes()
        for broker_id, address in broker.addresses.items()
    }
    nodes = sorted(found)
    if len(nodes) <= BROKERS_MAX:
        return nodes, []
    return nodes[:BROKERS_MAX], [f"{len(nodes) - BROKERS_MAX} of {len(nodes)} brokers"]


async def _with_tls_tried(
    path: PathFacts, fault: KeroloxError | None, options: ProbeOptions, seconds: float
) -> PathFacts:
    """The path, with whether a server that hangs up on plain text speaks TLS."""
    if options.tls is not None or not isinstance(fault, ConnectionLostError):
        return path
    return replace(path, speaks_tls=await speaks_tls(path, timeout_seconds=seconds))


def _asking(admin: Admin, name_servers: tuple[str, ...]) -> Admin:
    """The same, but by these name servers."""
    other = Admin.on(Access(admin.access.remoting, name_servers))
    other.timeout_seconds = admin.timeout_seconds
    return other


async def _probe_name_server(admin: Admin, path: PathFacts) -> NameServerSnapshot:
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            return await _name_server_snapshot(admin, path)
    except TimeoutError:
        late = f"{path.address} did not say all within {PROBE_SECONDS_MAX:g} s"
        return NameServerSnapshot(fault=RequestTimeoutError(late))


async def _name_server_snapshot(admin: Admin, path: PathFacts) -> NameServerSnapshot:
    if not path.reached or path.tls_fault:
        return NameServerSnapshot()
    alone = _asking(admin, (path.address,))
    # Asked directly first: the error of the one server is what tells what is wrong there.
    try:
        await alone.access.fetch_route_from(path.address, ORDER_TOPIC_CONFIG)
        info, topics = await asyncio.gather(alone.cluster_info(), alone.list_topics())
    except KeroloxError as error:
        return NameServerSnapshot(fault=error)
    routes, _ = await answers_of(topics[:TOPICS_MAX], alone.access.fetch_route)
    try:
        orders = await alone.key_values(ORDER_TOPIC_CONFIG)
    except KeroloxError as error:
        return NameServerSnapshot(info=info, topics=tuple(topics), routes=routes, fault=error)
    return NameServerSnapshot(info=info, topics=tuple(topics), routes=routes, orders=orders)


async def _probe_broker(admin: Admin, node: Node, options: ProbeOptions) -> BrokerFacts:
    seconds = admin.timeout_seconds
    path = await try_path(node.address, options.tls, timeout_seconds=seconds)
    facts = BrokerFacts(node=node, path=path, is_registered=bool(node.broker_name))
    if not path.reached or path.tls_fault:
        return facts
    runtime, settings, times_ms = await _metrics(admin, node.address)
    if type(runtime) is BrokerSystemError or type(settings) is BrokerSystemError:
        # A Java broker that has just started fails at the one; what is soon gone is no finding.
        await asyncio.sleep(AGAIN_SECONDS)
        runtime, settings, times_ms = await _metrics(admin, node.address)
    faults = tuple(each for each in (runtime, settings) if isinstance(each, KeroloxError))
    if faults:
        path = await _with_tls_tried(path, faults[0], options, seconds)
    facts = replace(facts, path=path, faults=faults)
    if not isinstance(runtime, KeroloxError):
        ahead = clock_ahead_ms(runtime, *times_ms)
        facts = replace(facts, runtime=runtime, clock_ahead_ms=ahead)
    if not isinstance(settings, KeroloxError):
        facts = replace(facts, settings=settings)
    if not facts.settings:
        return facts
    kind = facts.settings.get("brokerRole", "")
    if kind.endswith("MASTER"):
        replication = await _tried(admin.replication_status(node.address))
        if not isinstance(replication, KeroloxError):
            facts = replace(facts, replication=replication)
        elif not isinstance(replication, RequestCodeNotSupportedError):
            facts = replace(facts, faults=(*facts.faults, replication))
        groups = await _tried(admin.all_group_settings(node.address))
        if not isinstance(groups, KeroloxError):
            dropping = (name for name, each in groups.items() if each.retry_queue_nums <= 0)
            facts = replace(facts, dropping=tuple(dropping))
        facts = await _with_timer(admin, facts)
    elif kind == "SLAVE":
        role = await _tried(admin.broker_role(node.address))
        if not isinstance(role, KeroloxError):
            facts = replace(facts, role=role)
    facts = await _with_vip_port(admin, await _with_grpc_port(admin, facts, options), options)
    _, port = split_address(node.address)
    if is_of_this_machine(path.reached[0]):
        facts = replace(facts, machine=await asyncio.to_thread(machine_facts, port))
    return facts


async def _with_timer(admin: Admin, facts: BrokerFacts) -> BrokerFacts:
    if not facts.settings or facts.settings.get("timerWheelEnable") != "true":
        return facts
    asked = timer_facts(admin.access, facts.node.address, facts.clock_ahead_ms or 0)
    timer = await _tried(asked)
    if isinstance(timer, KeroloxError):
        return replace(facts, faults=(*facts.faults, timer))
    return replace(facts, timer=timer)


async def _metrics(
    admin: Admin, address: str
) -> tuple[BrokerRuntime | KeroloxError, dict[str, str] | KeroloxError, tuple[int, int]]:
    """A broker's metrics and settings, and from when to when it was asked."""
    asked_ms = now_ms()
    runtime, settings = await asyncio.gather(
        _tried(admin.broker_runtime(address)), _tried(admin.broker_settings(address))
    )
    return runtime, settings, (asked_ms, now_ms())


async def _with_grpc_port(admin: Admin, facts: BrokerFacts, options: ProbeOptions) -> BrokerFacts:
    settings = facts.settings or {}
    port = settings.get("grpcServerPort", "0")
    if not port.isdecimal() or not int(port):
        return facts
    host, _ = split_address(facts.node.address)
    address = settings.get("grpcAdvertisedAddress") or join_address(host, int(port))
    path = await try_path(address, options.tls, timeout_seconds=admin.timeout_seconds)
    return replace(facts, grpc_path=path)


async def _with_vip_port(admin: Admin, facts: BrokerFacts, options: ProbeOptions) -> BrokerFacts:
    address = vip_address(facts.node.address)
    if address is None:
        return facts
    path = await try_path(address, options.tls, timeout_seconds=admin.timeout_seconds)
    name = None
    if path.reached and not path.tls_fault:
        settings = await _tried(admin.broker_settings(address))
        if not isinstance(settings, KeroloxError):
            name = settings.get("brokerName")
    return replace(facts, vip_path=path, vip_name=name)


async def _probe_group(
    admin: Admin, group: str, options: ProbeOptions, states: Mapping[str, GroupState]
) -> GroupFacts:
    first = await _tried(admin.group_progress(group))
    await asyncio.sleep(options.between_looks_seconds)
    second, status = await asyncio.gather(
        _tried(admin.group_progress(group, clients=True)), _tried(admin.consumer_status(group))
    )
    letters = await _tried(admin.dead_letter_queues(group))
    facts = GroupFacts(
        group=group,
        state=states.get(group),
        dead_letters=0
        if isinstance(letters, KeroloxError)
        else sum(each.waiting for each in letters),
        first=None if isinstance(first, KeroloxError) else first,
        second=None if isinstance(second, KeroloxError) else second,
        status=None if isinstance(status, KeroloxError) else status,
    )
    facts = replace(facts, waits_ms=await _waits(admin, facts))
    if facts.second is None or not facts.second.in_flight:
        return facts
    return await _with_popped(admin, facts)


async def _with_popped(admin: Admin, facts: GroupFacts) -> GroupFacts:
    """With what members have out, and of which FIFO topics."""
    popped = await _tried(admin.popped_messages(facts.group, max_messages=0))
    if isinstance(popped, KeroloxError):
        return facts  # of RocketMQ
    topics = sorted(
        {
            each.queue.topic
            for each in popped.queues
            if not each.is_order and not each.queue.topic.startswith(RETRY_PREFIX)
        }
    )
    found, _ = await answers_of(topics[:POPPED_TOPICS_MAX], admin.topic_attributes)
    fifo = (
        topic
        for topic, by_broker in found.items()
        if any(each.get(MESSAGE_TYPE) == TopicMessageType.FIFO for each in by_broker.values())
    )
    return replace(facts, popped=popped.queues, fifo_topics=frozenset(fifo))


async def _waits(admin: Admin, facts: GroupFacts) -> dict[tuple[str, str, int], int]:
    """How long the next message has waited in queues that did not move between the two checks."""
    topics = sorted({queue.topic for queue in facts.stalled})
    found, _ = await answers_of(topics, lambda topic: admin.consume_time_spans(facts.group, topic))
    return {
        (each.queue.topic, each.queue.broker_name, each.queue.queue_id): each.delay_ms
        for spans in found.values()
        for each in spans
    }


def clock_ahead_ms(runtime: BrokerRuntime, asked_ms: int, answered_ms: int) -> int | None:
    """How far a broker's clock is before ours, as far as it is certain: 0 where the time of the
    answer and the broker's rounding to seconds explain it.

    It says when it started and for how long it has run (``runtime``); None: it does not.
    """
    found = _RUNNING.search(runtime.values.get("runtime", ""))
    if found is None or runtime.boot_ms <= 0:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    earliest = runtime.boot_ms + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    latest = earliest + 1000
    if earliest > answered_ms:
        return earliest - answered_ms
    return latest - asked_ms if latest < asked_ms else 0


async def _bounded(
    work: Awaitable[_Found], where: str, seconds: float, unseen: dict[str, str]
) -> _Found | None:
    """What a probe saw; None: it took too long, or met what nobody thought of, as ``unseen`` says
    then. It must not hide what others show."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        unseen[where] = f"not all was said within {seconds:g} s"
    except Exception as error:
        unseen[where] = f"{type(error).__name__}: {error}"
    return None


async def _tried(question: Awaitable[_Found]) -> _Found | KeroloxError:
    try:
        return await question
    except KeroloxError as error:
        return error
