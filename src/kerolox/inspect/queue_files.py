"""Reading consume queues and their extension files, without keeping any of them open."""

from __future__ import annotations

import contextlib
import os

from kerolox.inspect.log_walk import first_data
from kerolox.inspect.places import LogFile, file_at, offset_files
from kerolox.store.files.mapped_file import data_end
from kerolox.store.layout import ENTRY, ENTRY_BYTES
from kerolox.store.queues.ext_unit import ADDRESS_BASE, UNIT_HEAD, ExtUnit


class QueueFiles:
    """The files of one queue. Offsets count entries."""

    __slots__ = ("files", "folder")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: list[LogFile] = []
        self.reload()

    def reload(self) -> None:
        """Examine the folder anew."""
        self.files = _files_in(self.folder)

    @property
    def first(self) -> int:
        """Offset of the first entry that the files have space for; 0 without files."""
        return self.files[0].start // ENTRY_BYTES if self.files else 0

    def read(self, offset: int, count: int) -> bytes:
        """``count`` entries; zeros where there are none."""
        at = offset * ENTRY_BYTES
        end = at + count * ENTRY_BYTES
        parts: list[bytes] = []
        for file in self.files:
            if file.end <= at or at >= end:
                continue
            if file.start > at:
                parts.append(bytes(min(file.start, end) - at))
                at = min(file.start, end)
            if at < end:
                wanted = min(end, file.end) - at
                data = self._read_file(file, at - file.start, wanted)
                parts.append(data + bytes(wanted - len(data)))
                at += wanted
        parts.append(bytes(end - at))
        return b"".join(parts)

    def _read_file(self, file: LogFile, position: int, size: int) -> bytes:
        with contextlib.suppress(FileNotFoundError), open(file.path, "rb", buffering=0) as stream:
            return os.pread(stream.fileno(), size, position)
        return b""

    def entry(self, offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code) of an entry; zeros when there is none."""
        physical_offset, size, code = ENTRY.unpack(self.read(offset, 1))
        return physical_offset, size, code

    def next_data(self, offset: int) -> int:
        """The first entry from ``offset`` on that is not all zeros; -1 when there is none."""
        at = offset * ENTRY_BYTES
        for file in self.files:
            if file.end <= at:
                continue
            with (
                contextlib.suppress(FileNotFoundError),
                open(file.path, "rb", buffering=0) as stream,
            ):
                found = first_data(stream.fileno(), max(0, at - file.start), file.size)
                if found >= 0:
                    return (file.start + found) // ENTRY_BYTES
        return -1

    def end(self) -> int:
        """The offset after the last entry that is not all zeros; ``first`` when there is none."""
        for file in reversed(self.files):
            used = _used_bytes(file)
            if used:
                return (file.start + used + ENTRY_BYTES - 1) // ENTRY_BYTES
        return self.first

    def place_of(self, offset: int) -> tuple[str, int]:
        """(file, byte of it) where an entry stands or should."""
        at = offset * ENTRY_BYTES
        file = file_at(self.files, at)
        return (self.folder, -1) if file is None else (file.path, at - file.start)


def _files_in(folder: str) -> list[LogFile]:
    """In order; none where there is no folder."""
    with contextlib.suppress(FileNotFoundError):
        return offset_files(folder)[0]
    return []


def _used_bytes(file: LogFile) -> int:
    """How far a file holds anything but zeros."""
    with contextlib.suppress(FileNotFoundError), open(file.path, "rb", buffering=0) as stream:
        return data_end(stream.fileno(), 0, file.size)
    return 0


class ExtensionFiles:
    """The extension files of one queue."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files = _files_in(folder)

    def unit(self, address: int) -> ExtUnit | None:
        """The unit at an address as queue entries hold it; None when none stands there."""
        file = file_at(self.files, address - ADDRESS_BASE)
        if file is None:
            return None
        with contextlib.suppress(FileNotFoundError), open(file.path, "rb", buffering=0) as stream:
            return _unit_at(stream.fileno(), address - ADDRESS_BASE - file.start)
        return None


def _unit_at(descriptor: int, position: int) -> ExtUnit | None:
    head = os.pread(descriptor, UNIT_HEAD.size, position)
    if len(head) < UNIT_HEAD.size:
        return None
    size, code, timestamp, bit_map_size = UNIT_HEAD.unpack(head)
    if bit_map_size < 0 or size != UNIT_HEAD.size + bit_map_size:
        return None
    bit_map = os.pread(descriptor, bit_map_size, position + UNIT_HEAD.size)
    return ExtUnit(code, timestamp, bit_map) if len(bit_map) == bit_map_size else None
