"""Synchronous flush: answers wait for the disk, in groups, and not for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol.codes import SerializeType
from tests.support.stores.bench import NOW, Bench, commands, properties, pull, send, send_batch

TIMEOUT = 5_000


@pytest.fixture
def bench(closed_bench: Bench) -> Bench:
    closed_bench.open(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=TIMEOUT)
    return closed_bench


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_the_answer_comes_when_the_record_is_on_disk(bench: Bench, encoding: SerializeType) -> None:
    wire = bench.connect()
    answers, cold, flags, _ = wire.feed(send(b"1", opaque=1, encoding=encoding))
    assert (answers, cold, flags) == (b"", [], 0)
    ready = bench.wait_ready()
    assert bench.store.flushed_offset == bench.store.max_physical_offset
    ((answer,),) = ready.values()
    assert list(ready) == [wire.connection_id]
    assert (answer.code, answer.opaque, answer.serialize_type) == (0, 1, encoding)
    assert answer.ext_fields["msgId"].endswith("0" * 16)


def test_the_answer_is_the_one_of_asynchronous_flush(
    bench: Bench, kernel: Any, tmp_path: Path, closing: list[Bench]
) -> None:
    plain = Bench(kernel, tmp_path / "plain")
    closing.append(plain)
    plain.open()
    frames = [send(b"1", opaque=1), send_batch([(0, b"2", b""), (0, b"3", b"")], opaque=2, e=1)]
    wanted, _, _, _ = plain.connect().feed(*frames)
    wire = bench.connect()
    wire.feed(*frames)
    data = b""
    while len(data) < len(wanted):
        bench.wait_notified()
        data += b"".join(frames for _, frames in bench.store.drain_ready())
    assert data == wanted


def test_one_chunk_is_answered_whole_and_every_connection_gets_its_own(bench: Bench) -> None:
    wires = [bench.connect() for _ in range(3)]
    for index, wire in enumerate(wires):
        wire.feed(*(send(opaque=10 * index + i, e=i) for i in range(4)))
    found: dict[int, list[int]] = {}
    while sum(map(len, found.values())) < 12:
        for connection_id, answers in bench.wait_ready().items():
            found.setdefault(connection_id, []).extend(answer.opaque for answer in answers)
    assert found == {
        wire.connection_id: [10 * index + i for i in range(4)] for index, wire in enumerate(wires)
    }


@pytest.mark.parametrize("wait", ["false", "FALSE", "no"])
def test_a_producer_that_does_not_wait_is_answered_at_once(bench: Bench, wait: str) -> None:
    answers, _, _, _ = bench.connect().feed(
        send(opaque=1, i=properties(WAIT=wait)),
        send_batch([(0, b"2", b"")], opaque=2, i=properties(WAIT=wait)),
    )
    assert [answer.opaque for answer in commands(answers)] == [1, 2]


def test_a_producer_that_waits_explicitly_waits(bench: Bench) -> None:
    wire = bench.connect()
    answers, _, _, _ = wire.feed(send(i=properties(WAIT="TRUE")))
    assert answers == b""
    assert bench.wait_ready()


def test_oneway_sends_are_flushed_too_and_nobody_is_answered(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send(oneway=True), send_batch([(0, b"2", b"")], oneway=True))
    while bench.store.flushed_offset < bench.store.max_physical_offset:
        bench.wait_notified()
    assert bench.drain_ready() == {}


def test_a_record_can_be_pulled_before_it_is_on_disk(bench: Bench) -> None:
    answers, _, _, _ = bench.connect().feed(send(b"1"), pull(opaque=2))
    (answer,) = commands(answers)
    assert (answer.opaque, answer.code) == (2, 0)


@pytest.mark.parametrize("encoding", list(SerializeType), ids=lambda kind: kind.name)
def test_a_flush_that_takes_too_long_is_answered_with_code_10(
    bench: Bench, encoding: SerializeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = bench.connect()
    # The clock jumps between the two calls; the flush of so much is hardly ever faster than that.
    frames = [send(bytes(30_000), opaque=7, encoding=encoding)] * 16
    for _ in range(200):
        wire.feed(*frames)
        bench.store.tick(NOW + TIMEOUT)
        answers = [answer for found in bench.drain_ready().values() for answer in found]
        if any(answer.code == 10 for answer in answers):
            break
    late = next(answer for answer in answers if answer.code == 10)
    assert (late.opaque, late.remark, late.serialize_type) == (7, None, encoding)
    assert list(late.ext_fields) == ["MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset"]
    assert late.ext_fields["queueId"] == "0"


def test_before_the_deadline_nothing_is_late(bench: Bench) -> None:
    wire = bench.connect()
    wire.feed(send())
    bench.store.tick(NOW + TIMEOUT - 1)
    answers = [answer for found in bench.drain_ready().values() for answer in found]
    while not answers:
        answers = [answer for found in bench.wait_ready().values() for answer in found]
    assert [answer.code for answer in answers] == [0]


def test_a_closed_connection_gets_no_answer(bench: Bench) -> None:
    gone, stays = bench.connect(), bench.connect()
    gone.feed(send(opaque=1))
    stays.feed(send(opaque=2))
    gone.connection.close()
    assert list(bench.wait_ready()) == [stays.connection_id]


def test_the_broker_can_ask_for_a_flush(bench: Bench) -> None:
    appended = bench.append()
    bench.store.request_flush(appended[1] + appended[3])
    while bench.store.flushed_offset < bench.store.max_physical_offset:
        bench.wait_notified()
