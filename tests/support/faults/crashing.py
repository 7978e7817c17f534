"""Stores that crash inside a test: what was put into them, how they die, and what must be left.

:class:`Ledger` is the oracle: it puts messages and remembers each record as the store gave it out.
After a crash :meth:`Ledger.check` compares every face of the store with it. :class:`Crashable` is a
store of one kernel that can be let go as a kill would, and opened again.
"""

from __future__ import annotations

import importlib
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.values import Batch, Record
from tests.support.eventually import SECONDS_MAX
from tests.support.kernels import MODULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "HOUR_MS",
    "NOW",
    "SMALL_FILES",
    "Crashable",
    "Disk",
    "Kept",
    "Ledger",
    "Loss",
]

NOW = 1_763_715_347_123
HOUR_MS = 3_600_000
BORN_HOST = bytes([10, 20, 30, 41, 0, 0, 0xD4, 0x31])
STORE_HOST = bytes([10, 20, 30, 40, 0, 0, 0x2A, 0x9F])
PAGE_BYTES, SECTOR_BYTES = 4_096, 512
QUEUES = (("A", 0), ("A", 1), ("B", 0))
FOLDERS = ("commitlog", "consumequeue", "index")

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 32,
    "max_index_num": 128,
    # Nothing is flushed but when the test asks.
    "flush_interval_commit_log": HOUR_MS,
    "flush_interval_consume_queue": HOUR_MS,
    "flush_commit_log_thorough_interval": HOUR_MS,
    "flush_consume_queue_thorough_interval": HOUR_MS,
}


class Kept(NamedTuple):
    """One record as it was stored."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    key: str
    is_queued: bool
    record: bytes

    @property
    def end(self) -> int:
        """Physical offset behind the record."""
        return self.physical_offset + len(self.record)


class Loss(NamedTuple):
    """What a crash may have cost."""

    kept_below: int
    """Records that end here or before must be there."""
    changed: dict[int, bytes] = {}  # noqa: RUF012 - never written to
    """Records (by physical offset) whose unprotected fields were damaged: their bytes now."""


@dataclass
class Crashable:
    """A store of one kernel in a folder."""

    kernel: str
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    store: Any = None
    now_ms: int = NOW

    def open(self) -> Any:
        """Open it; the recovery report."""
        values = {**SMALL_FILES, **self.settings}
        module = importlib.import_module(MODULES[self.kernel])
        self.store = module.Store(StoreSettings(store_path_root_dir=str(self.folder), **values))
        self.store.set_clock(self.now_ms)
        return self.store.open()

    def kill(self) -> None:
        """Let go of it without a flush or a word, as ``kill -9`` does."""
        store, self.store = self.store, None
        if store is not None and self.kernel == "python":
            store.files.is_sound = False
            store.close()
        del store

    def close(self) -> None:
        """Close it cleanly."""
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def flush_log(self) -> int:
        """Flush the log alone, as group commit does; the flushed offset."""
        end: int = self.store.max_physical_offset
        self.store.request_flush(end)
        deadline = time.monotonic() + SECONDS_MAX
        while self.store.flushed_offset < end:
            assert time.monotonic() < deadline, "the log was not flushed"
            time.sleep(0.0005)
        return end


class Ledger:
    """Puts messages, and knows what must be read back."""

    def __init__(self, seed: int = 0, records: Iterable[Kept] = ()) -> None:
        self.random = random.Random(seed)
        self.records = list(records)
        self.number = len(self.records)

    def copy(self) -> Ledger:
        """Another one with the same records."""
        return Ledger(records=self.records)

    def put(
        self,
        crashable: Crashable,
        topic: str,
        queue_id: int,
        *,
        size: int | None = None,
        sys_flag: int = 0,
    ) -> Kept:
        """Put one message of a random size, with keys, at a time somewhat later than the last."""
        number, store = self.number, crashable.store
        self.number += 1
        crashable.now_ms += self.random.choice((0, 1, 40, 900))
        store.set_clock(crashable.now_ms)
        body = self._body(number, size)
        result = store.append(Record(
            topic.encode(), queue_id, number & 7, sys_flag, NOW, BORN_HOST, STORE_HOST, 0, 0,
            body, _properties(number),
        ))  # fmt: skip
        assert result[0] == 0, result
        kept = self._kept(store, topic, queue_id, number, result[2], result[1], sys_flag)
        assert body in kept.record
        return kept

    def put_batch(self, crashable: Crashable, topic: str, queue_id: int, count: int) -> None:
        """Put messages that follow each other in one file."""
        store, first = crashable.store, self.number
        self.number += count
        numbers = range(first, first + count)
        items = [(0, self._body(number, None), _properties(number)) for number in numbers]
        result = store.append_batch(
            Batch(topic.encode(), queue_id, 0, NOW, BORN_HOST, STORE_HOST, 0, items)
        )
        assert result[0] == 0, result
        for index, physical_offset in enumerate(result[1]):
            self._kept(store, topic, queue_id, first + index, result[2] + index, physical_offset, 0)

    def _body(self, number: int, size: int | None) -> bytes:
        length = self.random.choice((0, 10, 100, 400)) if size is None else size
        return b"%d|" % number + self.random.randbytes(length)

    def _kept(
        self, store: Any, topic: str, queue_id: int, number: int, queue_offset: int,
        physical_offset: int, sys_flag: int,
    ) -> Kept:  # fmt: skip
        record = store.lookup(physical_offset)
        assert record is not None
        is_queued = sys_flag & 12 not in (4, 12)
        kept = Kept(topic, queue_id, queue_offset, physical_offset, f"k{number}", is_queued, record)
        self.records.append(kept)
        return kept

    def fill(self, crashable: Crashable, count: int) -> None:
        """Put about ``count`` messages of all kinds into the queues."""
        end = self.number + count
        while self.number < end:
            topic, queue_id = self.random.choice(QUEUES)
            kind = self.random.random()
            if kind < 0.1:
                self.put_batch(crashable, topic, queue_id, self.random.randint(1, 6))
            elif kind < 0.15:
                self.put(crashable, topic, queue_id, sys_flag=4)
            else:
                self.put(crashable, topic, queue_id)

    def check(self, crashable: Crashable, loss: Loss) -> None:
        """Compare the store with what was put; forget what the crash cost.

        Whatever is left must be as it was put, at its place, in dense queues, and found by its key;
        nothing else may be there.
        """
        store = crashable.store
        end = store.max_physical_offset
        assert end >= max((k.end for k in self.records if k.end <= loss.kept_below), default=0)
        left = [kept for kept in self.records if kept.end <= end]
        for kept in left:
            found = store.lookup(kept.physical_offset)
            assert found in (kept.record, loss.changed.get(kept.physical_offset)), kept
        queues = {(kept.topic, kept.queue_id) for kept in self.records}
        for topic, queue_id in queues:
            here = [k for k in left if k.is_queued and (k.topic, k.queue_id) == (topic, queue_id)]
            assert [k.queue_offset for k in here] == list(range(len(here)))
            assert store.queue_bounds(topic, queue_id) == (0, len(here))
            expected = [loss.changed.get(k.physical_offset, k.record) for k in here]
            assert read_queue(store, topic, queue_id) == b"".join(expected)
        for bounds in store.queues():
            assert (bounds[0], bounds[1]) in queues or bounds[2] == bounds[3], bounds
        lost = [kept for kept in self.records if kept.end > end]
        for kept in left:
            if kept.physical_offset not in loss.changed:
                assert find(store, kept) == kept.record, kept
        for kept in lost:
            assert find(store, kept) == b"", kept
        self.records = left

    def check_onward(self, crashable: Crashable) -> None:
        """The store takes new messages, and after a clean stop nothing is left to repair."""
        for topic, queue_id in QUEUES:
            before = crashable.store.queue_bounds(topic, queue_id)[1]
            assert self.put(crashable, topic, queue_id).queue_offset == before
        end = crashable.store.max_physical_offset
        self.check(crashable, Loss(end))
        crashable.close()
        report = crashable.open()
        assert (report.clean, report.truncated_bytes, report.dispatched) == (True, 0, 0), report
        assert report.notes == []
        self.check(crashable, Loss(end))
        crashable.close()


def _properties(number: int) -> bytes:
    return b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d g%d\x02TAGS\x01t%d" % (
        number, number, number % 5, number % 3,
    )  # fmt: skip


def read_queue(store: Any, topic: str, queue_id: int) -> bytes:
    """Every record of a queue, raw."""
    offset, end = store.queue_bounds(topic, queue_id)
    parts: list[bytes] = []
    while offset < end:
        read = store.read(topic, queue_id, offset, 32, None)
        assert read[0] == 0, read
        assert read[1] > offset
        parts.append(read[6])
        offset = read[1]
    return b"".join(parts)


def find(store: Any, kept: Kept) -> bytes:
    """What a query by a record's own key gives."""
    found: bytes = store.query_key(kept.topic, kept.key, 32, 0, NOW + 10**12)[2]
    return found


def _used(path: Path) -> dict[str, bytes]:
    """The files of a store that hold its data, by their names below it."""
    files = [path / "checkpoint"]
    for folder in FOLDERS:
        files += [file for file in (path / folder).rglob("*") if file.is_file()]
    return {str(f.relative_to(path)): f.read_bytes() for f in files if f.exists()}


class Disk:
    """What of a store's files is on the disk, beside what is in the page cache only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, bytes] = {}

    def flushed(self, only: str = "") -> None:
        """Everything (or what is below a folder) reached the disk just now."""
        now = _used(self.folder)
        for name in [name for name in self.files if name not in now and name.startswith(only)]:
            del self.files[name]
        for name, data in now.items():
            if name.startswith(only):
                self.files[name] = data

    def lose_power(self, seed: int) -> None:
        """Leave of what was not flushed what a loss of power leaves.

        Each page is kept, lost, or (some) torn at a sector; a new file may be gone or empty (the
        names of one folder reach the disk in the order in which they were made); a deleted one
        may be back. The machine then has another boot.
        """
        chance = random.Random(seed)
        kept_ratio = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0))
        now = _used(self.folder)
        gone: set[Path] = set()
        for name in sorted(now.keys() | self.files.keys()):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            new, old = now.get(name), self.files.get(name)
            if new is None:
                if chance.random() < 0.5:
                    path.write_bytes(old or b"")
                continue
            if old is None and (path.parent in gone or chance.random() > kept_ratio):
                # The name was written, or not; the size was, or not.
                if path.parent in gone or chance.random() < 0.7:
                    gone.add(path.parent)
                    path.unlink()
                else:
                    path.write_bytes(b"")
                continue
            path.write_bytes(_mixed(chance, new, old or bytes(len(new)), kept_ratio))
        (self.folder / "boot").unlink(missing_ok=True)
        abort = self.folder / "abort"
        if abort.exists():
            abort.write_bytes(b"")


def _mixed(chance: random.Random, new: bytes, old: bytes, kept_ratio: float) -> bytes:
    parts = []
    for at in range(0, len(new), PAGE_BYTES):
        fresh, stale = new[at : at + PAGE_BYTES], old[at : at + PAGE_BYTES]
        if fresh != stale and chance.random() > kept_ratio:
            cut = chance.choice((0, 0, chance.randrange(PAGE_BYTES // SECTOR_BYTES))) * SECTOR_BYTES
            fresh = fresh[:cut] + stale[cut:]
        parts.append(fresh)
    return b"".join(parts)


def copied(crashable: Crashable, folder: Path) -> Crashable:
    """A copy of a store that is not open."""
    shutil.copytree(crashable.folder, folder)
    return Crashable(crashable.kernel, folder, dict(crashable.settings), None, crashable.now_ms)


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file's bytes in place."""
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(bytes(data))
