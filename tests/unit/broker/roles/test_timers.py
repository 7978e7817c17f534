"""Messages for a moment while master and slave change places: each comes once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from kerolox.message import encode_properties
from kerolox.protocol.names import TIMER_TOPIC
from tests.support.clients.peer import peer_of
from tests.support.eventually import until
from tests.unit.broker.replication.pairs import quick_retries, until_equal

from .cluster import Cluster, pair_of

__all__ = ["quick_retries"]

pytestmark = pytest.mark.asyncio


async def send(cluster: Cluster, name: str, first: int, delays_ms: list[int]) -> None:
    """Messages whose bodies are numbers from ``first`` on, for moments from now on."""
    now = int(time.time() * 1_000)
    async with peer_of(cluster[name]) as peer:
        await peer.create_topic("T", 1)
        for number, delay_ms in enumerate(delays_ms, start=first):
            properties = {"UNIQ_KEY": f"k{number}", "TIMER_DELIVER_MS": str(now + delay_ms)}
            answer = await peer.send("T", b"%d" % number, properties=encode_properties(properties))
            assert answer.code == 0


async def came(cluster: Cluster, name: str) -> Counter[int]:
    async with peer_of(cluster[name]) as peer:
        found, offset = [], 0
        while messages := await peer.messages("T", 0, offset):
            found += [int(each.body) for each in messages]
            offset += len(messages)
        return Counter(found)


async def all_came(cluster: Cluster, name: str, count: int) -> Counter[int]:
    async def have_come() -> bool:
        return len(await came(cluster, name)) >= count

    await until(have_come, what="all messages for a moment")
    timer = cluster[name].parts.writing.timer.timer
    assert timer is not None
    # What would come twice comes with the slots that are read by now.
    end_ms = int(time.time() * 1_000)
    await until(lambda: timer.read_ms >= end_ms - 1_000)
    return await came(cluster, name)


def enqueued(cluster: Cluster, name: str) -> int:
    timer = cluster[name].parts.writing.timer.timer
    return 0 if timer is None else timer.queue_offset


def are_enqueued(cluster: Cluster) -> bool:
    """Of a master; what was due when it was sent never waited."""
    return enqueued(cluster, "a") == cluster["a"].parts.store.queue_bounds(TIMER_TOPIC, 0)[1] > 0


async def test_a_slave_keeps_a_wheel_of_its_own_and_delivers_nothing(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await send(cluster, "a", 0, [5_000, 600_000, 600_000])
        await until(lambda: are_enqueued(cluster))
        await until_equal(cluster["a"], cluster["b"])
        await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))
        await until(lambda: enqueued(cluster, "b") == enqueued(cluster, "a"))
        assert await all_came(cluster, "a", 1) == {0: 1}
        await until_equal(cluster["a"], cluster["b"])
        slave = cluster["b"].parts.writing.timer.timer
        assert slave is not None
        assert slave.counts.delivered == 0
        assert slave.counts.enqueued >= 2


async def test_places_are_changed_as_planned_and_each_message_comes_once(
    tmp_path: Path, kernel: str
) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await send(cluster, "a", 0, [1_000 + 200 * number for number in range(40)])
        await until(lambda: are_enqueued(cluster))
        for new, old in (("b", "a"), ("a", "b")):
            await cluster.until_following(new)
            await cluster.admin.promote_broker(cluster.at(new))
            await cluster.until_following(old)
        found = await all_came(cluster, "a", 40)
        assert found == dict.fromkeys(range(40), 1)


async def test_a_master_is_lost_and_each_message_comes_once(tmp_path: Path, kernel: str) -> None:
    async with pair_of(tmp_path, kernel) as cluster:
        await send(cluster, "a", 0, [2_000 + 100 * number for number in range(40)])
        await until(lambda: are_enqueued(cluster))
        await until_equal(cluster["a"], cluster["b"])
        # What the slave knows of the timer is of before the first delivery.
        await cluster["b"].parts.peers.replication.tables.take_from(cluster.at("a"))

        async def have_some_come() -> bool:
            return len(await came(cluster, "a")) >= 5

        await until(have_some_come, what="some messages")
        await cluster.lose_master("a")
        await cluster.admin.promote_broker(cluster.at("b"), accept_loss=True)
        found = await all_came(cluster, "b", 40)
        assert found == dict.fromkeys(range(40), 1)
