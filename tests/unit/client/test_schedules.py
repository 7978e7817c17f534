"""Ten thousand random schedules of the core of consumption: nothing lost, none settled twice, none
overtaken."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kerolox.client.core.consuming.flow import FlowControl, FlowLimits
from kerolox.client.core.consuming.offsets import OffsetTable
from kerolox.client.core.consuming.ordered.locks import LOCK_LIVE_MS, QueueLock
from kerolox.client.core.consuming.ordered.orderly_queue import OrderlyQueue
from kerolox.client.core.consuming.outcome import Outcome
from kerolox.client.core.consuming.process_queue import ProcessQueue
from kerolox.message import MessageExt, MessageQueue

SCHEDULES = 2_500
"""For each of the two kinds of queues."""

SHARDS = 4
QUEUE = MessageQueue("T", "a", 0)
NO_LIMITS = FlowLimits(1_000, 100, 1_000, -1, -1, -1, -1)


def message(offset: int) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"x" * (offset % 3 + 1),
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=0,
        properties={},
    )


def seeds(shard: int) -> Iterator[random.Random]:
    for seed in range(shard, SCHEDULES, SHARDS):
        yield random.Random(seed)


class Broker:
    """A queue of messages and the group's offset."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.count = chance.randrange(1, 9)
        self.committed = 0

    def pull(self, offset: int) -> tuple[list[MessageExt], int]:
        """Some messages from an offset on, and where to go on; some are filtered out."""
        until = min(self.count, offset + self.chance.randrange(1, 4))
        return [message(o) for o in range(offset, until) if o % 4 != 3], until

    @property
    def wanted(self) -> set[int]:
        return {offset for offset in range(self.count) if offset % 4 != 3}


# -- queues that are read in any order ------------------------------------------------------------
class Concurrent:
    """One assignment: pulled, given out, done with in any order."""

    def __init__(self, broker: Broker, flow: FlowControl) -> None:
        self.broker = broker
        self.queue = flow.process_queue("T")
        self.table = OffsetTable()
        self.next_offset = broker.committed
        self.ready: list[MessageExt] = []
        self.given: list[MessageExt] = []

    def pull(self) -> None:
        messages, self.next_offset = self.broker.pull(self.next_offset)
        if messages:
            self.ready += self.queue.put(messages)
        elif not len(self.queue):
            self.table.update(QUEUE, self.next_offset, increase_only=True)

    def pull_again(self) -> None:
        """A broker that answers twice, or from before."""
        messages, _ = self.broker.pull(max(self.next_offset - 2, 0))
        held = [m for m in messages if m.queue_offset < self.next_offset]
        open_offsets = {m.queue_offset for m in self.ready + self.given}
        fresh = self.queue.put([m for m in held if m.queue_offset in open_offsets])
        assert fresh == []

    def finish(self) -> list[int]:
        chance = self.broker.chance
        done = chance.sample(self.given, chance.randrange(1, len(self.given) + 1))
        self.given = [m for m in self.given if m not in done]
        offset = self.queue.remove(done)
        if offset >= 0 and not self.queue.is_dropped:
            self.table.update(QUEUE, offset, increase_only=True)
        return [m.queue_offset for m in done]

    def store(self) -> None:
        offset = self.table.read(QUEUE)
        if offset >= 0:
            unfinished = [m.queue_offset for m in self.ready + self.given]
            assert offset <= min(unfinished, default=self.broker.count)
            self.broker.committed = offset


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_schedule_of_a_process_queue_loses_a_message(shard: int) -> None:
    for chance in seeds(shard):
        broker, flow, done = Broker(chance), FlowControl(NO_LIMITS), set[int]()
        owner = Concurrent(broker, flow)
        for step in range(60):
            kind = chance.random()
            if step > 40 or kind < 0.4:
                owner.pull()
            elif kind < 0.45:
                owner.pull_again()
            elif kind < 0.5:
                if chance.random() < 0.5:
                    owner.store()
                owner.queue.drop()
                assert flow.everything.messages == 0
                late = owner  # what its listeners finish now counts no more
                owner = Concurrent(broker, flow)
                if late.given:
                    late.finish()
                    assert late.table.read(QUEUE) <= broker.count
            if owner.ready and chance.random() < 0.6:
                owner.given.append(owner.ready.pop(0))
            if owner.given and chance.random() < 0.6:
                done.update(owner.finish())
            assert flow.everything.messages == len(owner.queue)
            assert flow.everything.body_bytes == owner.queue.message_bytes
        while owner.next_offset < broker.count or owner.ready or owner.given:
            owner.pull()
            owner.given += owner.ready
            owner.ready = []
            if owner.given:
                done.update(owner.finish())
        owner.pull()
        owner.store()
        assert done == broker.wanted
        assert broker.committed == broker.count


# -- queues that are read in order ----------------------------------------------------------------
class Ordered:
    """One assignment of an ordered queue, with its lock."""

    def __init__(self, broker: Broker, locks: dict[str, object], now_ms: int) -> None:
        self.broker = broker
        self.queue = ProcessQueue()
        self.lock = QueueLock()
        self.turns = OrderlyQueue(
            self.queue,
            self.lock,
            batch_max=broker.chance.randrange(1, 4),
            reconsume_times_max=3,
            suspend_ms=100,
        )
        self.next_offset = broker.committed
        self.offset = broker.committed
        self.given: list[MessageExt] = []
        locks["owner"] = self
        self.lock.grant(now_ms)

    def finish(self, messages: list[MessageExt]) -> None:
        offset = self.queue.remove(messages)
        if offset >= 0 and not self.queue.is_dropped:
            self.offset = max(self.offset, offset)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_schedule_of_an_ordered_queue_loses_a_message_or_has_one_overtaken(shard: int) -> None:
    for chance in seeds(shard):
        broker, now_ms = Broker(chance), 0
        locks: dict[str, object] = {}
        owner = Ordered(broker, locks, now_ms)
        settled: list[int] = []
        failed_for_good: set[int] = set()
        for step in range(400):
            calm = step > 60
            now_ms += chance.randrange(1, 200)
            kind = chance.random()
            if not calm and kind < 0.05 and not owner.given:
                # Given up: no call begins, the offset is stored, then the lock goes.
                owner.turns.is_leaving = True
                assert owner.turns.next(now_ms).is_over
                broker.committed = owner.offset
                owner.queue.drop()
                owner = Ordered(broker, locks, now_ms)
            elif not calm and kind < 0.1:
                now_ms += LOCK_LIVE_MS + 1
            elif not calm and kind < 0.15:
                owner.lock.lose()
            elif calm or kind < 0.5:
                owner.lock.grant(now_ms)
            if chance.random() < 0.5:
                messages, owner.next_offset = broker.pull(owner.next_offset)
                owner.queue.put(messages)
                if not messages and not len(owner.queue):
                    owner.offset = max(owner.offset, owner.next_offset)
            if owner.given:
                _settle(owner, calm, now_ms, settled, failed_for_good)
                continue
            turn = owner.turns.next(now_ms)
            if turn.messages:
                assert owner.lock.is_valid(now_ms)
                assert turn.messages[0] is owner.queue.first
                owner.given = turn.messages
                with pytest.raises(RuntimeError):
                    owner.turns.next(now_ms)
            elif calm and owner.offset == broker.count and owner.next_offset == broker.count:
                break
        assert set(settled) | failed_for_good == broker.wanted
        assert owner.offset == broker.count
        assert len(settled) == len(set(settled))
        assert settled == sorted(settled)


def _settle(
    owner: Ordered, calm: bool, now_ms: int, settled: list[int], failed_for_good: set[int]
) -> None:
    chance, messages = owner.broker.chance, owner.given
    failed = {}
    if not calm:
        outcomes = (Outcome.nack(), Outcome.nack(delay=0.05), Outcome.dead_letter("x"))
        failed = {
            at: chance.choice(outcomes) for at in range(len(messages)) if chance.random() < 0.3
        }
    owner.given = []
    if not failed and not calm and chance.random() < 0.1:
        owner.turns.put_back()
        return
    before = {m.queue_offset: m.reconsume_times for m in messages}
    result = owner.turns.settle(messages, failed, now_ms)
    # A prefix leaves; the first that comes again, and all behind it, stay.
    left = sorted(m.queue_offset for m in [*result.done, *(m for m, _ in result.dead)])
    assert left == [m.queue_offset for m in messages[: len(left)]]
    assert all(
        m.reconsume_times == before[m.queue_offset] + 1
        for at, m in enumerate(messages[len(left) :], len(left))
        if at in failed
    )
    settled += [m.queue_offset for m in result.done]
    failed_for_good.update(m.queue_offset for m, _ in result.dead)
    owner.finish([*result.done, *(m for m, _ in result.dead)])
    if len(left) < len(messages):
        assert owner.queue.first is messages[len(left)]
        assert owner.turns.next(now_ms).wait_ms
