"""One file of fixed size: mapped for reading, written with ``pwrite``.

The file has its full size from the start and is sparse until written, as RocketMQ makes it. Reads
go through a shared map, writes with ``pwrite`` to the same page cache. So a full disk is an
``OSError`` at the write and not a SIGBUS, and no page fault lies in the way of an append.
Measured for chunks of 16 KiB beside a flush every 200 ms: p99.9 0.15 ms, through the map 1.3 ms.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_NAME_DIGITS = 20
OFFSET_NAME = re.compile(r"[0-9]{20}\Z")
_ZERO_BLOCK_BYTES = 256 << 10
"""What is compared with zeros at a time stays in the processor's cache."""
_SEGMENT_BYTES = 8 << 20
_ZEROS = bytes(_ZERO_BLOCK_BYTES)
RELEASE_STEP_BYTES = 64 << 20
MAP_LOCKED = 0x2000 if sys.platform == "linux" else 0
"""Of ``mmap(2)``, on x86 and Arm; Python has no name for it. 0: pages are not locked."""


def make_folder(folder: str) -> None:
    """Make a folder and its parents. PermissionError, with the path; NotADirectoryError: something
    else has that name.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"{folder}: the store needs a folder here, it is a file") from None


@contextlib.contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor of a file or folder, for as long as the block takes."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_path(path: str) -> None:
    """Make a file durable, or the new names in a folder."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_queue_files(folder: str, starts: Iterable[int], named: int) -> int:
    """Make files of a queue durable. A new one with its name, that of the queue's folder and that
    of the topic's: what is flushed is lost with any of them. What ``named`` is from now on.

    ``starts``: of the files, ascending, by their first bytes. One that was deleted meanwhile, with
    its topic, is passed by. ``named``: the last file whose name is durable; -1: none is, as far as
    known.
    """
    topic = os.path.dirname(folder)
    for start in starts:
        with contextlib.suppress(FileNotFoundError):
            with opened(os.path.join(folder, offset_name(start)), os.O_RDWR) as descriptor:
                os.fdatasync(descriptor)
            if start > named:
                for each in (folder, topic, os.path.dirname(topic)):
                    sync_path(each)
                named = start
    return named


def check_file_size(path: str, size: int, expected: int, setting: str) -> None:
    """Refuse a file of another size than configured by a ValueError, which names the file, both
    sizes and the setting.
    """
    if size != expected:
        raise ValueError(
            f"{path} has {size} bytes, but {setting} makes it {expected}; "
            f"set {setting} to the value that the store was made with"
        )


def offset_name(start: int) -> str:
    """The name of the file that begins at an offset."""
    return f"{start:0{FILE_NAME_DIGITS}d}"


def list_sizes(folder: str) -> tuple[dict[int, int], list[str]]:
    """(size of each file in a folder by its start offset, names that are no such file)."""
    sizes: dict[int, int] = {}
    others: list[str] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if OFFSET_NAME.match(entry.name) and entry.is_file():
                sizes[int(entry.name)] = entry.stat().st_size
            else:
                others.append(entry.name)
    return sizes, others


def write_all(descriptor: int, data: bytes, position: int) -> None:
    """``pwrite`` all of ``data``; a short write goes on where it stopped."""
    written = os.pwrite(descriptor, data, position)
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], position + written)


def end_hole(path: str, size: int) -> int:
    """Where the hole at the end of a file begins; ``size`` when it has none.

    Some file systems give a page to whoever reads a hole through a map: on a full disk that is a
    SIGBUS. So what may lie behind the data is read with ``pread``, or not at all.
    """
    used = at = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while at < size:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            used = at = min(os.lseek(descriptor, at, os.SEEK_HOLE), size)
    except OSError as error:
        # Nothing but a hole follows.
        if error.errno != errno.ENXIO:
            return size
    finally:
        os.close(descriptor)
    return used


def zero_from(descriptor: int, position: int, size: int, reach: int | None = None) -> int:
    """Overwrite what is not zero from ``position`` to ``size``; how far it reached in bytes.

    Looks only where the file has blocks, and writes only where something stands, so a sparse
    file stays sparse. ``reach``: what :func:`data_end` says, where it is known.
    """
    if reach is None:
        reach = data_end(descriptor, position, size)
    for begin, end in data_segments(descriptor, position, reach):
        block = os.pread(descriptor, end - begin, begin)
        used = len(block.rstrip(b"\0"))
        if used:
            write_all(descriptor, bytes(used), begin)
    return reach - position


def data_end(descriptor: int, position: int, file_size: int) -> int:
    """Behind the last byte from a position to the file's end that is not zero; ``position`` when
    all are. Holes are not read. OSError: it can't be read, or is shorter.

    A file may end in real zeros: one that was warmed up, or copied by a tool that fills holes.
    """
    buffer = bytearray(_ZERO_BLOCK_BYTES)
    # The last ones first: what is found there spares the rest.
    for begin, end in reversed(list(data_segments(descriptor, position, file_size))):
        used = 0
        for at in range(begin, end, _ZERO_BLOCK_BYTES):
            size = min(_ZERO_BLOCK_BYTES, end - at)
            block = buffer if size == len(buffer) else bytearray(size)
            if os.preadv(descriptor, [block], at) < size:
                raise OSError(errno.EIO, f"a file of a store ends before {at + size}")
            # Compared at the speed of memory; stripping goes byte by byte.
            if block != _ZEROS[:size]:
                used = at + len(block.rstrip(b"\0"))
        if used:
            return used
    return position


def data_segments(descriptor: int, position: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes, in pieces."""
    at = position
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            # Nothing but a hole follows.
            return
        end = min(os.lseek(descriptor, at, os.SEEK_HOLE), size)
        while at < end:
            yield at, min(at + _SEGMENT_BYTES, end)
            at += _SEGMENT_BYTES
        at = end


def release_pages(view: mmap.mmap, size: int) -> None:
    """Take mapped pages out of this process, in steps that each last well under a millisecond.

    What was read through a map counts as memory of the process until then.
    """
    # Closed meanwhile: nothing to release.
    with contextlib.suppress(ValueError):
        for start in range(0, size, RELEASE_STEP_BYTES):
            view.madvise(mmap.MADV_DONTNEED, start, min(RELEASE_STEP_BYTES, size - start))


def close_map(view: mmap.mmap) -> None:
    """Unmap now, or when the last one who holds a buffer of it lets go (``ReferenceResource``)."""
    with contextlib.suppress(BufferError):
        view.close()


class MappedFile:
    """A file of the commit log. A sealed one costs one descriptor, its map's.

    With ``read_only`` it is neither made nor written, until ``unseal`` opens it for writing.

    Raises on opening:
        ValueError: the file has another size than ``size``.
        PermissionError: it can't be read and written.
    """

    __slots__ = (
        "_lock_map", "descriptor", "end", "folder", "path", "read_only", "size", "start", "view"
    )  # fmt: skip

    def __init__(
        self, folder: str, start: int, size: int, setting: str, *, read_only: bool = False
    ) -> None:
        self.folder = folder
        self.read_only = read_only
        self.path = os.path.join(folder, offset_name(start))
        self.start = start
        self.size = size
        self.end = start + size
        self._lock_map: mmap.mmap | None = None
        mode = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self.descriptor = os.open(self.path, mode | os.O_CLOEXEC, 0o644)
        found = os.fstat(self.descriptor).st_size
        try:
            if found == 0 and not read_only:
                os.ftruncate(self.descriptor, size)
            else:
                check_file_size(self.path, found, size, setting)
            self.view = mmap.mmap(self.descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(self.descriptor)
            if not found and not read_only:
                # One that has no size yet would look like damage behind the next file.
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            raise

    def seal(self) -> None:
        """Give the descriptor back: the file is only read from now on, through its map."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def unseal(self) -> int:
        """The descriptor, opened again when the file was sealed."""
        if self.descriptor < 0:
            self.descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self.descriptor

    @property
    def is_unlinked(self) -> bool:
        """Somebody deleted it: what is written to it is lost. It must not be sealed."""
        return os.fstat(self.descriptor).st_nlink == 0

    def lock_pages(self) -> None:
        """Keep all pages in memory, as far as the system lets us (``RLIMIT_MEMLOCK``)."""
        if MAP_LOCKED:
            with contextlib.suppress(OSError):
                flags = mmap.MAP_SHARED | MAP_LOCKED
                self._lock_map = mmap.mmap(self.descriptor, self.size, flags, mmap.PROT_READ)

    def unlock_pages(self) -> None:
        """Let the system take the pages (``unlockMappedFile``); idempotent, from any thread."""
        lock_map, self._lock_map = self._lock_map, None
        if lock_map is not None:
            lock_map.close()

    def release_pages(self) -> None:
        """Take the file's pages out of this process; the page cache keeps them."""
        release_pages(self.view, self.size)

    def write(self, data: bytes, position: int) -> None:
        """Write all of ``data`` at a position of this file (``OSError`` when it can't be)."""
        if os.pwrite(self.descriptor, data, position) != len(data):
            # Again from the start: the rest of a short write either fits or names its error.
            write_all(self.descriptor, data, position)

    def close(self) -> None:
        """Unmap (see ``close_map``) and close; idempotent."""
        self.unlock_pages()
        close_map(self.view)
        self.seal()

    def delete(self) -> None:
        """Close the file and remove it."""
        self.close()
        Path(self.path).unlink(missing_ok=True)
