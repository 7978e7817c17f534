"""When the log reaches the disk, and what the flushed offset promises."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import wait_until
from tests.support.faults.shim import Faults
from tests.support.kernels import KERNELS, MODULES
from tests.support.servers.run_code import start_code
from tests.support.stores.bench import Bench, commands, send

pytestmark = pytest.mark.xdist_group("kernel-processes")  # they share a fork server

NEVER_MS = 3_600_000
QUIET = {
    "flush_interval_commit_log": NEVER_MS,
    "flush_commit_log_thorough_interval": NEVER_MS,
    "flush_interval_consume_queue": NEVER_MS,
}
PAGE = 4_096
FOLIO_BYTES_MAX = 64 * 1024
"""The system keeps one note of what is dirty for so many bytes at most: what is written behind a
flushed byte may make it count as dirty again."""
UNASKED_FLUSHES_MAX = 20
"""The native kernel flushes twice a second under SYNC_FLUSH when nobody asks: so many while a
machine stands still for ten seconds. Each send, or each group twice, would be more."""
CACHESTAT = 451
"""Number of the system call, the same on every architecture (Linux 6.5)."""


def dirty_pages(path: Path, end: int) -> int:
    """Pages of a file before ``end`` that the disk does not have yet, without the last few."""
    end = end // FOLIO_BYTES_MAX * FOLIO_BYTES_MAX
    if not end:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    pages = (ctypes.c_uint64 * 2)(0, end)
    found = (ctypes.c_uint64 * 5)()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        result = libc.syscall(CACHESTAT, descriptor, pages, found, 0)
        assert result == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)
    return int(found[1] + found[2])


def log_files(bench: Bench) -> list[Path]:
    return sorted((bench.path / "commitlog").iterdir())


def test_a_put_wakes_the_flusher_where_it_is_not_timed(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, flush_commit_log_timed=False, mapped_file_size_commit_log=1 << 20)
    store = closed_bench.store
    for _ in range(3):
        closed_bench.append(bytes(5 * PAGE))
        wait_until(lambda: store.flushed_offset == store.max_physical_offset)


def test_a_hot_send_wakes_it_too(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, flush_commit_log_timed=False, mapped_file_size_commit_log=1 << 20)
    closed_bench.connect().ask(send(bytes(5 * PAGE)))
    wait_until(lambda: closed_bench.store.flushed_offset == closed_bench.store.max_physical_offset)


def test_the_flusher_is_not_woken_for_less_than_the_least_pages(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, flush_commit_log_timed=False, mapped_file_size_commit_log=1 << 20)
    store = closed_bench.store
    for _ in range(3):
        closed_bench.append(bytes(PAGE - 300))
    # Whoever was woken by those would have flushed them before this.
    closed_bench.append(bytes(2 * PAGE))
    wait_until(lambda: store.flushed_offset == store.max_physical_offset)
    assert store.stats()["flush_count"] == 1


def test_a_timed_flusher_is_not_woken_by_puts(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, mapped_file_size_commit_log=1 << 20)
    closed_bench.append(bytes(100 * PAGE))
    end = closed_bench.store.max_physical_offset
    closed_bench.store.request_flush(end)
    wait_until(lambda: closed_bench.store.flushed_offset == end)
    assert closed_bench.store.stats()["flush_count"] == 1


def test_a_full_file_is_flushed_whatever_its_dirty_pages(closed_bench: Bench) -> None:
    closed_bench.open(
        **{**QUIET, "flush_interval_commit_log": 5},
        flush_commit_log_least_pages=1_000_000,
        mapped_file_size_commit_log=2 * PAGE,
    )
    store = closed_bench.store
    closed_bench.append(bytes(PAGE))
    assert store.flushed_offset == 0
    closed_bench.append(bytes(PAGE))
    wait_until(lambda: store.flushed_offset >= 2 * PAGE)


def test_one_flush_covers_all_that_asked_before_it(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, flush_disk_type="SYNC_FLUSH")
    wires = [closed_bench.connect() for _ in range(4)]
    for wire in wires:
        wire.feed(*(send() for _ in range(25)))
    answered = 0
    while answered < 100:
        answered += sum(map(len, closed_bench.wait_ready().values()))
    assert closed_bench.store.stats()["flush_count"] <= 4 + UNASKED_FLUSHES_MAX


def test_answers_that_wait_when_the_store_closes_say_that_it_is_on_disk(
    closed_bench: Bench,
) -> None:
    closed_bench.open(**QUIET, flush_disk_type="SYNC_FLUSH")
    wire = closed_bench.connect()
    wire.feed(*(send(opaque=opaque) for opaque in range(3)))
    closed_bench.store.close()
    answers = closed_bench.drain_ready()[wire.connection_id]
    assert [(answer.opaque, answer.code) for answer in answers] == [(0, 0), (1, 0), (2, 0)]


def test_an_answer_waits_for_its_own_record_and_no_later_one(closed_bench: Bench) -> None:
    """Whatever is released is below the flushed offset, at every moment under load."""
    closed_bench.open(**QUIET, flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20)
    store, wire = closed_bench.store, closed_bench.connect()
    ends: dict[int, int] = {}
    answered: set[int] = set()
    for opaque in range(300):
        wire.feed(send(bytes(3_000), opaque=opaque))
        ends[opaque] = store.max_physical_offset
        found = closed_bench.drain_ready().get(wire.connection_id, [])
        flushed = store.flushed_offset
        for answer in found:
            assert answer.code == 0
            assert ends[answer.opaque] <= flushed
            answered.add(answer.opaque)
    store.flush()
    # A quick disk may have released all of them before.
    last = closed_bench.drain_ready().get(wire.connection_id, [])
    answered |= {answer.opaque for answer in last}
    assert answered == set(ends)


@pytest.mark.parametrize("settings", [{"flush_disk_type": "SYNC_FLUSH"}, {}], ids=["sync", "async"])
def test_the_flushed_offset_never_passes_what_the_disk_has(
    closed_bench: Bench, settings: dict[str, Any]
) -> None:
    size = 256 * 1024
    closed_bench.open(flush_interval_commit_log=1, mapped_file_size_commit_log=size, **settings)
    store, wire = closed_bench.store, closed_bench.connect()
    looked_at = 0
    for _ in range(400):
        wire.feed(send(bytes(1_900)), send(bytes(1_100)))
        flushed = store.flushed_offset
        if flushed > looked_at:
            looked_at = flushed
            for file in log_files(closed_bench):
                inside = min(flushed - int(file.name), size)
                assert inside <= 0 or dirty_pages(file, inside) == 0, (file.name, flushed)
    wait_until(lambda: store.flushed_offset > size)
    assert store.flush() == store.max_physical_offset


FAILING = """
import importlib, sys
from pathlib import Path
from tests.support.eventually import wait_until
from tests.support.stores.bench import Bench, send
bench = Bench(importlib.import_module(sys.argv[1]), Path(sys.argv[2]) / "store")
bench.open(flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=1)
def say(text):
    print(text, flush=True)
    sys.stdin.readline()
wire = bench.connect()
wire.feed(send(b"first", opaque=1))
(answers,) = bench.wait_ready().values()
flushed = bench.store.flushed_offset
say(f"flushed {answers[0].code} {flushed == bench.store.max_physical_offset}")
wire.feed(send(b"second", opaque=2))
wait_until(lambda: wire.is_cold(send(b"probe")))
# The rest of the scenario: nothing is stored, nothing is answered, what was stored can be read.
status = bench.append(b"third")[0]
answered = bench.drain_ready()
bench.store.tick(2**62)
late = [answer.code for found in bench.drain_ready().values() for answer in found]
say(f"failed {status} {answered} {sorted(set(late))} {bench.store.flushed_offset == flushed}")
say(f"read {bench.bodies()[:2]}")
try:
    bench.store.close()
except OSError:
    pass
say(f"abort {(bench.path / 'abort').exists()}")
"""


@contextmanager
def talking(module: str, folder: Path, faults: Faults, scenario: str) -> Iterator[Any]:
    """The process of a scenario: a function that lets it go on and gives its next line."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    with start_code(
        scenario,
        *(module, folder),
        environment={**os.environ, **faults.environment, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        lines, answers = process.stdout, process.stdin

        def go_on(is_first: bool = False) -> str:
            if not is_first:
                answers.write("\n")
                answers.flush()
            return lines.readline().strip()

        try:
            yield go_on
        finally:
            process.kill()


GROUPS = """
import importlib, sys
from pathlib import Path
from tests.support.stores.bench import Bench, send
bench = Bench(importlib.import_module(sys.argv[1]), Path(sys.argv[2]) / "store")
bench.open(flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20)
wires = [bench.connect() for _ in range(4)]
answered = 0
for _ in range(10):
    for wire in wires:
        wire.feed(*(send(bytes(100)) for _ in range(16)))
while answered < 640:
    answered += sum(map(len, bench.wait_ready().values()))
print(bench.store.stats()["flush_count"], flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("name", KERNELS)
def test_every_group_costs_the_disk_one_call(name: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.set("msync:commitlog/0:*:note", "fdatasync:commitlog/0:*:note")
    with talking(MODULES[name], tmp_path, faults, GROUPS) as go_on:
        flushes = int(go_on(True))
    assert 0 < flushes <= 40 + UNASKED_FLUSHES_MAX
    assert len(faults.fired()) == flushes


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_flush_stops_the_writes_and_moves_nothing(
    name: str, error: str, tmp_path: Path
) -> None:
    module = MODULES[name]
    faults = Faults(tmp_path)
    with talking(module, tmp_path, faults, FAILING) as go_on:
        assert go_on(True) == "flushed 0 True"
        faults.set(f"msync:commitlog:1:{error}", f"fdatasync:commitlog:1:{error}")
        # A later flush would succeed, though pages were dropped: nobody may believe it.
        assert go_on() == "failed 4 {} [10] True"
        assert go_on() == "read [b'first', b'second']"
        assert go_on() == "abort True"


def test_asynchronous_sends_are_answered_before_any_flush(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET)
    answers, _, _, _ = closed_bench.connect().feed(send(opaque=5))
    assert [answer.opaque for answer in commands(answers)] == [5]
    assert closed_bench.store.stats()["flush_count"] == 0
