from __future__ import annotations

import json

import pytest

from kerolox.client.core.consuming.offsets import (
    Lookup,
    OffsetTable,
    Start,
    decode_local_offsets,
    encode_local_offsets,
    start_position,
)
from kerolox.errors import ClientError
from kerolox.message import ConsumeFromWhere, MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def test_an_increase_only_update_never_goes_back() -> None:
    table = OffsetTable()
    assert table.read(Q0) == -1
    for offset, increase_only, expected in ((5, True, 5), (3, True, 5), (3, False, 3)):
        table.update(Q0, offset, increase_only=increase_only)
        assert table.read(Q0) == expected


def test_queues_that_are_not_owned_are_forgotten() -> None:
    table = OffsetTable()
    table.update(Q0, 1, increase_only=True)
    table.update(Q1, 2, increase_only=True)
    assert table.owned([Q1]) == {Q1: 2}
    assert list(table) == [(Q1, 2)]
    table.remove(Q1)
    assert len(table) == 0


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
@pytest.mark.parametrize("topic", ["T", "%RETRY%g"])
def test_a_stored_offset_decides(where: ConsumeFromWhere, topic: str) -> None:
    assert start_position(topic, 7, where) == Start(Lookup.NOTHING, 7)
    assert start_position(topic, 0, where) == Start(Lookup.NOTHING, 0)


@pytest.mark.parametrize(
    ("topic", "where", "expected"),
    [
        ("T", FIRST, Start(Lookup.NOTHING, 0)),
        ("T", LAST, Start(Lookup.MAX_OFFSET)),
        ("T", TIMESTAMP, Start(Lookup.OFFSET_BY_TIME)),
        ("%RETRY%g", FIRST, Start(Lookup.NOTHING, 0)),
        ("%RETRY%g", LAST, Start(Lookup.NOTHING, 0)),
        ("%RETRY%g", TIMESTAMP, Start(Lookup.MAX_OFFSET)),
    ],
)
def test_without_one_the_groups_choice_decides(
    topic: str, where: ConsumeFromWhere, expected: Start
) -> None:
    assert start_position(topic, -1, where) == expected


def test_local_offsets_are_written_with_queues_as_keys_and_read_again() -> None:
    offsets = {Q0: 5, Q1: 0}
    text = encode_local_offsets(offsets)
    assert decode_local_offsets(text) == offsets
    assert b'{"brokerName":"b","queueId":0,"topic":"T"}:5' in text.replace(b"\n", b"").replace(
        b"\t", b""
    )
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_what_a_java_client_wrote_is_read() -> None:
    text = (
        b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n'
        b'\t\t\t"topic":"T"\n\t\t}:12\n\t}\n}'
    )
    assert decode_local_offsets(text) == {Q1: 12}


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"offsetTable":{"x":1}}', b'{"offsetTable":{{'])
def test_unreadable_local_offsets_are_an_error(text: bytes) -> None:
    with pytest.raises(ClientError):
        decode_local_offsets(text)
