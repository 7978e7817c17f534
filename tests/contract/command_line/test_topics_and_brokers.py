"""What an operator does to topics and brokers with the command line, on both brokers."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from kerolox.client import TransactionProducer, TransactionState
from kerolox.message import Message
from kerolox.release import __version__
from tests.contract.command_line.shell import Shell

if TYPE_CHECKING:
    from kerolox.client import Producer
    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster

COMMIT, _, UNKNOWN = TransactionState


async def test_a_topic_is_made_listed_changed_and_deleted(cluster: Cluster) -> None:
    shell, name = Shell(cluster), f"t-{uuid.uuid4().hex[:12]}"
    [made] = await shell.json("topic", "create", name, "--queues", 2)
    assert made["brokerAddr"] == cluster.broker
    assert made["perm"] == 6
    [row] = [row for row in await shell.json("topic", "list") if row["topic"] == name]
    assert (row["kind"], row["writeQueueNums"], row["perm"]) == ("normal", 2, 6)
    others = {row["kind"] for row in await shell.json("topic", "list", "--kind", "system")}
    assert others == {"system"}
    [change] = await shell.json("topic", "update", name, "--queues", 5, "--dry-run")
    assert (change["old"]["writeQueueNums"], change["new"]["writeQueueNums"]) == (2, 5)
    assert not change["done"]
    assert "write queues 2 → 5" in await shell.text("topic", "update", name, "--queues", 5)
    assert "perm RW → R" in await shell.text("topic", "permission", name, "R")
    assert "R" in (await shell.text("topic", "permission", name)).split()
    [denied] = await shell.json("topic", "permission", name)
    assert denied["perm"] == 4
    refused = await shell.run("topic", "delete", name, code=2)
    assert "holds 0 messages" in refused.stderr
    assert "--yes does it" in refused.stderr
    assert name in (await shell.text("topic", "list", "--names")).split()
    assert f"topic {name} deleted" in await shell.text("topic", "delete", name, "--yes")
    assert name not in (await shell.text("topic", "list", "--names")).split()
    gone = await shell.run("topic", "describe", name, "-o", "json", code=1)
    error = json.loads(gone.stderr)["error"]
    assert error["type"] == "TopicRouteNotFoundError"


async def test_a_topic_is_described_with_what_it_holds_and_who_reads_it(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    for n in range(8):
        await producer.send(Message(topic, str(n).encode()))
    await shell.run("group", "create", group)
    await shell.run("group", "reset", group, topic, "--to", "beginning", "--execute")
    described: dict[str, Any] = await shell.json("topic", "describe", topic)
    assert described["messages"] == 8
    assert sum(queue["messages"] for queue in described["queues"]) == 8
    assert all(queue["lastUpdateTimestamp"] > 0 for queue in described["queues"])
    [kept] = described["retention"].values()
    first = min(queue["lastUpdateTimestamp"] for queue in described["queues"])
    assert 0 < kept.pop("oldestTimestamp") <= first
    assert kept == {"fileReservedTime": kept["fileReservedTime"], "reserveTime": ""}
    assert kept["fileReservedTime"] > 0
    text = await shell.text("topic", "describe", topic)
    assert f"kept at least {kept['fileReservedTime']} h, oldest message 20" in text
    assert described["groups"] == [{"group": group, "state": "active", "lag": 8}]
    await shell.run("group", "pause", group)
    assert re.search(rf"{group} +paused +8\n", await shell.text("topic", "describe", topic))
    [row] = [row for row in await shell.json("topic", "list") if row["topic"] == topic]
    assert row["messages"] == 8
    going = await shell.run("topic", "delete", topic, code=2)
    assert f"holds 8 messages; not consumed yet by {group} (8 left)" in going.stderr


async def test_a_broker_is_listed_described_and_set(cluster: Cluster) -> None:
    shell, at = Shell(cluster), cluster.broker
    [listed] = await shell.json("broker", "list")
    assert (listed["address"], listed["role"], listed["perm"]) == (at, "master", 6)
    assert listed["topics"] > 0
    described = await shell.json("broker", "describe", at)
    ours = cluster.kind == "ours"
    software = f"Kerolox {__version__}" if ours else listed["version"]
    assert listed["software"] == described["software"] == software
    assert bool(described["kernel"]) == ours
    assert software in await shell.text("broker", "list")
    assert software in await shell.text("cluster", "describe")
    assert 0 < described["logDiskRatio"] < 1
    assert "log's disk in use" in await shell.text("broker", "describe", at)
    every = {row["name"] for row in await shell.json("broker", "describe", at, "--all")}
    assert "putTps" in every
    key = "maxMessageSize"
    [row] = await shell.json("broker", "config", "show", at, key)
    assert (row["value"], row["source"], row["default"]) == ("4194304", "default", "4194304")
    change = ("broker", "config", "set", f"{key}=4194305", "--broker", at)
    [planned] = await shell.json(*change, "--dry-run")
    assert (planned["old"], planned["new"], planned["done"]) == ("4194304", "4194305", False)
    try:
        await shell.run(*change)
        rows = await shell.json("broker", "config", "show", at, "--set")
        set_here = {row["key"]: row for row in rows}
        assert set_here[key]["value"] == "4194305"
        assert "fileReservedTime" not in set_here
    finally:
        await shell.run("broker", "config", "set", f"{key}=4194304", "--broker", at)
    wrong = await shell.run(*change[:3], f"{key}=none", "--broker", at, "-o", "json", code=None)
    if cluster.kind == "ours":
        assert "no whole number" in json.loads(wrong.stderr)["error"]["message"]
    else:
        [row] = json.loads(wrong.stdout)
        assert "not taken: it is still 4194304" in row["remark"]
    misspelt = await shell.run("broker", "config", "set", "maxMesageSize=1", code=1)
    assert "did you mean 'maxMessageSize'?" in misspelt.stderr


async def test_what_a_broker_runs_stands_behind_its_settings(cluster: Cluster) -> None:
    shell, at = Shell(cluster), cluster.broker
    described = await shell.json("broker", "describe", at)
    runs = {"keroloxVersion": __version__, "keroloxKernel": described["kernel"]}
    rows = await shell.json("broker", "config", "show", at)
    told = [row for row in rows if row["key"] in runs]
    if cluster.kind == "ours":
        assert rows[-2:] == told
        assert {row["key"]: row["value"] for row in told} == runs
        assert {(row["source"], row["default"]) for row in told} == {("", None)}
        [kernel] = await shell.json("broker", "config", "show", at, "keroloxKernel")
        assert kernel == rows[-1]
    else:
        assert told == []
    set_here = await shell.json("broker", "config", "show", at, "--set")
    assert not runs.keys() & {row["key"] for row in set_here}
    refused = await shell.run("broker", "config", "set", "keroloxKernel=python", code=1)
    assert "has no setting 'keroloxKernel'" in refused.stderr


async def test_what_waits_for_a_restart_is_shown(our_cluster: Cluster) -> None:
    shell, at = Shell(our_cluster), our_cluster.broker
    change = ("broker", "config", "set", "--broker", at)
    [row] = await shell.json(*change, "flushDiskType=SYNC_FLUSH")
    try:
        assert "at the next start: flushDiskType" in row["remark"]
        [waiting] = await shell.json("broker", "config", "show", at, "--waiting")
        assert (waiting["key"], waiting["value"]) == ("flushDiskType", "ASYNC_FLUSH")
        assert waiting["afterRestart"] == "SYNC_FLUSH"
    finally:
        await shell.run(*change, "flushDiskType=ASYNC_FLUSH")


async def test_a_retired_broker_is_drained_and_comes_back(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell, at, late = Shell(cluster), cluster.broker, f"{topic}-late"
    is_decided = False

    async def check(_: MessageExt) -> TransactionState:
        return await asyncio.sleep(0, COMMIT if is_decided else UNKNOWN)

    async def execute(_: Message) -> TransactionState:
        return await asyncio.sleep(0, UNKNOWN)

    retire = ("broker", "retire", at, "--quiet", 0)
    await shell.run("topic", "create", late, "--queues", 1)
    await shell.run("group", "create", group)
    await shell.run("group", "reset", group, topic, "--to", "beginning", "--execute")
    refused = await shell.run(*retire, code=1)
    assert "no other broker takes messages of " in refused.stderr
    async with TransactionProducer(f"p-{topic}", cluster.name_server, check=check) as halves:
        await halves.send_in_transaction(Message(late, b"half"), execute)
        await producer.send(Message(topic, b"left"))
        await producer.send(Message(late, b"delayed", delay_level=3))
        try:
            looked = await shell.json(*retire, "--force", "--no-wait")
            left = {(row["group"], row["topic"]): row["messages"] for row in looked["lag"]}
            assert left[group, topic] == 1
            assert looked["delayed"] >= 1
            assert looked["transactions"] >= 1
            assert looked["sending"] == []
            assert not looked["safeToStop"]
            assert (await shell.json("broker", "list"))[0]["perm"] == 4
            unsent = await shell.run("send", topic, "more", code=1)
            assert topic in unsent.stderr
            others = [f"--ignore-group={name}" for name, _ in left if name != group]
            again = (*retire, "--force", *others)
            late_answer = await shell.run(*again, "--timeout", 0.1, code=1)
            assert f"1 message of {topic} for {group}" in late_answer.stderr
            is_decided = True
            await shell.run("group", "reset", group, topic, "--to", "end", "--execute")
            drained = await shell.run(*again)
            assert f"{at} can be stopped" in drained.stdout
            assert f"2 messages of {late}, which no group reads" in drained.stderr
        finally:
            await shell.run("broker", "return", at)
    assert (await shell.json("broker", "list"))[0]["perm"] == 6
    await shell.run("send", topic, "more")
