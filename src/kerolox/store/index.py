"""The index: from ``topic#key`` to the records that carry the key.

A file is a hash table with chains (``IndexFile`` of RocketMQ), big-endian::

    0 begin timestamp 8 | 8 end timestamp 8 | 16 begin offset 8 | 24 end offset 8
    32 used slots 4 | 36 count 4 | 40 slots, 4 each | entries, 20 each
    entry: key hash 4 | physical offset 8 | seconds since begin 4 | entry before it in its slot 4

``count`` starts at 1, entry 0 is never used, a slot of 0 is empty. Key text is not stored: a
query may give records of other keys with the same hash, and the asker compares.

:class:`Index` follows the commit log: it keeps the offset up to which records are indexed and
reads on from there, in slices, from its own thread or when a query asks. Nothing is queued, so an
index that falls behind costs no memory, and recovery is the same walk from an earlier offset.
Blocks of a file are reserved before they are written through the map: a full disk is an error
there and not a SIGBUS. What may be a hole is read with ``pread``, for some file systems give a
page to whoever reads a hole through a map. An index that can't be written waits where it is and
is tried again: the log has everything, so writes go on meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import threading
import time
from collections.abc import Sequence
from operator import mul
from pathlib import Path

from kerolox.message import PropertyKey, java_hash, property_value
from kerolox.protocol.codes import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from kerolox.protocol.records import RecordView
from kerolox.store.files.mapped_file import (
    check_file_size,
    close_map,
    make_folder,
    release_pages,
    sync_path,
)
from kerolox.store.log.commit_log import CommitLog

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
_INT = struct.Struct(">i")
HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
RESERVE_BYTES = 4 << 20
"""Blocks reserved at a time for entries."""
SECONDS_MAX = 0x7FFFFFFF
INDEX_NAME = re.compile(r"[0-9]{17}\Z")

_POWERS_COUNT = 256
_POWERS: tuple[int, ...] = tuple(
    pow(31, exponent, 1 << 32) for exponent in range(_POWERS_COUNT + 1)
)
_REVERSED_POWERS_8 = _POWERS[7::-1]
_PREFIX_BYTES_MIN = 16
_PREFIXES_MAX = 4_096


def index_hash(text: str) -> int:
    """The hash of ``topic#key`` (``indexKeyHashMethod``): never negative."""
    value = abs(java_hash(text))
    return 0 if value == 0x80000000 else value


def _java_hash_on(state: int, data: bytes) -> int:
    """Java's hash of ASCII text after text whose hash is ``state``, as 32 unsigned bits."""
    for at in range(0, len(data), _POWERS_COUNT):
        part = data[at : at + _POWERS_COUNT]
        size = len(part)
        state = (state * _POWERS[size] + sum(map(mul, part, _POWERS[size - 1 :: -1]))) & 0xFFFFFFFF
    return state


class KeyHasher:
    """Hashes ``topic#key`` fast: remembers the hashes of topics and of long keys' beginnings.

    A client's unique ids differ in their last 8 characters for minutes (16 before them are
    address and process): 0.6 microseconds instead of 5 for a plain loop.
    """

    __slots__ = ("_prefixes",)

    def __init__(self) -> None:
        self._prefixes: dict[tuple[bytes, bytes], int] = {}

    def hash(self, topic: bytes, key: bytes) -> int:
        """:func:`index_hash` of the UTF-8 text ``topic#key``."""
        if not key.isascii() or not topic.isascii():
            return index_hash(
                f"{topic.decode('utf-8', 'replace')}#{key.decode('utf-8', 'replace')}"
            )
        if len(key) >= _PREFIX_BYTES_MIN + 8:
            prefix, rest = key[:-8], key[-8:]
            state = self._state(topic, prefix)
            value: int = state * _POWERS[8] + sum(map(mul, rest, _REVERSED_POWERS_8))
            value &= 0xFFFFFFFF
        else:
            value = _java_hash_on(self._state(topic, b""), key)
        if value & 0x80000000:
            value = 0x100000000 - value
            return 0 if value == 0x80000000 else value
        return value

    def _state(self, topic: bytes, prefix: bytes) -> int:
        state = self._prefixes.get((topic, prefix))
        if state is None:
            if len(self._prefixes) >= _PREFIXES_MAX:
                self._prefixes.clear()
            state = _java_hash_on(_java_hash_on(0, topic + b"#"), prefix)
            self._prefixes[topic, prefix] = state
        return state


def record_keys(properties: bytes) -> list[bytes]:
    """The keys of a record: its unique id, then the words of its KEYS property."""
    return keys_of(
        property_value(properties, PropertyKey.UNIQUE_KEY),
        property_value(properties, PropertyKey.KEYS),
    )


def keys_of(unique: bytes | None, words: bytes | None) -> list[bytes]:
    """The same from the values of the two properties; None: it has none."""
    keys = [] if unique is None else [unique]
    if words is not None:
        keys.extend(word for word in words.split(b" ") if word)
    return keys


def index_name(time_ms: int) -> int:
    """The name of a file that is made at a time, as RocketMQ has it: local, to the millisecond."""
    local = time.localtime(time_ms // 1_000)
    return int(time.strftime("%Y%m%d%H%M%S", local)) * 1_000 + time_ms % 1_000


class IndexFile:
    """One file of the index.

    Raises on opening:
        ValueError: the file has another size than configured.
    """

    def __init__(self, path: str, slots: int, entries: int) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self.size = HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._reserved = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        found = os.fstat(self._descriptor).st_size
        try:
            if found:
                check_file_size(path, found, self.size, "maxHashSlotNum and maxIndexNum")
            else:
                os.ftruncate(self._descriptor, self.size)
                self._reserve(self._entries_at)
            self._map = mmap.mmap(self._descriptor, self.size)
        except BaseException:
            os.close(self._descriptor)
            if not found:
                Path(path).unlink(missing_ok=True)
            raise
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = 0, 0, 0, 0
        self.used_slots = 0
        self.count = 1
        header = HEADER.unpack(os.pread(self._descriptor, HEADER_BYTES, 0))
        (self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset) = header[:4]
        self.used_slots, self.count = header[4], max(1, header[5])

    @property
    def is_sound(self) -> bool:
        """The header can be true."""
        return self.count <= self.entries and self.used_slots >= 0 and self.end_offset >= 0

    @property
    def is_full(self) -> bool:
        """No entry fits any more."""
        return self.count >= self.entries

    def continue_from(self, end_offset: int, end_timestamp: int) -> None:
        """Take over where the file before this one ended."""
        if end_offset > 0:
            self.begin_offset = self.end_offset = end_offset
        if end_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = end_timestamp
        self._write_header()

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    def _reserve(self, end: int) -> None:
        """Give the file blocks up to ``end``; a full disk is an ``OSError`` here."""
        if not self._reserved:
            os.posix_fallocate(self._descriptor, 0, self._entries_at)
            self._reserved = self._entries_at
        start = self._reserved
        if end <= start:
            return
        stop = min(self.size, max(end, start + RESERVE_BYTES))
        os.posix_fallocate(self._descriptor, start, stop - start)
        self._reserved = stop

    def _slot(self, slot_at: int) -> int:
        """The newest entry of a slot, which may be a hole."""
        return int.from_bytes(os.pread(self._descriptor, SLOT_BYTES, slot_at), "big", signed=True)

    def put(self, key_hash: int, physical_offset: int, store_timestamp: int) -> bool:
        """Add an entry; False when the file is full. OSError: no block is left for it."""
        count = self.count
        if count >= self.entries:
            return False
        view = self._map
        slot_at = HEADER_BYTES + key_hash % self.slots * SLOT_BYTES
        entry_at = self._entries_at + count * ENTRY_BYTES
        if entry_at + ENTRY_BYTES > self._reserved:
            self._reserve(entry_at + ENTRY_BYTES)
        (before,) = _INT.unpack_from(view, slot_at)
        if before <= 0 or before > count:
            before = 0
            self.used_slots += 1
        begin = self.begin_timestamp
        seconds = (store_timestamp - begin) // 1_000 if begin > 0 else 0
        if seconds < 0:
            seconds = 0
        elif seconds > SECONDS_MAX:
            seconds = SECONDS_MAX
        ENTRY.pack_into(view, entry_at, key_hash, physical_offset, seconds, before)
        _INT.pack_into(view, slot_at, count)
        if count <= 1:
            self.begin_offset, self.begin_timestamp = physical_offset, store_timestamp
        self.count = count + 1
        self.end_offset, self.end_timestamp = physical_offset, store_timestamp
        self._write_header()
        return True

    def repair_last(self) -> None:
        """Take back an entry that was linked but not counted when the process was killed."""
        at = self._entries_at + self.count * ENTRY_BYTES
        if self.count >= self.entries:
            return
        key_hash, _, _, before = ENTRY.unpack(os.pread(self._descriptor, ENTRY_BYTES, at))
        slot_at = HEADER_BYTES + key_hash % self.slots * SLOT_BYTES
        if self._slot(slot_at) == self.count:
            _INT.pack_into(self._map, slot_at, before)

    def is_time_matched(self, begin: int, end: int) -> bool:
        """The file's times and [begin, end] overlap (``isTimeMatched``)."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def select(self, found: list[int], key_hash: int, most: int, begin: int, end: int) -> None:
        """Add offsets of entries with a hash and a time in [begin, end], newest first."""
        count = self.count
        if count <= 1:
            return
        view = self._map
        at = self._slot(HEADER_BYTES + key_hash % self.slots * SLOT_BYTES)
        steps = count
        while 0 < at <= count and len(found) < most and steps:
            # A chain is never longer than the file; a damaged one may be a ring.
            steps -= 1
            entry = ENTRY.unpack_from(view, self._entries_at + at * ENTRY_BYTES)
            entry_hash, offset, seconds, before = entry
            if seconds < 0:
                return
            when = self.begin_timestamp + seconds * 1_000
            if entry_hash == key_hash and begin <= when <= end:
                found.append(offset)
            if before == at or when < begin:
                return
            at = before

    def has(self, key_hash: int, physical_offset: int) -> bool:
        """An entry with this hash and offset is among those of the file's last records."""
        view = self._map
        at = self._slot(HEADER_BYTES + key_hash % self.slots * SLOT_BYTES)
        while 0 < at < self.count:
            entry_hash, offset, _seconds, before = ENTRY.unpack_from(
                view, self._entries_at + at * ENTRY_BYTES
            )
            if entry_hash == key_hash and offset == physical_offset:
                return True
            if offset < physical_offset or before >= at:
                return False
            at = before
        return False

    def flush(self) -> None:
        """Wait until the disk has everything (``fdatasync`` takes the map's pages along)."""
        os.fdatasync(self._descriptor)

    def release_pages(self) -> None:
        """Take the file's pages out of this process; the page cache keeps them."""
        release_pages(self._map, self.size)

    def close(self) -> None:
        """Unmap (see ``close_map``) and close; idempotent."""
        if self._descriptor >= 0:
            close_map(self._map)
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        # Only of an opened one: the constructor may have failed before.
        if getattr(self, "_map", None) is not None:
            self.close()

    def delete(self) -> None:
        """Close the file and remove it."""
        self.close()
        Path(self.path).unlink(missing_ok=True)


class Index:
    """The files of the index and the offset up to which the log is in them.

    Every method takes ``lock``, in slices short enough that a query waits under a millisecond.
    """

    def __init__(self, folder: str, slots: int, entries: int) -> None:
        if slots < 1 or entries < 2:
            raise ValueError(
                f"maxHashSlotNum {slots} and maxIndexNum {entries}: at least 1 and 2 wanted"
            )
        self.folder = folder
        self.slots = slots
        self.entries = entries
        self.files: list[IndexFile] = []
        self.lock = threading.Lock()
        self.followed_offset = 0
        """Records before it are indexed."""
        self.followed_count = 0
        self.failure = ""
        """Why it did not go on the last time; ``follow`` tries again unless ``is_given_up``."""
        self.is_given_up = False
        """A flush failed: only recovery can tell what the disk has."""
        self._is_half_done = False
        """Some keys of the record at ``followed_offset`` may have been put."""
        self.filled: list[IndexFile] = []
        """Files that became full and are not flushed yet."""
        self.removed_count = 0
        """Files that were removed since ``load`` began, to be built again."""
        self._known: dict[str, int] = {}
        self._hasher = KeyHasher()
        self._last_name = 0

    def load(
        self,
        *,
        clean: bool = True,
        known: Sequence[tuple[str, int]] = (),
        min_physical_offset: int = 0,
    ) -> list[str]:
        """Open the files; notes about what was odd.

        Damaged files are removed, and all behind one that is missing: the log gives their keys
        again. ``known``: the files that there were, and the offset of the last record in each.
        ValueError: every file has another size than configured, or one is larger.
        """
        notes: list[str] = []
        self._known = dict(known)
        names = self._list(notes)
        gone = [n for n, end in known if end >= min_physical_offset and n not in names]
        size = HEADER_BYTES + self.slots * SLOT_BYTES + self.entries * ENTRY_BYTES
        # With every file of another size the setting is wrong.
        may_be_short = not clean or size in names.values()
        for name in sorted(names):
            path = os.path.join(self.folder, name)
            if not names[name]:
                notes.append(f"index: removed {path}, it was just being created")
                Path(path).unlink()
            elif self.removed_count or (gone and name > gone[0]):
                self._remove(path, "a file before it is missing", notes)
            elif names[name] < size and may_be_short:
                self._remove(path, "it is too short", notes)
            else:
                file = IndexFile(path, self.slots, self.entries)
                if file.is_sound:
                    self.files.append(file)
                    self._last_name = int(name)
                else:
                    file.close()
                    self._remove(path, "its header is damaged", notes)
        self.removed_count += bool(gone)
        return notes

    def _list(self, notes: list[str]) -> dict[str, int]:
        """The files by their names, with their sizes."""
        names: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if INDEX_NAME.match(entry.name) and entry.is_file():
                    names[entry.name] = entry.stat().st_size
                else:
                    notes.append(f"index: {entry.name} is no file of the index, left alone")
        return names

    def _remove(self, path: str, reason: str, notes: list[str]) -> None:
        Path(path).unlink()
        self.removed_count += 1
        notes.append(f"index: removed {path}, {reason}; it is built again")

    def drop_files(self, *, newer_than: int | None, from_offset: int) -> int:
        """Delete the newest files that end after a time, or that name ``from_offset`` or more.

        ``newer_than`` None: times do not matter. How many were deleted since ``load`` began.
        """
        before = self.removed_count
        while self.files:
            last = self.files[-1]
            is_newer = newer_than is not None and self._may_be_newer(last, newer_than)
            if not is_newer and last.end_offset < from_offset and last.count > 1:
                break
            self.files.pop().delete()
            self.removed_count += 1
        if self.removed_count > before:
            # What comes back after a loss of power would hold keys twice.
            sync_path(self.folder)
        return self.removed_count

    def _may_be_newer(self, file: IndexFile, timestamp: int) -> bool:
        """Whether a file may have entries of after a time, at which all of it was on the disk."""
        if file.end_timestamp != timestamp:
            return file.end_timestamp > timestamp
        # More of the same millisecond may have come after the flush.
        known = self._known.get(os.path.basename(file.path))
        return not file.is_full and known != file.end_offset

    def file_ends(self) -> list[tuple[str, int]]:
        """The names of the files, and the offset of the last record in each."""
        return [(os.path.basename(file.path), file.end_offset) for file in self.files]

    def expire(self, min_physical_offset: int) -> list[str]:
        """Take out the oldest files, never the last, that only know records before an offset;
        their paths. They are not deleted."""
        paths: list[str] = []
        with self.lock:
            while len(self.files) > 1 and self.files[0].end_offset < min_physical_offset:
                file = self.files.pop(0)
                if file in self.filled:
                    self.filled.remove(file)
                # Not closed: a flush may be at it. The last use closes it.
                paths.append(file.path)
        return paths

    @property
    def end_offset(self) -> int:
        """Offset of the last record that has an entry; -1 without any."""
        return self.files[-1].end_offset if self.files else -1

    @property
    def end_timestamp(self) -> int:
        """Store timestamp of the last record that has an entry; 0 without any."""
        return self.files[-1].end_timestamp if self.files else 0

    def resume(self, log: CommitLog) -> int:
        """Go on at the last record that has entries, completing them; its offset."""
        end_offset = self.end_offset
        record = log.record_at(end_offset) if end_offset >= 0 else None
        if record is None:
            self.followed_offset = log.min_offset
            return log.min_offset
        self._is_half_done = True
        self.followed_offset = end_offset
        return end_offset

    def follow(self, log: CommitLog, most: int) -> int:
        """Index up to ``most`` records that are not yet; how many it were."""
        done = 0
        with self.lock:
            if self.is_given_up:
                return 0
            offset = self.followed_offset
            end = log.max_offset
            if offset >= end:
                return 0
            try:
                for at, record in log.records_from(offset, end):
                    is_new = not self._is_half_done
                    self._index(at, record)
                    self._is_half_done = False
                    offset = at + record.size
                    done += is_new
                    if done >= most:
                        break
                else:
                    offset = end
                self.failure = ""
            except (OSError, ValueError) as error:
                self._is_half_done = True
                self.failure = f"the index in {self.folder} can't be written: {error}"
            finally:
                self.followed_offset = offset
                self.followed_count += done
        return done

    def _index(self, offset: int, record: RecordView) -> None:
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        for key in record_keys(record.properties):
            key_hash = self._hasher.hash(record.topic, key)
            if not self._is_half_done or not self._has(key_hash, offset):
                self._put(key_hash, offset, record.store_timestamp)

    def _has(self, key_hash: int, offset: int) -> bool:
        return any(file.has(key_hash, offset) for file in self.files[-2:])

    def _put(self, key_hash: int, offset: int, store_timestamp: int) -> None:
        files = self.files
        if not files or not files[-1].put(key_hash, offset, store_timestamp):
            self._add_file().put(key_hash, offset, store_timestamp)

    def _add_file(self) -> IndexFile:
        """A new file, named by the time."""
        make_folder(self.folder)
        name = max(index_name(time.time_ns() // 1_000_000), self._last_name + 1)
        self._last_name = name
        file = IndexFile(os.path.join(self.folder, f"{name:017d}"), self.slots, self.entries)
        if self.files:
            before = self.files[-1]
            file.continue_from(before.end_offset, before.end_timestamp)
            self.filled.append(before)
        self.files.append(file)
        return file

    def query(
        self, topic: str, key: str, most: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """(physical offsets, end timestamp, end offset of the newest file); ``queryOffset``."""
        key_hash = index_hash(f"{topic}#{key}")
        found: list[int] = []
        with self.lock:
            for file in reversed(self.files):
                if file.is_time_matched(begin, end):
                    file.select(found, key_hash, most, begin, end)
                if file.begin_timestamp < begin or len(found) >= most:
                    break
            return found, self.end_timestamp, max(0, self.end_offset)

    def flush(self, *, everything: bool) -> int:
        """Flush the files that became full, or all; the end timestamp of what is on disk, or 0."""
        with self.lock:
            files = list(self.filled)
            self.filled.clear()
            timestamp = files[-1].end_timestamp if files else 0
            if everything and self.files:
                files.append(self.files[-1])
                timestamp = self.end_timestamp
        for file in files:
            try:
                file.flush()
            except OSError as error:
                self.failure = f"flushing {file.path}: {error}; the index goes on after a restart"
                self.is_given_up = True
                raise
        return 0 if self.is_given_up else timestamp

    def close(self) -> None:
        """Close all files."""
        with self.lock:
            for file in self.files:
                file.close()
            self.files.clear()
