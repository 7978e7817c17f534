"""Tools that read clusters, brokers, topics and groups."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import msgspec

from kerolox.admin import BrokerRuntime, QueueProgress
from kerolox.admin.asking import answers_of
from kerolox.admin.setting_states import setting_states
from kerolox.console.pages import brokers, groups, topics
from kerolox.console.pages.traces import spans_of
from kerolox.console.scan import position_in, queue_of
from kerolox.doctor import diagnose
from kerolox.errors import ClientError
from kerolox.mcp.envelope import ROWS_MAX
from kerolox.mcp.tools import Agent, Answer, Arguments, Tool, about
from kerolox.message import MessageQueue
from kerolox.protocol.names import TRACE_TOPIC
from kerolox.remoting.audit import HIDDEN, is_secret

__all__ = ["TOOLS", "place_text"]

DOCTOR_SECONDS_MAX = 120.0

Skip = Annotated[
    int, msgspec.Meta(ge=0, le=1_000_000, description="How many of the first rows to leave out")
]


class Nothing(Arguments):
    """No arguments."""


class Listed(Arguments):
    """A part of a list."""

    contains: Annotated[str, about("Only names with this in them, whatever its case")] = ""
    internal: Annotated[bool, msgspec.Meta(description="Also those of RocketMQ itself")] = False
    skip: Skip = 0


class OfBroker(Arguments):
    """A broker."""

    address: Annotated[str, about("host:port, as the tool brokers has it")]


class OfSettings(OfBroker):
    """Settings of a broker."""

    contains: Annotated[str, about("Only settings with this in their name")] = ""
    changed: Annotated[bool, msgspec.Meta(description="Only those that are no defaults")] = False


class OfTopic(Arguments):
    """A topic."""

    topic: Annotated[str, about("Its name")]


class OfGroup(Arguments):
    """A group."""

    group: Annotated[str, about("Its name")]


class OfMember(OfGroup):
    """A member of a group."""

    client_id: Annotated[str, about("As the tool members has it")]
    stacks: Annotated[bool, msgspec.Meta(description="Also what its threads do")] = False


class OfTrace(Arguments):
    """A message."""

    message_id: Annotated[str, about("The producer's id of the message")]
    trace_topic: Annotated[str, about("Where clients write traces")] = TRACE_TOPIC


class OfMove(OfGroup):
    """Where a group would go on."""

    topic: Annotated[str, about("Its name, or * for all topics of the group")]
    to: Annotated[str, about("beginning, end, a time, a duration as 2h, an offset, or -20")]
    queues: Annotated[
        list[str], msgspec.Meta(max_length=1_024, description="broker/id of some queues; []: all")
    ] = msgspec.field(default_factory=list)


def place_text(queue: MessageQueue) -> str:
    """A queue as forms have it: ``broker/id``."""
    return f"{queue.broker_name}/{queue.queue_id}"


async def cluster(agent: Agent, _: Nothing) -> Answer:
    """Clusters, brokers with their nodes, and name servers."""
    info = await agent.console.cluster.info()
    return Answer(
        {
            "name_servers": list(agent.admin.access.name_servers),
            "clusters": info.clusters,
            "brokers": [
                {"name": each.broker_name, "cluster": each.cluster, "nodes": each.addresses}
                for each in info.nodes()
            ],
        }
    )


async def listed_brokers(agent: Agent, _: Nothing) -> Answer:
    """Each node with its load."""
    nodes = await agent.admin.cluster_status()
    return Answer(
        [
            {
                "cluster": each.cluster,
                "broker": each.broker_name,
                "id": each.broker_id,
                "address": each.address,
                "error": each.error,
                **(_runtime(each.runtime) if each.runtime is not None else {}),
            }
            for each in nodes
        ]
    )


def _runtime(runtime: BrokerRuntime) -> dict[str, object]:
    return {
        "software": runtime.software,
        "boot_ms": runtime.boot_ms,
        "stored_per_second": runtime.put_rate.minute,
        "delivered_per_second": runtime.transferred_rate.minute,
        "log_disk_ratio": runtime.log_disk_ratio,
        "queue_disk_ratio": runtime.queue_disk_ratio,
        "earliest_message_ms": runtime.earliest_message_ms,
        "log_bytes": runtime.log_max_offset - runtime.log_min_offset,
        "growth_bytes_per_second": runtime.growth_per_second,
        "disk_full_ms": runtime.disk_full_ms,
        "dispatch_behind_bytes": runtime.dispatch_behind_bytes,
    }


async def broker(agent: Agent, a: OfBroker) -> Answer:
    """Metrics, replication and role of one node, and its producers."""
    address = await agent.console.cluster.broker_address(a.address)
    state = await brokers.examined(agent, address)
    states = [brokers.without_secret(each) for each in setting_states(state.settings)]
    return Answer(
        {
            **_runtime(state.runtime),
            "values": {
                name: HIDDEN if is_secret(name) else value
                for name, value in state.runtime.values.items()
            },
            "replication": state.replication,
            "role": state.role,
            "producers": state.producers,
            "waits_for_restart": [each for each in states if each.after_restart is not None],
        }
    )


async def settings(agent: Agent, a: OfSettings) -> Answer:
    """Settings of a broker; secrets are ***."""
    address = await agent.console.cluster.broker_address(a.address)
    states = setting_states(await agent.admin.broker_settings(address))
    wanted = a.contains.lower()
    return Answer(
        {
            each.key: brokers.without_secret(each)
            for each in states
            if wanted in each.key.lower() and (each.is_set or not a.changed)
        }
    )


async def listed_topics(agent: Agent, a: Listed) -> Answer:
    """Topics with their queues."""
    names = await agent.console.cluster.topics(internal=a.internal)
    by_broker = await agent.console.cluster.topic_settings()
    shown, left_out = _part(names, a)
    rows = [
        {
            "topic": name,
            "brokers": {
                broker: {
                    "read_queues": each.read_queue_nums,
                    "write_queues": each.write_queue_nums,
                    "perm": each.perm,
                }
                for broker, each in by_broker.get(name, {}).items()
            },
        }
        for name in shown
    ]
    return Answer(rows, left_out)


def _part(names: list[str], a: Listed) -> tuple[list[str], tuple[str, ...]]:
    """Of all names those that are wanted and fit, and what was left out."""
    found = [name for name in names if a.contains.lower() in name.lower()]
    shown = found[a.skip : a.skip + ROWS_MAX]
    if len(shown) == len(found):
        return shown, ()
    return shown, (f"{len(shown)} of {len(found)} names are here, from skip={a.skip}",)


async def topic(agent: Agent, a: OfTopic) -> Answer:
    """Queues with offsets, how much it holds, who consumes and produces."""
    found = await topics.examined(agent, a.topic)
    return Answer(
        {
            "topic": found.topic.topic,
            "attributes": found.attributes,
            "retention": found.kept,
            "dedup_windows": found.windows,
            "usage": found.usage,
            "groups": [{"group": name, "lag": lag} for name, lag in found.groups],
            "producers": found.producers,
            "queues": [
                {
                    "queue": place_text(each.queue),
                    "min_offset": each.min_offset,
                    "max_offset": each.max_offset,
                    "last_stored_ms": each.last_update_timestamp,
                }
                for each in found.topic.queues
            ],
        }
    )


async def listed_groups(agent: Agent, a: Listed) -> Answer:
    """Groups with lag, rate and members."""
    states, silent = await agent.console.cluster.group_states_told(internal=a.internal)
    shown, left_out = _part(list(states), a)
    summaries = {each.group: each for each in await agent.admin.group_summaries(shown)}
    rows = [
        {"group": name, "state": states[name].text, "progress": summaries.get(name)}
        for name in shown
    ]
    untold = tuple(f"broker {name} does not report: {why}" for name, why in silent.items())
    return Answer(rows, left_out + untold)


async def group(agent: Agent, a: OfGroup) -> Answer:
    """Lag by queue, dead letters, settings, and what is out."""
    await agent.console.cluster.check_group(a.group)
    found = await groups.examined(agent, a.group)
    (queues, spans, late), (status, away), of_brokers, letters, popped = found
    return Answer(
        {
            "group": a.group,
            "lag": sum(max(each.lag, 0) for each in queues),
            "dead_letters_waiting": letters,
            "settings": of_brokers,
            "members": None if status is None else len(status.connections.members),
            "has_same_subscriptions": None if status is None else status.has_same_subscriptions,
            "findings": () if status is None else status.findings,
            "popped_and_out": None if popped is None else popped.messages,
            "queues": [
                _progress(each, spans[each.queue].delay_ms if each.queue in spans else None)
                for each in queues
            ],
        },
        tuple(each for each in (late, away) if each),
    )


def _progress(each: QueueProgress, waits_ms: int | None) -> dict[str, object]:
    return {
        "topic": each.queue.topic,
        "queue": place_text(each.queue),
        "lag": each.lag,
        "broker_offset": each.broker_offset,
        "consumer_offset": each.consumer_offset,
        "last_consumed_ms": each.last_consumed_ms,
        "next_waits_ms": waits_ms,
        "client_id": each.client_id,
        "in_flight": each.in_flight,
    }


async def members(agent: Agent, a: OfGroup) -> Answer:
    """Who of a group is online, and what it subscribes to."""
    return Answer(await agent.admin.consumer_connections(a.group))


async def member(agent: Agent, a: OfMember) -> Answer:
    """What one member tells of itself."""
    info = await agent.admin.consumer_running_info(a.group, a.client_id, stacks=a.stacks)
    properties = {
        name: HIDDEN if is_secret(name) else value for name, value in info.properties.items()
    }
    data = msgspec.to_builtins(dataclasses.replace(info, properties=properties), enc_hook=str)
    return Answer(data | {"stacks": info.stacks.splitlines()})


async def trace(agent: Agent, a: OfTrace) -> Answer:
    """Sends and deliveries of one message."""
    views = await agent.admin.message_traces(a.message_id, topic=a.trace_topic)
    return Answer(spans_of(views))


async def doctor(agent: Agent, _: Nothing) -> Answer:
    """What is wrong with the cluster, and what to do; takes some seconds."""
    findings = await diagnose(agent.admin, agent.probe)
    return Answer(
        [
            {
                "severity": each.severity.name.lower(),
                "code": each.code,
                "where": each.where,
                "what": each.what,
                "advice": each.advice,
            }
            for each in findings
        ]
    )


async def plan_reset(agent: Agent, a: OfMove) -> Answer:
    """What reset_offsets would do; nothing is changed."""
    if a.topic == "*":
        raise ClientError("name one topic to plan a reset")
    await agent.console.cluster.check_group(a.group)
    moves = await agent.admin.move_offsets(
        a.group,
        a.topic,
        position_in(a.to),
        queues=[queue_of(a.topic, each) for each in a.queues],
        dry_run=True,
    )
    return Answer(
        [
            {"queue": place_text(e.queue), "old": e.old, "new": e.new, "again": e.again}
            | {"skipped": e.skipped}
            for e in moves
        ]
    )


async def delayed(agent: Agent, _: Nothing) -> Answer:
    """What waits for its moment: delay levels, and messages of timers."""
    ask = agent.console.cluster.ask_masters
    levels, failed = await ask(agent.admin.delay_levels)
    timers, untold = await ask(lambda each: agent.admin.timed_messages(each, max_messages=50))
    return Answer(
        {
            "levels": [e for of_broker in levels.values() for e in of_broker if e.waiting],
            "timers": timers,
        },
        tuple(f"broker {name}: {why}" for name, why in {**failed, **untold}.items()),
    )


async def all_lag(agent: Agent, _: Nothing) -> Answer:
    """The lag of all groups, the greatest first."""
    names = list(await agent.console.cluster.group_states())
    found, failed = await answers_of(names, agent.admin.group_progress)
    rows = sorted(
        (
            {"group": name, "lag": max(e.lag, 0), "consumed_per_second": e.consumed_per_second}
            for name, e in found.items()
        ),
        key=lambda row: -int(str(row["lag"])),
    )
    return Answer(rows, tuple(f"group {name}: {why}" for name, why in failed.items()))


TOOLS = (
    Tool("cluster", "Clusters, brokers with their nodes, name servers.", Nothing, cluster),
    Tool("brokers", "Each broker node: version, rates, disks.", Nothing, listed_brokers),
    Tool("broker", "Metrics, replication, role and producers of one node.", OfBroker, broker),
    Tool("settings", "Settings of a broker; secrets are ***.", OfSettings, settings),
    Tool("topics", "Topics with their queues.", Listed, listed_topics),
    Tool("topic", "Queues, attributes, size, groups, producers of a topic.", OfTopic, topic),
    Tool("groups", "Consumer groups with state, members, lag.", Listed, listed_groups),
    Tool("group", "Lag of a group by queue, its settings, its dead letters.", OfGroup, group),
    Tool("lag", "The lag of all groups, the greatest first.", Nothing, all_lag),
    Tool("members", "Who of a group is online, with subscriptions.", OfGroup, members),
    Tool("member", "What one member of a group tells of itself.", OfMember, member),
    Tool("plan_reset", "What reset_offsets would do; changes nothing.", OfMove, plan_reset),
    Tool("delayed", "Messages that wait for their moment.", Nothing, delayed),
    Tool("trace", "When a message was sent and consumed, by clients' traces.", OfTrace, trace),
    Tool(
        "doctor",
        "Diagnose the cluster: what is wrong, and what to do. Takes some seconds.",
        Nothing,
        doctor,
        seconds_max=DOCTOR_SECONDS_MAX,
    ),
)
