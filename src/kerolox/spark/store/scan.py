"""Reading a commit log from its files: in parallel splits, over damage, to its last whole record.

Nothing here needs Spark. A split is a range of physical offsets. Its records are those that begin
in it, so splits that cover a log together give each record once, wherever they are cut.

A record is whole when its magic code and lengths fit, it says that it stands where it stands, and
it has a topic. Its body's CRC is a column (``crcOk``), or is asked for (``Wanted.checks_crc``).
After bytes that are no whole record, the next one is looked for by magic code, lengths, place and
CRC, and the bytes in between are a :class:`Damage`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from kerolox.inspect.log_walk import fault_of_head
from kerolox.kernel.choice import Kernel, load_kernel
from kerolox.protocol.records import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    is_body_right,
    parse_record,
    record_size,
)
from kerolox.store.layout import BLANK, BLANK_BYTES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from kerolox.inspect.places import LogFile
    from kerolox.kernel.choice import ColumnBuffers, OddBody, TopicChoice
    from kerolox.spark.store.files.disk import Disk, StoreFile

WINDOW_BYTES = 2 * 1024 * 1024
"""So much is read at a time, so that it stays in a processor's cache until Spark has its rows; a
larger record is read alone."""

LOOKBACK_BYTES = 8 * 1024 * 1024
"""A split's first record is found by reading from so far before it: two of the largest records
(maxMessageSize 4 MiB). What looks like a record within a body is then seen as part of it."""

ROWS_MAX = 16_384
BODY_BYTES_MAX = 16 * 1024 * 1024

_MAGIC_BYTES = MESSAGE_MAGIC.to_bytes(4, "big")
_HEAD_BYTES = 48
_OWN_OFFSET = slice(28, 36)


@dataclass(frozen=True, slots=True)
class Split:
    """The records that begin at physical offsets from ``start`` to before ``end``."""

    start: int
    end: int
    at_border: bool = True
    """A record begins at ``start``, or the log ends there. Else the first record is looked for."""
    sees_end: bool = False
    """Damage that begins right behind its last record is reported here: set when the split behind
    this one looks for its first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is made of the records."""

    columns: Sequence[str] = ()
    """Of ``kerolox._pykernel.columns.COLUMNS``."""
    topics: TopicChoice | None = None
    """Which topics (as bytes) make rows; None: all."""
    stored_from: int = -(2**63)
    stored_before: int = 2**63 - 1
    """Store times in ms."""
    checks_crc: bool = True
    """A record with a wrong CRC makes no row and is a damage. False: it makes a row."""
    odd_body: OddBody | None = None
    """Asked about bodies that the kernel can't inflate, with their physical offset."""
    rows_max: int = ROWS_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    window_bytes: int = WINDOW_BYTES

    def scan(
        self, kernel: Kernel, data: bytes, start: int, stop: int, log_offset: int | None
    ) -> tuple[int, dict[str, ColumnBuffers], int, int, bool]:
        """See :meth:`kerolox.kernel.choice.Kernel.scan_columns`."""
        return kernel.scan_columns(
            data,
            self.columns,
            start=start,
            stop=stop,
            log_offset=log_offset,
            rows_max=self.rows_max,
            body_bytes_max=self.body_bytes_max,
            stored_from=self.stored_from,
            stored_before=self.stored_before,
            topics=self.topics,
            checks_crc=self.checks_crc,
            odd_body=self.odd_body,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Records that follow each other in the log."""

    count: int
    """So many made rows."""
    buffers: dict[str, ColumnBuffers]
    """Arrow's buffers by column, as ``decode_columns`` gives them."""
    start: int
    end: int
    """Physical offsets that were read for them."""
    records: int
    """Records examined, those that made no rows too."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of the log that hold no whole record."""

    offset: int
    """Physical offset of the first byte."""
    length: int
    reason: str
    is_tail: bool = False
    """No whole record follows in the log: what a crash or a copy of a live store leaves."""
    is_gone: bool = False
    """The file is not there any more: retention deleted it."""


def plan_splits(
    start: int,
    end: int,
    files: Sequence[LogFile],
    split_bytes: int,
    *,
    at_border: bool = True,
) -> list[Split]:
    """Splits of about equal size for the records that begin in a range, which ends where a record
    begins, or the log ends. ``at_border``: a record or a file begins at ``start``.
    """
    starts = {file.start for file in files}
    count = max(1, -(-(end - start) // split_bytes))
    cuts = [start + (end - start) * number // count for number in range(count)] + [end]
    return [
        Split(
            cut,
            after,
            at_border=cut in starts or (number == 0 and at_border),
            sees_end=after != end and after not in starts,
        )
        for number, (cut, after) in enumerate(pairwise(cuts))
        if after > cut
    ]


class LogScan:
    """Reads records of a log. ``files`` are in order. ``log_end``: physical offset after the last
    record that counts; None: as far as the files go. ``kernel``: who decodes; the process's own
    choice by default.
    """

    def __init__(
        self,
        disk: Disk,
        files: Sequence[LogFile],
        *,
        log_end: int | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self._kernel = kernel or load_kernel()
        self._disk = disk
        self._files = list(files)
        self._log_end = log_end

    def scan(self, split: Split, wanted: Wanted) -> Iterator[Rows | Damage]:
        """The rows of a split, and what of it is damaged, in the order of the log. ValueError: an
        unknown column, or a body that can't be inflated.
        """
        position = split.start if split.at_border else self.border(split.start)
        for file in self._files:
            if file.end <= position:
                continue
            position = max(position, file.start)
            if position >= split.end:
                return
            try:
                opened = self._disk.open(file.path)
            except FileNotFoundError:
                end = min(file.end, split.end)
                yield Damage(position, end - position, f"{file.path} is gone", is_gone=True)
                position = file.end
                continue
            with closing(opened):
                walk = self._walk(file, opened)
                position = yield from walk.parts(position, split.end, wanted)
                if split.sees_end and split.end <= position < file.end:
                    yield from walk.damage_at(position)
            if position < file.end:
                return

    def border(self, offset: int) -> int:
        """Physical offset of the first record at or behind an offset; the end of the files if there
        is none.
        """
        for file in self._files:
            if file.end <= offset:
                continue
            if offset <= file.start:
                return file.start
            try:
                opened = self._disk.open(file.path)
            except FileNotFoundError:
                # Who reads the split says so.
                return offset
            with closing(opened):
                found = self._walk(file, opened).border(offset)
            # The next file begins with a record.
            return file.end if found < 0 else found
        return offset

    def last_border(self, start: int, bytes_max: int) -> int:
        """Where so many bytes of records end: the last border that is not behind them, counted from
        the first record at or behind ``start``; behind that record when it alone is larger.
        """
        first = self.border(start)
        limit = first + bytes_max
        begin = self.border(max(first, limit - LOOKBACK_BYTES))
        begin = first if begin >= limit else begin
        last = after = -1
        for part in self.scan(Split(begin, limit), _PLACES):
            if isinstance(part, Rows) and part.count:
                offsets, sizes = part.buffers["commitLogOffset"], part.buffers["size"]
                last = int.from_bytes(bytes(cast("bytes", offsets)[-8:]), "little")
                after = last + int.from_bytes(bytes(cast("bytes", sizes)[-4:]), "little")
        if last < 0:
            # The log ends here, or nothing but damage follows: it is told by who reads it.
            return max(limit, first)
        return last if after > limit and last > first else after

    def end_of(self, file: LogFile, start: int) -> tuple[int, Damage | None]:
        """(physical offset after the last whole record of a file, what stands behind it instead) of
        the log's last file. ``start``: where one of its records begins.
        """
        tail: Damage | None = None
        with closing(self._disk.open(file.path)) as opened:
            parts = self._walk(file, opened).parts(start, file.end, _STRUCTURE)
            while True:
                try:
                    part = next(parts)
                except StopIteration as stopped:
                    return stopped.value, tail
                if isinstance(part, Damage) and part.is_tail:
                    tail = part

    def _walk(self, file: LogFile, opened: StoreFile) -> _FileWalk:
        end = file.end if self._log_end is None else min(self._log_end, file.end)
        is_last = file == self._files[-1] if self._log_end is None else self._log_end <= file.end
        return _FileWalk(file, opened, end, self._kernel, is_last=is_last)


_PLACES = Wanted(columns=("commitLogOffset", "size"), checks_crc=False)

_STRUCTURE = Wanted(topics=lambda _: False, checks_crc=False)
"""Records are only walked over."""


class _FileWalk:
    """Walks over the records of one open file. ``end``: physical offset after which nothing of it
    is read. ``is_last``: no file follows, so that the log may end in this one.
    """

    def __init__(
        self, file: LogFile, opened: StoreFile, end: int, kernel: Kernel, *, is_last: bool
    ) -> None:
        self._kernel = kernel
        self._file = file
        self._opened = opened
        self._end = end
        self._is_last = is_last

    def parts(self, start: int, limit: int, wanted: Wanted) -> Generator[Rows | Damage, None, int]:
        """Rows and damages from a physical offset on, as far as records begin before ``limit``. It
        ends there or behind it, at the file's end, or where the log ends.
        """
        position, limit = start, min(limit, self._end)
        size = wanted.window_bytes
        while position < limit:
            window = self._read(position, size)
            size = wanted.window_bytes
            used, is_broken = 0, False
            stop = min(len(window), limit - position)
            while used < stop and not is_broken:
                begin = used
                count, buffers, used, records, is_broken = wanted.scan(
                    self._kernel, window, begin, stop, position
                )
                if records:
                    yield Rows(count, buffers, position + begin, position + used, records)
            position += used
            if not is_broken:
                continue
            left = len(window) - used
            if used and left < _HEAD_BYTES and position + left < self._end:
                continue
            if left < (needed := self._record_bytes(position, window[used : used + _HEAD_BYTES])):
                size = max(size, needed)
                continue
            after = yield from self._pass(position, window, used)
            if after < 0:
                return position
            position = after
        return position

    def border(self, offset: int) -> int:
        """Physical offset of the first record at or behind an offset in the file; -1: none."""
        position = max(self._file.start, offset - LOOKBACK_BYTES)
        if position > self._file.start:
            position = self._find(position)
            if position < 0:
                return -1
        walk = self.parts(position, offset, _STRUCTURE)
        while True:
            try:
                next(walk)
            except StopIteration as stopped:
                position = stopped.value
                break
        if (
            position < offset
            or position >= self._end
            or self._is_blank(position, self._read(position, BLANK_BYTES))
        ):
            return -1
        # What is damaged right here is told by who reads the record before it.
        return position if self._stands(position) else self._find(position + 1)

    def damage_at(self, position: int) -> Iterator[Damage]:
        """What stands at a physical offset, if that is no whole record."""
        if position < self._end and not self._stands(position):
            yield from self._pass(position, self._read(position, _HEAD_BYTES), 0)

    def _read(self, position: int, size: int) -> bytes:
        size = min(size, self._end - position)
        data = self._opened.read_at(position - self._file.start, size)
        if len(data) < size:
            raise OSError(
                f"{self._file.path}: ends before byte {position - self._file.start + size}"
            )
        return data

    def _record_bytes(self, position: int, head: bytes) -> int:
        """Size of what begins like a record at its own place, and fits in; 0: it does not."""
        if head[4:8] != _MAGIC_BYTES or int.from_bytes(head[_OWN_OFFSET], "big") != position:
            return 0
        size = record_size(head)
        return size if position + size <= self._end else 0

    def _pass(self, position: int, window: bytes, used: int) -> Generator[Damage, None, int]:
        """Over what the kernel does not take for a whole record: where to go on, -1: nowhere."""
        record = parse_record(window, used, len(window), position)
        if record is not None:
            is_right = is_body_right(window[record.body_start : record.body_end], record.body_crc)
            reason = "its topic is not UTF-8" if is_right else "its body does not match its CRC"
            yield Damage(position, record.size, reason)
            return position + record.size
        head = window[used : used + _HEAD_BYTES]
        if self._is_blank(position, head):
            return self._file.end
        start = self._file.start
        # What a broker has prepared for records to come is zeros: they are looked through once.
        data_at = self._opened.next_data(position - start, self._end - start)
        after = self._find(max(position + 1, start + data_at - 3)) if data_at >= 0 else -1
        reason = fault_of_head(head, self._end - position, position)
        if after >= 0:
            yield Damage(position, after - position, reason)
            return after
        if not self._is_last:
            yield Damage(position, self._file.end - position, reason)
            return self._file.end
        if data_at >= 0:
            end = min(start + self._opened.data_end(self._file.size), self._end)
            yield Damage(position, max(end - position, 1), reason, is_tail=True)
        return -1

    def _is_blank(self, position: int, head: bytes) -> bool:
        """The blank that fills the rest of the file begins at a physical offset."""
        return head[:BLANK_BYTES] == BLANK.pack(self._file.end - position, BLANK_MAGIC)

    def _stands(self, position: int) -> bool:
        """A record stands at a physical offset; its CRC is not examined."""
        size = self._record_bytes(position, self._read(position, _HEAD_BYTES))
        if not size:
            return False
        return parse_record(self._read(position, size), 0, size, position) is not None

    def _find(self, position: int) -> int:
        """Physical offset of the first whole record at or behind one; -1 when there is none."""
        start = self._file.start
        while position + RECORD_BYTES_MIN <= self._end:
            data_at = self._opened.next_data(position - start, self._end - start)
            if data_at < 0:
                return -1
            # The size may begin with zeros.
            position = max(position, start + data_at - 3)
            window = self._read(position, WINDOW_BYTES)
            at = window.find(_MAGIC_BYTES, 4)
            while at >= 0:
                if self._is_sound(position, window, at - 4):
                    return position + at - 4
                at = window.find(_MAGIC_BYTES, at + 1)
            position += max(len(window) - 7, 1)
        return -1

    def _is_sound(self, start: int, window: bytes, at: int) -> bool:
        """A record with the CRC that it says stands in a window that begins at ``start``."""
        position = start + at
        head = window[at : at + _HEAD_BYTES]
        if len(head) < _HEAD_BYTES:
            head = self._read(position, _HEAD_BYTES)
        size = self._record_bytes(position, head)
        data = window[at : at + size]
        if len(data) < size:
            data = self._read(position, size)
        record = parse_record(data, 0, size, position)
        return record is not None and is_body_right(
            data[record.body_start : record.body_end], record.body_crc
        )
