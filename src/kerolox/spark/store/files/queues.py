"""Consume queues read where the log lies: to tell what a live store shows, and to skip the log."""

from __future__ import annotations

import posixpath
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kerolox.inspect.places import LogFile, file_at
from kerolox.store.files.mapped_file import OFFSET_NAME
from kerolox.store.layout import ENTRY, ENTRY_BYTES, is_pre_blank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kerolox.spark.store.files.disk import Disk

_READ_ENTRIES = 32_768


class Entry(NamedTuple):
    """What a queue says about a message."""

    offset: int
    """Physical offset of its record."""
    size: int
    """Bytes of its record."""
    code: int
    """Of its tags."""


@dataclass(frozen=True)
class QueueRange:
    """Messages of a queue, by offset: ``[start, end)``."""

    topic: str
    queue_id: int
    start: int
    end: int


class StoreQueue:
    """The files of one queue. Offsets count entries. ``folder``: ``consumequeue/<topic>/<queue
    id>``; not there: a queue without entries.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        try:
            children = disk.children(folder)
        except OSError:
            children = []
        self._files = sorted(
            LogFile(int(child.name), child.size, posixpath.join(folder, child.name))
            for child in children
            if child.is_file and OFFSET_NAME.match(child.name) and child.size
        )

    @property
    def files(self) -> list[LogFile]:
        """Its files, in order."""
        return self._files

    def entry(self, offset: int) -> Entry | None:
        """The entry of a message; None when there is none."""
        return next((entry for _, entry in self.entries(offset, offset + 1)), None)

    def entries(self, start: int, end: int) -> Iterator[tuple[int, Entry]]:
        """(offset, entry) of the messages from ``start`` to before ``end`` that have one."""
        while start < end:
            file = file_at(self._files, start * ENTRY_BYTES)
            if file is None:
                later = [each.start for each in self._files if each.start > start * ENTRY_BYTES]
                if not later:
                    return
                start = later[0] // ENTRY_BYTES
                continue
            count = min(end, file.end // ENTRY_BYTES) - start
            count = min(count, _READ_ENTRIES)
            if count <= 0:
                return
            position = start * ENTRY_BYTES - file.start
            with closing(self._disk.open(file.path)) as opened:
                data = opened.read_at(position, count * ENTRY_BYTES)
            data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
            for number, found in enumerate(ENTRY.iter_unpack(data)):
                if found[1] > 0 and found[0] >= 0 and not is_pre_blank(found):
                    yield start + number, Entry(*found)
            start += count

    def bounds(self) -> tuple[int, int]:
        """(first offset, offset after the last one)."""
        for file in reversed(self._files):
            with closing(self._disk.open(file.path)) as opened:
                used = opened.data_end(file.size)
            if used:
                end = (file.start + used + ENTRY_BYTES - 1) // ENTRY_BYTES
                first = self._files[0].start // ENTRY_BYTES
                return first, min(end, file.end // ENTRY_BYTES)
        return 0, 0


def queue_path(queue_folder: str, topic: str, queue_id: int) -> str:
    """The folder of a queue, there or not."""
    return posixpath.join(queue_folder, topic, str(queue_id))


def queue_ids(disk: Disk, queue_folder: str, topic: str) -> list[int]:
    """The queues of a topic that have a folder."""
    try:
        children = disk.children(posixpath.join(queue_folder, topic))
    except OSError:
        return []
    return sorted(int(each.name) for each in children if each.name.isdecimal() and not each.is_file)
