"""Who is closed when all connections together keep too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kerolox.remoting.limits.memory_limiter import CHECK_BYTES, MEMORY_BYTES_SMALL, MemoryLimiter

if TYPE_CHECKING:
    import pytest

MIB = 1 << 20


@dataclass(eq=False)
class Peer:
    kept: int
    remote_address: str = "10.0.0.1:1"
    is_counted: bool = False
    memory_before: int = 0
    checks_without_progress: int = 0
    is_open: bool = True
    looks: int = 0

    def memory_bytes(self) -> int:
        self.looks += 1
        return self.kept

    def abort(self) -> None:
        self.is_open = False
        self.kept = 0


def watching(peers: list[Peer], bytes_max: int) -> MemoryLimiter:
    watch = MemoryLimiter(bytes_max)
    for peer in peers:
        watch.add(peer)
    return watch


def test_who_makes_no_progress_for_longest_is_closed_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, quick, later = Peer(8 * MIB), Peer(12 * MIB), Peer(1)
    peers = [quick, stuck, later]
    watch = watching(peers, 30 * MIB)
    watch.check()
    quick.kept = 9 * MIB
    watch.check()
    quick.kept = 10 * MIB
    later.kept = 20 * MIB
    assert watch.check() <= 30 * MIB
    assert (stuck.is_open, quick.is_open, later.is_open) == (False, True, True)
    ours = [record for record in caplog.records if record.name.startswith("kerolox")]
    [line] = [record.getMessage() for record in ours]
    assert "closing 10.0.0.1:1: it makes the server keep 8388608 bytes" in line


def test_nobody_is_closed_below_the_bound() -> None:
    peers = [Peer(MIB) for _ in range(30)] + [Peer(MEMORY_BYTES_SMALL - 1) for _ in range(100)]
    watch = watching(peers, 64 * MIB)
    for _ in range(20):
        watch.check()
    assert all(peer.is_open for peer in peers)
    assert [peer.checks_without_progress for peer in peers[29:31]] == [20, 0]


def test_much_that_comes_at_once_does_not_wait_for_the_next_look() -> None:
    peers = [Peer(20 * MIB), Peer(20 * MIB)]
    watch = watching(peers, 30 * MIB)
    watch.count(CHECK_BYTES - 1)
    assert all(peer.is_open for peer in peers)
    watch.count(1)
    assert [peer.is_open for peer in peers] == [False, True]
    peers[0].is_open = True
    watch.count(CHECK_BYTES - 1)
    assert peers[0].is_open


def test_who_makes_the_server_keep_nothing_is_not_examined_until_it_does_something() -> None:
    idle, busy = Peer(0), Peer(1)
    watch = watching([idle, busy], MIB)
    for _ in range(10):
        watch.check()
    assert (idle.looks, busy.looks) == (1, 10)
    assert (idle.is_counted, busy.is_counted) == (False, True)
    idle.kept = 1
    watch.add(idle)
    watch.check()
    assert (idle.looks, idle.is_counted) == (2, True)
    watch.discard(busy)
    watch.check()
    assert busy.looks == 11
