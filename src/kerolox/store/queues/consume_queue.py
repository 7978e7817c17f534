"""Consume queues: where in the commit log the messages of one topic and queue lie.

A queue is a run of 20-byte entries in files of fixed size, named by the byte offset of their first
entry. Files are neither mapped nor kept open all the time. ``pwrite`` writes entries and ``pread``
reads them. At most ``OpenQueues.limit`` queues hold descriptors, so thousands of idle queues cost a
few hundred bytes each.

A queue that begins at a later offset (its start was lost or deleted) has *pre-blank* entries
before its first one; they are not messages, ``min_offset`` lies behind them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerolox.store.files.mapped_file import (
    check_file_size,
    list_sizes,
    make_folder,
    offset_name,
    opened,
    sync_path,
    write_all,
    zero_from,
)
from kerolox.store.layout import (
    ENTRY,
    ENTRY_BYTES,
    PRE_BLANK,
    PRE_BLANK_SIZE,
    entries_packer,
    good_entries,
    is_pre_blank,
)
from kerolox.store.queues.consume_queue_ext import ConsumeQueueExt
from kerolox.store.queues.ext_unit import ExtUnit, is_ext_address
from kerolox.store.queues.names import check_queue_name

FILE_SIZE_SETTING = "mappedFileSizeConsumeQueue"
OPEN_QUEUES_MAX = 512
RECOVERED_FILES = 3
"""An unclean start examines every entry of so many files at the end of each queue."""
SCAN_ENTRIES = 3_277
"""Entries that a search one by one reads at once (64 KiB)."""


@dataclass
class Loaded:
    """The result of loading a queue."""

    notes: list[str]
    short_files: dict[str, int]
    """Paths of files that are shorter than the setting says, with their sizes."""
    is_short: bool = False
    """A file is missing, or shorter than it was."""


class OpenQueues:
    """The queues that hold descriptors; the one that opened first closes first."""

    def __init__(self) -> None:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = max(8, min(OPEN_QUEUES_MAX, soft // 8))
        self._queues: dict[ConsumeQueue, None] = {}

    def add(self, queue: ConsumeQueue) -> None:
        """Note that a queue opened a file; may close another queue's."""
        if queue in self._queues:
            return
        if len(self._queues) >= self.limit:
            next(iter(self._queues)).close()
        self._queues[queue] = None

    def discard(self, queue: ConsumeQueue) -> None:
        """Note that a queue closed its files."""
        self._queues.pop(queue, None)


class ConsumeQueue:
    """One queue. ``min_offset``, ``max_offset``, ``next_offset`` count entries, not bytes.

    ``next_offset`` runs ahead of ``max_offset`` while a chunk is being stored.
    """

    __slots__ = (
        "_open_queues",
        "_read_descriptor",
        "_read_start",
        "_tail_descriptor",
        "_tail_start",
        "began_anew",
        "ext",
        "file_size",
        "flushed_offset",
        "folder",
        "held",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "named",
        "next_offset",
        "pending",
        "put_bytes",
        "put_count",
        "queue_id",
        "starts",
        "topic",
        "topic_bytes",
        "topic_field",
    )

    def __init__(
        self, root: str, topic: str, queue_id: int, file_size: int, open_queues: OpenQueues
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.topic_bytes = check_queue_name(topic)
        self.topic_field = bytes([len(self.topic_bytes)]) + self.topic_bytes
        self.folder = os.path.join(root, topic, str(queue_id))
        self.file_size = file_size
        self.starts: list[int] = []
        """Byte offsets of the files, ascending."""
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.flushed_offset = 0
        self.named = -1
        """The last file whose name is durable, by its first byte; -1: none is, as far as known."""
        self.max_physical_offset = -1
        """Physical offset behind the last entry's record; -1 for an empty queue."""
        self.began_anew = False
        """A slave deleted the queue of an earlier life for it: offsets behind its end are of that
        one, and whoever asks for them begins at its start."""
        self.ext: ConsumeQueueExt | None = None
        """Units beside the entries; None without ``enableConsumeQueueExt``."""
        self.pending: list[int] = []
        """Flat (physical offset, size, tags code) of the chunk that is being stored."""
        self.put_count = 0
        self.put_bytes = 0
        self.held: object = None
        """Free for the subclass of the store: its held pulls of this queue."""
        self._open_queues = open_queues
        self._tail_descriptor = -1
        self._tail_start = 0
        self._read_descriptor = -1
        self._read_start = -1

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}@{self.queue_id} {self.min_offset}..{self.max_offset}>"

    # -- files ------------------------------------------------------------------------------
    def path_of(self, start: int) -> str:
        """The file whose first byte has the offset ``start``."""
        return os.path.join(self.folder, offset_name(start))

    def _open_tail(self, start: int) -> int:
        """Open the file that entries are written to now; make it when it is new."""
        if self._tail_descriptor >= 0:
            os.close(self._tail_descriptor)
            self._tail_descriptor = -1
        self._open_queues.add(self)
        path = self.path_of(start)
        is_new = not self.starts or start > self.starts[-1]
        if is_new:
            make_folder(self.folder)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            try:
                os.ftruncate(descriptor, self.file_size)
            except OSError:
                os.close(descriptor)
                Path(path).unlink(missing_ok=True)
                raise
            self.starts.append(start)
        self._tail_descriptor, self._tail_start = descriptor, start
        return descriptor

    def close(self) -> None:
        """Close the descriptors; the next use opens them again."""
        if self.ext is not None:
            self.ext.close()
        for descriptor in (self._tail_descriptor, self._read_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._tail_descriptor = self._read_descriptor = self._read_start = -1
        self._open_queues.discard(self)

    def delete(self) -> None:
        """Delete the files; the queue is empty and new afterwards."""
        self.close()
        if self.ext is not None:
            self.ext.delete()
        for start in self.starts:
            Path(self.path_of(start)).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
        self.starts.clear()
        self.pending.clear()
        self.min_offset = self.max_offset = self.next_offset = self.flushed_offset = 0
        self.named = self.max_physical_offset = -1

    # -- write ------------------------------------------------------------------------------
    def write_entries(self, entries: Sequence[int]) -> None:
        """Append entries given as a flat run of (physical offset, size, tags code). OSError: they
        can't be written; the queue ends where it ended before.
        """
        self.put_entries(entries)
        self.count_entries(entries)

    def put_entries(self, entries: Sequence[int]) -> None:
        """Write entries behind the last one; nobody reads them before :meth:`count_entries`.
        OSError: they can't be written; :meth:`take_back` clears what was.
        """
        count = len(entries) // 3
        data = entries_packer(count)(*entries)
        position = self.max_offset * ENTRY_BYTES - self._tail_start
        descriptor = self._tail_descriptor
        if descriptor < 0 or position + len(data) >= self.file_size:
            self._write_over_files(data)
        elif os.pwrite(descriptor, data, position) != len(data):
            write_all(descriptor, data, position)

    def count_entries(self, entries: Sequence[int]) -> None:
        """Make entries that were put part of the queue."""
        self.max_offset += len(entries) // 3
        self.max_physical_offset = entries[-3] + entries[-2]
        if self.ext is not None:
            self.ext.count()

    def take_back(self) -> None:
        """Clear entries that were put and will not count: their records were not stored."""
        flushed = self.flushed_offset
        if self.starts:
            self._cut(self.max_offset)
        self.flushed_offset = flushed

    def _write_over_files(self, data: bytes) -> None:
        at = self.max_offset * ENTRY_BYTES
        done = 0
        while done < len(data):
            position = at % self.file_size
            start = at - position
            if self._tail_descriptor < 0 or self._tail_start != start:
                self._open_tail(start)
            part = data[done : done + self.file_size - position]
            write_all(self._tail_descriptor, part, position)
            if position + len(part) == self.file_size:
                # RocketMQ looks for a time in the first file changed at it or later; the system's
                # own note may be some milliseconds old.
                now = time.time_ns()
                os.utime(self._tail_descriptor, ns=(now, now))
            done += len(part)
            at += len(part)

    def begin_at(self, offset: int) -> None:
        """Let an empty queue begin at an entry offset, pre-blank entries before it."""
        assert not self.starts, "only a queue without files can begin anew"
        at = offset * ENTRY_BYTES
        blanks = at % self.file_size // ENTRY_BYTES
        if blanks:
            write_all(self._open_tail(at - at % self.file_size), PRE_BLANK * blanks, 0)
        self.min_offset = self.max_offset = self.next_offset = self.flushed_offset = offset

    def fill_gap(self, offset: int) -> None:
        """Put pre-blank entries where entries are missing, up to an entry offset."""
        blanks = offset - self.max_offset
        self._write_over_files(PRE_BLANK * blanks)
        self.max_offset = self.next_offset = offset

    def set_entry(self, offset: int, physical_offset: int, size: int, code: int) -> None:
        """Overwrite one entry that is lost or wrong (recovery)."""
        at = offset * ENTRY_BYTES
        with opened(self.path_of(at - at % self.file_size), os.O_RDWR) as descriptor:
            write_all(descriptor, ENTRY.pack(physical_offset, size, code), at % self.file_size)
        self.flushed_offset = min(self.flushed_offset, offset)
        if offset + 1 == self.max_offset and size != PRE_BLANK_SIZE:
            self.max_physical_offset = physical_offset + size

    def extend(self, store_time: int, bit_maps: Sequence[bytes]) -> None:
        """Give the pending entries units, and their addresses in place of the tags codes.

        ``bit_maps``: one for each, or none.

        What can't be written is left out: clients filter then.
        """
        assert self.ext is not None
        self._open_queues.add(self)
        with contextlib.suppress(OSError):
            self.pending[2::3] = self.ext.put(self.pending[2::3], store_time, bit_maps)

    def unit_of(self, offset: int) -> ExtUnit | None:
        """The unit of an entry; None when it has none."""
        entry = self.entry(offset)
        return None if entry is None or self.ext is None else self.ext.get(entry[2])

    def _last_address(self) -> int | None:
        """The last address of a unit in the last entries; None when there is none."""
        begin = max(self.min_offset, self.max_offset - SCAN_ENTRIES)
        for offset in range(self.max_offset - 1, begin - 1, -1):
            entry = self.entry(offset)
            if entry is not None and is_ext_address(entry[2]):
                return entry[2]
        return None

    def fit_ext(self) -> None:
        """Let the units end where the entries do."""
        if self.ext is not None:
            self.ext.end_at(self._last_address(), is_empty=self.max_offset == 0)

    # -- read -------------------------------------------------------------------------------
    def read_entries(self, offset: int, count: int) -> bytes | None:
        """The bytes of up to ``count`` entries from an entry offset, within one file.

        None: the file is not there any more (OFFSET_FOUND_NULL). The caller has checked
        ``min_offset <= offset < max_offset``.
        """
        at = offset * ENTRY_BYTES
        position = at % self.file_size
        start = at - position
        size = min(count, self.max_offset - offset) * ENTRY_BYTES
        size = min(size, self.file_size - position)
        if start == self._tail_start and self._tail_descriptor >= 0:
            return os.pread(self._tail_descriptor, size, position)
        if start != self._read_start:
            if start not in self.starts:
                return None
            self._open_queues.add(self)
            if self._read_descriptor >= 0:
                os.close(self._read_descriptor)
                self._read_descriptor = self._read_start = -1
            try:
                self._read_descriptor = os.open(self.path_of(start), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            self._read_start = start
        return os.pread(self._read_descriptor, size, position)

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of an entry; None when there is none."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        data = self.read_entries(offset, 1)
        if data is None or len(data) != ENTRY_BYTES:
            return None
        physical_offset, size, code = ENTRY.unpack(data)
        return physical_offset, size, code

    def first_entries(self) -> list[tuple[int, int, int]]:
        """The first entry of each file."""
        entries = (self.entry(start // ENTRY_BYTES) for start in self.starts)
        return [entry for entry in entries if entry is not None]

    def roll_next(self, offset: int) -> int:
        """The first entry offset of the next file (``rollNextFile``)."""
        per_file = self.file_size // ENTRY_BYTES
        return offset + per_file - offset % per_file

    def first_where(self, is_reached: Callable[[tuple[int, int, int]], bool]) -> int:
        """The first entry offset for which ``is_reached``, which is false and then true."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and is_reached(entry):
                high = middle
            else:
                low = middle + 1
        return low

    # -- recovery ---------------------------------------------------------------------------
    def load(self, *, clean: bool) -> Loaded:
        """Find the files and the last entry; ValueError: a file is larger than configured.

        ``clean=False``: entries of the last files are all examined, and the queue ends before the
        first that is none.
        """
        sizes, others = list_sizes(self.folder)
        notes = [f"{self!r}: {name} is no file of the queue, left alone" for name in others]
        loaded = Loaded(notes, {})
        for start in sorted(sizes):
            size, path = sizes[start], self.path_of(start)
            if size > self.file_size:
                check_file_size(path, size, self.file_size, FILE_SIZE_SETTING)
            if size < self.file_size:
                # A kill between creating the file and giving it its size leaves the last one so.
                loaded.is_short |= size > 0 or start != max(sizes)
                loaded.short_files[path] = size
            elif (
                start % self.file_size
                or loaded.short_files
                or (self.starts and start != self.starts[-1] + self.file_size)
            ):
                notes.append(f"{self!r}: removed {path}, the file before it is missing")
                Path(path).unlink()
                sync_path(self.folder)
                loaded.is_short = True
            else:
                self.starts.append(start)
        if self.ext is not None:
            notes += self.ext.load()
        if self.starts:
            self._find_entries(notes, clean=clean)
        self.fit_ext()
        self.close()
        return loaded

    def _find_entries(self, notes: list[str], *, clean: bool) -> None:
        end = self._find_end(clean)
        self.min_offset = self.starts[0] // ENTRY_BYTES
        self.max_offset = end
        if not clean:
            end = self.end_of_messages(end)
        if not clean and self._last_file_bytes() != end * ENTRY_BYTES:
            notes.append(f"{self!r}: entries from {end} on are torn, cut off")
            self.truncate_entries(end)
        elif len(self.starts) > 1 and self.starts[-1] >= end * ENTRY_BYTES:
            notes.append(f"{self!r}: files from {end} on hold no entry, deleted")
            self.truncate_entries(end)
        self._note_end()

    def _note_end(self) -> None:
        self.next_offset = self.flushed_offset = self.max_offset
        last = self.entry(self.max_offset - 1)
        self.max_physical_offset = -1 if last is None else last[0] + last[1]
        if last is not None and last[1] == PRE_BLANK_SIZE:
            self.max_physical_offset = -1
        self.close()

    def _data_bytes(self, start: int) -> int:
        """How far a file holds anything but zeros, rounded up to whole entries."""
        with opened(self.path_of(start), os.O_RDONLY) as descriptor:
            end = self.file_size
            at = 0
            used = 0
            while at < end:
                try:
                    at = os.lseek(descriptor, at, os.SEEK_DATA)
                except OSError:
                    break
                hole = os.lseek(descriptor, at, os.SEEK_HOLE)
                block = os.pread(descriptor, hole - at, at).rstrip(b"\0")
                if block:
                    used = at + len(block)
                at = hole
        return -(-used // ENTRY_BYTES) * ENTRY_BYTES

    def _last_file_bytes(self) -> int:
        """Byte offset behind the last thing that stands in any file of the queue."""
        for start in reversed(self.starts):
            used = self._data_bytes(start)
            if used:
                return start + used
        return self.starts[0]

    def _find_end(self, clean: bool) -> int:
        """The entry offset behind the last good entry."""
        if clean:
            return self._last_file_bytes() // ENTRY_BYTES
        first = max(0, len(self.starts) - RECOVERED_FILES)
        # When the first of them has none, the one before it may end with none as well.
        while first and not self._good_entries(self.starts[first]):
            first -= 1
        for start in self.starts[first:]:
            good = self._good_entries(start)
            if good * ENTRY_BYTES < self.file_size:
                return start // ENTRY_BYTES + good
        return self.starts[-1] // ENTRY_BYTES + self.file_size // ENTRY_BYTES

    def _good_entries(self, start: int) -> int:
        """How many good entries a file begins with."""
        with open(self.path_of(start), "rb") as file:
            return good_entries(file.read(self._data_bytes(start)))

    def end_of_messages(self, end: int) -> int:
        """Where the queue ends when it is cut at an entry offset: behind its last message. Blank
        entries there filled the place before one that is lost, and no message is to come behind
        them. Those that the queue begins with stay."""
        for at in range(end - 1, self.min_offset - 1, -1):
            entry = self.entry(at)
            if entry is None or not is_pre_blank(entry):
                return at + 1
        return end

    def truncate_entries(self, offset: int) -> None:
        """Cut the queue at an entry offset. What stood behind becomes zero or is deleted, for good.
        Once the log has grown again, entries that a loss of power brings back would pass for
        entries of it."""
        count = len(self.starts)
        if self._cut(offset):
            sync_path(self.path_of(self.starts[-1]))
        if len(self.starts) < count:
            sync_path(self.folder)

    def _cut(self, offset: int) -> bool:
        """Cut the queue, until a loss of power; whether anything of the last file was cleared."""
        self.close()
        end = offset * ENTRY_BYTES
        while len(self.starts) > 1 and self.starts[-1] >= end:
            Path(self.path_of(self.starts.pop())).unlink(missing_ok=True)
            self.named = min(self.named, self.starts[-1])
        is_cleared = False
        if self.starts:
            with opened(self.path_of(self.starts[-1]), os.O_RDWR) as descriptor:
                is_cleared = (
                    zero_from(descriptor, max(0, end - self.starts[-1]), self.file_size) > 0
                )
        self.max_offset = offset
        self.min_offset = min(self.min_offset, offset)
        self._note_end()
        self.fit_ext()
        self.close()
        return is_cleared

    def truncate(self, physical_offset: int) -> int:
        """Cut entries of records at or behind a physical offset; how many there were."""
        if self.max_physical_offset <= physical_offset:
            return 0
        before = self.max_offset
        end = self.first_where(
            lambda entry: not is_pre_blank(entry) and entry[0] >= physical_offset
        )
        # Pre-blank entries that fill a gap may have led the search too far to the right, and so
        # may zeros that a loss of power left.
        for at in range(end - 1, self.min_offset - 1, -1):
            entry = self.entry(at)
            if entry is None or is_pre_blank(entry):
                continue
            if entry[1] > 0 and entry[0] + entry[1] <= physical_offset:
                end = self.end_of_messages(end)
                break
            end = at
        self.truncate_entries(end)
        return before - end

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move ``min_offset`` behind pre-blank entries and records that the log lost."""
        if not self.starts:
            return
        self.min_offset = max(self.min_offset, self.starts[0] // ENTRY_BYTES)
        met_blank = False

        def is_kept(entry: tuple[int, int, int]) -> bool:
            nonlocal met_blank
            met_blank = met_blank or is_pre_blank(entry)
            return not is_pre_blank(entry) and entry[0] >= min_physical_offset

        first = self.entry(self.min_offset)
        if first is None or not is_kept(first):
            found = self.first_where(is_kept)
            # Entries ascend but for blank ones: a search by halves can't be trusted with those.
            self.min_offset = self._first_kept(min_physical_offset) if met_blank else found
        if self.ext is not None:
            first = self.entry(self.min_offset)
            if first is not None:
                self.ext.begin_at(first[2])

    def _first_kept(self, min_physical_offset: int) -> int:
        """The first entry of a message that the log has, one by one."""
        offset = self.min_offset
        while offset < self.max_offset:
            data = self.read_entries(offset, SCAN_ENTRIES)
            if not data:
                break
            for physical_offset, size, code in ENTRY.iter_unpack(data):
                if physical_offset >= min_physical_offset and not is_pre_blank(
                    (physical_offset, size, code)
                ):
                    return offset
                offset += 1
        return offset

    # -- retention --------------------------------------------------------------------------
    def expire(self, min_physical_offset: int, most: int) -> int:
        """Delete up to ``most`` files, never the last, whose last entry is of a record before an
        offset; correct ``min_offset``. How many files. OSError: one can't be read or deleted; those
        before it are gone.
        """
        count = 0
        while count < most and len(self.starts) > 1:
            data = self.read_entries(self.starts[1] // ENTRY_BYTES - 1, 1)
            if not data or ENTRY.unpack(data)[0] >= min_physical_offset:
                break
            start = self.starts[0]
            Path(self.path_of(start)).unlink(missing_ok=True)
            del self.starts[0]
            if self._read_start == start:
                os.close(self._read_descriptor)
                self._read_descriptor = self._read_start = -1
            count += 1
        self.correct_min_offset(min_physical_offset)
        return count
