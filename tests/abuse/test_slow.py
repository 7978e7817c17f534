"""Peers that do not read, hardly write, vanish, or speak TLS: others do not notice, memory is
bounded, and the log says what to do."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest

from kerolox.cli.process.logs import LINES_PER_SECOND_MAX
from tests.abuse.conftest import SETTINGS
from tests.support.clients.raw import connect, connected, drain, frame, push
from tests.support.clients.raw import send as send_fields
from tests.support.eventually import wait_until
from tests.support.servers.probe import Probe
from tests.support.servers.up import Up

if TYPE_CHECKING:
    from pathlib import Path

KEPT_MIB_MAX = 512 + 96
"""MEMORY_BYTES_MAX, and what comes between two checks by the watch and until a cut one is gone."""

FRAME_BYTES = 15 << 20
TLS_CONNECTIONS = 100


def test_big_frames_that_never_end_share_one_bound(tmp_path: Path) -> None:
    """45 of them would be 675 MB; those that came first, and wait longest, are cut."""
    begun = frame(*send_fields("Slow", bytes(FRAME_BYTES)))[:-100]
    with (
        Up(tmp_path, settings=SETTINGS, counted=True) as up,
        Probe(up) as probe,
        connected(up, 45) as writers,
    ):
        push(writers, begun, stalled=10)
        wait_until(
            lambda: any("frames that it does not finish" in line for line in probe.log_lines()),
            what="a line in the log",
        )
    probe.verdict(memory_mib_max=KEPT_MIB_MAX)


def test_connections_whose_client_vanished_are_closed_when_they_are_idle(tmp_path: Path) -> None:
    settings = {**SETTINGS, "serverChannelMaxIdleTimeSeconds": 2}
    with (
        Up(tmp_path, settings=settings, counted=True) as up,
        Probe(up) as probe,
        connected(up, 100) as vanished,
    ):
        for index, connection in enumerate(vanished):
            connection.sendall(b"\0\0\1\0"[: index % 5])
        for connection in vanished:
            assert drain(connection) == b""
    probe.verdict(memory_mib_max=64)


def client_hello() -> bytes:
    """What a client begins TLS with."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("length", [8, 10_000])
def test_tls_is_refused_where_it_is_switched_off(tmp_path: Path, length: int) -> None:
    """A whole ClientHello or a part of it, as soon as it shows what it is; a few lines a second."""
    hello = client_hello()[:length]
    settings = {**SETTINGS, "tls.server.mode": "disabled"}
    with Up(tmp_path, settings=settings, counted=True) as up, Probe(up) as probe:

        def told_of() -> list[str]:
            return [line for line in probe.log_lines() if "this is TLS, which" in line]

        def come() -> bool:
            with connect(up) as connection:
                connection.sendall(hello)
                assert drain(connection) == b""
            return bool(told_of())

        # Lines of an earlier test may have been enough for this second.
        wait_until(come, what="a line in the log")
        for _ in range(TLS_CONNECTIONS):
            come()
    told = told_of()
    assert "tls.enable=false" in told[0]
    assert len(told) <= LINES_PER_SECOND_MAX * (len({line[:19] for line in told}) + 1)
    probe.verdict(memory_mib_max=64)
