"""Stores on simulated disks, by themselves: what a crash of the machine leaves is recovered."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox._pykernel.store import Store
from kerolox.kernel.settings import StoreSettings
from tests.simulation import disk_calls
from tests.simulation.disk import Died, Disk
from tests.simulation.loop import SimulatedLoop
from tests.simulation.patches import Patches
from tests.simulation.process import Process
from tests.simulation.threads import Threads
from tests.simulation.trace import Trace
from tests.support.faults.crashing import Crashable, Kept, Ledger, Loss

SEEDS = int(os.environ.get("KEROLOX_CRASH_SEEDS", "20"))


class Machine(Crashable):
    """A store on a simulated disk, whose threads are steps of a loop of virtual time."""

    def __init__(self, seed: int, base: Path, patches: Patches, **settings: Any) -> None:
        super().__init__("python", base / "node", settings)
        self.chance = random.Random(seed)
        self.loop = SimulatedLoop(seed)
        self.trace = Trace(self.loop.time)
        self.disk = Disk(base / "node", self.chance, self.trace)
        self.threads = Threads(self.loop, [self.disk])
        disk_calls.install(patches, [self.disk])
        self.threads.install(patches)
        self.process = self._new_process()

    def _new_process(self) -> Process:
        process = Process("node", "10.0.0.1", self.loop.time, self.chance.getrandbits(32))
        self.loop.adopt(process)
        return process

    def open(self) -> Any:
        values = {"mapped_file_size_commit_log": 16 * 1024, "mapped_file_size_consume_queue": 320,
                  "max_hash_slot_num": 32, "max_index_num": 128} | self.settings  # fmt: skip
        self.store = Store(StoreSettings(store_path_root_dir=str(self.folder), **values))
        self.store.set_clock(self.now_ms)
        return self.process.run(self.store.open)

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def die(self, *, power: bool, keep: float | None = None) -> None:
        self.process.kill()
        self.disk.crashed(keep) if power else self.disk.killed()
        self.store = None
        self.process = self._new_process()

    def end(self) -> None:
        self.threads.close()
        self.loop.dismantle()


@pytest.fixture
def base() -> Iterator[Path]:
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    path = Path(tempfile.mkdtemp(dir=folder))
    yield path
    shutil.rmtree(path)


def live(machine: Machine, ledger: Ledger) -> int:
    """Put messages while time passes; die; what was flushed, or all, when a kill ended it."""
    chance, flushed = machine.chance, 0
    machine.disk.sync_seconds = chance.choice((0.0, 0.0, 0.01, 1.0))
    die_at = chance.choice((0, 0, chance.randint(1, 60)))
    if die_at:
        machine.disk.die_at(die_at, machine.process.kill)
    try:
        for _ in range(chance.randint(1, 6)):
            machine.process.run(ledger.fill, machine, chance.randint(1, 30))
            if chance.random() < 0.4:
                machine.process.run(machine.store.request_flush, machine.store.max_physical_offset)
            machine.pass_time(chance.choice((0.001, 0.3, 2.0, 15.0)))
            flushed = machine.store.flushed_offset
            if not machine.process.is_alive:
                break
    except Died:
        pass
    power = chance.random() < 0.7
    end = ledger.records[-1].end if ledger.records else 0
    machine.die(power=power)
    return flushed if power else end


def adopt(machine: Machine, ledger: Ledger) -> None:
    """What was being put at the death may be there."""
    log = machine.store.files.log
    begin = max((kept.end for kept in ledger.records), default=0)
    for at, record in log.records_from(begin, log.max_offset):
        words = dict(each.split("\1") for each in record.properties.decode().split("\2"))
        ledger.records.append(Kept(
            record.topic.decode(), record.queue_id, record.queue_offset, at,
            words["KEYS"].split()[0], record.sys_flag & 12 not in (4, 12),
            machine.store.lookup(at),
        ))  # fmt: skip


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_flushed_survives_a_crash_of_a_simulated_machine(seed: int, base: Path) -> None:
    with Patches() as patches:
        machine, ledger = Machine(seed, base, patches), Ledger(seed)
        machine.open()
        for _ in range(3):
            kept = live(machine, ledger)
            machine.disk.sync_seconds = 0.0
            machine.open()
            adopt(machine, ledger)
            machine.process.run(ledger.check, machine, Loss(kept))
        machine.process.run(machine.store.close)
        machine.end()


def test_entries_that_a_recovery_cut_off_do_not_come_back_with_a_crash(base: Path) -> None:
    with Patches() as patches:
        machine = Machine(1, base, patches, mapped_file_size_consume_queue=5 * 20)
        ledger = Ledger(1)
        machine.open()
        for _ in range(13):
            machine.process.run(ledger.put, machine, "A", 0)
        machine.die(power=True, keep=1.0)
        # The end of the log was lost, and no entry.
        [path] = (machine.folder / "commitlog").iterdir()
        size, end = path.stat().st_size, ledger.records[3].end
        path.write_bytes(path.read_bytes()[:end].ljust(size, b"\0"))
        machine.open()
        assert machine.store.queue_bounds("A", 0) == (0, 4)
        machine.die(power=True, keep=0.0)
        [file] = (machine.folder / "consumequeue/A/0").iterdir()
        assert len(file.read_bytes().rstrip(b"\0")) in range(3 * 20, 4 * 20 + 1)
        machine.end()


def _left_after_a_failed_sync(path: Path, seed: int, *, is_written_again: bool) -> bytes:
    """What a crash leaves of a file whose first sync fails, and the second one does not."""
    disk = Disk(path / "disk", random.Random(seed), Trace(lambda: 0.0))
    file, data = disk.root / "file", b"x" * 10_000
    with Patches() as patches:
        disk_calls.install(patches, [disk])
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        folder = os.open(disk.root, os.O_RDONLY)
        os.fsync(folder)
        os.pwrite(descriptor, data, 0)
        disk.failing_syncs = 1
        with pytest.raises(OSError, match="the disk failed"):
            os.fsync(descriptor)
        assert os.pread(descriptor, len(data), 0) == data
        if is_written_again:
            os.pwrite(descriptor, data, 0)
        os.fsync(descriptor)
        disk.crashed()
        return file.read_bytes()


def test_what_a_failed_sync_lost_needs_to_be_written_again(base: Path) -> None:
    left = {
        is_written_again: {
            _left_after_a_failed_sync(
                base / f"{is_written_again}-{seed}", seed, is_written_again=is_written_again
            )
            for seed in range(20)
        }
        for is_written_again in (False, True)
    }

    assert left[True] == {b"x" * 10_000}
    assert len(left[False]) > 1


def test_a_queue_that_was_flushed_is_there_after_a_crash(base: Path) -> None:
    with Patches() as patches:
        settings = {"flush_consume_queue_thorough_interval": 0}
        machine = Machine(1, base, patches, mapped_file_size_consume_queue=5 * 20, **settings)
        ledger = Ledger(1)
        machine.open()
        queue = machine.folder / "consumequeue/A/0"
        for count in (3, 7):
            for _ in range(count):
                machine.process.run(ledger.put, machine, "A", 0)
            machine.pass_time(15.0)
            written = [file.read_bytes() for file in sorted(queue.iterdir())]
            machine.die(power=True, keep=0.0)
            assert [file.read_bytes() for file in sorted(queue.iterdir())] == written
            machine.open()
        machine.end()
