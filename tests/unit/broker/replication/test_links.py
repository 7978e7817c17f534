"""The two ends of replication without sockets: what is sent, counted, compared and refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.replication.comparing import DivergedError, LogGoneError
from kerolox.broker.replication.master import LogRange, SlaveLink
from kerolox.broker.replication.slave import NOTE_MS_MAX, MasterLink
from kerolox.broker.replication.waits import Replicated
from kerolox.broker.replication.wire import (
    FRAME_BYTES,
    HEAD,
    HELLO,
    NOTE_BYTES_MAX,
    READ_BYTES,
    Frames,
    Note,
    ReplicationError,
    ReplicationSettings,
)

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
    """The slave of a Java master, which does not answer."""
    link = MasterLink(log, FILE_SIZE, SETTINGS, -NOTE_MS_MAX)
    assert link.start() == HELLO
    return link


def begun(log: MemoryLog) -> tuple[MasterLink, bytes]:
    """The same, when it has said where to begin, and what it said."""
    link = of_slave(log)
    return link, link.tick(0)


def noted(log: MemoryLog, begin: int, end: int) -> tuple[MasterLink, bytes]:
    """The slave of a master of ours, and what it answers to its note."""
    link = MasterLink(log, FILE_SIZE, SETTINGS, 0)
    return link, link.received(Note(begin, end, FILE_SIZE).frame(), 0)


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
    ("reported", "words"),
    [
        (2_501, "reaches 2501"),
        (999, "begins at 1000"),
        (-2 - NOTE_BYTES_MAX, "no slave"),
        (-1 << 63, "no slave"),
    ],
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


def test_frames_to_a_slave_of_ours_end_at_multiples_of_their_size() -> None:
    file_size, end = 4 * FRAME_BYTES, 5 * FRAME_BYTES + 7
    link = SlaveLink(SETTINGS, file_size, 0)
    link.received(HELLO + report(100), LogRange(0, end), 0)
    ends = []
    while (part := link.transfer(end)) is not None:
        assert part[0] == link.position
        link.sent(part[1], 0)
        ends.append(link.position)
    assert ends == [*range(FRAME_BYTES, end, FRAME_BYTES), end]


@pytest.mark.parametrize("cut", [0, 1, HEAD.size, 5_000, HEAD.size + FRAME_BYTES - 1])
def test_a_slave_reads_large_frames_whole_wherever_it_began(cut: int) -> None:
    frames = Frames()
    stream = b"".join(frame(at * FRAME_BYTES, bytes(FRAME_BYTES)) for at in range(6))
    frames.feed(stream[:cut])
    pieces = []
    while stream[cut:]:
        size = frames.next_bytes
        assert 0 < size <= READ_BYTES
        pieces.append([piece[0] for piece in frames.feed(stream[cut : cut + size])])
        cut += size
    assert pieces[-4:] == [[at * FRAME_BYTES] for at in range(2, 6)]


def test_small_frames_of_a_java_master_are_read_together() -> None:
    frames, size = Frames(), ReplicationSettings().batch_bytes
    stream = b"".join(frame(at * size, bytes(size)) for at in range(50))
    reads = 0
    while stream:
        wanted, reads = frames.next_bytes, reads + 1
        frames.feed(stream[:wanted])
        stream = stream[wanted:]
    assert reads == -(-50 * size // FRAME_BYTES)


def test_the_master_sends_heartbeats_and_ends_silent_connections() -> None:
    link = of_master(100, LogRange(0, 100))
    assert (link.heartbeat(99), link.heartbeat(100), link.heartbeat(150)) == (b"", frame(100), b"")
    link.check(400)
    with pytest.raises(ReplicationError, match="haHousekeepingInterval is 400"):
        link.check(401)
    without_listener = SlaveLink(SETTINGS, FILE_SIZE, 0)
    assert without_listener.heartbeat(100) == b""
    assert without_listener.transfer(10) is None


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
    link, first = begun(log)
    assert first == report(0)
    assert link.received(frame(2_000), 0) == report(2_000)
    assert link.received(frame(2_000, b"ab\ncd"), 0) == report(2_003)
    assert (log.begin, bytes(log.data)) == (2_000, b"ab\n")
    assert link.received(frame(2_005, b"e\n"), 0) == report(2_007)


def test_a_slave_compares_the_end_of_its_log_before_it_appends() -> None:
    log = MemoryLog(0, b"one\ntwo\n")
    link, first = begun(log)
    assert first == report(1)
    assert link.received(frame(1, b"ne\n"), 0) == report(4)
    assert link.received(frame(4, b"two\nthree\n"), 0) == report(14)
    assert bytes(log.data) == b"one\ntwo\nthree\n"


def test_logs_that_differ_are_left_as_they_are() -> None:
    log = MemoryLog(0, b"one\ntwo\n")
    link, _ = begun(log)
    with pytest.raises(DivergedError, match="differ from 5 on: they were written by two masters"):
        link.received(frame(1, b"ne\ntoo\nfour\n"), 0)
    assert bytes(log.data) == b"one\ntwo\n"


def test_a_slave_asks_for_nothing_before_its_last_file() -> None:
    log = MemoryLog(1_000, b"x" * 1_100)
    assert begun(log)[1] == report(2_000)
    long = MasterLink(MemoryLog(0, b"x" * 200_000), 1 << 20, SETTINGS, -NOTE_MS_MAX)
    assert long.tick(0) == report(1), "there is no record that would prove anything"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(9, b"x"), "goes on at 9, and 1 comes next"),
        (frame(0), "goes on at 0"),
        (b"HTTP/1.1 400 Bad Request", "goes on at|frame of"),
        (struct.pack(">qi", 1, -1), "frame of -1 bytes"),
        (struct.pack(">qi", -2, 1), "no RocketMQ broker"),
        (struct.pack(">qi", -1, NOTE_BYTES_MAX + 1), "no RocketMQ broker"),
        (frame(-1, b"{"), "a note that is none"),
        (frame(-1, b'{"begin":"0"}'), "a note that is none"),
        (frame(-1, b'{"refused":"too late"}'), "the master refuses: too late"),
        (frame(-1, b'{"fileSize":7}'), "have 7 bytes, and those here 1000"),
        (frame(1, b"ne\n\0"), "refused: no record"),
    ],
)
def test_a_slave_ends_a_connection_that_makes_no_sense(data: bytes, words: str) -> None:
    log = MemoryLog(0, b"one\n")
    with pytest.raises(ReplicationError, match=words):
        begun(log)[0].received(data, 0)
    assert bytes(log.data) == b"one\n"


def test_a_slave_reports_now_and_then_and_ends_silent_connections() -> None:
    link, _ = begun(MemoryLog(0, b"one\n"))
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
    high = SlaveLink(SETTINGS, FILE_SIZE, 0)
    log = LogRange(0, master.max_physical_offset)
    low = MasterLink(slave, FILE_SIZE, SETTINGS, 0)
    high.received(low.received(high.received(low.start(), log, 0), 0), log, 0)
    stream = moved(master, high)
    for size in [*cuts, len(stream)]:
        part, stream = stream[:size], stream[size:]
        answer = low.received(part, 0)
        high.received(answer[:3], log, 0)
        high.received(answer[3:], log, 0)
    assert bytes(slave.data) == bytes(master.data), "an empty slave gets all files"
    if slave.data:
        assert slave.max_physical_offset == high.acknowledged == log.end


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_no_bytes_of_a_peer_raise_anything_but_our_error(chunks: list[bytes]) -> None:
    log = MemoryLog(0, b"one\n")
    for end in (begun(log)[0], of_slave(log), SlaveLink(SETTINGS, FILE_SIZE, 0)):
        try:
            for chunk in chunks:
                if isinstance(end, MasterLink):
                    end.received(chunk, 0)
                else:
                    end.received(chunk, LogRange(0, 4), 0)
        except ReplicationError:
            pass
    assert bytes(log.data).startswith(b"one\n")


@pytest.mark.parametrize(
    ("own", "begin", "end", "said"),
    [
        (MemoryLog(), 1_000, 5_000, report(0)),
        (MemoryLog(0, b"x" * 2_500), 0, 2_600, report(0)),
        (MemoryLog(1_000, b"x" * 1_500), 0, 2_600, report(1_000)),
        (MemoryLog(0, b"x" * 2_500), 2_000, 2_600, report(2_000)),
        # Nothing is left to compare.
        (MemoryLog(0, b"x" * 2_000), 2_000, 2_600, report(2_000, 2_000)),
    ],
)
def test_a_slave_of_ours_begins_where_both_logs_have_something(own, begin, end, said) -> None:
    assert noted(own, begin, end)[1] == said


def test_a_slave_of_ours_gets_the_log_from_its_begin_and_acknowledges_later() -> None:
    log = LogRange(1_000, 3_500)
    link = SlaveLink(SETTINGS, FILE_SIZE, 0)
    note = link.received(HELLO, log, 0)
    assert note == Note(1_000, 3_500, FILE_SIZE).frame()
    assert link.received(report(0), log, 0) == b""
    assert (link.position, link.acknowledged) == (1_000, -1)
    link.sent(100, 0)
    link.received(report(1_100), log, 0)
    assert link.acknowledged == 1_100


@pytest.mark.parametrize(
    "data", [HELLO * 2, HELLO + report(0) + HELLO, HELLO + report(-2) + b"x", report(0) + HELLO]
)
def test_a_message_at_a_wrong_time_ends_the_connection(data: bytes) -> None:
    link = SlaveLink(SETTINGS, FILE_SIZE, 0)
    with pytest.raises(ReplicationError, match="no slave sends"):
        link.received(data, LogRange(0, 500), 0)


@pytest.mark.parametrize(
    ("own", "begin", "end", "error", "words"),
    [
        (MemoryLog(0, b"x" * 1_500), 2_000, 2_600, LogGoneError, "ends at 1500, and the master's"),
        (MemoryLog(0, b"x" * 1_500), 0, 0, DivergedError, "nothing in common"),
        (MemoryLog(3_000, b"x" * 10), 0, 2_600, DivergedError, "nothing in common"),
    ],
)
def test_logs_without_a_common_part_are_told_of(own, begin, end, error, words) -> None:
    with pytest.raises(error, match=words):
        noted(own, begin, end)


def test_a_master_that_says_twice_that_it_has_no_more_lost_its_end() -> None:
    link, _ = begun(MemoryLog(0, b"one\ntwo\n"))
    link.received(frame(1), 0)
    link.received(frame(1, b"ne\n") + frame(4), 0)
    with pytest.raises(DivergedError, match="has nothing from 4 on"):
        link.received(frame(4), 0)
    ours, _ = noted(MemoryLog(0, b"one\ntwo\n"), 0, 4)
    ours.received(frame(0, b"one\n"), 0)
    with pytest.raises(DivergedError, match="has nothing from 4 on"):
        ours.received(frame(4), 0)


def test_a_master_that_closes_says_by_when_it_does_what_may_be_wrong() -> None:
    unasked = of_slave(MemoryLog(0, b"one\n"))
    assert "is that its haListenPort?" in str(unasked.closed())
    link, _ = begun(MemoryLog(0, b"one\n"))
    assert isinstance(link.closed(), DivergedError)
    link.received(frame(1, b"ne\n"), 0)
    assert str(link.closed()) == "the master closed the connection"


def test_a_slave_speaks_before_a_java_master_takes_it_for_dead():
    link = MasterLink(MemoryLog(0, b"ab\n"), FILE_SIZE, SETTINGS, 0)
    half = SETTINGS.housekeeping_ms // 2
    assert half < NOTE_MS_MAX
    assert link.tick(half - 1) == b""
    assert link.tick(half) == report(1)
