"""Who holds the lock of a store: what refuses a second one says whether it is this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

__all__ = ["lock_holder"]

_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of Linux on 64 bits: type, whence, start, length, process."""
_DESCRIPTORS = "/proc/self/fd"


def lock_holder(path: str, *, own: int = -1) -> str:
    """Who holds a lock of the file that was refused, in words; nothing of it is changed.

    ``own``: a descriptor of it that does not count; -1: none. Without one the file is opened, if
    this process does not have it: closing it would drop the process's own lock.
    """
    try:
        if _has_open(path, own):
            return "this process"
        if own >= 0:
            return _of_lock(own)
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return "another process"
    try:
        return _of_lock(descriptor)
    except OSError:
        return "another process"
    finally:
        os.close(descriptor)


def _has_open(path: str, own: int) -> bool:
    wanted = os.stat(path)
    for name in os.listdir(_DESCRIPTORS):
        if int(name) == own:
            continue
        with contextlib.suppress(OSError):
            found = os.fstat(int(name))
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def _of_lock(descriptor: int) -> str:
    """By the kernel's word; a lock of an open file (the native engine's) names no process."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    process = int(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[4])
    if process <= 0:
        return "another process"
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        if parent == os.getpid():
            return f"process {process}, a child of this one"
    return f"another process ({process})"
