"""Who is closed when all connections together keep too much."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.remoting.kept_bytes import KEPT_BYTES_SMALL, LOOK_BYTES, KeptBytesWatch

if TYPE_CHECKING:
    import pytest

MIB = 1 << 20


@dataclass(eq=False)
class Peer:
    kept: int
    remote_address: str = "10.0.0.1:1"
    kept_before: int = 0
    looks_without_progress: int = 0
    is_open: bool = True

    def kept_bytes(self) -> int:
        return self.kept

    def abort(self) -> None:
        self.is_open = False
        self.kept = 0


async def test_who_makes_no_progress_for_longest_is_closed_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, quick, later = Peer(8 * MIB), Peer(12 * MIB), Peer(0)
    peers = [quick, stuck, later]
    watch = KeptBytesWatch(asyncio.get_running_loop(), lambda: peers, 30 * MIB)
    try:
        watch.look()
        quick.kept = 9 * MIB
        watch.look()
        quick.kept = 10 * MIB
        later.kept = 20 * MIB
        assert watch.look() <= 30 * MIB
    finally:
        watch.stop()
    assert (stuck.is_open, quick.is_open, later.is_open) == (False, True, True)
    [line] = [record.getMessage() for record in caplog.records]
    assert "closing 10.0.0.1:1: it makes the server keep 8388608 bytes" in line


async def test_nobody_is_closed_below_the_bound() -> None:
    peers = [Peer(MIB) for _ in range(30)] + [Peer(KEPT_BYTES_SMALL - 1) for _ in range(100)]
    watch = KeptBytesWatch(asyncio.get_running_loop(), lambda: peers, 64 * MIB)
    try:
        for _ in range(20):
            watch.look()
    finally:
        watch.stop()
    assert all(peer.is_open for peer in peers)
    assert [peer.looks_without_progress for peer in peers[29:31]] == [20, 0]


async def test_much_that_comes_at_once_does_not_wait_for_the_next_look() -> None:
    peers = [Peer(20 * MIB), Peer(20 * MIB)]
    watch = KeptBytesWatch(asyncio.get_running_loop(), lambda: peers, 30 * MIB)
    try:
        watch.count(LOOK_BYTES - 1)
        assert all(peer.is_open for peer in peers)
        watch.count(1)
        assert [peer.is_open for peer in peers] == [False, True]
        peers[0].is_open = True
        watch.count(LOOK_BYTES - 1)
        assert peers[0].is_open
    finally:
        watch.stop()
