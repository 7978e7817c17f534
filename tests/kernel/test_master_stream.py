"""A connection that the native kernel reads: what the link would do with the same bytes."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kerolox._pykernel as reference
from kerolox.broker.replication.wire import HEAD, NOTE_OFFSET, REPORT, Note
from kerolox.kernel.choice import load_kernel
from kerolox.kernel.read import STREAM_CLOSED, STREAM_OTHER, STREAM_TIME
from kerolox.kernel.values import StreamPosition
from tests.kernel.test_raw_log import Pair, fill, raw
from tests.kernel.test_same_store import SETTINGS, check
from tests.support.kernels import KERNELS
from tests.support.stores.bench import Bench, files

pytestmark = pytest.mark.skipif("native" not in KERNELS, reason="there is no native kernel")

FRAME_BYTES, READ_BYTES = 4_096, 5_000
SECONDS = 30.0
PART = 40_000
"""Bytes with several records."""


@dataclass
class Reading:
    """A slave's stream, and the master's end of its connection."""

    slave: Bench
    stream: Any
    master_end: socket.socket

    def reports(self, last: int) -> list[int]:
        """What was reported, up to a report of ``last``."""
        data = b""
        while not data.endswith(REPORT.pack(last)):
            data += self.master_end.recv(1 << 16)
        return [number for (number,) in REPORT.iter_unpack(data)]


@pytest.fixture
def pair(tmp_path: Path, closing: list[Bench]) -> Pair:
    """A master with records in several files, and a native slave that is empty."""
    master = Bench(reference, tmp_path / "master")
    slave = Bench(load_kernel("native"), tmp_path / "slave")
    for bench in (master, slave):
        closing.append(bench)
        bench.open(**SETTINGS)
    fill(master, random.Random(7), 200)
    return master, slave


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The slave's end of a connection, which does not block, and the master's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        slave = socket.create_connection(server.getsockname())
        master = server.accept()[0]
    slave.setblocking(False)
    master.settimeout(SECONDS)
    with slave, master:
        yield slave, master


def reading(
    slave: Bench, ends: tuple[socket.socket, socket.socket], left: int = 0, rest: bytes = b""
) -> Reading:
    end = slave.store.max_physical_offset
    stream_position = StreamPosition(end, end, left, end, rest)
    stream = slave.store.read_master(ends[0].fileno(), stream_position, FRAME_BYTES, READ_BYTES)
    return Reading(slave, stream, ends[1])


def framed(data: bytes, source: random.Random, at: int = 0) -> bytes:
    """A log as frames of any size, with heartbeats between them."""
    sent, begin = b"", at
    while at - begin < len(data):
        if source.random() < 0.3:
            sent += HEAD.pack(at, 0)
        body = data[at - begin :][: source.choice((1, 11, 12, 13, 700, 4_096, 9_000))]
        sent += HEAD.pack(at, len(body)) + body
        at += len(body)
    return sent


def test_only_the_native_kernel_reads_connections(pair: Pair, ends: Any) -> None:
    master, slave = pair
    stream_position = StreamPosition(0, 0, 0, 0, b"")
    assert (
        master.store.read_master(ends[0].fileno(), stream_position, FRAME_BYTES, READ_BYTES) is None
    )
    with pytest.raises(OSError, match="closed"):
        slave.store.read_master(-1, stream_position, FRAME_BYTES, READ_BYTES)


@pytest.mark.parametrize("seed", range(3))
def test_a_log_is_appended_and_reported_however_it_is_cut(pair: Pair, ends: Any, seed: int) -> None:
    master, slave = pair
    source = random.Random(seed)
    log = raw(master)
    sent = framed(log, source)
    there = reading(slave, ends)

    def send() -> None:
        at = 0
        while at < len(sent):
            size = source.choice((1, 5, 30, 3_000, 20_000))
            there.master_end.sendall(sent[at : at + size])
            at += size
        there.master_end.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    while (pause := there.stream.follow(0.001)) == STREAM_TIME:
        pass
    sender.join()
    assert pause == STREAM_CLOSED
    assert there.stream.has_received()
    assert not there.stream.has_received()
    assert there.stream.stream_position() == StreamPosition(len(log), len(log), 0, len(log), b"")
    reports = there.reports(len(log))
    assert reports == sorted(set(reports))
    for bench in pair:
        bench.wait_indexed()
        bench.store.close()
    assert files(slave.path) == files(master.path)
    assert check(slave.path).findings.kept == []


def test_a_connection_is_taken_over_in_a_frame_or_a_head(pair: Pair, ends: Any) -> None:
    master, slave = pair
    log = raw(master)
    slave.store.append_log(0, log[:100])
    end = slave.store.max_physical_offset
    stream_position = StreamPosition(100, end, 50, end, b"")
    stream = slave.store.read_master(ends[0].fileno(), stream_position, FRAME_BYTES, READ_BYTES)
    head = HEAD.pack(150, len(log) - 150)
    ends[1].sendall(log[100:150] + head[:7])
    assert stream.follow(0.05) == STREAM_TIME
    stream_position = stream.stream_position()
    assert (stream_position.position, stream_position.left, stream_position.rest) == (
        150,
        0,
        head[:7],
    )
    again = slave.store.read_master(ends[0].fileno(), stream_position, FRAME_BYTES, READ_BYTES)
    sender = threading.Thread(target=ends[1].sendall, args=(head[7:] + log[150:],))
    sender.start()
    while slave.store.max_physical_offset < len(log):
        assert again.follow(0.001) == STREAM_TIME
    sender.join()
    assert raw(slave) == log


@pytest.mark.parametrize(
    "other",
    [
        Note(refused="gone").frame(),
        HEAD.pack(NOTE_OFFSET, 0),
        HEAD.pack(10**9, 5) + b"12345",
        HEAD.pack(0, 1) + b"x",
        HEAD.pack(PART, -1),
    ],
)
def test_what_is_not_the_next_part_of_the_log_is_given_back(
    pair: Pair, ends: Any, other: bytes
) -> None:
    master, slave = pair
    there = reading(slave, ends)
    log = raw(master)[:PART]
    there.master_end.sendall(HEAD.pack(0, len(log)) + log + other)
    assert there.stream.follow(SECONDS) == STREAM_OTHER
    stream_position = there.stream.stream_position()
    assert (stream_position.position, stream_position.left, stream_position.rest) == (
        len(log),
        0,
        other,
    )
    assert 0 < stream_position.end == slave.store.max_physical_offset
    assert there.reports(stream_position.end)


def test_bytes_that_are_no_records_end_it_and_what_was_before_is_kept(
    pair: Pair, ends: Any
) -> None:
    master, slave = pair
    there = reading(slave, ends)
    log = raw(master)[:PART]
    there.master_end.sendall(HEAD.pack(0, 2 * PART) + log + b"\xff" * PART)
    with pytest.raises(ValueError, match="stands at"):
        there.stream.follow(SECONDS)
    end = slave.store.max_physical_offset
    assert 0 < end <= len(log)
    assert raw(slave) == log[:end]


def test_a_master_that_takes_no_reports_is_read_on(pair: Pair, ends: Any) -> None:
    master, slave = pair
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    log = raw(master)
    filler = 0
    try:
        while True:
            filler += ends[0].send(bytes(1_000))
    except BlockingIOError:
        pass
    there = reading(slave, ends)
    sent = framed(log, random.Random(1))
    sender = threading.Thread(target=ends[1].sendall, args=(sent,))
    sender.start()
    while slave.store.max_physical_offset < len(log):
        assert there.stream.follow(0.001) == STREAM_TIME
    sender.join()
    assert there.stream.stream_position().reported < len(log)
    while filler:
        filler -= len(ends[1].recv(min(filler, 1 << 16)))
    assert there.stream.follow(0.05) == STREAM_TIME
    assert there.reports(len(log))


def test_the_end_of_a_connection_ends_a_read(pair: Pair, ends: Any) -> None:
    _master, slave = pair
    there = reading(slave, ends)
    pauses: list[int] = []
    reader = threading.Thread(target=lambda: pauses.append(there.stream.follow(SECONDS)))
    reader.start()
    ends[0].shutdown(socket.SHUT_RDWR)
    reader.join(SECONDS)
    assert pauses == [STREAM_CLOSED]


def test_a_store_that_is_closed_ends_a_read_with_an_error(pair: Pair, ends: Any) -> None:
    master, slave = pair
    there = reading(slave, ends)
    slave.store.close()
    there.master_end.sendall(framed(raw(master), random.Random(2))[:3_000])
    with pytest.raises(OSError, match="no writes"):
        there.stream.follow(SECONDS)
