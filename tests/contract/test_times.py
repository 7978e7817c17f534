"""A time is the first message from then on: for clients, tools and resets, on both brokers."""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kerolox.admin import Admin, Position, PositionKind
from kerolox.client import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
)
from kerolox.message import Message
from tests.contract.command_line.shell import Shell
from tests.contract.conftest import FIRST
from tests.support.eventually import until

if TYPE_CHECKING:
    from kerolox.message import MessageExt, MessageQueue
    from tests.support.servers.clusters import Cluster

GAP_MS = 60
FUTURE_MS = 4_070_908_800_000


async def stored_apart(producer: Producer, queue: MessageQueue) -> list[int]:
    """A message, five of the same millisecond, a message, some time between them: their times."""
    times: list[int] = []
    for bodies in ([b"0"], [b"1", b"2", b"3", b"4", b"5"], [b"6"]):
        made = [Message(queue.topic, body) for body in bodies]
        sent = await (
            producer.send_batch(made, queue=queue)
            if len(made) > 1
            else producer.send(made[0], queue=queue)
        )
        first_id = sent.offset_message_id.split(",")[0]
        found = await producer.view_by_id(queue.topic, first_id)
        times += [found.store_timestamp] * len(bodies)
        next_ms = found.store_timestamp + GAP_MS
        await until(lambda due=next_ms: time.time() * 1000 > due, what="some time")
    return times


def times_beside(stored: list[int]) -> list[int]:
    """Before, at and beside each of them, and near the later of two and near the earlier."""
    near = {each + off for each in stored for off in (-GAP_MS + 5, -1, 0, 1, GAP_MS - 5)}
    return sorted({*near, 0, 1, FUTURE_MS, 10**30})


async def test_a_time_is_the_first_message_from_then_on(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    [queue, other, *_] = await producer.queues(topic)
    stored = await stored_apart(producer, queue)
    async with (
        Admin(cluster.name_server) as admin,
        LitePullConsumer(group, cluster.name_server) as lite,
        PullConsumer(group, cluster.name_server) as pull,
    ):
        for when in times_beside(stored):
            expected = bisect_left(stored, when)
            assert await admin.offset_by_time(queue, when) == expected, when
            assert await lite.offset_for_timestamp(queue, when) == expected, when
            assert await pull.offset_by_time(queue, when) == expected, when
            assert await producer.offset_by_time(queue, when) == expected, when
            assert await pull.offset_by_time(other, when) == 0


async def test_messages_of_a_range_of_times_are_those_stored_in_it(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    [queue, *_] = await producer.queues(topic)
    stored = await stored_apart(producer, queue)
    edges = [0, stored[0] + 1, stored[1], stored[1] + 1, stored[6], stored[6] + 1, FUTURE_MS]
    async with Admin(cluster.name_server) as admin:
        for begin, end in itertools.pairwise(edges):
            found = admin.read_messages(topic, begin_ms=begin, end_ms=end)
            bodies = [int(each.body) async for each in found]
            assert bodies == list(range(bisect_left(stored, begin), bisect_left(stored, end)))
    shell = Shell(cluster)
    assert await shell.json("message", "list", topic, "--from", "2099-01-01") == []
    late = ("--from", "2098-01-01", "--until", "2099-01-01")
    assert await shell.text("tail", topic, *late, "-o", "ndjson") == ""
    assert await shell.text("tail", topic, "--from", "2099-01-01", "--until", "end") == ""
    rows = await shell.json("message", "list", topic, "--until", FUTURE_MS)
    assert len(rows) == len(stored)


@pytest.mark.parametrize("is_online", [False, True], ids=["offline", "online"])
async def test_a_reset_to_a_time_does_what_its_dry_run_says(
    cluster: Cluster, producer: Producer, topic: str, group: str, is_online: bool
) -> None:
    [queue, *_] = await producer.queues(topic)
    stored = await stored_apart(producer, queue)
    got: Counter[int] = Counter()

    async def listen(message: MessageExt) -> None:
        got[int(message.body)] += 1

    settings = PushConsumerSettings(consume_from_where=FIRST, persist_interval_ms=50)
    consumer = PushConsumer(group, cluster.name_server, settings=settings)
    consumer.subscribe_each(topic, "*", listen)
    async with Admin(cluster.name_server) as admin:

        async def is_consumed() -> bool:
            return await admin.get_offset(group, queue) == len(stored)

        async with consumer:
            await until(is_consumed, what="all of them")
            if is_online:
                new = await reset(admin, group, queue, stored)
                # Members that are online go to the nearest message: a Java broker does it so.
                assert new == 6 or (cluster.kind == "java" and new in range(1, 6))
                again = Counter([*range(len(stored)), *range(new, len(stored))])
                await until(lambda: got == again, what="those that come again")
        if not is_online:
            assert await reset(admin, group, queue, stored) == 6
            assert await admin.get_offset(group, queue) == 6


async def reset(admin: Admin, group: str, queue: MessageQueue, stored: list[int]) -> int:
    """Move the group to just behind the five messages; where that is."""
    position = Position(PositionKind.TIME, stored[1] + 1)
    planned = await admin.move_offsets(group, queue.topic, position, dry_run=True)
    assert await admin.move_offsets(group, queue.topic, position) == planned
    [new] = [each.new for each in planned if each.queue == queue]
    return new
