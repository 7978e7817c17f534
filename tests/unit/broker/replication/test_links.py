"""The two ends of replication without sockets: what is sent, counted, compared and refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.replication.master import LogRange, Replicated, SlaveLink
from kerolox.broker.replication.slave import COMPARED_BYTES, MasterLink
from kerolox.broker.replication.wire import ReplicationError, ReplicationSettings

from .memory_log import FILE_SIZE, MemoryLog

SETTINGS = ReplicationSettings(heartbeat_ms=100, housekeeping_ms=400, batch_bytes=300)


def report(*offsets: int) -> bytes:
    return struct.pack(f">{len(offsets)}q", *offsets)


def frame(offset: int, body: bytes = b"") -> bytes:
    return struct.pack(">qi", offset, len(body)) + body


def of_master(reported: int, log: LogRange) -> SlaveLink:
    link = SlaveLink(SETTINGS, FILE_SIZE, 0)
    link.received(report(reported), log, 0)
    return link


def of_slave(log: MemoryLog) -> MasterLink:
    return MasterLink(log, FILE_SIZE, SETTINGS, 0)


def moved(master: MemoryLog, link: SlaveLink) -> bytes:
    """What the master sends until the slave has all."""
    sent = b""
    while (part := link.transfer(master.max_physical_offset)) is not None:
        sent += link.sent(part[1], 0) + master.read_log(*part)
    return sent


@pytest.mark.parametrize(
    ("reported", "log", "position"),
    [
        (0, LogRange(0, 2_500), 2_000),
        (0, LogRange(0, 999), 0),
        (0, LogRange(2_000, 3_000), 3_000),
        (1, LogRange(0, 2_500), 1),
        (2_500, LogRange(1_000, 2_500), 2_500),
        (1_000, LogRange(1_000, 2_500), 1_000),
    ],
)
def test_the_first_report_says_where_the_master_begins(reported, log, position) -> None:
    assert of_master(reported, log).position == position


@pytest.mark.parametrize(
    ("reported", "words"), [(2_501, "reaches 2501"), (999, "begins at 1000"), (-1, "no slave")]
)
def test_a_slave_of_another_log_is_refused(reported: int, words: str) -> None:
    with pytest.raises(ReplicationError, match=words):
        of_master(reported, LogRange(1_000, 2_500))


def test_a_slave_that_reports_more_than_it_was_sent_is_refused() -> None:
    link = of_master(100, LogRange(0, 500))
    link.sent(50, 0)
    link.received(report(150), LogRange(0, 500), 0)
    assert link.acknowledged == 150
    with pytest.raises(ReplicationError, match="no more than 150"):
        link.received(report(151, 100), LogRange(0, 500), 0)


def test_an_acknowledgement_never_goes_back() -> None:
    link = of_master(300, LogRange(0, 500))
    link.received(report(200), LogRange(0, 500), 0)
    assert link.acknowledged == 300


def test_no_frame_crosses_the_end_of_a_file_or_is_larger_than_a_batch() -> None:
    link = of_master(100, LogRange(0, 2_050))
    cuts = []
    while (part := link.transfer(2_050)) is not None:
        cuts.append(part)
        link.sent(part[1], 0)
    assert cuts[:4] == [(100, 300), (400, 300), (700, 300), (1_000, 300)]
    assert all(at // FILE_SIZE == (at + size - 1) // FILE_SIZE for at, size in cuts)
    assert sum(size for _, size in cuts) == 1_950


def test_the_master_sends_heartbeats_and_ends_silent_connections() -> None:
    link = of_master(100, LogRange(0, 100))
    assert (link.heartbeat(99), link.heartbeat(100), link.heartbeat(150)) == (b"", frame(100), b"")
    link.check(400)
    with pytest.raises(ReplicationError, match="haHousekeepingInterval is 400"):
        link.check(401)
    unheard = SlaveLink(SETTINGS, FILE_SIZE, 0)
    assert unheard.heartbeat(100) == b""
    assert unheard.transfer(10) is None


def test_any_slave_is_enough_and_one_far_behind_is_none() -> None:
    replicated = Replicated(behind_max=100)
    near, far = of_master(300, LogRange(0, 500)), of_master(200, LogRange(0, 500))
    assert not replicated.is_available(0)
    replicated.add(SlaveLink(SETTINGS, FILE_SIZE, 0))
    assert not replicated.is_available(0), "it has not said where it stands"
    for link in (far, near):
        replicated.add(link)
    assert replicated.note(near)
    assert not replicated.note(far)
    assert (replicated.offset, replicated.slaves) == (300, 2)
    assert replicated.is_available(399)
    assert not replicated.is_available(400)
    replicated.remove(near)
    assert (replicated.offset, replicated.slaves) == (300, 1)


def test_an_empty_slave_begins_where_the_master_does() -> None:
    log = MemoryLog()
    link = of_slave(log)
    assert link.start() == report(0)
    assert link.received(frame(2_000), 0) == report(2_000)
    assert link.received(frame(2_000, b"ab\ncd"), 0) == report(2_003)
    assert (log.begin, bytes(log.data)) == (2_000, b"ab\n")
    assert link.received(frame(2_005, b"e\n"), 0) == report(2_007)


def test_a_slave_compares_the_end_of_its_log_before_it_appends() -> None:
    log = MemoryLog(0, b"one\ntwo\n")
    link = of_slave(log)
    assert link.start() == report(1)
    assert link.received(frame(1, b"ne\n"), 0) == report(4)
    assert link.received(frame(4, b"two\nthree\n"), 0) == report(14)
    assert bytes(log.data) == b"one\ntwo\nthree\n"


def test_logs_that_differ_are_left_as_they_are() -> None:
    log = MemoryLog(0, b"one\ntwo\n")
    link = of_slave(log)
    with pytest.raises(ReplicationError, match="written by two masters"):
        link.received(frame(1, b"ne\ntoo\nfour\n"), 0)
    assert bytes(log.data) == b"one\ntwo\n"


def test_a_slave_asks_for_nothing_before_its_last_file() -> None:
    log = MemoryLog(1_000, b"x" * 1_100)
    assert of_slave(log).start() == report(2_000)
    long = MasterLink(MemoryLog(0, b"x" * 200_000), 1 << 20, SETTINGS, 0)
    assert long.start() == report(200_000 - COMPARED_BYTES)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(9, b"x"), "goes on at 9, and 1 comes next"),
        (frame(0), "goes on at 0"),
        (b"HTTP/1.1 400 Bad Request", "goes on at|frame of"),
        (struct.pack(">qi", 1, -1), "frame of -1 bytes"),
        (struct.pack(">qi", -1, 1), "no RocketMQ broker"),
        (frame(1, b"ne\n\0"), "refused: no record"),
    ],
)
def test_a_slave_ends_a_connection_that_makes_no_sense(data: bytes, words: str) -> None:
    log = MemoryLog(0, b"one\n")
    with pytest.raises(ReplicationError, match=words):
        of_slave(log).received(data, 0)
    assert bytes(log.data) == b"one\n"


def test_a_slave_reports_now_and_then_and_ends_silent_connections() -> None:
    link = of_slave(MemoryLog(0, b"one\n"))
    assert (link.tick(99), link.tick(100), link.tick(199)) == (b"", report(1), b"")
    with pytest.raises(ReplicationError, match="sent nothing for 401 ms"):
        link.tick(401)


lines = st.binary(max_size=40).map(
    lambda line: line.replace(b"\0", b"").replace(b"\n", b"") + b"\n"
)


@given(st.lists(lines, max_size=80), st.integers(0, 80), st.lists(st.integers(1, 400)))
def test_a_slave_gets_its_masters_log_however_the_stream_is_cut(written, known, cuts) -> None:
    master = MemoryLog(0, b"".join(written))
    slave = MemoryLog(0, b"".join(written[:known]))
    low, high = of_slave(slave), SlaveLink(SETTINGS, FILE_SIZE, 0)
    log = LogRange(0, master.max_physical_offset)
    high.received(low.start(), log, 0)
    stream = moved(master, high)
    for size in [*cuts, len(stream)]:
        part, stream = stream[:size], stream[size:]
        answer = low.received(part, 0)
        high.received(answer[:3], log, 0)
        high.received(answer[3:], log, 0)
    assert bytes(master.data).endswith(bytes(slave.data))
    if slave.data:
        assert slave.max_physical_offset == high.acknowledged == log.end


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_no_bytes_of_a_peer_raise_anything_but_our_error(chunks: list[bytes]) -> None:
    log = MemoryLog(0, b"one\n")
    for end in (of_slave(log), SlaveLink(SETTINGS, FILE_SIZE, 0)):
        try:
            for chunk in chunks:
                if isinstance(end, MasterLink):
                    end.received(chunk, 0)
                else:
                    end.received(chunk, LogRange(0, 4), 0)
        except ReplicationError:
            pass
    assert bytes(log.data).startswith(b"one\n")
