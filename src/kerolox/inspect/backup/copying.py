"""Copies of files and folders that are there when they are whole, and not before."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator

from kerolox.errors import StoreError
from kerolox.inspect.backup.manifest import CHUNK_BYTES, Count, files_below
from kerolox.store.files.mapped_file import data_end, opened, sync_path, write_all

UNFINISHED_SUFFIX = ".part"
MARK_NAME = "unfinished"
"""In a folder that is not whole: whoever holds the lock of this file writes to it."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_ZEROS = bytes(CHUNK_BYTES)


@contextlib.contextmanager
def whole_folder(target: str) -> Iterator[str]:
    """A folder to be filled, ``TARGET.part``, which gets its name when the block ends well.
    StoreError: the target is there and no empty folder, or somebody else makes it now.

    When the block fails it is removed. A process that was killed leaves it, with a file
    ``unfinished`` in it, to whoever makes the same folder next.
    """
    target = os.path.abspath(target)
    check_free(target)
    part = target + UNFINISHED_SUFFIX
    mark = _claim(part)
    try:
        _clear(part)
        yield part
        # All at once is quick; each then says what the disk said of it.
        os.sync()
        for path in files_below(part):
            sync_path(os.path.join(part, path))
        os.unlink(os.path.join(part, MARK_NAME))
        os.rename(part, target)
        sync_path(os.path.dirname(target))
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(mark)


def check_free(target: str) -> None:
    """Raise a StoreError unless a folder can be made, or is empty."""
    if not os.path.lexists(target):
        return
    if not os.path.isdir(target) or os.listdir(target):
        raise StoreError(f"{target} is there already; give a folder that is not, or is empty")
    if os.path.ismount(target):
        raise StoreError(f"{target} is a mount point; give a folder below it")


def _claim(part: str) -> int:
    """Make a folder with its mark, or take over what a killed process left; the mark, locked."""
    path = os.path.join(part, MARK_NAME)
    if os.path.isdir(part) and os.listdir(part) and not os.path.exists(path):
        raise StoreError(f"{part} is there already, and was not made by a copy of a store")
    os.makedirs(part, exist_ok=True)
    mark = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The one that held it may have finished or cleared up meanwhile.
        if os.stat(path).st_ino == os.fstat(mark).st_ino:
            return mark
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(mark)
        raise
    os.close(mark)
    raise StoreError(f"{part} is being written by another process")


def _clear(part: str) -> None:
    for entry in list(os.scandir(part)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != MARK_NAME:
            os.unlink(entry.path)


def copy_file(
    source: int, target: str, count: Count, *, size: int, limit: int | None = None
) -> tuple[int, str]:
    """Copy an open file; (bytes up to the last that is not zero, their SHA-256).

    Runs of zeros become holes. What is written to the source meanwhile may be in the copy or not.
    The folder of the target, which is not there yet, is made. ``size``: of both files; OSError: the
    source is shorter. ``limit``: what stands from there on counts as zeros.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    found = hashlib.sha256()
    end = min(data_end(source, 0, size), size if limit is None else limit)
    with opened(target, _WRITE) as copy:
        for at in range(0, end, CHUNK_BYTES):
            data = os.pread(source, min(CHUNK_BYTES, end - at), at)
            if len(data) < min(CHUNK_BYTES, end - at):
                raise OSError(errno.EIO, f"byte {at + len(data)} can't be read", target)
            if data != _ZEROS[: len(data)]:
                write_all(copy, data, at)
            found.update(data)
            count(len(data))
        os.ftruncate(copy, size)
    return end, found.hexdigest()
