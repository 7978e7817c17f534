"""Where a log ends that may be written meanwhile: found where the query is planned.

The end is behind the last whole record. A store that a broker holds open is read up to the last
record whose queue entry fits, since a broker shows none that lacks one.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, cast

from kerolox.spark.store.files.queues import StoreQueue, queue_path
from kerolox.spark.store.scan import LOOKBACK_BYTES, Damage, LogScan, Rows, Split, Wanted

if TYPE_CHECKING:
    from kerolox.inspect.places import LogFile
    from kerolox.kernel.choice import ColumnBuffer
    from kerolox.spark.store.files.listing import StoreListing

ZEROS_OF_A_RECORD_MAX = 64 * 1024
"""So many bytes of a record may be zeros behind its last other byte: of its properties."""

STEP_BYTES = 64 * 1024 * 1024
"""So far a log is read at a time behind its known end, and searched for what follows damage."""

NEXT_BYTES = 4096
"""Where a record is to be written next so many zeros say that none is."""

TAIL_BYTES = 8
"""So many bytes at the end of a record are never all zeros."""

_COLUMNS = ("topic", "queueId", "queueOffset", "commitLogOffset", "size")


class LogEnd(NamedTuple):
    """The end of a log."""

    offset: int
    """Physical offset after the last record that counts."""
    tail: Damage | None
    """What stands behind the last whole record, and is none."""


def find_log_end(listing: StoreListing, known: int | None = None) -> LogEnd:
    """The end of a listed log. ``known``: a record begins or the log ended here when it was
    examined before: the search starts with it, unless the log was cut before it. None: it starts
    near the last byte that is not zero.
    """
    if known is not None and _is_cut(listing, known):
        known = None
    end = _end_of_files(listing, known)
    if not listing.is_live or listing.queue_folder is None or end.offset == known:
        return end
    start = max(listing.start, end.offset - LOOKBACK_BYTES if known is None else known)
    return LogEnd(_shown_end(listing, start, end.offset), end.tail)


def _end_of_files(listing: StoreListing, known: int | None) -> LogEnd:
    empty = LogEnd(listing.start, None)
    for file in reversed(listing.files):
        if known is not None and known >= file.end:
            return LogEnd(known, None)
        if known is not None and known >= file.start:
            if listing.is_live and _is_unwritten(listing, file, known):
                return LogEnd(known, None)
            return _end_behind(listing, file, known)
        with closing(listing.disk.open(file.path)) as opened:
            used = opened.data_end(file.size)
        if used:
            return _end_before(listing, file, file.start + used)
        empty = LogEnd(file.start, None)
    return empty


def _is_cut(listing: StoreListing, known: int) -> bool:
    """Whether the log ends before a place, where a record ended before."""
    if not listing.files or known > listing.files[-1].end:
        return True
    for file in listing.files:
        if file.start < known < file.end:
            with closing(listing.disk.open(file.path)) as opened:
                # The last bytes of a record are of a topic, or of properties and their length.
                return not any(opened.read_at(known - file.start - TAIL_BYTES, TAIL_BYTES))
    return False


def _is_unwritten(listing: StoreListing, file: LogFile, known: int) -> bool:
    """Whether nothing begins at a place. Who writes a log goes on there, so that the zeros behind
    it, which a broker prepares far ahead, need not be looked through at each poll."""
    with closing(listing.disk.open(file.path)) as opened:
        return not any(opened.read_at(known - file.start, NEXT_BYTES))


def _end_before(listing: StoreListing, file: LogFile, written: int) -> LogEnd:
    """The end in a file, near the last byte that was written."""
    limit = min(file.end, written + ZEROS_OF_A_RECORD_MAX)
    scan = LogScan(listing.disk, [file], log_end=limit)
    start, back = file.start, LOOKBACK_BYTES
    while written - back > file.start:
        start = scan.border(written - back)
        if start < limit:
            break
        start, back = file.start, back * 4
    return LogEnd(*scan.end_of(file, start))


def _end_behind(listing: StoreListing, file: LogFile, known: int) -> LogEnd:
    """The end in a file, at or behind where a record begins."""
    while True:
        limit = min(file.end, known + STEP_BYTES)
        scan = LogScan(listing.disk, [file], log_end=limit)
        end, tail = scan.end_of(file, known)
        if limit == file.end or end < limit - LOOKBACK_BYTES:
            return LogEnd(end, tail)
        known = end


def _shown_end(listing: StoreListing, start: int, end: int) -> int:
    """After the last record of ``[start, end)`` that has its queue entry."""
    queues: dict[tuple[str, int], StoreQueue] = {}
    folder = listing.queue_folder or ""
    scan = LogScan(listing.disk, listing.files, log_end=end)
    split = Split(start, end, at_border=start == listing.start)
    wanted = Wanted(columns=_COLUMNS, checks_crc=False)
    parts = [part for part in scan.scan(split, wanted) if isinstance(part, Rows)]
    for part in reversed(parts):
        for row in reversed(range(part.count)):
            topic, queue_id, queue_offset, offset, size = _placed(part, row)
            queue = queues.get((topic, queue_id))
            if queue is None:
                path = queue_path(folder, topic, queue_id)
                queue = queues[topic, queue_id] = StoreQueue(listing.disk, path)
            entry = queue.entry(queue_offset)
            if entry is not None and entry.offset == offset:
                return offset + size
    return parts[0].start if parts else end


def _placed(part: Rows, row: int) -> tuple[str, int, int, int, int]:
    """(topic, queue id, queue offset, physical offset, size) of a row."""
    buffers = cast("dict[str, ColumnBuffer]", part.buffers)
    _, edges, texts = cast("tuple[None, ColumnBuffer, ColumnBuffer]", part.buffers["topic"])
    begin, after = struct.unpack_from("<2i", edges, 4 * row)
    (queue_id,) = struct.unpack_from("<i", buffers["queueId"], 4 * row)
    (queue_offset,) = struct.unpack_from("<q", buffers["queueOffset"], 8 * row)
    (offset,) = struct.unpack_from("<q", buffers["commitLogOffset"], 8 * row)
    (size,) = struct.unpack_from("<i", buffers["size"], 4 * row)
    return str(texts[begin:after], "utf-8"), queue_id, queue_offset, offset, size
