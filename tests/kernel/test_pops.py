"""Pops by the state machine on a store of either kernel: what its reads give is what it needs."""

from __future__ import annotations

from kerolox.broker.pop.copies import copy_target, kind_of, normal_topic
from kerolox.broker.pop.leases import AckOutcome, Instant, QueueKey
from kerolox.broker.pop.sequence import queues_to_read
from kerolox.broker.pop.snapshot import PopSnapshot, StoredQueue, restore, take
from kerolox.broker.pop.state import PopState
from kerolox.message import MessageExt, PropertyKey, encode_properties, tags_code
from kerolox.protocol.pop import (
    PoppedBatch,
    PopReceipt,
    batches_from_texts,
    msg_offset_info,
    popped_record,
    start_offset_info,
)
from kerolox.protocol.pop_names import POP_MESSAGES_MAX, TopicKind
from kerolox.protocol.records import decode_records
from tests.support.stores.bench import Bench

GROUP, BROKER, INVISIBLE = "G", "b", 60_000
KEY = QueueKey(GROUP, "T", 0)


class Popper:
    """What a broker does around the state machine, as far as it has no requests."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.state = PopState()
        self.offsets: dict[QueueKey, int] = {}
        self.now = Instant(1_000_000, 50)

    def pass_time(self, milliseconds: int) -> None:
        self.now = Instant(self.now.wall_ms + milliseconds, self.now.steady_ms + milliseconds)

    def commit(self) -> None:
        self.offsets.update(self.state.drain_commits())

    def pop(
        self, count: int = POP_MESSAGES_MAX, *, tag: str = "", chance: int = 50
    ) -> list[tuple[MessageExt, PopReceipt]]:
        """As a client has it: from the texts and the records of the answer alone."""
        batches: list[PoppedBatch] = []
        body = b""
        pop_time = self.now.wall_ms
        kinds = {
            kind for kind in TopicKind if QueueKey(GROUP, kind.topic("T", GROUP), 0) in self.offsets
        }
        for key in queues_to_read(
            GROUP, "T", -1, queue_count=2, retry_kinds=kinds, chance=chance, is_order=False
        ):
            records, batch, pop_time = self._pop_queue(key, count, tag, pop_time)
            if batch is not None:
                count -= len(batch.offsets)
                batches.append(batch)
                body += records
        self.commit()
        return self._as_client(start_offset_info(batches), msg_offset_info(batches), body, pop_time)

    def _pop_queue(
        self, key: QueueKey, count: int, tag: str, pop_time: int
    ) -> tuple[bytes, PoppedBatch | None, int]:
        store = self.bench.store
        plan = self.state.plan(
            key,
            is_order=False,
            attempt_id=None,
            committed=self.offsets.get(key, 0),
            bounds=store.queue_bounds(key.topic, key.queue_id),
            now=self.now,
        )
        if plan is None or not count:
            return b"", None, pop_time
        codes = [tags_code(tag)] if tag and kind_of(key) is TopicKind.NORMAL else None
        read = store.read(key.topic, key.queue_id, plan.start, min(count, plan.count), codes)
        offsets = [each.queue_offset for each in decode_records(read.records)]
        end = max(read.next_offset, plan.start)
        delivered = self.state.deliver(plan, offsets, end, invisible_ms=INVISIBLE, now=self.now)
        if not offsets:
            return b"", None, pop_time
        batch = PoppedBatch(kind_of(key), key.queue_id, plan.start, tuple(offsets))
        if batch.kind is TopicKind.NORMAL:
            return read.records, batch, delivered.pop_time
        parts, at = [], 0
        for offset in offsets:
            size = int.from_bytes(read.records[at : at + 4], "big")
            receipt = self._receipt(batch, offset, delivered.pop_time)
            record = read.records[at : at + size]
            parts.append(popped_record(record, normal_topic(key), receipt.text))
            at += size
        return b"".join(parts), batch, delivered.pop_time

    def _receipt(self, batch: PoppedBatch, offset: int, pop_time: int) -> PopReceipt:
        return PopReceipt(
            batch.start_offset, pop_time, INVISIBLE, 0, batch.kind, BROKER, batch.queue_id, offset
        )

    def _as_client(
        self, starts: str, offsets: str, body: bytes, pop_time: int
    ) -> list[tuple[MessageExt, PopReceipt]]:
        normal = {
            (each.queue_id, offset): each
            for each in batches_from_texts(starts, offsets)
            if each.kind is TopicKind.NORMAL
            for offset in each.offsets
        }
        found = []
        for message in decode_records(body):
            assert message.topic == "T"
            text = message.properties.get(PropertyKey.POP_RECEIPT)
            if text is None:
                batch = normal[message.queue_id, message.queue_offset]
                receipt = self._receipt(batch, message.queue_offset, pop_time)
            else:
                receipt = PopReceipt.parse(text)
            found.append((message, receipt))
        return found

    def ack(self, receipt: PopReceipt) -> AckOutcome:
        key = QueueKey(GROUP, receipt.kind.topic("T", GROUP), receipt.queue_id)
        outcome = self.state.ack(
            key, receipt.queue_offset, receipt.pop_time, is_order=False, committed=0
        )
        self.commit()
        return outcome

    def revive(self, retry_max: int = 2) -> int:
        store = self.bench.store
        revivals = self.state.queues.expire(self.now, 100)
        for each in revivals:
            key = each.key
            read = store.read(key.topic, key.queue_id, each.offset, 1, None)
            (message,) = decode_records(read.records)
            target = copy_target(key, message.reconsume_times, retry_max)
            text = encode_properties(
                {PropertyKey.FIRST_POP_TIME: str(each.first_pop_time), **message.properties}
            )
            store.set_topic(target.topic, 1, 1, 6, True)
            self.bench.append(
                message.body,
                text,
                topic=target.topic.encode(),
                reconsume_times=message.reconsume_times + 1,
            )
            if not target.is_dead_letter:
                self.offsets.setdefault(QueueKey(GROUP, target.topic, 0), 0)
            self.state.queues.revived(each)
        self.commit()
        return len(revivals)

    def mark_of(self, key: QueueKey, offset: int) -> int:
        entry = self.bench.store.queue_entry(key.topic, key.queue_id, offset)
        return entry[0] if entry is not None else -1

    def snapshot(self) -> bytes:
        return take(self.state.queues, self.now, self.mark_of).encode()

    def start_again(self, text: bytes) -> int:
        self.state = PopState()

        def stored_of(key: QueueKey, offset: int) -> StoredQueue:
            end = self.bench.store.queue_bounds(key.topic, key.queue_id)[1]
            return StoredQueue(self.offsets.get(key, -1), end, self.mark_of(key, offset))

        return restore(self.state.queues, PopSnapshot.decode(text), self.now, stored_of)


def fill(bench: Bench, count: int = 6) -> None:
    for number in range(count):
        tag = "ab"[number // 2 % 2]
        bench.append(b"%d" % number, f"TAGS\x01{tag}", queue_id=number % 2)


def bodies(found: list[tuple[MessageExt, PopReceipt]]) -> list[bytes]:
    return sorted(message.body for message, _ in found)


def test_a_pop_reads_all_queues_and_each_message_once(bench: Bench) -> None:
    fill(bench)
    popper = Popper(bench)
    first = popper.pop(4)
    assert len(first) == 4
    assert bodies(first + popper.pop()) == [b"%d" % number for number in range(6)]
    assert popper.pop() == []


def test_what_is_acknowledged_is_committed(bench: Bench) -> None:
    fill(bench)
    popper = Popper(bench)
    for _, receipt in popper.pop():
        assert PopReceipt.parse(receipt.text) == receipt
        assert popper.ack(receipt) is AckOutcome.DONE
    assert popper.offsets == {KEY: 3, KEY._replace(queue_id=1): 3}
    popper.pass_time(INVISIBLE)
    assert popper.revive() == 0


def test_messages_with_other_tags_are_passed_over(bench: Bench) -> None:
    fill(bench)
    popper = Popper(bench)
    found = popper.pop(tag="a")
    assert bodies(found) == [b"0", b"1", b"4", b"5"]
    for _, receipt in found:
        popper.ack(receipt)
    assert popper.offsets == {KEY: 3, KEY._replace(queue_id=1): 3}
    assert popper.pop(tag="b") == []


def test_what_is_not_acknowledged_comes_again_and_is_dead_at_last(bench: Bench) -> None:
    fill(bench, 1)
    popper = Popper(bench)
    ((_, first),) = popper.pop()
    for times in (1, 2):
        popper.pass_time(INVISIBLE)
        assert popper.revive() == 1
        ((message, receipt),) = popper.pop()
        assert (message.body, message.reconsume_times) == (b"0", times)
        assert message.properties[PropertyKey.FIRST_POP_TIME] == str(first.pop_time)
        assert (receipt.kind, receipt.queue_offset) == (TopicKind.RETRY_V1, times - 1)
    assert popper.ack(first) is AckOutcome.STALE
    popper.pass_time(INVISIBLE)
    assert popper.revive() == 1
    assert popper.pop() == []
    assert bench.bodies(topic="%DLQ%G") == [b"0"]
    assert popper.offsets[QueueKey(GROUP, "%RETRY%G_T", 0)] == 2


def test_a_retry_is_acknowledged_by_the_receipt_in_its_record(bench: Bench) -> None:
    fill(bench, 1)
    popper = Popper(bench)
    popper.pop()
    popper.pass_time(INVISIBLE)
    popper.revive()
    ((_, receipt),) = popper.pop(chance=0)
    assert popper.ack(receipt) is AckOutcome.DONE
    assert popper.state.queues.out == 0


def test_what_is_out_is_out_after_a_restart_on_the_same_store(bench: Bench) -> None:
    fill(bench)
    popper = Popper(bench)
    found = popper.pop()
    text = popper.snapshot()
    bench.store.close()
    bench.open()
    popper.offsets = dict.fromkeys((KEY, KEY._replace(queue_id=1)), 0)
    assert popper.start_again(text) == 0
    assert popper.pop() == []
    assert [popper.ack(receipt) for _, receipt in found] == [AckOutcome.DONE] * 6


def test_a_topic_made_again_does_not_count_as_popped(bench: Bench) -> None:
    fill(bench)
    popper = Popper(bench)
    popper.pop()
    text = popper.snapshot()
    bench.store.delete_topic("T")
    bench.store.delete_queues("T")
    bench.store.set_topic("T", 4, 4, 6, True)
    fill(bench)
    popper.offsets = dict.fromkeys((KEY, KEY._replace(queue_id=1)), 0)
    assert popper.start_again(text) == 2
    assert len(popper.pop()) == 6
