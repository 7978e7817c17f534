"""What happens in a run: which cluster, which clients, which faults when. All of it from the seed.

A scenario is plain data. To find what a failing seed needs, a part of it is taken out, and the same
seed run again (``tools/simulate.py --without``).
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace
from typing import Any

from kerolox.message import ALL_TAGS
from tests.simulation.pace import BROKER_LOCK_LIVE_MS

FAULT_SECONDS = 6.0
"""Virtual time in which faults happen."""

KINDS = (
    "partition",
    "reset",
    "slow_link",
    "pause",
    "stall",
    "kill",
    "crash",
    "restart",
    "clock",
    "slow_disk",
    "full_disk",
    "kill_client",
    "leave_client",
    "kill_name_server",
    "die_in_call",
    "reset_offsets",
    "delete_topic",
    "promote",
    "failing_sync",
)
"""Kinds of faults; the seed draws which ones a run has."""

CHANGES = ("remake_topic", "queues", "retry_queues", "subscribe")
"""What operators and users change while clients run, drawn beside the faults."""
TAGS = ("a", "b")
CLOCK_STEP_SECONDS_MAX = 7_200.0
"""Clients make versions of what they subscribe to from a clock; a step is longer than a run."""


@dataclass
class Fault:
    """Something that befalls a node, or the link between two."""

    at: float
    """Seconds after the clients began."""
    kind: str
    node: str
    other: str = ""
    seconds: float = 0.0
    """How long it lasts."""
    amount: float = 0.0


@dataclass
class ProducerPlan:
    """One producer."""

    name: str
    topics: tuple[str, ...]
    kind: str
    count: int
    pause_seconds: float
    timeout_ms: int = 3_000
    body_bytes: int = 0
    """Size of each body; 0: each has another one."""
    has_tags: bool = False
    """Each message has one of `TAGS`."""
    is_timed: bool = False
    """Messages are delayed by any time, which the timer counts."""
    recalls: float = 0.0
    """How often a message that waits is taken back."""
    is_grpc: bool = False
    """It sends by gRPC."""


@dataclass
class GroupPlan:
    """One consumer group and its members."""

    name: str
    topics: tuple[str, ...]
    members: int
    is_orderly: bool = False
    fails: float = 0.0
    """How often a listener asks for a message again."""
    seconds: float = 0.0
    """How long a listener takes."""
    batch: int = 1
    tags: str = "*"
    """What its members subscribe to now."""
    is_popped: bool = False
    """Its members receive and acknowledge message by message."""
    is_ordered: bool = False
    """They pop in order."""
    is_grpc: bool = False
    """They do by gRPC."""
    forwards: float = 0.0
    """How often a member that pops has a message be a dead letter, and does not acknowledge it."""
    loses: float = 0.0
    """How often a member that pops says nothing of a message."""
    doubles: float = 0.0
    """How often it acknowledges twice, or much too late."""
    extends: float = 0.0
    """How often it asks for more time."""
    retries_max: int = 16
    """After so many a message is a dead letter."""


@dataclass
class Scenario:
    """One run."""

    seed: int
    name_servers: int = 1
    masters: int = 1
    slaves: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    """Topic to its queues."""
    flush: str = "ASYNC_FLUSH"
    role: str = "ASYNC_MASTER"
    broker_settings: dict[str, Any] = field(default_factory=dict)
    producers: list[ProducerPlan] = field(default_factory=list)
    groups: list[GroupPlan] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    latency_seconds: float = 0.000_2
    jitter_seconds: float = 0.000_2
    window_bytes: int = 64 * 1024
    cut_probability: float = 0.1
    stores_once: bool = False
    """Its topics have a window of keys."""


ONCE = {"dedup.window.ms": "86400000"}
"""Attributes of topics that store no key twice."""

GRPC_PORT = 8081
POP_SECONDS = 3.0
"""How long nobody else gets a message that was popped."""

NOT_OF_POPS = frozenset(("subscribe", "retry_queues"))
"""Changes of what only members that pull have."""


def quiet(seed: int) -> Scenario:
    """One master, a producer, a group of one: nothing goes wrong."""
    scenario = Scenario(seed, topics={"Quiet": 2})
    scenario.producers = [ProducerPlan("producer-1", ("Quiet",), "plain", 10, 0.05)]
    scenario.groups = [GroupPlan("readers", ("Quiet",), 1)]
    return scenario


def drawn(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"scenario-{seed}")
    scenario = Scenario(seed)
    scenario.name_servers = chance.choice((1, 1, 1, 2))
    scenario.masters = chance.choice((1, 1, 1, 1, 2))
    scenario.slaves = chance.choice((0, 0, 1, 1, 2))
    scenario.flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
    if scenario.slaves:
        scenario.role = chance.choice(("ASYNC_MASTER", "SYNC_MASTER"))
    scenario.topics = {
        f"Topic{number}": chance.choice((1, 2, 3)) for number in range(chance.choice((1, 1, 2)))
    }
    scenario.latency_seconds = chance.choice((0.0001, 0.0005, 0.005, 0.05))
    scenario.jitter_seconds = scenario.latency_seconds * chance.choice((0.1, 1.0, 4.0))
    scenario.window_bytes = chance.choice((2_048, 16_384, 65_536))
    scenario.cut_probability = chance.choice((0.0, 0.1, 0.7))
    _draw_settings(scenario, chance)
    _draw_clients(scenario, chance)
    _draw_faults(scenario, chance)
    # A generator of its own, as faults that are added draw from it and change no others.
    _draw_changes(scenario, random.Random(f"changes-{seed}"))
    return scenario


def deduped(seed: int) -> Scenario:
    """That of the seed, whose topics store no key twice; connections are reset again and again, so
    that producers send again what is stored."""
    scenario = drawn(seed)
    scenario.stores_once = True
    chance = random.Random(f"deduped-{seed}")
    producers = [plan.name for plan in scenario.producers]
    brokers = [f"broker-{number}" for number in range(scenario.masters)]
    for _ in range(chance.randrange(5, 15)):
        node, other = chance.choice(brokers), chance.choice(producers)
        scenario.faults.append(Fault(chance.uniform(0.0, 6.0), "reset", node, other))
    scenario.faults.sort(key=lambda fault: fault.at)
    return scenario


def copies_left_behind(seed: int) -> Scenario:
    """Open transactions that a slave has, and their copies that it has not.

    The master is started again. Before its slave has connected it asks about the open halves, and
    stores them again. The slave takes the tables: the position of the half topic is behind the
    halves that it has. Then it is promoted, and the master is lost: if that position counted, the
    halves would be settled, and what their producer decides of them would come to nothing.
    """
    scenario = Scenario(seed, slaves=1, topics={"Topic0": 2, "Topic1": 1}, role="SYNC_MASTER")
    _draw_settings(scenario, random.Random(0))
    scenario.broker_settings |= {
        "flush_consumer_offset_interval": 2_000,
        "flush_interval_commit_log": 500,
        "mapped_file_size_commit_log": 16 * 1024,
    }
    scenario.broker_settings.pop("transient_store_pool_enable", None)
    scenario.faults = [
        Fault(0.835, "restart", "broker-0", seconds=0.389),
        Fault(3.218, "promote", "operator", amount=1.0),
    ]
    topics = tuple(scenario.topics)
    scenario.producers = [
        ProducerPlan("producer-0", topics, "transaction", 10, 0.1),
        ProducerPlan("producer-1", topics, "plain", 20, 0.02, 500, 1_000),
    ]
    scenario.groups = [GroupPlan("group-0", topics, 2, fails=0.1, seconds=0.05)]
    scenario.latency_seconds = scenario.jitter_seconds = 0.005
    scenario.cut_probability = 0.0
    return scenario


def popped(seed: int) -> Scenario:
    """The scenario of a seed, whose groups pop."""
    scenario = drawn(seed)
    chance = random.Random(f"pops-{seed}")
    for group in scenario.groups:
        group.is_popped, group.is_orderly, group.batch = True, False, 1
        group.members = max(group.members, chance.choice((1, 2, 3)))
        group.tags = ALL_TAGS
        group.fails = chance.choice((0.0, 0.1, 0.3))
        group.is_ordered = chance.random() < 0.3
        group.loses = chance.choice((0.0, 0.0, 0.1, 0.3))
        group.doubles = chance.choice((0.0, 0.3))
        group.extends = chance.choice((0.0, 0.3))
        group.retries_max = chance.choice((16, 16, 2, 1, 0))
    # Members of a group that pops say with each request what they want.
    scenario.faults = [each for each in scenario.faults if each.kind not in NOT_OF_POPS]
    _draw_pop_faults(scenario, chance)
    if any(each.kind == "promote" for each in scenario.faults):
        scenario.broker_settings.pop("transient_store_pool_enable", None)  # a slave has none
    return scenario


def by_grpc(seed: int) -> Scenario:
    """The scenario of a seed, whose groups pop by gRPC, and some of whose producers send so."""
    scenario = popped(seed)
    for group in scenario.groups:
        group.is_grpc, group.forwards = True, 0.1
    send_by_grpc(scenario)
    return scenario


def send_by_grpc(scenario: Scenario) -> None:
    """Have brokers take gRPC, and some of the producers send so. They say by their own clock when a
    message is due, so none sends such messages where clocks jump."""
    chance = random.Random(f"grpc-sends-{scenario.seed}")
    scenario.broker_settings["grpc_server_port"] = GRPC_PORT
    scenario.broker_settings.setdefault("mapped_file_size_timer_log", 4_096)
    has_jumps = any(fault.kind == "clock" for fault in scenario.faults)
    for producer in scenario.producers:
        is_delayed = producer.kind == "delayed"
        if chance.random() < 0.6 and not (is_delayed and has_jumps):
            producer.is_grpc, producer.is_timed = True, is_delayed


def _add_fault(
    scenario: Scenario,
    chance: random.Random,
    kind: str,
    node: str,
    other: str = "",
    seconds: float = 0.5,
) -> None:
    at, amount = round(chance.uniform(0.3, 5.0), 3), round(chance.random(), 3)
    scenario.faults.append(Fault(at, kind, node, other, seconds, amount))


def _draw_pop_faults(scenario: Scenario, chance: random.Random) -> None:
    """What pops have to survive, beside what befalls all: deaths in the middle of what they write,
    failover, clocks, resets while messages are out, members that stop for ever."""
    names = {plan.name for plan in scenario.producers if plan.kind in ("plain", "ordered")}
    is_plain = len(names) == len(scenario.producers)

    add = functools.partial(_add_fault, scenario, chance)
    if chance.random() < 0.4:
        for _ in range(chance.choice((1, 2, 3))):
            add("die_in_call", "broker-0")
    if chance.random() < 0.35:
        add(chance.choice(("kill", "crash", "crash")), "broker-0")
        scenario.broker_settings["flush_interval_commit_log"] = chance.choice((500, 2_000))
    if chance.random() < 0.2:
        add("restart", "broker-0")
    if chance.random() < 0.2:
        add("reset_offsets", "operator", chance.choice(scenario.groups).name)
    if chance.random() < 0.15 and is_plain:
        # What waits for its time would wait as long as the clock was set back.
        add("clock", "broker-0", seconds=chance.choice((5.0, 60.0, 7_200.0)))
    if chance.random() < 0.1 and scenario.slaves:
        add("promote", "operator")
    large = [group for group in scenario.groups if group.members > 1]
    if chance.random() < 0.3 and large:
        group = chance.choice(large)
        add("stop_client", f"{group.name}-{group.members - 1}")
    scenario.faults.sort(key=lambda fault: fault.at)


def timed(seed: int) -> Scenario:
    """The scenario of a seed, whose producers send for any moment. Long delays are stored again on
    their way, and files of the timer log are small."""
    scenario = drawn(seed)
    chance = random.Random(f"timer-{seed}")
    for producer in scenario.producers:
        producer.kind, producer.is_timed = "delayed", True
        producer.recalls = chance.choice((0.0, 0.0, 0.2))
        producer.body_bytes = min(producer.body_bytes, 300)
    scenario.broker_settings |= {
        "timer_roll_window_slot": chance.choice((2, 3, 172_800)),
        "timer_flush_interval_ms": chance.choice((100, 1_000)),
        "timer_precision_ms": chance.choice((1_000, 1_000, 200)),
        "mapped_file_size_timer_log": 4_096,
        "message_index_enable": chance.random() < 0.7,
    }
    _draw_timer_faults(scenario, chance)
    if any(each.kind == "promote" for each in scenario.faults):
        scenario.broker_settings.pop("transient_store_pool_enable", None)  # a slave has none
    return scenario


TIMER_FILES = ("timercheck", "timerwheel", "timerlog")


def _draw_timer_faults(scenario: Scenario, chance: random.Random) -> None:
    """What the timer has to survive: deaths in the middle of what it writes, files that are gone or
    torn, clocks that jump, failover, a disk that is full."""
    add = functools.partial(_add_fault, scenario, chance)
    if chance.random() < 0.4:
        for _ in range(chance.choice((1, 2, 3))):
            add("die_in_call", "broker-0")
    if chance.random() < 0.35:
        for _ in range(chance.choice((1, 1, 2))):
            add("tear_timer", "broker-0", chance.choice(TIMER_FILES))
    if chance.random() < 0.25:
        # Back by less than the cluster has to come to rest, forth by any time.
        for _ in range(chance.choice((1, 2))):
            add("clock", "broker-0", seconds=chance.choice((2.0, 10.0, 40.0)))
    if chance.random() < 0.25:
        add("crash", "broker-0")
        scenario.broker_settings["flush_interval_commit_log"] = chance.choice((500, 2_000))
    if chance.random() < 0.2:
        add("restart", "broker-0")
    if chance.random() < 0.2:
        add("full_disk", "broker-0", seconds=round(chance.uniform(0.3, 2.0), 3))
    if chance.random() < 0.15 and scenario.slaves:
        add("promote", "operator")
    scenario.faults.sort(key=lambda fault: fault.at)


def mixed(seed: int) -> Scenario:
    """The scenario of a seed: of members that pull, or pop, or of messages for a moment."""
    kind = random.Random(f"kind-{seed}").choice((drawn, popped, timed))
    if random.Random(f"grpc-{seed}").random() >= 0.3:
        return kind(seed)
    if kind is popped:
        return by_grpc(seed)
    scenario = kind(seed)
    send_by_grpc(scenario)
    return scenario


def promoted(seed: int) -> Scenario:
    """The scenario of a seed, with slaves, one of which becomes the master."""
    scenario = drawn(seed)
    chance = random.Random(f"promotion-{seed}")
    scenario.slaves = scenario.slaves or 1
    scenario.broker_settings.pop("transient_store_pool_enable", None)
    at, amount = round(chance.random() * 3.0, 3), round(chance.random(), 3)
    scenario.faults = [Fault(at, "promote", "operator", amount=amount)]
    return scenario


def _draw_settings(scenario: Scenario, chance: random.Random) -> None:
    scenario.broker_settings = {
        "message_delay_level": "1s 2s 3s",
        "transaction_time_out": 1_000,
        "transaction_check_interval": 1_500,
        # Name servers may refuse a new master while they take its old connection for alive.
        "transaction_check_max": 1_000,
        "flush_consumer_offset_interval": chance.choice((500, 2_000)),
        "flush_interval_commit_log": chance.choice((100, 500, 2_000)),
        "flush_consume_queue_thorough_interval": chance.choice((1_000, 60_000)),
        "ha_send_heartbeat_interval": 1_000,
        "ha_housekeeping_interval": 4_000,
        "rebalance_lock_max_live_time": BROKER_LOCK_LIVE_MS,
        "mapped_file_size_commit_log": chance.choice((8, 16, 64)) * 1024,
        "mapped_file_size_consume_queue": chance.choice((5, 20, 200)) * 20,
        "message_index_enable": chance.random() < 0.3,
    }
    if chance.random() < 0.15 and scenario.flush == "ASYNC_FLUSH":
        scenario.broker_settings["transient_store_pool_enable"] = True


def _draw_clients(scenario: Scenario, chance: random.Random) -> None:
    topics = tuple(scenario.topics)
    # What slow links and slow commits make of each send is no fault: some have to be answered.
    has_slow_commits = "transient_store_pool_enable" in scenario.broker_settings
    is_slow = has_slow_commits and scenario.role == "SYNC_MASTER"
    timeout_ms_min = 3_000 if is_slow else 0
    for number in range(chance.choice((1, 1, 2))):
        scenario.producers.append(
            ProducerPlan(
                f"producer-{number}",
                topics,
                chance.choice(("plain", "plain", "ordered", "delayed", "transaction")),
                chance.choice((5, 10, 20, 30)),
                chance.choice((0.0, 0.02, 0.1, 0.3)),
                max(timeout_ms_min, chance.choice((500, 1_000, 3_000))),
                chance.choice((0, 0, 300, 1_000)),
            )
        )
    for number in range(chance.choice((1, 1, 2))):
        scenario.groups.append(
            GroupPlan(
                f"group-{number}",
                topics,
                chance.choice((1, 1, 2)),
                is_orderly=chance.random() < 0.4,
                fails=chance.choice((0.0, 0.0, 0.1)),
                seconds=chance.choice((0.0, 0.0, 0.05, 0.3)),
                batch=chance.choice((1, 1, 4)),
            )
        )


def _draw_faults(scenario: Scenario, chance: random.Random) -> None:
    brokers = [f"broker-{number}" for number in range(scenario.masters)]
    brokers += [f"broker-0-slave-{number}" for number in range(scenario.slaves)]
    producers = [plan.name for plan in scenario.producers]
    consumers = [
        f"{plan.name}-{member}" for plan in scenario.groups for member in range(plan.members)
    ]
    name_servers = [f"namesrv-{number}" for number in range(scenario.name_servers)]
    clients = producers + consumers
    kinds = chance.sample(KINDS, chance.choice((0, 1, 2, 3, 4)))
    has_pool = "transient_store_pool_enable" in scenario.broker_settings
    if has_pool and "promote" in kinds:
        kinds.remove("promote")  # a slave has no such pool
    for _ in range(chance.choice((1, 2, 3, 5)) if kinds else 0):
        kind = chance.choice(kinds)
        node, other = chance.choice(brokers), ""
        if kind in ("kill_client", "leave_client"):
            node = chance.choice(clients)
        elif kind == "kill_name_server":
            node = chance.choice(name_servers)
        elif kind in ("pause", "stall", "clock"):
            node = chance.choice(brokers + clients + name_servers)
        elif kind == "reset_offsets":
            node, other = "operator", chance.choice(scenario.groups).name
        elif kind == "delete_topic":
            node, other = "operator", chance.choice(tuple(scenario.topics))
        elif kind == "promote":
            node = "operator"
        elif kind in ("partition", "reset", "slow_link"):
            node, other = chance.sample(brokers + clients + name_servers, 2)
            if node not in brokers and other not in brokers:
                node = "broker-0"
        scenario.faults.append(
            Fault(
                round(chance.random() * chance.choice((1.5, 3.0, FAULT_SECONDS)), 3),
                kind,
                node,
                other,
                round(chance.choice((0.05, 0.5, 2.0, 5.0)) * chance.uniform(0.5, 1.5), 3),
                round(chance.random(), 3),
            )
        )
    if chance.random() < 0.15:
        _draw_crash(scenario, chance)
    if chance.random() < 0.15 and scenario.slaves and not has_pool:
        # A master fails whose slaves are behind, and one of them takes its place.
        at = round(chance.uniform(0.3, 2.0), 3)
        for number in range(scenario.slaves):
            slave, amount = f"broker-0-slave-{number}", round(chance.uniform(0.02, 0.4), 3)
            scenario.faults.append(Fault(0.0, "slow_link", "broker-0", slave, at, amount))
        scenario.faults.append(Fault(at, "promote", "operator", "", 0.0, 1.0))
    if chance.random() < 0.15:
        # A consumer dies while its listeners run.
        at = round(chance.uniform(0.5, 3.0), 3)
        scenario.faults.append(Fault(at, "kill_client", chance.choice(consumers), "", 1.0, 0.0))
    scenario.faults.sort(key=lambda fault: fault.at)


def _draw_crash(scenario: Scenario, chance: random.Random) -> None:
    """A machine fails while messages come in, once or again and again."""
    at = round(chance.uniform(0.1, 1.5), 3)
    kind = chance.choice(("once", "slow", "often"))
    if kind == "often":
        # Its disk has a part of what a run wrote, and the next one ends before it wrote the rest.
        for _ in range(chance.choice((1, 2))):
            scenario.faults.append(Fault(at, "crash", "broker-0", "", 0.05, 0.0))
            at = round(at + chance.uniform(0.1, 0.9), 3)
    elif kind == "slow":
        # Its disk is slow, and more than one message waits for it.
        scenario.flush = "SYNC_FLUSH"
        scenario.broker_settings.pop("transient_store_pool_enable", None)
        amount = round(chance.uniform(0.2, 1.0), 3)
        scenario.faults.append(Fault(0.0, "slow_disk", "broker-0", "", at, amount))
        plan = scenario.producers[0]
        plan.kind, plan.count, plan.pause_seconds = "plain", 30, 0.0
        name = f"producer-{len(scenario.producers)}"
        scenario.producers.append(replace(plan, name=name))
    scenario.faults.append(Fault(at, "crash", "broker-0", "", 0.5, 0.0))


def _draw_changes(scenario: Scenario, chance: random.Random) -> None:
    """Topics made again, queues added and taken away, tags that change while clocks step."""
    kinds = chance.sample(CHANGES, chance.choice((0, 0, 0, 1, 1, 2)))
    for kind in kinds:
        at = round(chance.uniform(0.2, 3.0), 3)
        amount, seconds = round(chance.random(), 3), round(chance.uniform(0.1, 2.0), 3)
        topic = chance.choice(tuple(scenario.topics))
        group = chance.choice(scenario.groups)
        other = topic if kind in ("remake_topic", "queues") else group.name
        scenario.faults.append(Fault(at, kind, "operator", other, seconds, amount))
        if kind == "queues":
            # What waits when it loses queues: delayed messages and open transactions, if any do.
            scenario.topics[topic] = max(2, scenario.topics[topic])
            again = round(at + chance.uniform(0.3, 2.0), 3)
            more = round(chance.random(), 3)
            scenario.faults.append(Fault(again, kind, "operator", topic, seconds, more))
        elif kind == "retry_queues":
            group.is_orderly, group.fails = False, max(group.fails, 0.3)
            again = round(at + chance.uniform(0.3, 2.0), 3)
            scenario.faults.append(Fault(again, kind, "operator", other, 0.0, 1.0 - amount))
        elif kind == "subscribe":
            for plan in scenario.producers:
                plan.has_tags = True
            group.tags = chance.choice(("a", "*", "a || b"))
            group.members = 2
    scenario.faults.sort(key=lambda fault: fault.at)
