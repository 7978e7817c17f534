"""Texts of pops: read as they were written; arbitrary ones only ever raise our error."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.pop.java_log import ACK_TAG, CHECKPOINT_TAG, JavaReviveLog
from kerolox.protocol.bodies import BodyError
from kerolox.protocol.pop import (
    BatchAck,
    BatchAckBody,
    PoppedBatch,
    PopReceipt,
    PopTextError,
    batches_from_texts,
    msg_offset_info,
    order_count_info,
    start_offset_info,
)
from kerolox.protocol.pop_names import TopicKind

longs = st.integers(0, (1 << 63) - 1)
ints = st.integers(0, (1 << 31) - 1)
kinds = st.sampled_from(TopicKind)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1)
receipts = st.builds(
    PopReceipt, longs, longs, longs, ints, kinds, names.filter(lambda n: len(n) < 60), ints, longs
)
batches = st.lists(
    st.builds(
        PoppedBatch,
        kinds,
        ints,
        longs,
        st.lists(longs, min_size=1, max_size=4).map(tuple),
        ints,
        st.dictionaries(longs, ints, max_size=3),
    ),
    max_size=4,
    unique_by=lambda each: (each.kind, each.queue_id),
)


@given(receipts)
def test_a_receipt_is_read_as_it_was_written(receipt: PopReceipt) -> None:
    assert PopReceipt.parse(receipt.text) == receipt


@given(st.text(max_size=60) | st.lists(st.sampled_from("0 1 -1 x 99".split())).map(" ".join))
def test_arbitrary_receipts_are_read_or_refused(text: str) -> None:
    with contextlib.suppress(PopTextError):
        assert PopReceipt.parse(text).queue_id >= 0


@given(batches)
def test_the_texts_of_an_answer_are_read_as_they_were_written(found: list[PoppedBatch]) -> None:
    texts = start_offset_info(found), msg_offset_info(found), order_count_info(found)
    assert batches_from_texts(*texts) == found


@given(*[st.text("012 ;,qo%-x", max_size=20)] * 3)
def test_arbitrary_texts_of_an_answer_are_read_or_refused(a: str, b: str, c: str) -> None:
    with contextlib.suppress(PopTextError):
        batches_from_texts(a, b, c)


@given(st.integers(0, 1 << 40), st.sets(st.integers(0, 300), max_size=40))
def test_bits_of_a_batch_give_its_offsets(start: int, places: set[int]) -> None:
    offsets = sorted(start + place for place in places)
    bits = BatchAck.bits(start, offsets)
    ack = BatchAck(b=bits, c="g", it=1, pt=1, q=0, r="0", so=start, t="T")
    found = ack.bits_between(start, start + 300)
    assert [start + bit for bit in range(301) if found >> bit & 1] == offsets
    body = BatchAckBody(acks=[ack])
    assert BatchAckBody.decode(body.encode()) == body


points = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.lists(st.integers(0, 9), unique=True)),
    max_size=5,
    unique_by=lambda each: each[:2],
)


@given(points, st.data())
def test_of_a_java_log_comes_what_was_not_acknowledged(
    pops: list[tuple[int, int, list[int]]], data: st.DataObject
) -> None:
    records: list[tuple[str, dict[str, object]]] = []
    expected = set()
    for queue, start, distances in pops:
        pop = {"c": "g", "t": "T", "q": queue, "so": start, "pt": 7, "bn": "b"}
        point = {**pop, "it": 5, "bm": 0, "n": len(distances), "d": sorted(distances)}
        records.append((CHECKPOINT_TAG, point))
        for distance in distances:
            if data.draw(st.booleans()):
                records.append((ACK_TAG, {**pop, "ao": start + distance}))
            else:
                expected.add((queue, start, start + distance))
    log = JavaReviveLog()
    drawn = data.draw(st.permutations(records))
    for tag, body in sorted(drawn, key=lambda each: each[0] != CHECKPOINT_TAG):
        log.read(tag, json.dumps(body).encode())
    found = [(each.key.queue_id, each.offset) for each in log.revivals()]
    assert sorted(found) == sorted((queue, offset) for queue, _, offset in expected)
    assert log.unread == 0


@given(st.binary(max_size=80))
def test_arbitrary_bodies_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(BodyError):
        BatchAckBody.decode(body)
