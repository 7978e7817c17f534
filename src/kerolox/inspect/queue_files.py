"""Reading consume queues and their extension files, without keeping any of them open."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from kerolox.inspect.log_walk import first_data
from kerolox.inspect.places import LogFile, offset_files
from kerolox.store.layout import ENTRY, ENTRY_BYTES

EXTENSION_ADDRESS_MAX = -(1 << 31) - 1
"""A tags code up to here is an address in the extension files (``isExtAddr``): no 32-bit hash can
be that small."""
_EXTENSION_BASE = -(1 << 63)
_UNIT_HEAD = struct.Struct(">hqqh")
_CHUNK_BYTES = 1 << 20


class QueueFiles:
    """The files of one queue. Offsets count entries."""

    __slots__ = ("files", "folder")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: list[LogFile] = []
        self.reload()

    def reload(self) -> None:
        """Look at the folder anew."""
        try:
            self.files = offset_files(self.folder)[0]
        except FileNotFoundError:
            self.files = []

    @property
    def first(self) -> int:
        """Offset of the first entry that the files have room for; 0 without files."""
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
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size, position)
        finally:
            os.close(descriptor)

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
            try:
                descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                found = first_data(descriptor, max(0, at - file.start), file.size)
            finally:
                os.close(descriptor)
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
        for file in self.files:
            if file.start <= at < file.end:
                return file.path, at - file.start
        return self.folder, -1


def _used_bytes(file: LogFile) -> int:
    """How far a file holds anything but zeros."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    used = 0
    try:
        at = 0
        while at < file.size:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                break
            hole = min(file.size, os.lseek(descriptor, at, os.SEEK_HOLE))
            while at < hole:
                block = os.pread(descriptor, min(_CHUNK_BYTES, hole - at), at)
                if not block:
                    return used
                kept = block.rstrip(b"\0")
                used = at + len(kept) if kept else used
                at += len(block)
    finally:
        os.close(descriptor)
    return used


def is_extension_address(code: int) -> bool:
    """The tags code of an entry is an address in the queue's extension files."""
    return code <= EXTENSION_ADDRESS_MAX


class ExtensionUnit(NamedTuple):
    """What an extension file adds to a queue entry (``CqExtUnit``)."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


class ExtensionFiles:
    """The extension files of one queue."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            self.files = offset_files(folder)[0]
        except FileNotFoundError:
            self.files = []

    def unit(self, address: int) -> ExtensionUnit | None:
        """The unit at an address as queue entries hold it; None when none stands there."""
        offset = address - _EXTENSION_BASE
        for file in self.files:
            if file.start <= offset < file.end:
                return self._unit_in(file, offset - file.start)
        return None

    def _unit_in(self, file: LogFile, position: int) -> ExtensionUnit | None:
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            head = os.pread(descriptor, _UNIT_HEAD.size, position)
            if len(head) < _UNIT_HEAD.size:
                return None
            size, code, timestamp, bit_map_size = _UNIT_HEAD.unpack(head)
            if bit_map_size < 0 or size != _UNIT_HEAD.size + bit_map_size:
                return None
            bit_map = os.pread(descriptor, bit_map_size, position + _UNIT_HEAD.size)
        finally:
            os.close(descriptor)
        return ExtensionUnit(code, timestamp, bit_map) if len(bit_map) == bit_map_size else None
