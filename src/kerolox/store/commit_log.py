"""The commit log: every record of every topic, one after the other, in files of fixed size.

Files are named by the physical offset of their first byte. A record never crosses a file: what
does not fit (8 bytes always stay) closes the file with a blank record and goes to the next one.
Only the thread that owns the store appends; flush and index threads read ``max_offset`` and the
maps, which is safe because bytes below ``max_offset`` never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.store.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RecordView,
    parse_record,
)
from kerolox.store.mapped_file import MappedFile, list_offset_files, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CommitLog"]

FILE_SIZE_SETTING = "mappedFileSizeCommitLog"
FILE_BYTES_MIN = 1_024


class CommitLog:
    """The files of one log. Offsets are physical: bytes since the log began."""

    def __init__(self, folder: str, file_size: int) -> None:
        if file_size < FILE_BYTES_MIN:
            raise ValueError(
                f"{FILE_SIZE_SETTING} is {file_size}; at least {FILE_BYTES_MIN} wanted"
            )
        self.folder = folder
        self.file_size = file_size
        self.record_bytes_max = file_size - BLANK_BYTES
        self.files: dict[int, MappedFile] = {}
        """By index in the log: start offset // file size. Ascending, without a gap."""
        self.min_offset = 0
        self.max_offset = 0
        """Behind the last record."""
        self.tail: MappedFile | None = None
        self.limit = 0
        """A record must end here or before to go into the tail; 0 without a tail."""

    def load(self) -> list[str]:
        """Map the files; notes about what was odd. ``max_offset`` is the end of the last file.

        Raises:
            ValueError: a file has another size than configured.
            PermissionError: a file or the folder can't be written.
        """
        make_folder(self.folder)
        starts, others = list_offset_files(self.folder, self.file_size, FILE_SIZE_SETTING)
        notes = [f"commit log: {name} is no file of the log, left alone" for name in others]
        run: list[int] = []
        for start in reversed(starts):
            if start % self.file_size or (run and start != run[-1] - self.file_size):
                notes.append(f"commit log: files before {run[-1] if run else start} do not join it")
                break
            run.append(start)
        for start in reversed(run):
            self.files[start // self.file_size] = MappedFile(
                self.folder, start, self.file_size, FILE_SIZE_SETTING
            )
            self.files[start // self.file_size].seal()
        self._reset_bounds()
        self.max_offset = self.tail.end if self.tail else 0
        return notes

    def _reset_bounds(self) -> None:
        if self.tail is not None:
            self.tail.seal()
        files = list(self.files.values())
        self.min_offset = files[0].start if files else 0
        self.tail = files[-1] if files else None
        self.limit = self.tail.end - BLANK_BYTES if self.tail else 0
        if self.tail is not None:
            self.tail.unseal()

    def roll(self) -> None:
        """Close the tail with a blank and go on in a new file; makes the first file too.

        The new name becomes durable with the first flush that reaches the file.

        Raises:
            OSError: the file can't be made; the log is as before.
        """
        tail = self.tail
        start = tail.end if tail else self.max_offset - self.max_offset % self.file_size
        fresh = MappedFile(self.folder, start, self.file_size, FILE_SIZE_SETTING)
        try:
            if tail and self.max_offset < tail.end:
                remaining = tail.end - self.max_offset
                tail.write(BLANK.pack(remaining, BLANK_MAGIC), self.max_offset - tail.start)
        except OSError:
            fresh.delete()
            raise
        self.files[start // self.file_size] = fresh
        self.max_offset = start
        self._reset_bounds()

    def drop_first(self) -> MappedFile | None:
        """Take the oldest file out; None: it is the only one. Who looks at it may go on: the map
        lives as long as anyone holds it."""
        if len(self.files) < 2:
            return None
        file = self.files.pop(next(iter(self.files)))
        self.min_offset = file.end
        return file

    def write(self, data: bytes) -> None:
        """Write records that fit the tail at ``max_offset`` and move it.

        Raises:
            OSError: nothing counts as written; the next write overwrites the rest.
        """
        tail = self.tail
        assert tail is not None, "roll() makes the first file"
        tail.write(data, self.max_offset - tail.start)
        self.max_offset += len(data)

    def read(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes at a physical offset; None when they are not all there, in one file."""
        if offset < self.min_offset or size <= 0 or offset + size > self.max_offset:
            return None
        index, position = divmod(offset, self.file_size)
        file = self.files.get(index)
        if file is None or position + size > self.file_size:
            return None
        return file.view[position : position + size]

    def record_at(self, offset: int) -> RecordView | None:
        """The record that starts at a physical offset; None when none does."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        index, position = divmod(offset, self.file_size)
        file = self.files.get(index)
        if file is None:
            return None
        limit = min(self.file_size, self.max_offset - file.start)
        return parse_record(file.view, position, limit, offset)

    def lookup(self, offset: int) -> bytes | None:
        """The bytes of the record that starts at a physical offset; None when none does."""
        record = self.record_at(offset)
        return None if record is None else self.read(offset, record.size)

    def store_time(self, offset: int) -> int:
        """Store timestamp of the record at a physical offset; -1 when there is none."""
        if not self.min_offset <= offset < self.max_offset:
            return -1
        index, position = divmod(offset, self.file_size)
        file = self.files.get(index)
        if file is None or position + 84 > self.file_size:
            return -1
        view = file.view
        if int.from_bytes(view[position + 4 : position + 8], "big") != MESSAGE_MAGIC:
            return -1
        at = position + (68 if view[position + 39] & 16 else 56)
        return int.from_bytes(view[at : at + 8], "big")

    def records_from(self, offset: int, end: int) -> Iterator[tuple[int, RecordView]]:
        """(physical offset, record) of the whole records in [offset, end), over file ends.

        ``offset`` must be a record's start or the end of one; what expired is left out. Stops where
        no record stands.
        """
        while offset < end:
            offset = max(offset, self.min_offset)
            index, position = divmod(offset, self.file_size)
            file = self.files.get(index)
            if file is None:
                return
            limit = min(self.file_size, end - file.start)
            view = file.view
            while True:
                record = parse_record(view, position, limit, offset)
                if record is None:
                    break
                yield offset, record
                offset += record.size
                position += record.size
            if offset >= end or file.end >= end:
                return
            offset = file.end

    def roll_next(self, offset: int) -> int:
        """Start of the file behind the one that holds ``offset`` (``rollNextFile``)."""
        return offset + self.file_size - offset % self.file_size

    def truncate(self, offset: int) -> list[MappedFile]:
        """Make ``offset`` the end of the log; the files that lie wholly behind, taken out.

        The caller clears what stands behind ``offset`` in the tail and deletes the files.
        """
        behind = [file for file in self.files.values() if file.start > offset]
        for file in behind:
            del self.files[file.start // self.file_size]
        self._reset_bounds()
        self.max_offset = offset
        return behind

    def close(self) -> None:
        """Unmap and close all files."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.tail = None
        self.limit = 0
