"""Commit logs as bytes in memory, for readers of logs: made, damaged and read without a disk."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerolox.inspect.places import LogFile
from kerolox.message import MessageExt
from kerolox.protocol.records import BLANK_MAGIC, encode_record
from kerolox.spark.store.files.disk import Child
from kerolox.store.layout import BLANK, BLANK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MemoryDisk", "MemoryFile", "log_of", "record"]

FOLDER = "/store/commitlog"


def record(offset: int, text: str = "TAGS\x01a", **changes: Any) -> bytes:
    """One record, as it lies at a physical offset."""
    values: dict[str, Any] = {
        "topic": "T",
        "body": b"body",
        "queue_id": 1,
        "queue_offset": 2,
        "properties": {},
        "born_timestamp": 1_763_715_347_123,
        "store_timestamp": 1_763_715_347_124,
        "born_host": ("10.0.0.1", 1),
        "store_host": ("10.0.0.2", 2),
    }
    return encode_record(MessageExt(**(values | changes | {"commit_log_offset": offset})), text)


def log_of(
    parts: Iterable[dict[str, Any]], file_bytes: int, *, start: int = 0
) -> tuple[list[LogFile], dict[str, bytearray], list[int]]:
    """A log of some records: (its files, their bytes by path, the records' physical offsets).

    Args:
        parts: what differs from :func:`record`'s message, for each record.
        file_bytes: size of a file.
        start: where the log begins; a multiple of ``file_bytes``.
    """
    contents: list[bytearray] = [bytearray(file_bytes)]
    offsets: list[int] = []
    used = 0
    for part in parts:
        base = start + (len(contents) - 1) * file_bytes
        data = record(base + used, **part)
        if used + len(data) + BLANK_BYTES > file_bytes:
            BLANK.pack_into(contents[-1], used, file_bytes - used, BLANK_MAGIC)
            contents.append(bytearray(file_bytes))
            base, used = base + file_bytes, 0
            data = record(base, **part)
        contents[-1][used : used + len(data)] = data
        offsets.append(base + used)
        used += len(data)
    files = [
        LogFile(at, file_bytes, posixpath.join(FOLDER, f"{at:020}"))
        for at in range(start, start + len(contents) * file_bytes, file_bytes)
    ]
    return files, {f.path: data for f, data in zip(files, contents, strict=True)}, offsets


@dataclass
class MemoryFile:
    """See ``kerolox.spark.store.files.disk.StoreFile``."""

    data: bytearray

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def next_data(self, position: int, end: int) -> int:
        part = self.data[position:end]
        zeros = len(part) - len(part.lstrip(b"\0"))
        return position + zeros if zeros < len(part) else -1

    def data_end(self, size: int) -> int:
        return len(self.data[:size].rstrip(b"\0"))

    def close(self) -> None:
        pass


@dataclass
class MemoryDisk:
    """See ``kerolox.spark.store.files.disk.Disk``."""

    contents: dict[str, bytearray]
    is_local: bool = True

    def children(self, folder: str) -> list[Child]:
        found = {}
        for path, data in self.contents.items():
            if path.startswith(folder + "/"):
                name, _, rest = path[len(folder) + 1 :].partition("/")
                found[name] = Child(name, 0 if rest else len(data), not rest)
        if not found:
            raise FileNotFoundError(folder)
        return list(found.values())

    def open(self, path: str) -> MemoryFile:
        if path not in self.contents:
            raise FileNotFoundError(path)
        return MemoryFile(self.contents[path])
