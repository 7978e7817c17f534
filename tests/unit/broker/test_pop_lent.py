"""Queues of pops that the kernel has for a while: it answers as the broker does by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kerolox.broker.broker import Broker
from kerolox.broker.pop.leases import QueueKey
from kerolox.broker.pop.lending import LEASES_MAX, SPACE_MIN
from kerolox.broker.pop.table import PopTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.pop_names import pop_retry_topic
from tests.support.clients.peer import Peer, peer_of, small_config
from tests.support.clients.pops import GROUP, Member, PoppedMessage, popped_messages
from tests.support.eventually import until
from tests.unit.broker.test_pop_fast import Counted, plain
from tests.unit.broker.test_pops import filled, offset_of, texts

pytestmark = pytest.mark.asyncio

KEYS = [QueueKey(GROUP, "T", each) for each in (0, 1)]


@pytest_asyncio.fixture
async def broker(tmp_path: Path, kernel: str) -> AsyncIterator[Broker]:
    """With the clocks of the system: a kernel has no others."""
    async with Broker(small_config(tmp_path), kernel=kernel) as started:
        yield started


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with peer_of(broker) as client:
        yield client


def table_of(broker: Broker) -> PopTable:
    return broker.parts.tables.pops.state.queues


def lent(broker: Broker) -> list[QueueKey]:
    return sorted(table_of(broker)._lending.reserved)


async def begun(broker: Broker, peer: Peer, count: int = 40) -> Member:
    """A member whose group has an offset in both queues, which are lent where they can be."""
    member = await filled(peer, count)
    for queue_id in (0, 1):
        await member.ack_all(await member.pop(1, queueId=queue_id))
        await member.ack_all(await member.pop(1, queueId=queue_id))
    assert lent(broker) == (KEYS if table_of(broker).lends else [])
    return member


async def test_the_kernel_answers_pops_and_acknowledgements(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    counted = Counted(broker)
    popped = await member.pop(5)
    await member.ack(popped[0])
    await member.ack_together(popped[1:])
    assert counted.answered == (0 if table_of(broker).lends else 3)
    queue_id = popped[0].receipt.queue_id
    assert offset_of(broker, queue_id=queue_id) == popped[-1].receipt.queue_offset + 1


async def test_what_is_lent_is_seen_without_being_taken_back(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    popped = await member.pop(4, queueId=0)
    await member.ack(popped[1])
    table = table_of(broker)
    before = lent(broker)
    assert table.out == 3
    assert list(table.held_queues()) == [KEYS[0]]
    queue = table.queue(KEYS[0])
    assert queue is not None
    assert [offset for offset, _ in queue.offsets()] == [2, 4, 5]
    assert (queue.low, queue.next_offset) == (2, 6)
    host, port = next(queue.leases()).owner.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert lent(broker) == before


async def test_what_is_lent_is_in_the_file(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    await member.pop(4, queueId=0)
    await broker.parts.tables.pops.persist()
    snapshot = broker.parts.tables.pops._taken_last
    assert [(each.queue_id, each.next_offset) for each in snapshot.queues] == [(0, 6)]
    assert [each.ranges for each in snapshot.queues[0].leases] == [[2, 4]]


async def test_nothing_is_written_while_nothing_changes(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    await member.pop(4)
    pops = broker.parts.tables.pops
    await pops.persist()
    before = pops._taken_last
    await pops.persist()
    assert pops._taken_last is before
    await member.pop(4)
    await pops.persist()
    assert pops._taken_last is not before


async def test_a_lent_message_comes_again_after_its_time(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    member.invisible_ms = 50
    popped = await member.pop(3, queueId=0)
    await member.ack(popped[1])
    again: list[PoppedMessage] = []

    async def came() -> bool:
        again.extend(await member.pop(32))
        return {popped[0].text, popped[2].text} <= {each.text for each in again}

    await until(came)
    assert popped[1].text not in texts(again)


async def test_a_changed_time_takes_the_queue_back(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    popped = await member.pop(3, queueId=0)
    changed = await member.change(popped[1], 60_000)
    assert changed.code == ResponseCode.SUCCESS
    assert KEYS[0] not in lent(broker)
    await member.ack_all(popped)
    assert offset_of(broker) == 5


async def test_an_offset_that_somebody_sets_counts_with_the_next_pop(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    fields = {"consumerGroup": GROUP, "topic": "T", "queueId": 0, "commitOffset": 10}
    await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    popped = await member.pop(1, queueId=0)
    assert popped[0].receipt.queue_offset == 10


async def test_an_offset_of_a_fast_pull_counts_with_the_next_pop(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    fields = {"consumerGroup": GROUP, "commitOffset": 12, "sysFlag": 5}
    await peer.pull("T", 0, offset=12, **fields)
    popped = await member.pop(1, queueId=0)
    assert popped[0].receipt.queue_offset == 12


async def test_a_topic_that_is_deleted_takes_what_is_lent_with_it(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    popped = await member.pop(3)
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await member.ack(popped[0])).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await member.ask(1)).code == ResponseCode.TOPIC_NOT_EXIST
    assert lent(broker) == []
    assert table_of(broker).out == 0


async def test_no_more_is_lent_than_may_be_out(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    table = table_of(broker)
    reserved = sum(table._lending.reserved.values())
    assert reserved == (2 * (SPACE_MIN + 1) if table.lends else 0)
    key = QueueKey(GROUP, "U", 0)
    assert table.capacity(key) == 32
    assert len(lent(broker)) == (2 if table.lends else 0)
    table._by_group[GROUP] += table.limits.of_group - reserved
    assert table.capacity(key) == (32 if table.lends else 0)
    assert lent(broker) == []
    table._by_group[GROUP] -= table.limits.of_group - reserved
    assert len(await member.pop(3)) == 3


async def test_an_idle_queue_is_taken_back_with_the_next_write(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    popped = await member.pop(1, queueId=1)
    await broker.parts.tables.pops.persist()
    assert lent(broker) == (KEYS[1:] if table_of(broker).lends else [])
    assert (await member.ack(popped[0])).code == ResponseCode.SUCCESS
    assert len(await member.pop(1, queueId=0)) == 1


async def test_a_queue_of_many_pops_stays(peer: Peer, broker: Broker):
    member = await filled(peer, LEASES_MAX + 20, queues=1)
    await member.ack_all(await member.pop(1))
    for _ in range(LEASES_MAX + 5):
        await member.pop(1)
    before = table_of(broker).out
    popped = await member.pop(2)
    broker.parts.tables.pops.state.queues.take_back_all()
    await member.ack_all(await member.pop(1))
    assert lent(broker) == []
    assert table_of(broker).out == before + len(popped)


async def test_a_random_day_ends_alike_with_and_without_the_kernel(peer: Peer, broker: Broker):
    await filled(peer, 300)
    ends = []
    for group in ("lent", "kept"):
        member = Member(peer, group=group)
        member.invisible_ms = 600_000
        dice = random.Random(7)
        table_of(broker).take_back_all()
        table_of(broker)._lending._kernel = broker.parts.store if group == "lent" else None
        held: list[PoppedMessage] = []
        seen: list[object] = []
        for _ in range(150):
            choice = dice.random()
            queue_id = dice.randrange(2)
            if choice < 0.45:
                answer = await member.ask(dice.randrange(1, 9), queueId=queue_id)
                seen.append(plain(answer, group))
                if answer.code == ResponseCode.SUCCESS:
                    held += popped_messages(answer, "T", group)
            elif choice < 0.6 and held:
                seen.append((await member.ack(dice.choice(held))).code)
            elif choice < 0.85 and held:
                some = dice.sample(held, min(len(held), dice.randrange(1, 12)))
                seen.append((await member.ack_together(some)).code)
            elif choice < 0.93 and held:
                seen.append((await member.change(dice.choice(held), 500_000)).code)
            else:
                seen.append(sorted(table_of(broker).held_queues()) != [])
            await asyncio.sleep(0)
            seen.append([offset_of(broker, queue_id=each, group=group) for each in (0, 1)])
        out = {
            queue_id: [offset for offset, _ in queue.offsets()]
            for queue_id in (0, 1)
            if (queue := table_of(broker).queue(QueueKey(group, "T", queue_id))) is not None
        }
        ends.append((seen, out))
    assert ends[0][1] == ends[1][1]
    assert ends[0][0] == ends[1][0]


async def test_retries_are_read_beside_a_lent_queue(peer: Peer, broker: Broker):
    member = await begun(broker, peer, 60)
    member.invisible_ms = 20
    popped = await member.pop(2, queueId=0)
    retries = pop_retry_topic("T", GROUP)
    await until(lambda: broker.parts.store.queue_bounds(retries, 0)[1] == 2)
    member.invisible_ms = 60_000
    again = await member.drain(rounds=99)
    assert {each.text for each in popped} <= {each.text for each in again}


async def test_a_queue_that_is_popped_in_order_is_lent_no_more(peer: Peer, broker: Broker):
    member = await begun(broker, peer)
    popped = await member.pop(3, queueId=0, order="true")
    assert texts(await member.pop(32, queueId=0)) == []
    await member.ack_all(popped)
    assert len(await member.pop(32, queueId=0)) == 15
