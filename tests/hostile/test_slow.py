"""Peers that do not read, hardly write, vanish, or speak TLS: others do not notice, memory is
bounded, and the log says what to do."""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from kerolox.protocol.records import encode_batch
from kerolox.remoting.blocking import BlockingConnection
from tests.hostile.conftest import SETTINGS
from tests.hostile.support import connect, connected, drain, frame, push
from tests.hostile.support import pull as pull_fields
from tests.hostile.support import send as send_fields
from tests.support.eventually import wait_until
from tests.support.up import Up
from tests.support.witness import Witness

if TYPE_CHECKING:
    from pathlib import Path

KEPT_MIB_MAX = 512 + 96
"""KEPT_BYTES_MAX, and what comes between two looks of the watch and until a cut one is gone."""

FRAME_BYTES = 15 << 20


def test_big_frames_that_never_end_share_one_bound(tmp_path: Path) -> None:
    """45 of them would be 675 MB; those that came first, and wait longest, are cut."""
    begun = frame(*send_fields("Slow", bytes(FRAME_BYTES)))[:-100]
    with (
        Up(tmp_path, settings=SETTINGS) as up,
        Witness(up) as witness,
        connected(up, 45) as writers,
    ):
        push(writers, begun, seconds=60, stalled=10)
        wait_until(
            lambda: any("frames that it does not finish" in line for line in witness.log_lines()),
            seconds=60,
            what="a line in the log",
        )
    witness.verdict(memory_mib_max=KEPT_MIB_MAX)


def test_writers_of_a_byte_at_a_time_disturb_nobody(up: Up) -> None:
    begun = frame(*send_fields("Slow", bytes(60_000)))
    with Witness(up) as witness, connected(up, 200) as writers:
        for index, writer in enumerate(writers):
            writer.sendall(begun[: 1 + index * 20])
        for step in range(10):
            for index, writer in enumerate(writers):
                writer.sendall(begun[1 + index * 20 + step :][:1])
    witness.verdict(memory_mib_max=64)


def test_readers_that_ask_for_megabytes_and_never_read_disturb_nobody(up: Up) -> None:
    with BlockingConnection(up.broker) as client:
        _, fields, _ = send_fields("Unread", b"")
        body = encode_batch((0, bytes(4096), b"") for _ in range(32))
        client.send_frames(frame(320, {**fields, "m": True}, body))
        client.receive_frame(60)
    request = frame(11, pull_fields("Unread", 0))
    with Witness(up) as witness, connected(up, 40, receive_bytes=4096) as readers:
        push(readers, request * 200, seconds=3, stalled=0.5)
    # Each may have WRITE_HIGH_WATER_BYTES unsent, and the answers of one feed.
    witness.verdict(memory_mib_max=40 * 8 + 64)


def test_connections_whose_client_vanished_are_closed_when_they_are_idle(tmp_path: Path) -> None:
    settings = {**SETTINGS, "serverChannelMaxIdleTimeSeconds": 2}
    with (
        Up(tmp_path, settings=settings) as up,
        Witness(up) as witness,
        connected(up, 100) as vanished,
    ):
        for index, connection in enumerate(vanished):
            connection.sendall(b"\0\0\1\0"[: index % 5])
        for connection in vanished:
            assert drain(connection) == b""
    witness.verdict(memory_mib_max=64)


def client_hello() -> bytes:
    """What a client begins TLS with."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("length", [5, 10_000])
def test_tls_is_refused_with_a_line_that_says_what_to_do(up: Up, length: int) -> None:
    """A whole ClientHello or a part of it, as soon as it shows what it is; a few lines a second."""
    hello = client_hello()[: max(length, 8)]
    with Witness(up) as witness:
        started = time.monotonic()

        def told_of() -> list[str]:
            return [line for line in witness.log_lines() if "this is TLS, which" in line]

        while not told_of() or time.monotonic() < started + 0.2:
            assert time.monotonic() < started + 60
            with connect(up) as connection:
                connection.sendall(hello)
                assert drain(connection) == b""
        seconds = time.monotonic() - started
    told = told_of()
    assert "tls.enable=false" in told[0]
    assert len(told) <= 10 * (seconds + 2)
    witness.verdict(memory_mib_max=64)
