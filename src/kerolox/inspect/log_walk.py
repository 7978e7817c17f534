"""Reading the commit log from its files, record by record, over damage and beside a writer.

The files are read with ``pread`` in windows, not mapped. So a file that shrinks or a disk that
fails is an ``OSError`` and no signal. What is read does not count as this process's memory.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kerolox.inspect.places import LogFile, file_at
from kerolox.protocol.records import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    RecordView,
    parse_record,
    record_size,
)
from kerolox.store.files.mapped_file import data_segments
from kerolox.store.layout import BLANK, BLANK_BYTES, crc_matches

if TYPE_CHECKING:
    from kerolox.inspect.findings import Findings

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

WINDOW_BYTES = 8 << 20
CATCH_UP_SECONDS_MAX = 2.0
"""How long a walk beside a writer waits, in all, for records that are being written."""
CATCH_UP_STEP_SECONDS = 0.02

_MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")


class LogWalk:
    """Walks over the records of a log's files.

    Args:
        files: in order of their offsets; those at the end that were preallocated may be among them.
        findings: takes what is wrong.
        is_in_use: a broker writes meanwhile: ``end`` is fixed when the walk begins, and what looks
            torn is read again before it counts.
        is_closed_cleanly: False: a torn record at the very end is what a crash leaves, and noted.
        progress: told of every window.
    """

    def __init__(
        self,
        files: list[LogFile],
        findings: Findings,
        *,
        is_in_use: bool = False,
        is_closed_cleanly: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self._findings = findings
        self._is_in_use = is_in_use
        self._is_closed_cleanly = is_closed_cleanly
        self._progress = progress
        self._catch_up_seconds = CATCH_UP_SECONDS_MAX
        self.files = written_files(files)
        self.start = files[0].start if files else 0
        self.end = find_log_end(files) if is_in_use else self.start
        """After the last record; known at the end of the walk, or fixed from its beginning."""
        self.last_timestamp = 0
        """The largest store timestamp seen."""
        self.count = 0
        """Records seen."""
        self._window = b""
        """Where the last record was found, and its position there."""
        self._position = 0
        self._done = 0
        self._total = sum(file.size for file in self.files)

    def records(self, start: int | None = None) -> Iterator[RecordView]:
        """Every whole record from physical offset ``start`` on, which must be a record's start.

        A record whose body does not match its CRC is a finding and comes all the same.
        """
        before: LogFile | None = None
        for number, file in enumerate(self.files):
            if before is not None and before.end != file.start:
                self._jump(before, file)
            before = file
            if start is not None and file.end <= start:
                continue
            position = max(0, (start or 0) - file.start)
            is_last = number == len(self.files) - 1
            try:
                descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                if not self._is_in_use:
                    raise
                self._findings.note(f"{file.path} was deleted meanwhile")
                continue
            try:
                yield from self._file_records(file, descriptor, position, is_last=is_last)
            finally:
                os.close(descriptor)
            self._done += file.size
            self._report(0)

    def data(self, record: RecordView) -> bytes:
        """The bytes of the record that :meth:`records` gave last."""
        return self._window[self._position : self._position + record.size]

    def _jump(self, before: LogFile, file: LogFile) -> None:
        text = f"the log ends at {before.end} and goes on at {file.start}"
        text += ": a file is missing" if before.end < file.start else ": files overlap"
        self._findings.add("log", before.path, -1, text)
        if before.end < file.start:
            self._findings.damage(before.end, file.start)

    def _report(self, position: int) -> None:
        if self._progress is not None:
            self._progress(self._done + position, self._total)

    def _file_records(
        self, file: LogFile, descriptor: int, position: int, *, is_last: bool
    ) -> Iterator[RecordView]:
        limit = file.size
        if self._is_in_use and is_last:
            limit = min(limit, self.end - file.start)
        while position < limit:
            self._report(position)
            window = os.pread(descriptor, min(WINDOW_BYTES, file.size - position), position)
            if len(window) < min(WINDOW_BYTES, file.size - position):
                raise OSError(f"{file.path}: byte {position}: can't be read to its end")
            used = 0
            for record in self._window_records(window, file.start + position, limit - position):
                used = self._position + record.size
                yield record
            if used:
                position += used
                continue
            # Not one record: the window is too short for it, or something else stands here.
            size = record_size(window)
            has_magic = window[4:8] == _MAGIC_BYTES
            if has_magic and len(window) < size <= file.size - position:
                window = os.pread(descriptor, size, position)
                for record in self._window_records(window, file.start + position, size):
                    used = self._position + record.size
                    yield record
            if used:
                position += used
                continue
            after = self._resume_position(file, descriptor, position, limit, is_last=is_last)
            if after < 0:
                return
            position = after
        if is_last:
            self.end = file.start + position

    def _window_records(self, window: bytes, start: int, limit: int) -> Iterator[RecordView]:
        """The whole records at the beginning of a window, which begins at physical ``start``."""
        view = memoryview(window)
        position, end = 0, min(len(window), limit)
        while (record := parse_record(window, position, end, start + position)) is not None:
            if not crc_matches(view, record):
                if self._waits_for_writer():
                    return
                self._note_wrong_crc(record)
            self.count += 1
            self.last_timestamp = max(self.last_timestamp, record.store_timestamp)
            self._window, self._position = window, position
            yield record
            position += record.size

    def _note_wrong_crc(self, record: RecordView) -> None:
        at = record.physical_offset
        topic = record.topic.decode("utf-8", "replace")
        which = f"{topic}, queue {record.queue_id}, {record.queue_offset}"
        file = file_at(self.files, at) or self.files[-1]
        text = f"the body of the record at {at} does not match its CRC ({which})"
        self._findings.add("log", file.path, at - file.start, text)

    def _waits_for_writer(self) -> bool:
        """Wait a moment for a record that is perhaps being written; False: it was long enough."""
        if not self._is_in_use or self._catch_up_seconds <= 0:
            return False
        time.sleep(CATCH_UP_STEP_SECONDS)
        self._catch_up_seconds -= CATCH_UP_STEP_SECONDS
        return True

    def _resume_position(
        self, file: LogFile, descriptor: int, position: int, limit: int, *, is_last: bool
    ) -> int:
        """No record stands at ``position``: where to go on in this file, -1: nowhere."""
        offset = file.start + position
        head = os.pread(descriptor, BLANK_BYTES, position)
        if len(head) == BLANK_BYTES:
            size, magic = BLANK.unpack(head)
            if magic == BLANK_MAGIC:
                if size != file.size - position:
                    text = f"the blank at {offset} says that it has {size} bytes, it has "
                    self._findings.add("log", file.path, position, text + str(file.size - position))
                if is_last:
                    self.end = file.end
                return -1
        data_at = first_data(descriptor, position, file.size)
        if data_at < 0 and is_last:
            self.end = offset
            return -1
        if self._waits_for_writer():
            return position
        again = find_record(file, descriptor, position + 1, limit)
        if again >= 0:
            reason = why_no_record(descriptor, file, position)
            text = f"no whole record from {offset} to {file.start + again}: {reason}"
            self._findings.add("log", file.path, position, text)
            self._findings.damage(offset, file.start + again)
            return again
        self._no_more(file, descriptor, position, data_at, is_last=is_last)
        return -1

    def _no_more(
        self, file: LogFile, descriptor: int, position: int, data_at: int, *, is_last: bool
    ) -> None:
        """Nothing in this file from ``position`` on is a record, and no blank stands there."""
        offset = file.start + position
        reason = why_no_record(descriptor, file, position)
        if not is_last:
            text = f"no whole record and no blank from {offset} to the end of the file: {reason}"
            self._findings.add("log", file.path, position, text)
            self._findings.damage(offset, file.end)
            return
        self.end = offset
        text = f"the log ends at {offset}, but bytes stand behind its end: {reason}"
        if data_at > position + BLANK_BYTES:
            text = f"the log ends at {offset}, but bytes stand behind its end, from "
            text += str(file.start + data_at)
        if self._is_closed_cleanly:
            self._findings.add("log", file.path, position, text)
        else:
            self._findings.note(f"{file.path}: byte {position}: {text}; the next start clears them")
        self._findings.damage(offset, file.end)


def first_data(descriptor: int, position: int, size: int) -> int:
    """Position of the first byte from ``position`` on that is not zero; -1 when there is none.

    Holes of sparse files are not read.
    """
    for start, end in data_segments(descriptor, position, size):
        block = os.pread(descriptor, end - start, start)
        found = len(block) - len(block.lstrip(b"\0"))
        if found < len(block):
            return start + found
    return -1


def find_record(file: LogFile, descriptor: int, position: int, limit: int) -> int:
    """Position of the first whole record from ``position`` on; -1 when there is none."""
    while position < limit:
        at = first_data(descriptor, position, limit)
        if at < 0:
            return -1
        position = max(position, at - 3)
        window = os.pread(descriptor, min(WINDOW_BYTES, file.size - position), position)
        at = window.find(_MAGIC_BYTES, 4)
        while at >= 0:
            start = position + at - 4
            if start >= limit:
                return -1
            if record_at(file, descriptor, start) is not None:
                return start
            at = window.find(_MAGIC_BYTES, at + 1)
        if len(window) <= 8:
            return -1
        position += len(window) - 7
    return -1


def record_at(file: LogFile, descriptor: int, position: int) -> bytes | None:
    """The whole record at a position of a file; None when none stands there."""
    head = os.pread(descriptor, 8, position)
    if len(head) < 8 or head[4:] != _MAGIC_BYTES:
        return None
    size = record_size(head)
    if size > file.size - position:
        return None
    data = os.pread(descriptor, size, position)
    record = parse_record(data, 0, len(data), file.start + position)
    return data if record is not None else None


def read_record(files: list[LogFile], offset: int) -> bytes | None:
    """The whole record at a physical offset; None when none stands there."""
    file = file_at(files, offset)
    if file is None:
        return None
    with open(file.path, "rb", buffering=0) as stream:
        return record_at(file, stream.fileno(), offset - file.start)


def record_at_or_after(files: list[LogFile], offset: int) -> int:
    """Physical offset of the first whole record at or after ``offset``; -1 when there is none."""
    for file in files:
        if file.end <= offset:
            continue
        with open(file.path, "rb", buffering=0) as stream:
            position = max(0, offset - file.start)
            if record_at(file, stream.fileno(), position) is None:
                position = find_record(file, stream.fileno(), position, file.size)
        if position >= 0:
            return file.start + position
    return -1


def why_no_record(descriptor: int, file: LogFile, position: int) -> str:
    """Half a sentence: what speaks against a record at a position."""
    head = os.pread(descriptor, 48, position)
    return fault_of_head(head, file.size - position, file.start + position)


def fault_of_head(head: bytes, left: int, offset: int) -> str:
    """The same of bytes that were read: ``head``, the first 48 from there, or what there is.
    ``left``: bytes to the end of the file.
    """
    if not any(head):
        return "there are zeros"
    if head[4:8] != _MAGIC_BYTES:
        return f"the magic code is {head[4:8].hex()}, not {_MAGIC_BYTES.hex()}"
    size = record_size(head)
    if len(head) < 48 or not 0 < size <= left:
        return f"the record's size, {size}, is more than the file has left"
    own = int.from_bytes(head[28:36], "big", signed=True)
    if own != offset:
        return f"the record says that it stands at {own}"
    return f"the parts of the record do not add up to its size, {size}"


def find_log_end(files: list[LogFile]) -> int:
    """Physical offset after the last record: heads only, in the last file that has any."""
    return find_last_record(files)[1]


def find_last_record(files: list[LogFile], known: int = 0) -> tuple[int, int]:
    """(physical offset of the last record, offset after it), by the heads of records.

    ``files`` are in order of their offsets. ``known``: a record starts here, and the search may
    start with it. The first is -1 when the last file with anything in it has no record.
    """
    written = written_files(files)
    if not written:
        return -1, files[0].start if files else 0
    file = written[-1]
    last = -1
    with open(file.path, "rb", buffering=0) as stream:
        descriptor = stream.fileno()
        position = known - file.start if file.start < known < file.end else 0
        while position < file.size:
            window = os.pread(descriptor, min(WINDOW_BYTES, file.size - position), position)
            used, last_used = _hop(window, file.start + position)
            if used:
                last = file.start + position + last_used
            else:
                size, magic = BLANK.unpack(window[:8]) if len(window) >= 8 else (0, 0)
                if magic == BLANK_MAGIC:
                    return last, file.end
                if magic == MESSAGE_MAGIC and len(window) < size <= file.size - position:
                    last, used = file.start + position, size
                else:
                    again = find_record(file, descriptor, position + 1, file.size)
                    if again < 0:
                        break
                    used = again - position
            position += used
        return last, file.start + position


_HOP = struct.Struct(">II20xq")


def _hop(window: bytes, start: int) -> tuple[int, int]:
    """(bytes of whole records that a window begins with, position of the last of them)."""
    position = last = 0
    unpack = _HOP.unpack_from
    end = len(window)
    while position + RECORD_BYTES_MIN <= end:
        size, magic, own = unpack(window, position)
        if magic != MESSAGE_MAGIC or own != start + position or not size or position + size > end:
            break
        last = position
        position += size
    return position, last


def written_files(files: list[LogFile]) -> list[LogFile]:
    """Without the files at the end that were preallocated and hold nothing yet."""
    written = list(files)
    while written:
        file = written[-1]
        try:
            with open(file.path, "rb", buffering=0) as stream:
                if first_data(stream.fileno(), 0, file.size) >= 0:
                    break
        except FileNotFoundError:
            break
        written.pop()
    return written
