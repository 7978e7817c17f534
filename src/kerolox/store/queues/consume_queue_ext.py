"""What a queue knows of its messages beside their entries (``ConsumeQueueExt`` of RocketMQ).

Entries have 8 bytes for a tags code. With ``enableConsumeQueueExt`` they hold the address of a unit
in ``consumequeue_ext/<topic>/<queue id>/`` instead, big-endian::

    size of the unit 2 | tags code 8 | store time 8 | size of the bit map 2 | bit map

An address is the unit's byte offset + the smallest long, so it lies below all ints and is never
taken for a tags code. A unit never crosses a file: -1 in place of a size ends one, and 4 bytes stay
for it. Units are weak: where one is missing, clients filter for themselves. An address is never
given twice while entries may hold it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

from kerolox.store.files.mapped_file import (
    check_file_size,
    list_sizes,
    make_folder,
    offset_name,
    sync_queue_files,
    write_all,
    zero_from,
)
from kerolox.store.queues.ext_unit import ADDRESS_BASE, UNIT_HEAD, ExtUnit, is_ext_address

FILE_SIZE_SETTING = "mappedFileSizeConsumeQueueExt"
UNIT_BYTES_MAX = (1 << 15) - 1
END_BYTES = 4
"""Always left at the end of a file."""
_END = b"\xff\xff"
SCAN_BYTES = 1 << 20
"""How much of a file is read at once where its end must be found unit by unit."""


class ConsumeQueueExt:
    """The units of one queue; offsets count bytes."""

    __slots__ = ("_descriptor", "_next", "_start", "file_size", "flushed_offset", "folder",
                 "full_map", "max_offset", "named", "starts")  # fmt: skip

    def __init__(
        self, root: str, topic: str, queue_id: int, file_size: int, map_bits: int = 0
    ) -> None:
        self.folder = os.path.join(root, topic, str(queue_id))
        self.full_map = b"\xff" * (map_bits // 8)
        """For units whose filter nobody can calculate any more: it rules nothing out. (A missing
        one would not do: RocketMQ takes the map of the unit before it then.)"""
        self.file_size = file_size
        self.starts: list[int] = []
        """Byte offsets of the files, ascending."""
        self.max_offset = 0
        """Where the next unit goes."""
        self.flushed_offset = 0
        self.named = -1
        """As :attr:`ConsumeQueue.named`."""
        self._next = 0
        self._descriptor = -1
        self._start = -1

    def path_of(self, start: int) -> str:
        """The file whose first byte has the offset ``start``."""
        return os.path.join(self.folder, offset_name(start))

    def _open(self, start: int) -> int:
        """The descriptor of a file; made when it is new. One is kept, for reads and writes."""
        if self._start == start:
            return self._descriptor
        self.close()
        is_new = not self.starts or start > self.starts[-1]
        if is_new:
            make_folder(self.folder)
        descriptor = os.open(
            self.path_of(start), os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_new else 0), 0o644
        )
        if is_new:
            try:
                os.ftruncate(descriptor, self.file_size)
            except OSError:
                os.close(descriptor)
                Path(self.path_of(start)).unlink(missing_ok=True)
                raise
            self.starts.append(start)
        self._descriptor, self._start = descriptor, start
        return descriptor

    def close(self) -> None:
        """Close the descriptor; the next use opens one again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._start = -1

    # -- write ------------------------------------------------------------------------------
    def put(self, codes: Sequence[int], store_time: int, bit_maps: Sequence[bytes]) -> list[int]:
        """Write a unit for each tags code; the addresses, which count with :meth:`count`.

        ``bit_maps``: one for each, or none. What no file can hold gets no unit: its tags code
        itself is given then.
        """
        addresses = []
        at = begin = self._next = self.max_offset
        parts: list[bytes] = []
        for code, bit_map in zip(codes, bit_maps or repeat(b""), strict=False):
            size = UNIT_HEAD.size + len(bit_map)
            if size > UNIT_BYTES_MAX or size + END_BYTES > self.file_size:
                addresses.append(code)
                continue
            if size > self.file_size - at % self.file_size - END_BYTES:
                self._write(begin, b"".join(parts) + _END)
                at = begin = at - at % self.file_size + self.file_size
                parts = []
            addresses.append(at + ADDRESS_BASE)
            parts.append(UNIT_HEAD.pack(size, code, store_time, len(bit_map)) + bit_map)
            at += size
        if parts:
            self._write(begin, b"".join(parts))
        self._next = at
        return addresses

    def _write(self, offset: int, data: bytes) -> None:
        position = offset % self.file_size
        write_all(self._open(offset - position), data, position)

    def count(self) -> None:
        """Keep the units that were put."""
        self.max_offset = max(self.max_offset, self._next)

    # -- read -------------------------------------------------------------------------------
    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None when none is there."""
        offset = address - ADDRESS_BASE
        if not is_ext_address(address) or offset >= self.max_offset:
            return None
        found = self._unit_at(offset)
        return None if found is None else found[0]

    def _unit_at(self, offset: int) -> tuple[ExtUnit, int] | None:
        """(unit, size) at an offset."""
        position = offset % self.file_size
        if offset - position not in self.starts:
            return None
        try:
            descriptor = self._open(offset - position)
        except FileNotFoundError:
            return None
        head = os.pread(descriptor, UNIT_HEAD.size, position)
        if len(head) < UNIT_HEAD.size:
            return None
        size, code, store_time, map_size = UNIT_HEAD.unpack(head)
        if size < UNIT_HEAD.size or position + size > self.file_size:
            return None
        map_size = min(max(map_size, 0), size - UNIT_HEAD.size)
        bit_map = os.pread(descriptor, map_size, position + UNIT_HEAD.size) if map_size else b""
        return ExtUnit(code, store_time, bit_map), size

    # -- recovery and retention -------------------------------------------------------------
    def load(self) -> list[str]:
        """Find the files; notes about what was odd. :meth:`end_at` must follow. ValueError: a file
        has another size than configured.
        """
        sizes, others = list_sizes(self.folder)
        for start, size in list(sizes.items()):
            if size == 0:
                # A kill between creating a file and giving it its size.
                Path(self.path_of(start)).unlink(missing_ok=True)
                del sizes[start]
            else:
                check_file_size(self.path_of(start), size, self.file_size, FILE_SIZE_SETTING)
        notes = [f"{self.folder}: {name} is no file of the queue, left alone" for name in others]
        run: list[int] = []
        for start in sorted(sizes, reverse=True):
            if start % self.file_size or (run and start != run[-1] - self.file_size):
                notes.append(f"{self.folder}: files before {run[-1] if run else start} do not join")
                break
            run.append(start)
        self.starts = run[::-1]
        return notes

    def end_at(self, last_address: int | None, *, is_empty: bool) -> None:
        """Let the units end behind the one of the queue's last entry that has one.

        None: no entry has one, as far as anybody looked. Then a queue that ``is_empty`` has no
        units, and another one those that can be read. A unit that is lost keeps its place.
        """
        if last_address is None:
            end = 0 if is_empty else self._scan_end()
        else:
            offset = last_address - ADDRESS_BASE
            found = self._unit_at(offset)
            end = offset + found[1] if found else offset - offset % self.file_size + self.file_size
        self._cut(end)
        self.max_offset = self._next = end
        self.flushed_offset = min(self.flushed_offset, end)
        # What follows may be in a file that is made anew.
        self.named = min(self.named, end - end % self.file_size - 1)

    def _scan_end(self) -> int:
        """Behind the last unit of the last file."""
        if not self.starts:
            return 0
        start = self.starts[-1]
        descriptor = self._open(start)
        at = 0
        block, begin = b"", 0
        while at + 2 <= self.file_size:
            if at + 2 > begin + len(block):
                block, begin = os.pread(descriptor, SCAN_BYTES, at), at
                if len(block) < 2:
                    break
            size = int.from_bytes(block[at - begin : at - begin + 2], "big", signed=True)
            if size < UNIT_HEAD.size or at + size > self.file_size:
                break
            at += size
        return start + at

    def _cut(self, end: int) -> None:
        """Delete the files behind an offset and clear what stands behind it."""
        self.close()
        while self.starts and self.starts[-1] >= end:
            Path(self.path_of(self.starts.pop())).unlink(missing_ok=True)
        if self.starts and end < self.starts[-1] + self.file_size:
            with contextlib.suppress(FileNotFoundError):
                zero_from(self._open(self.starts[-1]), end - self.starts[-1], self.file_size)
        self.close()

    def begin_at(self, first_address: int) -> None:
        """Delete the files that lie wholly before an address (``truncateByMinAddress``)."""
        if not is_ext_address(first_address):
            return
        offset = first_address - ADDRESS_BASE
        while len(self.starts) > 1 and self.starts[0] + self.file_size < offset:
            if self._start == self.starts[0]:
                self.close()
            Path(self.path_of(self.starts[0])).unlink(missing_ok=True)
            del self.starts[0]

    def delete(self) -> None:
        """Delete the files and the folders that are empty then; the next unit is the first."""
        self.end_at(None, is_empty=True)
        for folder in (self.folder, os.path.dirname(self.folder)):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def sync(self) -> None:
        """Wait until the disk has every unit. From any thread; opens the files for itself."""
        end = self.max_offset
        first = self.flushed_offset - self.flushed_offset % self.file_size
        starts = range(first, end, self.file_size)
        self.named = sync_queue_files(self.folder, starts, self.named)
        self.flushed_offset = max(self.flushed_offset, end)
