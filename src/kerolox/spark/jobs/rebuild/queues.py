"""Files of queues from their entries: a whole file at a time, or an odd queue entry by entry.

Both write where no broker looks and rename what is whole, so that a task may run twice, or beside
another one that does the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kerolox.inspect.queue_writer import QueueWriter, set_stored_time
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.lazy import compute
from kerolox.spark.jobs.frame.tasks import batch_of
from kerolox.spark.jobs.rebuild.reading import peak_kib
from kerolox.store.files.mapped_file import offset_name, sync_path, write_all
from kerolox.store.layout import ENTRY_BYTES, PRE_BLANK, entries_packer

if TYPE_CHECKING:
    import pyarrow

DONE_SCHEMA = "entries long, files long, peak long, note string"
"""What a task has written; with a note it is a sentence and no numbers."""

FILE = "file"
"""Column: number of the file that an entry is in."""

PACKED_MAX = 1_000


def done_batch(entries: int, files: int, notes: list[str]) -> pyarrow.RecordBatch:
    """Rows of :data:`DONE_SCHEMA`."""
    first = {"entries": entries, "files": files, "peak": peak_kib()}
    others = [{"entries": 0, "files": 0, "peak": 0, "note": note} for note in notes]
    return batch_of([first, *others], DONE_SCHEMA)


def make_one(folder: str) -> None:
    """Make a folder, and none above it: a task that is left over when the job is done must not make
    the job's folders anew.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)


class _QueueFile:
    """A file of a queue that is being gathered."""

    __slots__ = ("data", "key", "next", "time_ms")

    def __init__(self, key: tuple[str, int, int], first: int, start: int) -> None:
        self.key = key
        # Where a queue begins in its file, something has to stand before it.
        self.data = bytearray(PRE_BLANK * (first - start))
        self.next = first
        self.time_ms = 0


@dataclass(frozen=True, slots=True)
class QueueFileWriter:
    """Writes files of queues from sorted entries below the folder ``root``. ``scratch``: for files
    that are not whole; on the same file system. ``file_bytes``: of each file, a multiple of an
    entry's.
    """

    root: str
    scratch: str
    file_bytes: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: from entries with column ``file``, sorted by topic, queue, file and offset,
        all of a file in one task. A file's bytes are held until it is written. JobError: entries of
        a file do not follow each other.
        """
        current: _QueueFile | None = None
        entries = files = 0
        for batch in batches:
            for part in _runs(batch):
                key = (part.column("topic")[0].as_py(), *_numbers(part, 0))
                if current is None or current.key != key:
                    if current is not None:
                        self._write(current)
                        files += 1
                    first = part.column("queueOffset")[0].as_py()
                    current = _QueueFile(key, first, key[2] * (self.file_bytes // ENTRY_BYTES))
                _append(current, part)
                entries += part.num_rows
        if current is not None:
            self._write(current)
            files += 1
        yield done_batch(entries, files, [])

    def _write(self, file: _QueueFile) -> None:
        topic, queue_id, number = file.key
        path = os.path.join(self.scratch, uuid.uuid4().hex)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                os.ftruncate(descriptor, self.file_bytes)
                write_all(descriptor, bytes(file.data), 0)
                set_stored_time(descriptor, file.time_ms)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            make_one(os.path.join(self.root, topic))
            folder = os.path.join(self.root, topic, str(queue_id))
            make_one(folder)
            os.replace(path, os.path.join(folder, offset_name(number * self.file_bytes)))
        except BaseException:
            if os.path.exists(path):
                os.unlink(path)
            raise


def _numbers(part: pyarrow.RecordBatch, row: int) -> tuple[int, int]:
    return part.column("queueId")[row].as_py(), part.column(FILE)[row].as_py()


def _runs(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    """Parts of a batch that are of one file each."""
    if not batch.num_rows:
        return
    count = batch.num_rows - 1
    changed = None
    for name in ("topic", "queueId", FILE):
        column = batch.column(name)
        differs = compute.not_equal(column.slice(1), column.slice(0, count))
        changed = differs if changed is None else compute.or_(changed, differs)
    cuts = [0, *(at + 1 for at in compute.indices_nonzero(changed).to_pylist()), batch.num_rows]
    for start, end in pairwise(cuts):
        yield batch.slice(start, end - start)


def _append(file: _QueueFile, part: pyarrow.RecordBatch) -> None:
    offsets = part.column("queueOffset").to_pylist()
    if offsets != list(range(file.next, file.next + len(offsets))):
        topic, queue_id, _ = file.key
        raise JobError(
            f"{topic}, queue {queue_id}: the log changed while it was read; stop the broker that "
            "uses the store, and run it again"
        )
    flat: list[int] = [0] * (3 * len(offsets))
    for number, name in enumerate(("physical", "size", "code")):
        flat[number::3] = part.column(name).to_pylist()
    for start in range(0, len(flat), 3 * PACKED_MAX):
        some = flat[start : start + 3 * PACKED_MAX]
        file.data += entries_packer(len(some) // 3)(*some)
    file.next += len(offsets)
    file.time_ms = part.column("time")[part.num_rows - 1].as_py()


@dataclass(frozen=True, slots=True)
class OddQueueWriter:
    """Writes queues whose records do not follow each other, by the rules of ``kerolox store
    rebuild``. Arguments are those of :class:`QueueFileWriter`, and ``top``: most notes of a task.
    """

    root: str
    scratch: str
    file_bytes: int
    top: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """In a worker: from entries sorted by topic, queue and physical offset, all of a queue in
        one task.
        """
        key: tuple[str, int] | None = None
        writer: QueueWriter | None = None
        folder = ""
        entries = files = 0
        notes: list[str] = []

        def note(odd: str) -> None:
            if odd and len(notes) < self.top:
                notes.append(odd.strip())

        try:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in _columns(batch)), strict=True):
                    if key != row[:2]:
                        if key is not None and writer is not None:
                            note(writer.finish())
                            entries += writer.count
                            files += self._publish(folder, *key)
                        key = (row[0], row[1])
                        folder = os.path.join(self.scratch, uuid.uuid4().hex)
                        os.mkdir(folder)
                        writer = QueueWriter(folder, f"{key[0]}, queue {key[1]}", self.file_bytes)
                    assert writer is not None
                    note(writer.put(*row[2:]))
            if key is not None and writer is not None:
                note(writer.finish())
                entries += writer.count
                files += self._publish(folder, *key)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        yield done_batch(entries, files, notes)

    def _publish(self, folder: str, topic: str, queue_id: int) -> int:
        """Bring a queue to the disk and to its place; how many files it has."""
        names = os.listdir(folder)
        for name in names:
            sync_path(os.path.join(folder, name))
        make_one(os.path.join(self.root, topic))
        place = os.path.join(self.root, topic, str(queue_id))
        # Of the task's first run.
        shutil.rmtree(place, ignore_errors=True)
        os.rename(folder, place)
        return len(names)


def _columns(batch: pyarrow.RecordBatch) -> list[pyarrow.Array]:
    names = ("topic", "queueId", "queueOffset", "physical", "size", "code", "time")
    return [batch.column(name) for name in names]
