"""Pops beside a naive model of them: a log of messages, who has which one, what is done.

Any order of sends, pops, acknowledgements, changes, copies that fail, commits of members that pull,
resets, clock steps and crashes. No message is lost. None is delivered while another one has it, nor
after it was acknowledged, except what a crash made forgotten since the last snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kerolox.broker.pop import table
from kerolox.broker.pop.copies import copy_target
from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.lending import Terms
from kerolox.broker.pop.orders import OrderFile
from kerolox.broker.pop.snapshot import PopSnapshot, StoredQueue, restore, take
from kerolox.broker.pop.state import PopState
from kerolox.broker.pop.table import STALE_ENDS_MAX, PopLimits, Revival
from kerolox.kernel.pops import LentLease
from kerolox.protocol import fastjson
from kerolox.protocol.bodies import decode_body

GROUP, TOPIC, RETRIES = "g", "T", "%RETRY%g_T"
KEYS = (QueueKey(GROUP, TOPIC, 0), QueueKey(GROUP, TOPIC, 1), QueueKey(GROUP, RETRIES, 0))
RETRY_MAX = 2
LOST = st.sampled_from([0, 0, 1, 3])
LIMITS = PopLimits(of_queue=12, of_group=20, in_all=20)


@dataclass
class Receipt:
    key: QueueKey
    offset: int
    pop_time: int
    message: int


@dataclass
class Forgotten:
    """What a crash makes the broker forget: what came after the last snapshot."""

    delivered: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)


class Keeper:
    """A kernel that keeps what it is lent as it came."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, tuple[int, int, int, Sequence[LentLease]]] = {}

    def lend_pops(
        self,
        group: str,
        topic: str,
        queue_id: int,
        committed: int,
        next_offset: int,
        space: int,
        pop_time: int,
        steady_ms: int,
        retries: tuple[int, int],
        retry_percent: int,
        broker_name: str,
        leases: Sequence[LentLease],
    ) -> bool:
        key = QueueKey(group, topic, queue_id)
        assert key not in self.queues
        assert space > 0
        self.queues[key] = committed, next_offset, pop_time, tuple(leases)
        return True

    def lent_pops(
        self, group: str, topic: str, queue_id: int, is_back: bool
    ) -> tuple[int, int, int, Sequence[LentLease]] | None:
        key = QueueKey(group, topic, queue_id)
        return self.queues.pop(key) if is_back else self.queues[key]

    def lent_counts(self) -> Sequence[tuple[str, str, int, int]]:
        return [
            (*key, sum(bits.bit_count() for _, _, bits, *_ in leases))
            for key, (*_, leases) in self.queues.items()
        ]

    def lent_changes(self) -> tuple[int, int, int]:
        ends = [each[6] for *_, leases in self.queues.values() for each in leases]
        return 0, min(ends, default=1 << 62), 0

    def lent_ended(self, now_ms: int) -> Sequence[tuple[str, str, int]]:
        return [
            key
            for key, (*_, leases) in self.queues.items()
            if any(each[6] <= now_ms for each in leases)
        ]

    def lent_renewed(self, owner: str | None, until_ms: int) -> Sequence[tuple[str, str, int]]:
        return ()


@pytest.fixture(autouse=True)
def lends_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues are lent within the small limits of these tests."""
    monkeypatch.setattr(table, "SPACE_MIN", 1)


class Pops(RuleBasedStateMachine):
    """Pops without order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PopState(LIMITS, Keeper())
        self.wall, self.steady = 1_000_000, 5_000
        self.log: dict[QueueKey, list[tuple[int, int]]] = {key: [] for key in KEYS}
        """(message, reconsumeTimes) of each record."""
        self.offsets = dict.fromkeys(KEYS, 0)
        self.disk: tuple[dict[QueueKey, int], bytes] = (dict(self.offsets), b"{}")
        self.receipts: list[Receipt] = []
        self.pending: list[Revival] = []
        self.sent = 0
        self.dead: set[int] = set()
        self.acknowledged: set[int] = set()
        self.holder_until: dict[int, int] = {}
        self.free: set[int] = set()
        """Messages of which nothing is promised but that they are not lost."""
        self.skipped: set[int] = set()
        """Messages that a reset or a member that pulls took."""
        self.since = Forgotten()
        self.clock_stepped = False
        self.is_calm = True

    @property
    def now(self) -> Instant:
        return Instant(self.wall, self.steady)

    def commit(self) -> None:
        for key, offset in self.state.drain_commits():
            assert offset >= self.offsets[key]
            self.offsets[key] = offset

    @initialize(is_calm=st.booleans())
    def it_is_calm_or_not(self, is_calm: bool) -> None:
        """Whoever sets offsets or deletes topics takes promises back: some runs are without."""
        self.is_calm = is_calm
        for place in (0, 1):
            self.send(place, 4)

    # -- what happens ---------------------------------------------------------------------------
    @rule(place=st.integers(0, 1), count=st.integers(1, 4))
    def send(self, place: int, count: int) -> None:
        for _ in range(count):
            self.log[KEYS[place]].append((self.sent, 0))
            self.sent += 1

    @rule(
        key=st.sampled_from(KEYS), count=st.integers(1, 6), invisible=st.sampled_from([1, 50, 1000])
    )
    def pop(self, key: QueueKey, count: int, invisible: int) -> None:
        plan = self.state.plan(
            key,
            is_order=False,
            attempt_id=None,
            committed=self.offsets[key],
            bounds=(0, len(self.log[key])),
            now=self.now,
        )
        if plan is None:
            assert self.state.queues.out >= LIMITS.of_queue
            return
        end = min(plan.start + min(count, plan.count), len(self.log[key]))
        offsets = list(range(plan.start, end))
        found = self.state.deliver(
            plan, offsets, max(end, plan.start), invisible_ms=invisible, now=self.now
        )
        for offset in offsets:
            message = self.log[key][offset][0]
            if message not in self.free:
                assert message not in self.acknowledged, "delivered after it was acknowledged"
                assert self.holder_until.get(message, 0) <= self.steady, "two have it"
            self.holder_until[message] = self.steady + invisible
            self.since.delivered.add(message)
            self.receipts.append(Receipt(key, offset, found.pop_time, message))
        self.commit()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        for receipt in data.draw(st.lists(st.sampled_from(self.receipts[-8:]), max_size=4)):
            self.acknowledge(receipt)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), bits=st.integers(1, 0xFFF), before=st.integers(0, 3))
    def ack_together(self, data: st.DataObject, bits: int, before: int) -> None:
        """A batch of acknowledgements, of which some may be of no message, or of other pops."""
        receipt = data.draw(st.sampled_from(self.receipts[-8:]))
        key, start = receipt.key, max(receipt.offset - before, 0)
        offsets = {start + place for place in range(12) if bits >> place & 1}
        table = self.state.queues
        queue = table.queue(key)
        out = {} if queue is None else dict(queue.offsets())
        counting = {each for each in offsets & out.keys() if out[each].is_of(receipt.pop_time)}
        done, is_illegal = self.state.ack_batch(
            key, start, bits, receipt.pop_time, is_order=False, committed=0
        )
        assert (done, is_illegal) == (len(counting), False)
        queue = table.queue(key)
        left = set() if queue is None else {offset for offset, _ in queue.offsets()}
        assert left == out.keys() - counting
        messages = {self.log[key][each][0] for each in counting}
        self.acknowledged |= messages
        self.since.settled |= messages
        self.commit()

    @rule(key=st.sampled_from(KEYS), taken=st.lists(st.booleans(), min_size=1, max_size=6))
    def messages_are_taken(self, key: QueueKey, taken: list[bool]) -> None:
        """A member pops, and acknowledges some at once."""
        before = len(self.receipts)
        self.pop(key, len(taken), 50)
        for receipt, is_done in zip(self.receipts[before:], taken, strict=False):
            if is_done:
                self.acknowledge(receipt)

    def acknowledge(self, receipt: Receipt) -> None:
        outcome = self.state.ack(
            receipt.key, receipt.offset, receipt.pop_time, is_order=False, committed=0
        )
        assert outcome is not AckOutcome.ILLEGAL
        if outcome is AckOutcome.DONE:
            self.acknowledged.add(receipt.message)
            self.since.settled.add(receipt.message)
        self.commit()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), invisible=st.sampled_from([0, 30, 2000]))
    def change(self, data: st.DataObject, invisible: int) -> None:
        receipt = data.draw(st.sampled_from(self.receipts[-12:]))
        changed = self.state.change(
            receipt.key, receipt.offset, receipt.pop_time, invisible, self.now, is_order=False
        )
        if changed is not None:
            self.holder_until[receipt.message] = self.steady + invisible
            self.since.delivered.add(receipt.message)
            self.receipts.append(
                Receipt(receipt.key, receipt.offset, changed.pop_time, receipt.message)
            )

    @rule(milliseconds=st.sampled_from([1, 40, 1000, 20_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.wall += milliseconds
        self.steady += milliseconds

    @rule(step=st.sampled_from([-3_600_000, 3_600_000]))
    def the_clock_is_set(self, step: int) -> None:
        self.wall = max(1, self.wall + step)
        self.clock_stepped = True

    @rule(count=st.integers(1, 40), failing=st.sampled_from([0, 0, 2, 3]))
    def copies_are_made(self, count: int, failing: int) -> None:
        """They are in the log, and not safe yet."""
        for number, each in enumerate(self.state.queues.expire(self.now, count)):
            message, times = self.log[each.key][each.offset]
            self.since.settled.add(message)
            if failing and number % failing == 0:
                self.state.queues.failed(each, self.now)
                continue
            target = copy_target(each.key, times, RETRY_MAX)
            if target.is_dead_letter:
                self.dead.add(message)
            else:
                self.log[KEYS[2]].append((message, times + 1))
            self.pending.append(each)
        self.commit()

    @rule(count=st.integers(1, 20))
    def copies_are_safe(self, count: int) -> None:
        for each in self.pending[:count]:
            self.state.queues.revived(each)
            # A crash before the next snapshot makes a second copy.
            self.since.settled.add(self.log[each.key][each.offset][0])
        del self.pending[:count]
        self.commit()

    @precondition(lambda self: not self.is_calm)
    @rule(key=st.sampled_from(KEYS[:2]), by=st.integers(-3, 3))
    def a_member_that_pulls_commits(self, key: QueueKey, by: int) -> None:
        offset = min(max(self.offsets[key] + by, 0), len(self.log[key]))
        pulled = {message for message, _ in self.log[key][:offset]}
        self.skipped |= pulled
        self.free |= pulled
        if not self.state.queues.has_out(key) and offset < self.offsets[key]:
            # Nothing is known of the queue: as in RocketMQ it goes back.
            self.free |= {message for message, _ in self.log[key][offset:]}
        self.offsets[key] = offset
        self.state.queues.start(key, offset)
        self.commit()

    @precondition(lambda self: not self.is_calm)
    @rule(key=st.sampled_from(KEYS), data=st.data())
    def an_operator_resets(self, key: QueueKey, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.log[key])))
        self.state.reset(key, self.now)
        self.offsets[key] = offset
        self.free |= {message for message, _ in self.log[key]}
        self.skipped |= {message for message, _ in self.log[key][:offset]}

    @precondition(lambda self: not self.is_calm)
    @rule(key=st.sampled_from(KEYS[:2]), count=st.integers(0, 4))
    def the_topic_is_made_again(self, key: QueueKey, count: int) -> None:
        """The file of offsets is written at once; that of pops is not."""
        gone = {message for message, _ in self.log[key]}
        self.skipped |= gone
        self.free |= gone
        self.state.forget(lambda each: each == key, self.now)
        self.pending = [each for each in self.pending if each.key != key]
        self.receipts = [each for each in self.receipts if each.key != key]
        self.log[key] = []
        self.offsets[key] = 0
        self.disk = {**self.disk[0], key: 0}, self.disk[1]
        self.send(KEYS.index(key), count)

    @precondition(lambda self: self.state.queues.out)
    @rule(data=st.data())
    def an_operator_releases(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.state.queues.held_queues())))
        all_held = self.state.queues.held(key, self.now, 9)
        if not all_held:
            return
        held = data.draw(st.sampled_from(all_held))
        if self.state.queues.release(key, [held.offset], self.now):
            message = self.log[key][held.offset][0]
            self.holder_until[message] = self.steady
            self.since.delivered.add(message)

    @rule()
    def a_snapshot_is_written(self) -> None:
        self.commit()
        snapshot = take(self.state.queues, self.now, self.mark_of)
        self.disk = dict(self.offsets), snapshot.encode()
        self.since = Forgotten()
        self.clock_stepped = False

    @rule(is_now=st.sampled_from([False] * 4 + [True]), is_clean=st.booleans(), lost=LOST)
    def the_broker_starts_again(self, is_now: bool, is_clean: bool, lost: int) -> None:
        """``lost``: so many records of a queue go with a crash of the machine."""
        if not is_now:
            return
        if is_clean:
            self.a_snapshot_is_written()
        elif lost:
            gone = {message for message, _ in self.log[KEYS[0]][-lost:]}
            self.skipped |= gone
            self.free |= gone
            del self.log[KEYS[0]][-lost:]
            self.pending = [each for each in self.pending if each.key != KEYS[0]]
            end = len(self.log[KEYS[0]])
            self.receipts = [r for r in self.receipts if r.key != KEYS[0] or r.offset < end]
            self.free |= {message for message, _ in self.log[KEYS[0]]}
        self.free |= self.since.delivered | self.since.settled
        self.free |= {self.log[each.key][each.offset][0] for each in self.pending}
        self.pending.clear()
        if self.clock_stepped:
            self.free.update(self.holder_until)
        self.offsets = {
            key: min(offset, len(self.log[key])) for key, offset in self.disk[0].items()
        }
        self.state = PopState(LIMITS, Keeper())
        self.steady = 7
        for message in self.holder_until:
            self.holder_until[message] -= self.steady_before - self.steady
        restore(
            self.state.queues,
            PopSnapshot.decode(self.disk[1]),
            self.now,
            lambda key, offset: StoredQueue(
                self.offsets[key], len(self.log[key]), self.mark_of(key, offset)
            ),
        )
        self.since = Forgotten()
        self.commit()

    @property
    def steady_before(self) -> int:
        return self._steady_before

    def mark_of(self, key: QueueKey, offset: int) -> int:
        return self.log[key][offset][0] if 0 <= offset < len(self.log[key]) else -1

    @rule(key=st.sampled_from(KEYS))
    def a_queue_is_lent(self, key: QueueKey) -> None:
        self.state.queues.lend(key, self.offsets[key], Terms(self.steady, (0, 0), 20))

    # -- what holds -----------------------------------------------------------------------------
    @invariant()
    def the_steady_clock_is_noted(self) -> None:
        self._steady_before = self.steady

    @invariant()
    def memory_is_bounded(self) -> None:
        table = self.state.queues
        live = 0
        for key in table.held_queues():
            queue = table.queue(key)
            assert queue is not None
            assert queue.count <= LIMITS.of_queue
            assert queue.count == len(list(queue.offsets()))
            assert len(queue._pops) <= 2 * queue.count + 16
            live += queue.count
        assert live == table.out <= LIMITS.in_all
        assert len(table._ends) <= 2 * (live + STALE_ENDS_MAX)

    @invariant()
    def each_offset_is_below_all_that_is_out(self) -> None:
        table = self.state.queues
        for key in table.held_queues():
            queue = table.queue(key)
            assert queue is not None
            assert self.offsets[key] <= min(offset for offset, _ in queue.offsets())

    def teardown(self) -> None:
        """All that was sent is acknowledged, dead, or was skipped by somebody."""
        for _ in range(60):
            for key in KEYS:
                self.pop(key, 32, 1)
            self.time_passes(20_000_000)
            for receipt in self.receipts[-40:]:
                outcome = self.state.ack(
                    receipt.key, receipt.offset, receipt.pop_time, is_order=False, committed=0
                )
                if outcome is AckOutcome.DONE:
                    self.acknowledged.add(receipt.message)
            self.copies_are_made(100, 0)
            self.copies_are_safe(1_000)
        assert self.state.queues.out == 0
        assert set(range(self.sent)) <= self.acknowledged | self.dead | self.skipped
        for key in KEYS:
            assert self.offsets[key] == len(self.log[key])


class OrderedPops(RuleBasedStateMachine):
    """Ordered pops of one queue."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PopState()
        self.wall, self.steady = 1_000_000, 5_000
        self.end = 0
        self.committed = 0
        self.disk: tuple[int, bytes, str | None] = (0, b"{}", None)
        self.receipts: list[tuple[int, int]] = []
        self.acknowledged: set[int] = set()
        self.since: set[int] = set()
        self.forgotten: set[int] = set()
        self.hidden_until: dict[int, int] = {}
        """Of the messages of the last pop that are not acknowledged."""
        self.attempt: str | None = None

    @property
    def now(self) -> Instant:
        return Instant(self.wall, self.steady)

    def commit(self) -> None:
        for _, offset in self.state.drain_commits():
            assert offset >= self.committed
            self.committed = offset

    @initialize()
    def some_messages_are_there(self) -> None:
        self.end = 5

    @rule(count=st.integers(1, 9))
    def send(self, count: int) -> None:
        self.end += count

    @rule(count=st.integers(1, 8), attempt=st.sampled_from([None, "a", "b"]))
    def pop(self, count: int, attempt: str | None = None) -> None:
        plan = self.state.plan(
            KEYS[0],
            is_order=True,
            attempt_id=attempt,
            committed=self.committed,
            bounds=(0, self.end),
            now=self.now,
        )
        if plan is None:
            return
        left = [each for each in range(plan.start, self.end) if each not in plan.done]
        offsets = left[: min(count, plan.count)]
        end = offsets[-1] + 1 if offsets else self.end
        found = self.state.deliver(
            plan, offsets, end, attempt_id=attempt, invisible_ms=100, now=self.now
        )
        if offsets:
            latest = max(self.hidden_until.values(), default=0)
            assert self.steady >= latest or attempt == self.attempt
            assert self.acknowledged.isdisjoint(offsets), "delivered after it was acknowledged"
            missed = set(range(offsets[0])) - self.acknowledged - self.forgotten
            assert not missed, "a message was passed over"
            self.hidden_until = dict.fromkeys(offsets, self.steady + 100)
            self.attempt = attempt
            self.receipts += [(each, found.pop_time) for each in offsets]
        self.commit()

    @rule(count=st.integers(1, 4))
    def pop_without_order(self, count: int) -> None:
        """Whoever gets the messages acknowledges them at once."""
        plan = self.state.plan(
            KEYS[0],
            is_order=False,
            attempt_id=None,
            committed=self.committed,
            bounds=(0, self.end),
            now=self.now,
        )
        if plan is None:
            return
        offsets = [each for each in range(plan.start, self.end) if each not in plan.done][:count]
        end = offsets[-1] + 1 if offsets else self.end
        found = self.state.deliver(plan, offsets, end, invisible_ms=100, now=self.now)
        assert self.steady >= max(self.hidden_until.values(), default=0)
        assert self.acknowledged.isdisjoint(offsets), "delivered after it was acknowledged"
        self.hidden_until, self.attempt = {}, None
        for each in offsets:
            self.state.ack(KEYS[0], each, found.pop_time, is_order=False, committed=self.committed)
        self.acknowledged.update(offsets)
        self.since.update(offsets)
        self.commit()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset, pop_time = data.draw(st.sampled_from(self.receipts[-8:]))
        outcome = self.state.ack(KEYS[0], offset, pop_time, is_order=True, committed=self.committed)
        if outcome is AckOutcome.DONE:
            self.acknowledged.add(offset)
            self.since.add(offset)
            self.hidden_until.pop(offset, None)
        self.commit()

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), invisible=st.sampled_from([0, 500]))
    def change(self, data: st.DataObject, invisible: int) -> None:
        offset, pop_time = data.draw(st.sampled_from(self.receipts[-8:]))
        if self.state.change(KEYS[0], offset, pop_time, invisible, self.now, is_order=True):
            self.hidden_until[offset] = self.steady + invisible

    @rule(milliseconds=st.sampled_from([1, 60, 700]))
    def time_passes(self, milliseconds: int) -> None:
        self.wall += milliseconds
        self.steady += milliseconds

    @rule()
    def the_file_is_written(self) -> None:
        text = fastjson.dumps_pretty(self.state.orders.snapshot())
        self.disk = self.committed, text, self.attempt
        self.since = set()

    @rule(is_clean=st.booleans())
    def the_broker_starts_again(self, is_clean: bool) -> None:
        if is_clean:
            self.the_file_is_written()
        self.acknowledged -= self.since
        self.forgotten |= self.since
        # The file lacks what is done behind the last message of a smaller pop.
        later = {each for each in self.acknowledged if each >= self.committed}
        self.state = PopState()
        self.committed = self.disk[0]
        assert self.state.orders.load(decode_body(self.disk[1], OrderFile), self.now) == 0
        known = self.state.orders.done_offsets(KEYS[0], 0)
        self.forgotten |= later - known
        self.acknowledged -= later - known
        self.hidden_until, self.since, self.attempt = {}, set(), self.disk[2]

    def teardown(self) -> None:
        """All comes, in order, and is acknowledged."""
        for _ in range(30):
            self.time_passes(700)
            self.pop(32)
            for offset, pop_time in self.receipts[-32:]:
                if (
                    self.state.ack(
                        KEYS[0], offset, pop_time, is_order=True, committed=self.committed
                    )
                    is AckOutcome.DONE
                ):
                    self.acknowledged.add(offset)
            self.commit()
        assert set(range(self.end)) <= self.acknowledged | self.forgotten
        assert self.committed == self.end


few = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPops = Pops.TestCase
TestPops.settings = few
TestOrderedPops = OrderedPops.TestCase
TestOrderedPops.settings = few


@pytest.mark.parametrize("seed", range(20))
def test_long_runs_from_a_seed_keep_what_pops_promise(seed: int) -> None:
    chance = random.Random(seed)
    pops = Pops()
    pops.is_calm = seed % 2 == 0
    for _ in range(400):
        pops.the_steady_clock_is_noted()
        key = chance.choice(KEYS)
        step = chance.randrange(14)
        if step < 3:
            pops.send(chance.randrange(2), chance.randint(1, 4))
        elif step < 7:
            taken = [chance.random() < 0.6 for _ in range(chance.randint(1, 6))]
            pops.messages_are_taken(key, taken)
        elif step < 9:
            pops.time_passes(chance.choice([1, 40, 1000]))
        elif step < 11:
            pops.copies_are_made(chance.randint(1, 9), chance.choice([0, 0, 3]))
        elif step == 11:
            pops.copies_are_safe(chance.randint(1, 9))
        elif step == 12 and pops.receipts:
            pops.acknowledge(chance.choice(pops.receipts[-12:]))
        elif chance.random() < 0.3:
            pops.the_broker_starts_again(True, chance.random() < 0.5, 0)
        elif chance.random() < 0.3:
            pops.a_snapshot_is_written()
        elif not pops.is_calm and chance.random() < 0.3:
            pops.the_topic_is_made_again(key if key in KEYS[:2] else KEYS[0], chance.randint(0, 4))
        pops.memory_is_bounded()
        pops.each_offset_is_below_all_that_is_out()
    pops.teardown()
    assert len(pops.acknowledged) > pops.sent // 4
