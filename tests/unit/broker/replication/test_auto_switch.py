"""``auto_switch_of_java/`` holds what stores of RocketMQ 5.3.3 sent to each other: ``slave.bin`` an
empty slave with broker id 2, ``master.bin`` a master that wrote two records in epoch 1 and fourteen
in epoch 3, in files of 4,096 bytes and frames of 700 at most."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.replication.auto_switch import (
    FrameHead,
    MasterHandshake,
    MasterMessages,
    SlaveHandshake,
    SlaveMessages,
    encode_report,
)
from kerolox.broker.replication.wire import HELLO, Piece, ReplicationError
from kerolox.protocol.controller import EPOCHS_MAX
from kerolox.store.log.epochs import EpochStart, EpochTable

OF_JAVA = Path(__file__).with_name("auto_switch_of_java")
MASTER = (OF_JAVA / "master.bin").read_bytes()
SLAVE = (OF_JAVA / "slave.bin").read_bytes()
SECOND = EpochStart(3, 584)
"""Where the second of the master's epochs begins."""


def test_a_slave_of_rocketmq_is_understood_and_spoken_like() -> None:
    messages = SlaveMessages().feed(SLAVE)
    assert messages[0] == SlaveHandshake(2)
    reports = [each for each in messages[1:] if isinstance(each, int)]
    assert reports[-1] == 4680
    spoken = SlaveHandshake(2).encode() + b"".join(map(encode_report, reports))
    assert spoken == SLAVE


def test_a_master_of_rocketmq_is_understood_and_spoken_like() -> None:
    handshake, *rest = MasterMessages().feed(MASTER)
    assert isinstance(handshake, MasterHandshake)
    assert handshake.end == 4680
    assert handshake.epochs.starts == [(1, 0), SECOND]
    spoken, at = handshake.encode(), 0
    for each in rest:
        assert each.offset == at
        if isinstance(each, FrameHead):
            # The first frame is of epoch 1, and RocketMQ names the next one there.
            assert each.part == SECOND
            assert each.confirmed == 4680
            assert at + each.size <= at - at % 4096 + 4096
            spoken += each.encode()
        elif isinstance(each, Piece):
            spoken += bytes(each.data)
            at += len(each.data)
    assert at == 4680
    assert spoken == MASTER


def test_flags_of_a_slave_are_one_for_true() -> None:
    flagged = SlaveHandshake(7, from_last_file=True, is_learner=True)
    assert flagged.encode() == struct.pack(">ihhq", 1, 1, 1, 7)
    assert SlaveMessages().feed(flagged.encode()) == [flagged]
    assert SlaveMessages().feed(struct.pack(">ihhq", 1, 2, -1, 7)) == [SlaveHandshake(7)]


@given(st.lists(st.integers(0, len(MASTER)), max_size=8))
def test_messages_may_come_cut_anywhere(cuts: list[int]) -> None:
    whole = _told(MasterMessages().feed(MASTER))
    messages, found = MasterMessages(), []
    for begin, end in _parts(cuts, len(MASTER)):
        found += messages.feed(MASTER[begin:end])
    assert _told(found) == whole
    reports, read = SlaveMessages(), []
    for begin, end in _parts(cuts, len(SLAVE)):
        read += reports.feed(SLAVE[begin:end])
    assert read == SlaveMessages().feed(SLAVE)


def _parts(cuts: list[int], size: int) -> list[tuple[int, int]]:
    ends = sorted(min(each, size) for each in cuts)
    return list(zip([0, *ends], [*ends, size], strict=True))


def _told(messages: list[MasterHandshake | FrameHead | Piece]) -> list[object]:
    """The same for the same bytes, however they came."""
    told: list[object] = []
    for each in messages:
        if isinstance(each, MasterHandshake):
            told.append((each.end, each.epochs.starts))
        elif isinstance(each, FrameHead):
            told.append(each)
        else:
            told += enumerate(each.data, each.offset)
    return told


def test_a_master_without_epochs_and_records_is_one() -> None:
    empty = MasterHandshake(0, EpochTable())
    waits = FrameHead(-1, 0, EpochStart(-1, 0), -1)
    handshake, head = MasterMessages().feed(empty.encode() + waits.encode())
    assert isinstance(handshake, MasterHandshake)
    assert (handshake.end, handshake.epochs.starts) == (0, [])
    assert head == waits


def frame(size: int, offset: int, start: int) -> bytes:
    return struct.pack(">iiqiqq", 2, size, offset, 1, start, 0)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"HTTP/1.1 400", "begins a message with 1213486160: it has no controller"),
        (struct.pack(">iiqi", 1, 13, 0, -1), "in 13 bytes"),
        (struct.pack(">iiqi", 1, -12, 0, -1), "in -12 bytes"),
        (struct.pack(">iiqi", 1, (EPOCHS_MAX + 1) * 12, 0, -1), f"it has {EPOCHS_MAX} at most"),
        (struct.pack(">iiqi", 1, 0, 0, 4), "epoch 4 .* its last epoch is -1"),
        (struct.pack(">iiqi", 1, 0, -1, -1), "a log that ends at -1"),
        (struct.pack(">iiqiiqiq", 1, 24, 9, 2, 2, 0, 2, 5), "epochs can't be: epoch 2"),
        (frame(-1, 0, 0), "a frame of -1 bytes at 0"),
        (frame(5, -1, 0), "a frame of 5 bytes at -1, of epoch 1 from 0 on"),
        (frame(5, 7, 13), "from 13 on"),
        (frame(5, 7, -1), "from -1 on"),
        (frame(5, (1 << 63) - 1, 0), "a frame of 5 bytes"),
    ],
)
def test_what_no_master_sends_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ReplicationError, match=fault):
        MasterMessages().feed(data)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        # One without a controller reports at once, and one of ours begins with HELLO.
        (bytes(8), "it begins a message with 0"),
        (HELLO, "begins a message with -1: it is no slave, or one without a controller"),
        (struct.pack(">ihhq", 1, 0, 0, -2), "tells -2"),
        (struct.pack(">iq", 2, -1), "tells -1"),
    ],
)
def test_what_no_slave_sends_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ReplicationError, match=fault):
        SlaveMessages().feed(data)
