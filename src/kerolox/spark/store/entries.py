"""Records read by the entries of their queues: for topics that are a small part of the log.

Reading the log costs the same whatever it holds, about a second per GiB and core. An entry costs
about as much as reading :data:`BYTES_PER_ENTRY` bytes of it in sequence. So a topic is read by its
entries where it has at most one message in so many bytes.
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kerolox.inspect.places import file_at
from kerolox.kernel.choice import load_kernel
from kerolox.protocol.records import record_size
from kerolox.spark.store.files.queues import Entry, QueueRange, StoreQueue
from kerolox.spark.store.scan import Damage, Rows, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kerolox.inspect.places import LogFile
    from kerolox.spark.store.files.disk import Disk, StoreFile

BYTES_PER_ENTRY = 16 * 1024
"""Of a local log."""
BYTES_PER_REMOTE_ENTRY = 4 * 1024 * 1024
"""Of a log that is read over a network, where each request costs tens of milliseconds."""

GAP_BYTES = 8 * 1024
"""Two records with no more between them are read together."""

CHUNK_ENTRIES = 8_192
CHUNK_BYTES = 8 * 1024 * 1024

_OWN_OFFSET = slice(28, 36)


def scan_entries(
    disk: Disk,
    files: Sequence[LogFile],
    queue_folder: str,
    ranges: Sequence[QueueRange],
    bounds: tuple[int, int],
    wanted: Wanted,
) -> Iterator[Rows | Damage]:
    """The rows of ranges of queues, queue by queue, and what of them is damaged. ``bounds``:
    physical offsets from which and before which records are read. ValueError: an unknown column, or
    a body that can't be inflated.
    """
    with _Log(disk, files) as log:
        for each in ranges:
            folder = posixpath.join(queue_folder, each.topic, str(each.queue_id))
            chunk: list[Entry] = []
            held = 0
            for _, entry in StoreQueue(disk, folder).entries(each.start, each.end):
                if bounds[0] <= entry.offset < bounds[1]:
                    chunk.append(entry)
                    held += entry.size
                if len(chunk) >= CHUNK_ENTRIES or held >= CHUNK_BYTES:
                    yield from _read(log, chunk, wanted)
                    chunk, held = [], 0
            yield from _read(log, chunk, wanted)


class _Log:
    """The files of the log, opened when they are needed."""

    def __init__(self, disk: Disk, files: Sequence[LogFile]) -> None:
        self._disk = disk
        self._files = files
        self._opened: dict[str, StoreFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, start: int, end: int) -> bytes | None:
        """The bytes between two physical offsets of one file; None: the file is not there."""
        file = file_at(self._files, start)
        if file is None:
            return None
        opened = self._opened.get(file.path)
        if opened is None:
            try:
                opened = self._opened[file.path] = self._disk.open(file.path)
            except FileNotFoundError:
                return None
            self._stack.callback(opened.close)
        return opened.read_at(start - file.start, min(end, file.end) - start)

    def end_of_file(self, offset: int) -> int:
        """Where the file ends that holds a physical offset."""
        file = file_at(self._files, offset)
        return offset if file is None else file.end


def _groups(log: _Log, chunk: list[Entry]) -> Iterator[list[Entry]]:
    """Entries whose records lie close together, in one file."""
    group: list[Entry] = []
    group_end = file_end = 0
    for entry in chunk:
        if group and not group_end <= entry.offset <= min(group_end + GAP_BYTES, file_end - 1):
            yield group
            group = []
        if not group:
            file_end = log.end_of_file(entry.offset)
        group.append(entry)
        group_end = entry.offset + entry.size
    if group:
        yield group


def _read(log: _Log, chunk: list[Entry], wanted: Wanted) -> Iterator[Rows | Damage]:
    found: list[Entry] = []
    pieces: list[bytes] = []
    for group in _groups(log, chunk):
        start = group[0].offset
        data = log.read(start, group[-1].offset + group[-1].size)
        for entry in group:
            if data is None:
                reason = "the file of the log is gone"
                yield Damage(entry.offset, entry.size, reason, is_gone=True)
                continue
            piece = data[entry.offset - start : entry.offset - start + entry.size]
            own = int.from_bytes(piece[_OWN_OFFSET], "big")
            if len(piece) < entry.size or record_size(piece) != entry.size or own != entry.offset:
                yield Damage(entry.offset, entry.size, "a queue entry says that a record is here")
                continue
            found.append(entry)
            pieces.append(piece)
    yield from _rows(b"".join(pieces), found, wanted)


def _rows(data: bytes, entries: list[Entry], wanted: Wanted) -> Iterator[Rows | Damage]:
    kernel = load_kernel()
    used = number = 0
    while used < len(data):
        count, buffers, used, records, is_broken = wanted.scan(
            kernel, data, used, len(data), log_offset=None
        )
        if records:
            last = entries[number + records - 1]
            yield Rows(count, buffers, entries[number].offset, last.offset + last.size, records)
        number += records
        if is_broken:
            entry = entries[number]
            reason = "the record is not whole, or its body does not match its CRC"
            yield Damage(entry.offset, entry.size, reason)
            used, number = used + entry.size, number + 1
