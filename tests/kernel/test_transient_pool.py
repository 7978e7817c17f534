"""The transient store pool: what is committed, when, and what the rest of the store sees of it."""

from __future__ import annotations

import importlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.inspect.check import check_store
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.kernel.status import GetMessageStatus, PutMessageStatus
from tests.support.eventually import wait_until
from tests.support.faults.shim import Faults
from tests.support.kernels import KERNELS, MODULES
from tests.support.servers.run_code import start_code
from tests.support.stores.bench import (
    NOW,
    Bench,
    files,
    holding_pull,
    messages,
    properties,
    send,
    send_batch,
)

pytestmark = pytest.mark.xdist_group("kernel-processes")  # they share a fork server

NEVER_MS = 3_600_000
PAGE = 4_096
POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
QUIET = {
    **POOL,
    "commit_interval_commit_log": NEVER_MS,
    "commit_commit_log_thorough_interval": NEVER_MS,
    "flush_commit_log_thorough_interval": NEVER_MS,
}
UNWOKEN = {**QUIET, "commit_commit_log_least_pages": 1_000_000}


def test_what_is_not_committed_can_not_be_seen(closed_bench: Bench) -> None:
    closed_bench.open(**UNWOKEN)
    store = closed_bench.store
    for number in range(3):
        put = closed_bench.append(b"%d" % number, properties(KEYS="k"))
        assert tuple(put[:3]) == (PutMessageStatus.PUT_OK, number * put.size, number)
    assert store.read("T", 0, 0, 32, None)[0] == GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert store.queue_bounds("T", 0) == (0, 0)
    assert [tuple(bounds) for bounds in store.queues()] == [("T", 0, 0, 0)]
    assert (store.max_physical_offset, store.flushed_offset) == (0, 0)
    assert (store.lookup(0), store.queue_entry("T", 0, 0)) == (None, None)
    assert (store.store_time("T", 0, 0), store.offset_by_time("T", 0, NOW)) == (-1, 0)
    assert store.query_key("T", "k", 32, 0, 2**62)[2] == b""
    assert store.stats()["uncommitted_bytes"] == 3 * put.size
    end = store.flush()
    assert end == 3 * put.size == store.max_physical_offset
    assert closed_bench.bodies() == [b"0", b"1", b"2"]
    assert len(store.query_key("T", "k", 32, 0, 2**62)[2]) == end
    assert store.stats()["uncommitted_bytes"] == 0


def test_readers_see_the_part_that_is_committed(closed_bench: Bench) -> None:
    closed_bench.open(**UNWOKEN)
    store = closed_bench.store
    for number in range(10):
        closed_bench.append(b"%d" % number)
    store.flush()
    for number in range(10, 15):
        closed_bench.append(b"%d" % number)
    assert store.queue_bounds("T", 0) == (0, 10)
    assert closed_bench.bodies() == [b"%d" % number for number in range(10)]
    status, next_offset, _low, high, _slow, count, _records = store.read("T", 0, 8, 32, None)
    assert (status, next_offset, high, count) == (GetMessageStatus.FOUND, 10, 10, 2)
    assert store.read("T", 0, 10, 32, None)[0] == GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert store.read("T", 0, 12, 32, None)[:2] == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 10)


def test_a_put_wakes_the_committer_when_enough_pages_wait(closed_bench: Bench) -> None:
    closed_bench.open(**QUIET, mapped_file_size_commit_log=1 << 20)
    store = closed_bench.store
    closed_bench.append(bytes(PAGE))
    assert store.max_physical_offset == 0
    closed_bench.append(bytes(4 * PAGE))
    wait_until(lambda: store.stats()["uncommitted_bytes"] == 0)
    assert store.max_physical_offset > 5 * PAGE


def test_few_pages_are_committed_by_the_thorough_interval(closed_bench: Bench) -> None:
    closed_bench.open(
        **POOL,
        commit_interval_commit_log=2,
        commit_commit_log_thorough_interval=2,
        commit_commit_log_least_pages=1_000_000,
    )
    closed_bench.append(b"one")
    wait_until(lambda: closed_bench.bodies() == [b"one"])


def test_a_commit_wakes_the_flusher_where_it_is_not_timed(closed_bench: Bench) -> None:
    closed_bench.open(
        **QUIET,
        flush_interval_commit_log=NEVER_MS,
        flush_commit_log_timed=False,
        mapped_file_size_commit_log=1 << 20,
    )
    put = closed_bench.append(bytes(9 * PAGE))
    wait_until(lambda: closed_bench.store.flushed_offset == put.size)


def test_who_asks_for_a_flush_gets_a_commit_before_it(closed_bench: Bench) -> None:
    closed_bench.open(**UNWOKEN, flush_interval_commit_log=NEVER_MS)
    put = closed_bench.append(b"one")
    closed_bench.store.request_flush(put.size)
    wait_until(lambda: closed_bench.store.flushed_offset == put.size)


@pytest.mark.parametrize("is_held_first", [True, False], ids=["before", "after"])
def test_a_pull_that_is_held_is_answered_when_its_record_is_committed(
    closed_bench: Bench, is_held_first: bool
) -> None:
    closed_bench.open(**UNWOKEN)
    wire, producer = closed_bench.connect(), closed_bench.connect()
    if is_held_first:
        assert wire.ask(holding_pull(opaque=7)) == []
    (answer,) = producer.ask(send(b"late", e=0))
    assert answer.code == 0
    if not is_held_first:
        assert wire.ask(holding_pull(opaque=7)) == []
    assert closed_bench.drain_ready() == {}
    closed_bench.store.flush()
    closed_bench.wait_notified()
    (answer,) = closed_bench.drain_ready()[wire.connection_id]
    assert (answer.opaque, [message.body for message in messages(answer)]) == (7, [b"late"])


def tell(bench: Bench, seed: int) -> None:
    """Appends over several files, with everything in the index."""
    source = random.Random(seed)
    for number in range(300):
        bench.append(
            source.randbytes(source.choice((1, 100, 3_000))),
            properties(KEYS=f"k{number}"),
            queue_id=source.randrange(3),
        )
        if source.random() < 0.02:
            bench.store.flush()
    bench.wait_indexed()


def test_the_files_are_those_of_a_store_without_a_pool(kernel: Any, tmp_path: Path) -> None:
    for name, settings in (("pool", POOL | {"commit_interval_commit_log": 1}), ("plain", {})):
        bench = Bench(kernel, tmp_path / name)
        bench.open(**settings)
        tell(bench, 11)
        wait_until(lambda bench=bench: bench.store.stats()["uncommitted_bytes"] == 0)
        assert bench.store.transient_buffers == (2 if settings else -1)
        bench.store.close()
    assert files(tmp_path / "pool") == files(tmp_path / "plain")


def test_the_log_goes_on_in_a_file_that_was_begun_without_a_pool(closed_bench: Bench) -> None:
    closed_bench.open()
    closed_bench.append(b"plain")
    closed_bench.store.close()
    closed_bench.open(**UNWOKEN)
    closed_bench.append(b"pooled")
    assert closed_bench.bodies() == [b"plain"]
    closed_bench.store.close()
    report = closed_bench.open()
    assert (report.clean, report.truncated_bytes) == (True, 0)
    assert closed_bench.bodies() == [b"plain", b"pooled"]


def test_the_synchronous_flush_has_no_pool(closed_bench: Bench) -> None:
    closed_bench.open(**UNWOKEN, flush_disk_type="SYNC_FLUSH")
    closed_bench.append(b"one")
    assert closed_bench.bodies() == [b"one"]
    assert closed_bench.store.transient_buffers == -1


def fill(bench: Bench, files_wanted: int) -> None:
    """Appends until the log has so many files."""
    while len(bench.store.log_files()) < files_wanted:
        assert bench.append(bytes(20_000))[0] == PutMessageStatus.PUT_OK


@pytest.mark.parametrize("is_fast", [True, False], ids=["refused", "direct"])
def test_without_a_free_buffer_sends_are_slow_and_files_refused_or_written(
    closed_bench: Bench, is_fast: bool
) -> None:
    closed_bench.open(**UNWOKEN, fast_fail_if_no_buffer_in_store_pool=is_fast)
    store, wire = closed_bench.store, closed_bench.connect()
    assert store.transient_buffers == 3
    fill(closed_bench, 2)
    assert store.transient_buffers == 1
    wire.ask(send(b"hot"))
    fill(closed_bench, 3)
    assert store.transient_buffers == 0
    assert wire.is_cold(send(b"cold"))
    assert wire.is_cold(send_batch([(0, b"cold", b"")]))
    puts = [closed_bench.append(bytes(20_000))[0] for _ in range(5)]
    failed = PutMessageStatus.CREATE_MAPEDFILE_FAILED
    assert set(puts[:2]) == {PutMessageStatus.PUT_OK}
    assert set(puts[3:]) == {failed if is_fast else PutMessageStatus.PUT_OK}
    assert store.drop_log_file() is None, "not even the first file is committed"
    end = store.flush()
    stored = store.queue_bounds("T", 0)[1]
    assert store.transient_buffers == (2 if is_fast else 3)
    assert store.max_physical_offset == end
    assert len(closed_bench.bodies()) == stored
    assert closed_bench.append(b"on")[0] == PutMessageStatus.PUT_OK
    store.close()
    report = closed_bench.open()
    assert (report.clean, report.truncated_bytes) == (True, 0)
    assert len(closed_bench.bodies()) == stored + 1
    assert find_damage(closed_bench) == []


def find_damage(bench: Bench) -> list[Any]:
    return list(check_store(StorePlaces.find(str(bench.path), StoreOptions())).findings.kept)


SCENARIO = """
import importlib, os, signal, sys
from pathlib import Path
from tests.support.eventually import wait_until
from tests.support.stores.bench import Bench, properties, send
from tests.kernel.test_transient_pool import UNWOKEN
bench = Bench(importlib.import_module(sys.argv[1]), Path(sys.argv[2]) / "store")
def say(text):
    print(text, flush=True)
    sys.stdin.readline()
"""

KILLED = """
bench.open(**UNWOKEN)
for number in range(200):
    bench.append(b"%d" % number * 100, properties(KEYS=f"k{number}"), queue_id=number % 2)
    if number == 119:
        bench.store.flush()
bench.store.stats()
os.kill(os.getpid(), signal.SIGKILL)
"""

FAILING = """
bench.open(**UNWOKEN | {"commit_interval_commit_log": 5, "commit_commit_log_thorough_interval": 5})
wire = bench.connect()
wire.ask(send(b"first"))
wait_until(lambda: bench.bodies() == [b"first"])
say("committed")
wire.ask(send(b"second"))
taken = 2
while not wire.is_cold(send(b"more")):
    taken += 1
say(f"refused {bench.append(b'last')[0]} {bench.bodies()}")
wait_until(lambda: bench.append(b"last")[0] == 0)
wait_until(lambda: bench.bodies()[-1] == b"last")
say(f"goes on {bench.bodies() == [b'first', b'second', *[b'more'] * (taken - 2), b'last']}")
bench.store.close()
say("closed")
"""


@contextmanager
def process_of(
    scenario: str, name: str, folder: Path, *words: str, **environment: str
) -> Iterator[Any]:
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), *sys.path])
    with start_code(
        SCENARIO + scenario,
        *(MODULES[name], folder, *words),
        environment={**os.environ, **environment, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: Any) -> str:
    """What it says next."""
    return str(process.stdout.readline().strip())


def go_on(process: Any) -> str:
    """Let it go on; what it says next."""
    process.stdin.write("\n")
    process.stdin.flush()
    return line_of(process)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kill_loses_what_was_not_committed_and_nothing_else(
    name: str, other_kernel: Any, tmp_path: Path
) -> None:
    with process_of(KILLED, name, tmp_path) as process:
        assert process.wait(60) == -signal.SIGKILL
    bench = Bench(other_kernel, tmp_path / "store")
    report = bench.open()
    assert not report.clean
    assert report.truncated_bytes == 0, "what is in the files is whole"
    for queue_id in (0, 1):
        kept = [b"%d" % number * 100 for number in range(queue_id, 120, 2)]
        assert bench.bodies(queue_id) == kept
    assert len(bench.store.query_key("T", "k119", 32, 0, 2**62)[2]) > 0
    for number in range(120, 200):
        assert bench.store.query_key("T", f"k{number}", 32, 0, 2**62)[2] == b""
    # In the place of the lost ones.
    bench.append(b"new", properties(KEYS="new"))
    bench.wait_indexed()
    assert bench.bodies()[-2:] == [b"118" * 100, b"new"]
    bench.store.close()
    assert find_damage(bench) == []


@pytest.mark.parametrize("name", KERNELS)
def test_a_failed_commit_refuses_writes_and_loses_nothing(name: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    with process_of(FAILING, name, tmp_path, **faults.environment) as process:
        assert line_of(process) == "committed"
        faults.set("pwrite:commitlog:*:ENOSPC")
        assert go_on(process) == "refused 4 [b'first']"
        faults.clear()
        assert go_on(process) == "goes on True"
        assert go_on(process) == "closed"


CLOSED = """
often = {"flush_interval_consume_queue": 5, "flush_consume_queue_thorough_interval": 5}
bench.open(**UNWOKEN | often)
bench.append(b"first")
bench.store.flush()
say("flushed")
bench.append(b"second")
wait_until(lambda: bench.store.has_failed or sys.argv[3] == "full")
say("appended")
try:
    bench.store.close()
except OSError as error:
    say(str(error))
else:
    say("closed")
"""


@pytest.mark.parametrize("name", KERNELS)
def test_after_a_failed_flush_the_end_commits_what_is_left(name: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    with process_of(CLOSED, name, tmp_path, "failing", **faults.environment) as process:
        assert line_of(process) == "flushed"
        faults.set(*(f"{call}:consumequeue:*:EIO" for call in ("fdatasync", "fsync", "msync")))
        assert go_on(process) == "appended"
        assert "lost" not in go_on(process)
    bench = Bench(importlib.import_module(MODULES[name]), tmp_path / "store")
    assert not bench.open().clean
    assert bench.bodies() == [b"first", b"second"]
    bench.store.close()


@pytest.mark.parametrize("name", KERNELS)
def test_an_end_with_a_full_disk_tells_what_it_loses(name: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    with process_of(CLOSED, name, tmp_path, "full", **faults.environment) as process:
        assert line_of(process) == "flushed"
        assert go_on(process) == "appended"
        faults.set("pwrite:commitlog:*:ENOSPC")
        told = go_on(process)
    assert re.search(r"\b\d\d+ bytes of messages that were.*No space left on device", told), told
    bench = Bench(importlib.import_module(MODULES[name]), tmp_path / "store")
    bench.open()
    assert bench.bodies() == [b"first"]
    bench.store.close()
