"""Writing consume queues anew, from records in the order of the log."""

from __future__ import annotations

import os
import shutil
import time

from kerolox.store.files.mapped_file import make_folder, offset_name, write_all, zero_from
from kerolox.store.layout import ENTRY, ENTRY_BYTES, PRE_BLANK

RUN_BYTES = 512 * ENTRY_BYTES
"""Written at once."""
BLANKS_AT_ONCE = 10_000


def set_stored_time(descriptor: int, time_ms: int) -> None:
    """Let a file be as old as its last message: RocketMQ looks for a time in the first file that
    changed at it or later (``getMappedFileByTime``). A time to come is none."""
    when = max(0, min(time_ms * 1_000_000, time.time_ns()))
    os.utime(descriptor, ns=(when, when))


class QueueWriter:
    """One queue below a new root. Opens its file for each run only.

    A record whose offset does not follow the one before it waits until the next one shows what it
    is. It is the begin of a gap, or of the topic made again, or its offset is wrong.
    """

    __slots__ = (
        "_file_bytes", "_folder", "_held", "_pending", "_time_ms", "count", "first", "name", "next"
    )  # fmt: skip

    def __init__(self, folder: str, name: str, file_bytes: int) -> None:
        self.name = name
        self._folder = folder
        self._file_bytes = file_bytes
        self.first = self.next = -1
        self.count = 0
        self._pending = bytearray()
        self._held: tuple[int, bytes, int] | None = None
        self._time_ms = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be written."""
        return len(self._pending)

    def put(self, queue_offset: int, physical: int, size: int, code: int, time_ms: int) -> str:
        """Add the entry of a record; what was odd about the one before it, or nothing. ``time_ms``:
        when the record was stored.
        """
        entry = ENTRY.pack(physical, size, code)
        if self._held is None and (queue_offset == self.next or self.next < 0):
            self._append(queue_offset, entry, time_ms)
            return ""
        if self._held is None:
            self._held = (queue_offset, entry, time_ms)
            return ""
        held = self._held[0]
        odd = self._place_held(
            is_offset_wrong=queue_offset == self.next + 1 and queue_offset != held + 1
        )
        return odd + self.put(queue_offset, physical, size, code, time_ms)

    def _append(self, queue_offset: int, entry: bytes, time_ms: int) -> None:
        if self.next < 0:
            self._start(queue_offset)
        self._pending += entry
        self._time_ms = time_ms
        self.next += 1
        self.count += 1
        # A file's time is that of its own last entry.
        if len(self._pending) >= RUN_BYTES or self.next * ENTRY_BYTES % self._file_bytes == 0:
            self.flush()

    def _start(self, queue_offset: int) -> None:
        """A queue that starts later has pre-blank entries before its first, in its first file."""
        at = queue_offset * ENTRY_BYTES
        self.first = queue_offset
        self.next = (at - at % self._file_bytes) // ENTRY_BYTES
        self._blank_until(queue_offset)

    def _blank_until(self, queue_offset: int) -> None:
        while self.next < queue_offset:
            count = min(BLANKS_AT_ONCE, queue_offset - self.next)
            self._pending += PRE_BLANK * count
            self.next += count
            self.flush()

    def _place_held(self, *, is_offset_wrong: bool) -> str:
        assert self._held is not None
        (queue_offset, entry, time_ms), self._held = self._held, None
        physical = ENTRY.unpack(entry)[0]
        if is_offset_wrong:
            said, queue_offset = queue_offset, self.next
            odd = f"the record at {physical} says queue offset {said}, it became {queue_offset}"
        elif queue_offset > self.next:
            odd = f"no records from {self.next} to {queue_offset - 1}, entries left blank"
            self._blank_until(queue_offset)
        else:
            odd = f"begins again at {queue_offset} with the record at {physical}"
            self._go_back(queue_offset)
        self._append(queue_offset, entry, time_ms)
        return f"{self.name}: {odd}. "

    def _go_back(self, queue_offset: int) -> None:
        self.flush()
        if queue_offset <= self.first:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.next = -1
            self.count = 0
            return
        end = queue_offset * ENTRY_BYTES
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            start = int(name)
            if start >= end:
                os.unlink(path)
            elif start + self._file_bytes > end:
                with open(path, "r+b") as file:
                    zero_from(file.fileno(), end - start, self._file_bytes)
        self.count -= self.next - queue_offset
        self.next = queue_offset

    def flush(self) -> None:
        """Write what waits."""
        data = bytes(self._pending)
        self._pending.clear()
        at = self.next * ENTRY_BYTES - len(data)
        done = 0
        while done < len(data):
            position = at % self._file_bytes
            part = data[done : done + self._file_bytes - position]
            self._write(at - position, position, part)
            done += len(part)
            at += len(part)

    def _write(self, start: int, position: int, data: bytes) -> None:
        path = os.path.join(self._folder, offset_name(start))
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            make_folder(self._folder)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(descriptor, self._file_bytes)
        try:
            write_all(descriptor, data, position)
            set_stored_time(descriptor, self._time_ms)
        finally:
            os.close(descriptor)

    def finish(self) -> str:
        """Write everything; what was odd about the last record, or nothing."""
        odd = ""
        if self._held is not None:
            # Alone at the end: only the first offset of all speaks for a topic made again.
            odd = self._place_held(is_offset_wrong=0 < self._held[0] < self.next)
        self.flush()
        return odd
