"""What an operator does with the command line, on our broker and on the Java broker."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.admin import Admin, Position, PositionKind
from kerolox.admin.messages.sending import QueueSender, writable_queues
from kerolox.client import (
    Outcome,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.errors import KeroloxError
from kerolox.message import Message
from kerolox.release import __version__
from tests.contract.command_line.shell import Shell
from tests.contract.conftest import FIRST
from tests.support.eventually import until
from tests.support.servers.command import kerolox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kerolox.message import MessageExt
    from tests.support.servers.clusters import Cluster


async def sent(producer: Producer, topic: str, count: int) -> list[str]:
    """Messages ``0`` to ``count - 1``, spread over the queues; their ids."""
    results = [
        await producer.send(
            Message(topic, str(n).encode(), tags="even odd".split()[n % 2], keys=f"k{n}")
        )
        for n in range(count)
    ]
    return [each.offset_message_id for each in results]


async def test_a_cluster_and_its_nodes_are_described(cluster: Cluster) -> None:
    shell = Shell(cluster)
    [listed] = await shell.json("cluster", "list")
    assert (listed["brokers"], listed["nodes"]) == (1, 1)
    node: dict[str, Any] = {}

    async def is_described() -> bool:  # a Java broker fails so long as it has no sample of rates
        node.update(*await shell.json("cluster", "describe", listed["cluster"]))
        return not node["error"]

    await until(is_described, what="the broker's figures")
    assert node["role"] == "master"
    assert 0 < node["diskRatio"] < 1
    assert node["bootTimestamp"] > 0
    table = await shell.text("cluster", "describe")
    [_, line] = table.splitlines()
    assert "master" in line.split()


async def test_messages_are_found_by_place_time_key_id_and_text(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    shell = Shell(cluster)
    ids = await sent(producer, topic, 20)
    rows = await shell.json("message", "list", topic)
    assert sorted(int(row["body"]) for row in rows) == list(range(20))
    even = await shell.json("message", "list", topic, "--tags", "even", "--count", 3)
    assert [row["tags"] for row in even] == ["even"] * 3
    grepped = await shell.text("message", "list", topic, "--grep", "^1[05]$", "-o", "{body}")
    assert sorted(grepped.split()) == ["10", "15"]
    assert await shell.json("message", "list", topic, "--from", "2000-01-01", "--until", "1h") == []
    assert len(await shell.json("message", "list", topic, "--from", "1h")) == 20
    first = rows[0]
    queue = f"{first['brokerName']}/{first['queueId']}"
    [at] = await shell.json("message", "list", topic, "--queue", queue, "--until", 1)
    assert at["msgId"] == first["msgId"]
    at = await shell.json("message", "at", topic, queue, 0)
    assert at["msgId"] == first["msgId"]
    found = await shell.json("message", "get", ids[7])
    assert (found["body"], found["keys"]) == ("7", "k7")
    hexed = await shell.text("message", "get", ids[7], "--body", "hex", "-o", "{body}")
    assert hexed == "37\n"

    async def is_indexed() -> bool:  # that follows in the background
        found = await shell.json("message", "find", topic, "k7")
        return [row["body"] for row in found] == ["7"]

    await until(is_indexed, what="the index")
    again = await shell.json("message", "get", found["msgId"], "--topic", topic)
    assert again["offsetMsgId"] == ids[7]


async def test_a_message_is_sent_again_after_a_dry_run(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    shell = Shell(cluster)
    [message_id] = await sent(producer, topic, 1)
    assert "nothing was changed" in await shell.text("message", "resend", message_id, "--dry-run")
    refused = await shell.run("message", "resend", message_id, code=2)
    assert "Nothing was done; --yes does it." in refused.stderr
    assert len(await shell.json("message", "list", topic)) == 1
    done = await shell.json("message", "resend", message_id, "--yes")
    assert done["topic"] == topic
    rows = await shell.json("message", "list", topic)
    assert [(row["body"], row["tags"], row["keys"]) for row in rows] == [("0", "even", "k0")] * 2


async def test_a_message_with_an_empty_body_is_sent_again(
    cluster: Cluster, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    dead = f"%DLQ%{group}"
    async with Admin(cluster.name_server) as admin:
        for name in (dead, f"%RETRY%{group}"):
            await admin.create_topic(name, queues=1)
        for name in (topic, dead, f"%RETRY%{group}"):
            await until(partial(_is_routed, admin, name), what="the topics")

        async def bodies(name: str) -> list[bytes]:
            return [each.body async for each in admin.read_messages(name)]

        # No client of RocketMQ sends one, and its brokers store it.
        for name in (topic, dead):
            route = await admin.access.route(name)
            queue = writable_queues(route, name)[0]
            sender = QueueSender(admin.access, "writes-empty")
            await sender.send(Message(name, b"", keys="k"), queue, route)
            await until(partial(_has, bodies, name, [b""]), what="the message")
        [row] = await shell.json("message", "list", topic)
        assert (row["body"], row["keys"]) == ("", "k")
        await shell.run("message", "resend", row["offsetMsgId"], "--yes")
        await until(partial(_has, bodies, topic, [b"", b""]), what="the copy")
        [sent_again] = await shell.json("dlq", "resend", group, "--yes")
        assert (sent_again["state"], sent_again["error"]) == ("sent", "")
        await until(partial(_has, bodies, f"%RETRY%{group}", [b""]), what="the letter")
    refused = await shell.run("send", topic, "", code=1)
    assert "the body is empty; a message needs at least one byte" in refused.stderr


async def _is_routed(admin: Admin, topic: str) -> bool:
    return topic in await admin.list_topics()


async def _has(
    bodies: Callable[[str], Awaitable[list[bytes]]], topic: str, wanted: list[bytes]
) -> bool:
    return await bodies(topic) == wanted


async def test_a_group_is_made_reset_paused_and_deleted(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    await sent(producer, topic, 20)
    assert "made, 3 retries" in await shell.text("group", "create", group, "--retries", 3)
    assert "retries 3 → 5" in await shell.text("group", "update", group, "--retries", 5)
    refused = await shell.run("group", "update", group, "--retry-queues", 0, code=1)
    assert "brokers drop each message that the group gives back" in refused.stderr
    told = await shell.text("group", "update", group, "--retry-queues", 0, "--drop-retries")
    assert "retry queues 1 → 0" in told
    assert "retry queues 0 → 2" in await shell.text("group", "update", group, "--retry-queues", 2)
    plan = await shell.json("group", "reset", group, topic, "--to", "-2", "--dry-run")
    assert [row["newOffset"] for row in plan] == [max(row["maxOffset"] - 2, 0) for row in plan]
    assert not any(row["done"] for row in plan)
    await shell.run("group", "describe", group, code=1)
    refused = await shell.run("group", "reset", group, topic, "--to", "-2", code=2)
    assert "Nothing was done; --yes does it." in refused.stderr
    await shell.run("group", "describe", group, code=1)
    await shell.run("group", "reset", group, topic, "--to", "-2", "--yes")
    rows = await shell.json("group", "describe", group)
    assert sum(row["lag"] for row in rows) == sum(min(row["brokerOffset"], 2) for row in rows)
    queue = rows[0]["queue"]
    one = await shell.json("group", "reset", group, topic, "--to", 1, "--queue", queue, "--yes")
    assert [row["newOffset"] for row in one] == [1]
    listed = {row["group"]: row for row in await shell.json("group", "list")}
    lag = sum(row["lag"] for row in await shell.json("group", "describe", group))
    assert (listed[group]["lag"], listed[group]["members"]) == (lag, 0)
    copy = f"{group}-copy"
    assert listed[group]["state"] == "active"
    assert (await shell.text("group", "pause", group)).endswith(": paused\n")
    listed_paused = {row["group"]: row for row in await shell.json("group", "list")}[group]
    broker_name = queue.partition("/")[0]
    assert (listed_paused["state"], listed_paused["pausedOn"]) == ("paused", [broker_name])
    described = await shell.run("group", "describe", group)
    assert f"group {group} is paused: it gets no messages there" in described.stderr
    assert all(row["paused"] for row in await shell.json("group", "describe", group))
    assert (await shell.text("group", "resume", group)).endswith(": resumed\n")
    assert not any(row["paused"] for row in await shell.json("group", "describe", group))
    [paused] = await shell.json("group", "pause", group)
    assert (paused["old"]["consumeEnable"], paused["new"]["consumeEnable"]) == (True, False)
    spared = await shell.json("group", "delete", group, "--dry-run")
    assert spared == {"group": group, "members": 0, "lag": lag, "done": False}
    gone = await shell.json("group", "delete", group, "--offsets", "--yes")
    assert gone == {"group": group, "deletedOn": [cluster.broker], "done": True}
    assert group not in {row["group"] for row in await shell.json("group", "list")}
    assert copy not in listed


@pytest.mark.parametrize(
    "command",
    [
        ("pause", "TYPO"),
        ("resume", "TYPO"),
        ("update", "TYPO", "--retries", 3),
        ("reset", "TYPO", "TOPIC", "--to", "end", "--yes"),
        ("reset", "TYPO", "TOPIC", "--to", "end", "--dry-run"),
        ("clone", "TYPO", "TYPO-2", "--yes"),
        ("clone", "GROUP", "TYPO", "--yes"),
        ("clone", "GROUP", "TYPO", "--dry-run"),
        ("delete", "TYPO", "--yes"),
    ],
)
async def test_a_group_that_is_mistyped_is_not_made(
    cluster: Cluster, topic: str, group: str, command: tuple[object, ...]
) -> None:
    shell = Shell(cluster)
    await shell.run("group", "create", group)
    typo = f"{group}-typo"
    names = {"TYPO": typo, "TYPO-2": f"{typo}-2", "TOPIC": topic, "GROUP": group}
    refused = await shell.run("group", *(names.get(str(each), each) for each in command), code=1)
    assert f"group '{typo}'" in refused.stderr
    assert "kerolox group list" in refused.stderr
    assert typo not in await shell.text("group", "list", "--all", "-o", "{group}")


async def test_a_group_with_offsets_alone_is_listed(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    await sent(producer, topic, 4)
    move = ("group", "reset", group, topic, "--to", "beginning", "--yes")
    await shell.run(*move, "--new-group")
    listed = {row["group"]: row for row in await shell.json("group", "list")}[group]
    assert (listed["state"], listed["lag"], listed["members"]) == ("no settings", 4, 0)
    await shell.run(*move)
    refused = await shell.run("group", "pause", group, code=1)
    assert f"no broker has settings of group '{group}'" in refused.stderr
    await shell.run("group", "delete", group, "--offsets", "--yes")
    assert group not in await shell.text("group", "list", "-o", "{group}")


async def test_members_of_a_paused_group_are_listed_with_that(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)

    async def listen(message: MessageExt) -> None:
        """Done."""

    consumer = PushConsumer(group, cluster.name_server)
    consumer.subscribe_each(topic, "*", listen)
    async with consumer:
        await shell.run("group", "pause", group)
        told = await shell.run("group", "members", group)
        assert f"group {group} is paused" in told.stderr
        [row] = await shell.json("group", "members", group)
        assert len(row["pausedOn"]) == 1
        assert (row["software"], row["version"]) == (f"Kerolox {__version__}", "V4_9_8")
        assert f"Kerolox {__version__}" in told.stdout


async def test_members_go_on_where_a_group_is_reset_to(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    seen: list[bytes] = []

    async def listen(message: MessageExt) -> None:
        seen.append(message.body)

    consumer = PushConsumer(
        group, cluster.name_server, settings=PushConsumerSettings(consume_from_where=FIRST)
    )
    consumer.subscribe_each(topic, "*", listen)
    async with consumer:
        await sent(producer, topic, 8)
        await until(lambda: len(seen) == 8)
        [member] = await shell.json("group", "members", group)
        assert member["subscriptions"][topic] == "*"
        assert member["queues"] > 0

        async def is_done() -> bool:
            rows = await shell.json("group", "describe", group, "--topic", topic)
            return sum(row["consumerOffset"] for row in rows) == 8

        await until(is_done, what="the offsets")
        await shell.run("group", "reset", group, topic, "--to", "beginning", "--execute")
        await until(lambda: len(seen) == 16, what="all messages once more")


async def test_offsets_are_copied_after_it_is_said_what_that_does(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell, copy = Shell(cluster), f"{group}-copy"
    await sent(producer, topic, 8)

    async def listen(message: MessageExt) -> None:
        """Done."""

    settings = PushConsumerSettings(consume_from_where=FIRST, persist_interval_ms=200)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen)

    async def offsets(name: str) -> int:
        rows = await shell.json("group", "describe", name, "--topic", topic)
        return sum(row["consumerOffset"] for row in rows)

    async def is_done() -> bool:
        return await offsets(group) == 8

    async with consumer:
        await until(is_done, what="the offsets")
    clone = ("group", "clone", group, copy, "--topic", topic)
    await shell.run(*clone, "--new-group", "--dry-run")
    await shell.run("group", "describe", copy, code=1)
    await shell.run("group", "reset", copy, topic, "--to", "beginning", "--new-group", "--yes")
    refused = await shell.run(*clone, code=2)
    assert "Nothing was done; --yes does it." in refused.stderr
    assert "SKIPPED" in refused.stdout
    assert await offsets(copy) == 0
    planned = await shell.json(*clone, "--dry-run")
    assert (planned["source"], planned["done"]) == (group, False)
    assert f"group {copy} has the offsets of {group} on" in await shell.text(*clone, "--yes")
    assert await offsets(copy) == 8
    await shell.run("group", "reset", copy, topic, "--to", "beginning", "--yes")
    assert (await shell.json(*clone, "--yes"))["done"]
    assert await offsets(copy) == 8


async def test_dead_letters_are_listed_exported_and_given_to_their_group_again(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    seen: list[tuple[bytes, int]] = []
    is_mended = False

    async def listen(message: MessageExt) -> Outcome | None:
        seen.append((message.body, message.reconsume_times))
        return None if is_mended else Outcome.dead_letter("not yet")

    consumer = PushConsumer(
        group, cluster.name_server, settings=PushConsumerSettings(consume_from_where=FIRST)
    )
    consumer.subscribe_each(topic, "*", listen)
    async with consumer:
        await sent(producer, topic, 3)

        async def are_dead() -> bool:
            rows = {row["group"]: row["waiting"] for row in await shell.json("dlq", "list")}
            return bool(rows.get(group) == 3)

        await until(are_dead, what="three dead letters")
        is_mended = True
        exported = (await shell.text("dlq", "export", group)).splitlines()
        assert sorted(json.loads(line)["body"] for line in exported) == ["0", "1", "2"]
        [chosen] = await shell.json("dlq", "show", group, "--grep", "^1$")
        assert (chosen["originTopic"], chosen["reason"], chosen["state"]) == (
            topic,
            "not yet",
            "waiting",
        )
        one = ("dlq", "resend", group, chosen["offsetMsgId"])
        plan = await shell.json(*one, "--dry-run")
        assert [(row["topic"], row["state"]) for row in plan] == [(topic, "chosen")]
        done = await shell.json(*one, "--yes")
        assert [row["state"] for row in done] == ["sent"]
        await until(lambda: len(seen) == 4, what="the dead letter")
        assert seen[3] == (b"1", 0)
        assert [row["state"] for row in await shell.json(*one, "--yes")] == ["done before"]
        shown = await shell.text("dlq", "show", group, "-o", "{body} {state}")
        assert sorted(shown.splitlines()) == ["0 waiting", "1 done", "2 waiting"]
        again = await shell.json(*one, "--again", "--yes")
        assert [row["state"] for row in again] == ["sent"]
        await until(lambda: len(seen) == 5, what="the dead letter once more")
    missing = await shell.run("dlq", "resend", group, "0" * 32, "--dry-run", code=1)
    assert "has no dead letter" in missing.stderr


async def test_dead_letters_are_sent_once_however_often_that_is_asked(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    dead = f"%DLQ%{group}"
    async with Admin(cluster.name_server) as admin:
        for name in (dead, f"%RETRY%{group}"):
            await admin.create_topic(name, queues=1)
        await until(lambda: _is_writable(producer, dead), what="the topics")
        for number in range(130):
            await producer.send(Message(dead, str(number).encode()))

        async def sent_again() -> list[int]:
            found = admin.read_messages(f"%RETRY%{group}")
            return [int(each.body) async for each in found]

        resend = ("dlq", "resend", group, "--yes")
        first = await shell.run(*resend, "--count", 30, "-o", "ndjson")
        assert len(first.stdout.splitlines()) == 30
        assert "30 dead letters sent; 100 wait: the same command goes on" in first.stderr
        await shell.run(*resend, "--grep", "^1[02]0$")
        [row] = [row for row in await shell.json("dlq", "list") if row["group"] == group]
        assert (row["waiting"], row["done"], row["messages"]) == (98, 32, 130)
        rest = await shell.text(*resend)
        assert len([line for line in rest.splitlines() if " sent " in line]) == 98
        none = await shell.run(*resend)
        assert "no dead letter that waits" in none.stderr
        order = [*range(30), 100, 120, *range(30, 100), *range(101, 120), *range(121, 130)]

        async def are_all_there() -> bool:  # a Java broker shows them a moment later
            return len(await sent_again()) >= 130

        await until(are_all_there, what="all of them")
        assert await sent_again() == order
        assert len([each async for each in admin.dead_letters(group)]) == 130
        await shell.run(*resend, "--again", "--from", "-1")
        [row] = [row for row in await shell.json("dlq", "list") if row["group"] == group]
        assert row["waiting"] == 0


async def test_dead_letters_that_nobody_wants_are_marked_as_done(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    shell = Shell(cluster)
    dead = f"%DLQ%{group}"
    async with Admin(cluster.name_server) as admin:
        await admin.create_topic(dead, queues=1)
        await until(lambda: _is_writable(producer, dead), what="the topic")
        for number in range(5):
            await producer.send(Message(dead, str(number).encode()))
        plan = await shell.json("dlq", "purge", group, "--dry-run")
        assert [(row["marked"], row["waiting"], row["done"]) for row in plan] == [(5, 0, False)]
        refused = await shell.run("dlq", "purge", group, code=2)
        assert "--yes does it" in refused.stderr
        some = await shell.json("dlq", "purge", group, "--until", 2, "--yes")
        assert [(row["marked"], row["waiting"], row["done"]) for row in some] == [(2, 3, True)]
        shown = await shell.text("dlq", "show", group, "--waiting", "-o", "{body}")
        assert shown.split() == ["2", "3", "4"]
        await shell.run("dlq", "purge", group, "--yes")
        [row] = [row for row in await shell.json("dlq", "list") if row["group"] == group]
        assert (row["waiting"], row["messages"]) == (0, 5)
        await producer.send(Message(dead, b"5"))

        async def waits() -> bool:
            [row] = [row for row in await shell.json("dlq", "list") if row["group"] == group]
            return bool(row["waiting"] == 1)

        await until(waits, what="the letter that came later")


async def test_letters_of_a_dead_letter_topic_that_is_made_again_all_wait(
    cluster: Cluster, producer: Producer, group: str
) -> None:
    dead = f"%DLQ%{group}"
    async with Admin(cluster.name_server) as admin:

        async def filled(count: int) -> None:
            await admin.create_topic(dead, queues=1)
            await until(lambda: _is_writable(producer, dead), what="the topic")
            for _ in range(count):
                await admin.send_message(Message(dead, b"x"))

            async def are_there() -> bool:
                queues = await admin.dead_letter_queues(group)
                return sum(each.messages for each in queues) == count

            await until(are_there, what="the letters")

        await filled(5)
        [first, *_] = [each async for each in admin.dead_letters(group)]
        await admin.purge_dead_letters(group, stop=Position(PositionKind.OFFSET, 2))
        [queue] = await admin.dead_letter_queues(group)
        assert (queue.waiting, queue.is_done(first)) == (3, True)
        await admin.delete_topic(dead)
        await filled(8)
        assert [each.waiting for each in await admin.dead_letter_queues(group)] == [8]


async def _is_writable(producer: Producer, topic: str) -> bool:
    try:
        return bool(await producer.queues(topic))
    except KeroloxError:
        return False


async def test_the_way_of_a_message_is_a_timeline(cluster: Cluster, topic: str, group: str) -> None:
    seen: list[MessageExt] = []

    async def listen(message: MessageExt) -> None:
        seen.append(message)

    given = PushConsumerSettings(consume_from_where=FIRST, enable_trace=True)
    consumer = PushConsumer(group, cluster.name_server, settings=given)
    consumer.subscribe_each(topic, "*", listen)
    settings = ProducerSettings(enable_trace=True)
    events: list[dict[str, Any]] = []
    async with consumer, Producer(f"p-{topic}", cluster.name_server, settings=settings) as traced:
        result = await traced.send(Message(topic, b"x"))
        await until(lambda: seen, what="the message")

        async def is_told() -> bool:
            done = await asyncio.to_thread(
                kerolox, "trace", result.message_id, "-o", "json", "-n", cluster.name_server
            )
            events[:] = json.loads(done.stdout) if done.returncode == 0 else []
            return {"sent", "stored", "consumed"} <= {each["event"] for each in events}

        await until(is_told, what="the traces")
    assert events[0]["afterMs"] == 0
    assert {each["group"] for each in events} == {f"p-{topic}", group, ""}
