"""Index against log: each key of each record has an entry, and each entry is of its record's keys.

Entries are written in the order of the log, so both are walked side by side, once. Whether a query
can find an entry is its file's own matter. Each entry must lead to the one before it in its slot,
and each slot to its last entry. Slots of one file at a time are kept, 4 bytes each.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kerolox.inspect.index_layout import IndexHeader, IndexShape, find_shape, read_header
from kerolox.protocol.codes import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from kerolox.store.index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT_BYTES,
    KeyHasher,
    record_keys,
)

if TYPE_CHECKING:
    from kerolox.inspect.findings import Findings
    from kerolox.inspect.places import StorePlaces
    from kerolox.protocol.records import RecordView

WINDOW_ENTRIES = 65_536
CHAIN_FINDINGS_MAX = 50
"""Broken chains told of one file."""
_END = (1 << 63, 0, 0, 0, None)

_Entry = tuple[int, int, int, int, "_OpenIndexFile | None"]
"""(physical offset, key hash, seconds, number in its file, file)."""


class _OpenIndexFile:
    """One file of the index that is being read."""

    def __init__(self, path: str, descriptor: int, shape: IndexShape, header: IndexHeader) -> None:
        self.path = path
        self.descriptor = descriptor
        self.shape = shape
        self.header = header
        self.last = array("i", bytes(SLOT_BYTES * shape.slots))
        """The last entry of each slot, as far as was read."""
        self.suspects: dict[int, tuple[int, str]] = {}
        """Entries that lead elsewhere: what was the last one in their slot, and the sentence."""

    def place_of(self, number: int) -> int:
        """Byte of the file where an entry begins."""
        return self.shape.entries_at + number * ENTRY_BYTES

    def link(self, number: int, key_hash: int, previous: int) -> None:
        """An entry follows ``previous`` in the slot of its hash; a suspect when that is not so."""
        slot = key_hash % self.shape.slots
        before = self.last[slot]
        self.last[slot] = number
        if before != previous and len(self.suspects) < CHAIN_FINDINGS_MAX:
            text = f"entry {number} leads to entry {previous}, the one before it in its slot is "
            self.suspects[number] = (before, text + str(before))

    def correct(self, number: int, key_hash: int, right_hash: int) -> None:
        """The hash of an entry turned out to be wrong: it is linked by the right one."""
        data = os.pread(self.descriptor, ENTRY_BYTES, self.place_of(number))
        previous = ENTRY.unpack(data)[3]
        before = self.suspects.pop(number, (previous, ""))[0]
        slot = key_hash % self.shape.slots
        if self.last[slot] == number:
            self.last[slot] = before
        if self.last[right_hash % self.shape.slots] < number:
            self.link(number, right_hash, previous)


class IndexCheck:
    """Feed it every record with :meth:`record`, then call :meth:`finish`."""

    def __init__(self, places: StorePlaces, findings: Findings) -> None:
        self._places = places
        self._findings = findings
        self._hasher = KeyHasher()
        self._paths = places.index_paths()
        self._log_start = places.log_files[0].start if places.log_files else 0
        self._entries = self._all_entries()
        self._current: _Entry = _END
        self._missing: list[int] | None = None
        """[offset of the first record, that after the last one, how many] without entries."""
        self._is_unreadable = False
        self.count = 0
        """Entries compared."""
        if places.options.has_index:
            self._advance()

    def _advance(self) -> None:
        self._current = next(self._entries, _END)

    def record(self, record: RecordView) -> None:
        """Take the next record of the log."""
        offset = record.physical_offset
        while self._current[0] < offset:
            self._stray()
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        keys = record_keys(record.properties)
        if not keys:
            if self._current[0] == offset:
                self._compare_sets(record, [])
            return
        topic, timestamp = record.topic, record.store_timestamp
        for number, key in enumerate(keys):
            current = self._current
            if current[0] != offset or current[1] != self._hasher.hash(topic, key):
                self._compare_sets(record, keys[number:])
                return
            self._check_time(current, timestamp)
            self.count += 1
            self._advance()
        if self._current[0] == offset:
            self._compare_sets(record, [], keys)
        elif self._missing is not None:
            self._report_missing(is_last=False)

    def _check_time(self, entry: _Entry, timestamp: int) -> None:
        _offset, _hash, seconds, number, file = entry
        assert file is not None
        begin = file.header.begin_timestamp
        wanted = max(0, min((timestamp - begin) // 1_000, SECONDS_MAX)) if begin > 0 else 0
        # The first entry of a file counts from the end of the file before it.
        if seconds != wanted and number > 1:
            text = (
                f"entry {number} is {seconds} s after the file's beginning, its record {wanted} s"
            )
            self._findings.add("index", file.path, file.place_of(number), text)

    def _stray(self) -> None:
        """The current entry names no record's beginning."""
        offset, _hash, _seconds, number, file = self._current
        if offset >= self._log_start and not self._findings.is_damaged(offset):
            assert file is not None
            text = f"entry {number} names a record at {offset}, where none begins"
            self._findings.add("index", file.path, file.place_of(number), text)
        self._advance()

    def _compare_sets(
        self, record: RecordView, keys: list[bytes], seen: list[bytes] | None = None
    ) -> None:
        """The entries of one record in any order; a record indexed twice is in order."""
        offset, topic, timestamp = record.physical_offset, record.topic, record.store_timestamp
        wanted = {self._hasher.hash(topic, key): key for key in keys}
        all_keys = (
            record_keys(record.properties)
            if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
            else []
        )
        allowed = {self._hasher.hash(topic, key) for key in all_keys}
        has_entries = len(keys) < len(all_keys) or bool(seen)
        strangers: list[tuple[int, int, _OpenIndexFile]] = []
        while self._current[0] == offset:
            _offset, key_hash, _seconds, number, file = self._current
            assert file is not None
            if key_hash in allowed:
                wanted.pop(key_hash, None)
                self._check_time(self._current, timestamp)
            else:
                strangers.append((number, key_hash, file))
            has_entries = True
            self.count += 1
            self._advance()
        if not has_entries:
            if wanted:
                self._miss(record)
            return
        for number, key_hash, file in strangers:
            text = f"entry {number} has the hash {key_hash}, which is of no key of its record"
            text += f" at {offset}"
            if len(wanted) == len(strangers) == 1:
                right_hash, key = wanted.popitem()
                file.correct(number, key_hash, right_hash)
                text += f"; {_text(key)} is not found"
            self._findings.add("index", file.path, file.place_of(number), text)
        if not wanted:
            return
        self._report_missing(is_last=False)
        for key in wanted.values():
            text = f"the key {_text(key)} of the record at {offset} ({_text(topic)}) has no entry"
            self._findings.add("index", self._path_near(), -1, text)

    def _miss(self, record: RecordView) -> None:
        if self._missing is None:
            self._missing = [record.physical_offset, 0, 0]
        self._missing[1] = record.physical_offset + record.size
        self._missing[2] += 1

    def _path_near(self) -> str:
        file = self._current[4]
        if file is not None:
            return file.path
        return self._paths[-1] if self._paths else self._places.index_folder

    def _report_missing(self, *, is_last: bool) -> None:
        missing, self._missing = self._missing, None
        if missing is None or self._is_unreadable:
            return
        count = missing[2]
        what = "1 record" if count == 1 else f"{count} records"
        is_coming = self._places.is_in_use or not self._places.is_closed_cleanly
        if not self._paths and is_coming:
            self._findings.note(f"{self._places.index_folder}: there are no files yet")
            return
        if not self._paths:
            text = f"there are no files, and the log holds {what} with keys, the first at "
            text += f"{missing[0]} (if messageIndexEnable is false: --no-index)"
            self._findings.add("index", self._places.index_folder, -1, text)
            return
        text = f"{what} with keys from {missing[0]} to {missing[1]} of the log have no entry"
        if is_last and is_coming:
            when = "the broker is at it" if self._places.is_in_use else "the next start writes them"
            self._findings.note(f"{self._path_near()}: {text}; {when}")
            return
        self._findings.add("index", self._path_near(), -1, text)

    def finish(self, log_end: int) -> None:
        """Examine what is left after the last record."""
        while self._current[0] < _END[0]:
            if self._places.is_in_use and self._current[0] >= log_end:
                self._advance()
                continue
            self._stray()
        self._report_missing(is_last=True)

    # -- the files --------------------------------------------------------------------------
    def _all_entries(self) -> Iterator[_Entry]:
        """The entries of all files, in order; examines slots and chains on the way."""
        before = -1
        for path in self._paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._findings.note(f"{path} was deleted meanwhile")
                continue
            try:
                file = self._open(path, descriptor)
                if file is None:
                    continue
                if file.header.begin_offset < before:
                    text = f"begins at {file.header.begin_offset}, the file before ends at {before}"
                    self._findings.add("index", path, 16, text)
                before = file.header.end_offset
                yield from self._file_entries(file)
            finally:
                os.close(descriptor)

    def _open(self, path: str, descriptor: int) -> _OpenIndexFile | None:
        header = read_header(descriptor)
        size = os.fstat(descriptor).st_size
        if header.entry_count <= 1:
            return None
        options = self._places.options
        hint = IndexShape(options.index_slots, options.index_entries)
        shape = find_shape(descriptor, size, header, hint)
        if shape is None or header.entry_count > shape.entries:
            text = f"{size} bytes with {header.entry_count} entries fit no number of slots"
            if not (options.index_slots and options.index_entries):
                text += "; if maxHashSlotNum or maxIndexNum are set, give -c broker.conf"
            self._findings.add("index", path, -1, text)
            self._is_unreadable = True
            return None
        return _OpenIndexFile(path, descriptor, shape, header)

    def _file_entries(self, file: _OpenIndexFile) -> Iterator[_Entry]:
        header = file.header
        offset = header.begin_offset
        number = 1
        while number < header.entry_count:
            count = min(WINDOW_ENTRIES, header.entry_count - number)
            data = os.pread(file.descriptor, count * ENTRY_BYTES, file.place_of(number))
            if len(data) < count * ENTRY_BYTES:
                text = f"the file ends in the middle of its {header.entry_count - 1} entries"
                self._findings.add("index", file.path, -1, text)
                return
            entries = list(ENTRY.iter_unpack(data))
            following = [entry[1] for entry in entries[1:]]
            following.append(header.end_offset)
            for (key_hash, at, seconds, previous), after in zip(entries, following, strict=True):
                file.link(number, key_hash, previous)
                if offset <= at and (at <= after or after < offset):
                    offset = at
                    yield at, key_hash, seconds, number, file
                else:
                    text = f"entry {number} names the record at {at}, between entries of {offset} "
                    text += f"and {after}"
                    self._findings.add("index", file.path, file.place_of(number), text)
                number += 1
        for suspect, (_before, text) in file.suspects.items():
            self._findings.add("index", file.path, file.place_of(suspect) + 16, text)
        self._check_slots(file)
        self._check_header(file, offset)

    def _check_slots(self, file: _OpenIndexFile) -> None:
        data = os.pread(file.descriptor, SLOT_BYTES * file.shape.slots, HEADER_BYTES)
        found = array("i", data)
        found.byteswap()
        if found == file.last:
            return
        reported = 0
        for slot, (is_there, wanted) in enumerate(zip(found, file.last, strict=True)):
            if is_there == wanted or self._leads_to(file, is_there, wanted):
                continue
            reported += 1
            if reported > CHAIN_FINDINGS_MAX:
                continue
            text = f"slot {slot} leads to entry {is_there}, its last one is {wanted}"
            self._findings.add("index", file.path, HEADER_BYTES + slot * SLOT_BYTES, text)

    def _leads_to(self, file: _OpenIndexFile, number: int, wanted: int) -> bool:
        """Beside a broker: the slot's newer entries, which came meanwhile, lead to ``wanted``.

        After a crash: so does an entry that was linked and not counted any more.
        """
        if not self._places.is_in_use and number != file.header.entry_count:
            return False
        while file.header.entry_count <= number < file.shape.entries:
            data = os.pread(file.descriptor, ENTRY_BYTES, file.place_of(number))
            before = ENTRY.unpack(data)[3]
            if before >= number:
                return False
            number = before
        return number == wanted

    def _check_header(self, file: _OpenIndexFile, end_offset: int) -> None:
        header = file.header
        if self._places.is_in_use:
            return
        if header.end_offset != end_offset:
            text = f"the header's end offset is {header.end_offset}, the last entry's {end_offset}"
            self._findings.add("index", file.path, 24, text)
        if header.begin_timestamp > header.end_timestamp:
            text = f"the header's begin time {header.begin_timestamp} is after its end time "
            self._findings.add("index", file.path, 0, text + str(header.end_timestamp))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
