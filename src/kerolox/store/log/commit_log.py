"""The commit log: every record of every topic, one after the other, in files of fixed size.

Files are named by the physical offset of their first byte. A record never crosses a file. One that
does not fit (8 bytes always stay) goes to the next file, and a blank record closes this one. Only
the thread that owns the store appends. Flush and index threads read ``max_offset`` and the maps,
which is safe: bytes below ``max_offset`` never change.

With a transient store pool records are written to that, at ``end_offset``, and ``max_offset``
follows when they are committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kerolox.kernel.settings import StoreSettings
from kerolox.kernel.status import AppendMessageStatus
from kerolox.protocol.records import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    RecordView,
    parse_record,
    store_time_of,
)
from kerolox.store.files.mapped_file import (
    MappedFile,
    check_file_size,
    end_hole,
    list_sizes,
    make_folder,
    offset_name,
    opened,
    write_all,
    zero_from,
)
from kerolox.store.layout import BLANK, BLANK_BYTES
from kerolox.store.log.folders import PATH_SPLITTER, LogFolders, root_of, split_folders
from kerolox.store.log.preallocate import FileAllocator
from kerolox.store.log.transient_pool import TransientPool

FILE_SIZE_SETTING = "mappedFileSizeCommitLog"
FILE_BYTES_MIN = 1_024
WRITE_AGAIN_BYTES = 1 << 20
NEVER = 1 << 63
"""An offset that no log reaches."""


class CommitLog:
    """The files of one log. Offsets are physical: bytes since the log began.

    ``folders`` and ``read_only_folders`` are folders joined by ``,`` (:class:`LogFolders`).
    """

    def __init__(self, folders: str, file_size: int, read_only_folders: str = "") -> None:
        if file_size < FILE_BYTES_MIN:
            raise ValueError(
                f"{FILE_SIZE_SETTING} is {file_size}; at least {FILE_BYTES_MIN} wanted"
            )
        self.folders = LogFolders(folders, read_only_folders)
        self.file_size = file_size
        self.record_bytes_max = file_size - BLANK_BYTES
        self.files: dict[int, MappedFile] = {}
        """By index in the log: start offset // file size. Ascending, without a gap."""
        self.min_offset = 0
        self.max_offset = 0
        """Behind the last record that can be read."""
        self.end_offset = 0
        """Behind the last record."""
        self.partial = 0
        """Bytes behind ``end_offset`` that came from a master and are no whole record yet."""
        self.pool: TransientPool | None = None
        self.tail: MappedFile | None = None
        self.limit = 0
        """A record must end here or before to go into the tail; 0 without a tail."""
        self.allocator: FileAllocator | None = None
        """Preallocates files while the store is open."""
        self._ask_at = NEVER

    def load(self, *, crashed: bool = False) -> list[str]:
        """Map the files; notes about what was odd. ``max_offset`` is where the last file's data
        ends.

        Files at the end that were preallocated and never written are removed. After a crash a file
        that is too short gets its size again: the log ends in it. ValueError: a file has another
        size than configured or stands in two folders, or one is missing between two others.
        """
        for folder in self.folders.writable:
            make_folder(folder)
        notes: list[str] = []
        places = self._places(notes, crashed=crashed)
        starts = sorted(places)
        while len(starts) > 1:
            if not self._is_unwritten(places[starts[-1]], starts[-1]):
                break
            starts.pop()
        self._check_run(starts, places)
        for start in starts:
            folder = places[start]
            file = MappedFile(
                folder,
                start,
                self.file_size,
                FILE_SIZE_SETTING,
                read_only=folder in self.folders.read_only,
            )
            self.files[start // self.file_size] = file
            file.seal()
        self._reset_bounds()
        if self.tail is not None:
            used = end_hole(self.tail.path, self.tail.size)
            self.max_offset = self.end_offset = self.tail.start + used
        return notes

    def _places(self, notes: list[str], *, crashed: bool) -> dict[int, str]:
        """The folder of each file, by its start."""
        found: list[tuple[int, str, int]] = []
        for folder in self.folders.all:
            sizes, others = list_sizes(folder)
            found += ((start, folder, size) for start, size in sizes.items())
            notes += (f"commit log: {name} is no file of the log, left alone" for name in others)
        found.sort()
        while found and found[-1][2] == 0:
            # A kill came between making the file and giving it its size.
            start, folder, _size = found.pop()
            path = Path(folder, offset_name(start))
            path.unlink()
            notes.append(f"removed {path}: it was just being created")
        # With every file of another size the setting is wrong.
        is_sized = len(found) == 1 or any(size == self.file_size for _, _, size in found)
        places: dict[int, str] = {}
        for start, folder, found_size in found:
            path, size = Path(folder, offset_name(start)), found_size
            if crashed and is_sized and size < self.file_size:
                os.truncate(path, self.file_size)
                notes.append(f"lengthened {path}: it had {size} bytes")
                size = self.file_size
            check_file_size(str(path), size, self.file_size, FILE_SIZE_SETTING)
            kept = places.get(start)
            if kept is None or self._is_unwritten(kept, start):
                places[start] = folder
            elif not self._is_unwritten(folder, start):
                raise ValueError(
                    f"{kept} and {folder} both have a file {offset_name(start)} of the commit log; "
                    "move one of them away"
                )
        return places

    def _check_run(self, starts: list[int], places: dict[int, str]) -> None:
        """Refuse a log with a hole. RocketMQ notes one as an error and goes on, without the
        messages; they are as good as lost then, though the file may lie in a folder that is not
        mounted."""
        for number, start in enumerate(starts):
            path = Path(places[start], offset_name(start))
            if start % self.file_size:
                raise ValueError(
                    f"{path} does not start at a multiple of {self.file_size} "
                    f"({FILE_SIZE_SETTING}): it is of another log, move it away"
                )
            wanted = starts[number - 1] + self.file_size if number else start
            if start != wanted:
                before = Path(places[starts[number - 1]], offset_name(starts[number - 1]))
                raise ValueError(
                    f"the commit log has no file {offset_name(wanted)} between {before} and "
                    f"{path}: bring it back (is one of its folders not mounted, or missing in "
                    "storePathCommitLog or readOnlyCommitLogStorePaths?), or give up the messages "
                    "on one side of it by moving those files away"
                )

    def _is_unwritten(self, folder: str, start: int) -> bool:
        """Whether a file was preallocated and never written; it is removed then if it may be.

        No record and no blank begins with zeros.
        """
        path = Path(folder, offset_name(start))
        with path.open("rb") as file:
            if any(file.read(8)):
                return False
        if folder not in self.folders.read_only:
            path.unlink()
        return True

    def _reset_bounds(self) -> None:
        if self.tail is not None:
            self.tail.seal()
        files = list(self.files.values())
        self.min_offset = files[0].start if files else 0
        self.tail = files[-1] if files else None
        self.limit = self.tail.end - BLANK_BYTES if self.tail else 0
        if self.tail is not None and not self.tail.read_only:
            self.tail.unseal()
        self._ask_at = self.tail.start + self.file_size // 2 if self.tail else NEVER

    def open_tail(self) -> None:
        """Let the last file be written, which is filled to its end wherever it lies. ValueError: it
        can't be, and it is not full.
        """
        tail = self.tail
        if tail is None or not tail.read_only or self.max_offset >= tail.end:
            return
        try:
            tail.unseal()
        except OSError as error:
            raise ValueError(
                f"the commit log ends in {tail.path}, which has to be filled before another file "
                f"is begun, but it can't be written ({error}); move it to a folder of "
                "storePathCommitLog"
            ) from error

    def space_for(self, size: int) -> AppendMessageStatus:
        """What the last file says to ``size`` bytes: PUT_OK, END_OF_FILE (``roll`` comes first), or
        MESSAGE_SIZE_EXCEEDED (no file can hold them)."""
        if size > self.record_bytes_max:
            return AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
        if self.end_offset + size > self.limit:
            return AppendMessageStatus.END_OF_FILE
        return AppendMessageStatus.PUT_OK

    @property
    def next_start(self) -> int:
        """Where the file after the last one begins."""
        if self.tail is not None:
            return self.tail.end
        return self.end_offset - self.end_offset % self.file_size

    def stage(self, pool: TransientPool) -> None:
        """Let records go through a pool from now on, which begins at the end of the log."""
        self.pool = pool
        if self.tail is not None:
            pool.stage(self.tail, pool.borrow(), -1)

    def roll(self) -> None:
        """Close the tail with a blank and go on in a new file; makes the first file too.

        The new name becomes durable with the first flush that reaches the file. OSError: the file
        can't be made, or has no buffer; the log is as before.
        """
        tail = self.tail
        pool = self.pool
        buffer = None if pool is None else pool.borrow()
        try:
            fresh = self._fresh_file()
            try:
                if tail and self.end_offset < tail.end:
                    remaining = tail.end - self.end_offset
                    blank = BLANK.pack(remaining, BLANK_MAGIC)
                    (tail if pool is None else pool).write(blank, self.end_offset - tail.start)
            except OSError:
                fresh.delete()
                raise
        except BaseException:
            if pool is not None:
                pool.give_back(buffer)
            raise
        if pool is not None:
            pool.stage(fresh, buffer, self.end_offset + BLANK_BYTES)
        else:
            self.max_offset = fresh.start
        self.files[fresh.start // self.file_size] = fresh
        self.end_offset = fresh.start
        self._reset_bounds()

    def _fresh_file(self) -> MappedFile:
        start = self.next_start
        folder = self.folders.folder_of(start // self.file_size)
        fresh = None if self.allocator is None else self.allocator.take(start, folder)
        if fresh is None:
            fresh = MappedFile(folder, start, self.file_size, FILE_SIZE_SETTING)
        return fresh

    def drop_first(self) -> MappedFile | None:
        """Take the oldest file out; None: it is the only one. Who examines it may go on: the map
        lives as long as anyone holds it."""
        first = next(iter(self.files.values()), None)
        if len(self.files) < 2 or first is None or first.end > self.max_offset:
            return None
        file = self.files.pop(first.start // self.file_size)
        self.min_offset = file.end
        return file

    def write(self, data: bytes) -> None:
        """Write records that fit the tail at ``end_offset`` and move it. OSError: nothing counts as
        written, but a part may stand there: see :meth:`take_back`.
        """
        tail = self.tail
        assert tail is not None, "roll() makes the first file"
        if self.pool is None:
            tail.write(data, self.end_offset - tail.start)
            self.max_offset = self.end_offset = self.end_offset + len(data)
        else:
            self.pool.write(data, self.end_offset - tail.start)
            self.end_offset += len(data)
        if self.end_offset > self._ask_at:
            self._ask_ahead()

    def take_back(self, size: int) -> None:
        """Clear what a write of ``size`` bytes that failed left behind the end. It may be a whole
        record, or one that lacks the end of its properties alone, which no CRC covers.
        """
        if self.tail is not None and self.pool is None:
            position = self.end_offset - self.tail.start
            zero_from(self.tail.unseal(), position, min(position + size, self.tail.size))

    def _ask_ahead(self) -> None:
        """Have the next file made, and the one after it."""
        self._ask_at = NEVER
        if self.allocator is not None:
            number = self.next_start // self.file_size
            self.allocator.ask(
                (each * self.file_size, self.folders.folder_of(each))
                for each in (number, number + 1)
            )

    def read(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes at a physical offset; None when they are not all there, in one file."""
        if offset < self.min_offset or size <= 0 or offset + size > self.max_offset:
            return None
        index, position = divmod(offset, self.file_size)
        file = self.files.get(index)
        if file is None or position + size > self.file_size:
            return None
        return file.view[position : position + size]

    def read_raw(self, offset: int, max_bytes: int) -> bytes:
        """See ``RawLog.read_log``."""
        room = self.file_size - offset % self.file_size
        size = min(max_bytes, room, self.max_offset - offset)
        return self.read(offset, size) or b""

    # -- bytes of a master --------------------------------------------------------------------
    def start_raw(self, offset: int) -> None:
        """Make sure that bytes of a master at ``offset`` come next, or raise a ValueError. An empty
        log begins there. At the end of the last whole record they begin anew: what came of the next
        one is dropped; OSError: it can't be cleared.
        """
        if self.partial and offset == self.end_offset:
            self.drop_partial()
        if not self.files and offset != self.end_offset:
            if offset % self.file_size:
                raise ValueError(
                    f"the log would begin at {offset}, which is no multiple of the "
                    f"{self.file_size} bytes of its files: {FILE_SIZE_SETTING} has to be the "
                    "master's"
                )
            self.min_offset = self.max_offset = self.end_offset = offset
        wanted = self.end_offset + self.partial
        if offset != wanted:
            raise ValueError(f"the log goes on at {wanted}, not at {offset}")

    def put_raw(self, data: memoryview) -> int:
        """Write bytes of a master behind the last ones, as many as go into one file; how many."""
        if self.tail is None or self.end_offset == self.tail.end:
            self.roll()
        tail = self.tail
        assert tail is not None
        begin = self.end_offset + self.partial - tail.start
        size = min(len(data), tail.size - begin)
        # What fails may be there in part.
        self.partial += size
        try:
            tail.write(bytes(data[:size]), begin)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(tail.path)) from error
        return size

    def raw_at(self, offset: int) -> tuple[int, RecordView | None] | None:
        """(size, record) of what stands at an offset among the bytes of a master, without a record
        where a blank ends the file; None: more has to come. ValueError: it is neither.
        """
        tail = self.tail
        here = self.end_offset + self.partial - offset
        if tail is None or here < BLANK_BYTES:
            return None
        position = offset - tail.start
        room = tail.size - position
        size, magic = BLANK.unpack_from(tail.view, position)
        if magic == BLANK_MAGIC:
            if size != room:
                raise ValueError(
                    f"a blank that does not end a file of {FILE_SIZE_SETTING} stands at {offset}"
                )
            return None if here < size else (size, None)
        if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= room - BLANK_BYTES:
            raise ValueError(f"no record stands at {offset}")
        if here < size:
            return None
        record = parse_record(tail.view, position, position + here, offset)
        if record is None:
            raise ValueError(f"no record of this offset stands at {offset}")
        return size, record

    def take_raw(self, end: int) -> None:
        """Make what a master sent part of the log, up to an offset."""
        self.partial -= end - self.end_offset
        self.max_offset = self.end_offset = end
        if end > self._ask_at:
            self._ask_ahead()

    def drop_partial(self) -> None:
        """Clear what is no whole record: an append of ours would leave some of it behind."""
        partial, self.partial = self.partial, 0
        if partial and self.tail is not None:
            position = self.end_offset - self.tail.start
            zero_from(self.tail.unseal(), position, position + partial)

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
        return store_time_of(view, position)

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

    def write_again(self, offset: int) -> None:
        """Write what stands from an offset on once more, as it is. After a flush that failed the
        system takes its pages for clean, and no flush would ever bring them to the disk.
        """
        for file in self.files.values():
            end = min(file.end, self.max_offset)
            if end <= offset or file.read_only:
                continue
            with opened(file.path, os.O_RDWR) as descriptor:
                for at in range(max(offset, file.start), end, WRITE_AGAIN_BYTES):
                    size = min(WRITE_AGAIN_BYTES, end - at)
                    data = os.pread(descriptor, size, at - file.start)
                    write_all(descriptor, data, at - file.start)

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
        self.max_offset = self.end_offset = offset
        return behind

    def close(self) -> None:
        """Unmap and close all files; the log is empty then."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        self.tail = None
        self.limit = self.min_offset = self.max_offset = self.end_offset = 0
        self.pool = None


def log_of(settings: StoreSettings) -> CommitLog:
    """The log of a store; nothing is opened yet. ValueError: its files are too small, or no folder
    is left that they can be made in.
    """
    return CommitLog(
        _absolute(settings.store_path_commit_log) or os.path.join(root_of(settings), "commitlog"),
        settings.mapped_file_size_commit_log,
        _absolute(settings.read_only_commit_log_store_paths),
    )


def _absolute(setting: str) -> str:
    """The folders of a setting as they are in the system."""
    folders = (os.path.abspath(os.path.expanduser(each)) for each in split_folders(setting))
    return PATH_SPLITTER.join(folders)
