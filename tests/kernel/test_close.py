"""A store that closes while others hold what they read, wait for answers, or have more to say."""

from __future__ import annotations

import gc
import shutil

from kerolox.kernel.status import GetMessageStatus
from kerolox.protocol.records import decode_records
from tests.support.stores.bench import NOW, Bench, commands, holding_pull, properties, pull, send

BODIES = [bytes([number]) * 9_000 for number in range(20)]


def fill(bench: Bench) -> None:
    for body in BODIES:
        bench.append(body, "KEYS\x01k")


def test_what_was_read_stays_when_the_store_closes_and_its_files_are_gone(bench: Bench) -> None:
    fill(bench)
    bench.store.flush()
    wire = bench.connect()
    read = bench.store.read("T", 0, 0, 32, None).records
    record = bench.store.lookup(0)
    by_key = bench.store.query_key("T", "k", 32, 0, NOW + 1)[2]
    pulled, _cold, _flags, _error = wire.feed(pull(maxMsgNums=32))
    dropped = [bench.store.drop_log_file(), bench.store.drop_log_file()]
    assert None not in dropped
    bench.store.close()
    shutil.rmtree(bench.path)
    bench.store = wire = None
    gc.collect()
    assert [message.body for message in decode_records(read)] == BODIES
    assert decode_records(record)[0].body == BODIES[0]
    assert {message.body for message in decode_records(by_key)} == set(BODIES)
    answer = commands(pulled)[0]
    assert [message.body for message in decode_records(answer.body)] == BODIES


def test_a_store_closes_under_held_pulls_and_waiting_sends(closed_bench: Bench) -> None:
    bench = closed_bench
    bench.open(flush_disk_type="SYNC_FLUSH")
    held, waiting = bench.connect(), bench.connect()
    held.ask(holding_pull(queueId=3))
    for number in range(50):
        waiting.feed(send(bytes(1_000), i=properties(KEYS=f"k{number}")))
    bench.store.close()
    for wire in (held, waiting):
        wire.connection.close()
    assert bench.store.drain_ready() == []
    reopened = Bench(bench.kernel, bench.path)
    assert reopened.open().clean
    assert len(reopened.bodies()) == 50
    reopened.store.close()


def test_a_closed_store_answers_as_an_empty_one_and_deletes_nothing(bench: Bench) -> None:
    fill(bench)
    bench.store.close()
    store = bench.store
    assert (store.min_physical_offset, store.max_physical_offset) == (0, 0)
    assert (store.queues(), store.log_files(), store.drop_log_file()) == ([], [], None)
    assert (store.queue_bounds("T", 0), store.queue_end("T", 0)) == ((0, 0), -1)
    read = store.read("T", 0, 0, 32, None)
    assert (read.status, read.records) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, b"")
    assert store.lookup(0) is None
    assert store.query_key("T", "k", 32, 0, NOW + 1)[2] == b""
    assert (store.store_time("T", 0, 0), store.queue_entry("T", 0, 0)) == (-1, None)
    assert (store.delete_queues("T"), store.delete_queue("T", 0)) == (0, False)
    assert (store.expire_queue("T", 0, 8), store.expire_index()) == (0, [])
    reopened = Bench(bench.kernel, bench.path)
    assert reopened.open().clean
    assert reopened.bodies() == BODIES
    reopened.store.close()
