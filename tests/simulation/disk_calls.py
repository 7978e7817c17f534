"""The system calls that store and tables make, on their way to a :class:`Disk`.

:func:`install` replaces functions of ``os`` and ``io`` for as long as a simulation runs. A call of
a path below a disk's root, or of a descriptor that was opened there, is that disk's; all others go
through as they are.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kerolox.store import flush
from kerolox.store.files.checkpoint import AbortFile
from kerolox.store.index import IndexFile
from tests.simulation.disk import Disk
from tests.simulation.patches import Patches
from tests.simulation.process import current

_FULL_RATIO, _USUAL_RATIO = 0.99, 0.3
_BLOCKS = 1 << 24


def install(patches: Patches, disks: Iterable[Disk]) -> None:
    """Let these disks see the calls that concern them."""
    _Calls(list(disks)).install(patches)


class _Calls:
    def __init__(self, disks: list[Disk]) -> None:
        self._by_root = {str(disk.root): disk for disk in disks}
        parents = {os.path.dirname(root) for root in self._by_root}
        assert len(parents) == 1, "the roots of all disks stand in one folder"
        self._base = parents.pop() + "/"
        self._owners: dict[int, Disk] = {}

    def install(self, patches: Patches) -> None:
        for name in (
            "open", "close", "pwrite", "write", "ftruncate", "truncate", "posix_fallocate",
            "fsync", "fdatasync", "unlink", "remove", "rename", "replace", "link", "mkdir", "rmdir",
            "statvfs", "eventfd",
        ):  # fmt: skip
            patches.set(os, name, getattr(self, name)(getattr(os, name)))
        patches.set(io, "open", self._io_open(io.open))
        patches.set(AbortFile, "boot_id", lambda file: self._boot_id(file.path))
        patches.set(IndexFile, "__init__", self._index_file(IndexFile.__init__))
        patches.set(flush, "sync_file_system", lambda folder: None)

    def _of(self, path: Any) -> Disk | None:
        if isinstance(path, int):
            return self._owners.get(path)
        text = os.fspath(path)
        if isinstance(text, bytes) or not text.startswith(self._base):
            return None
        end = text.find("/", len(self._base))
        return self._by_root.get(text if end < 0 else text[:end])

    def _boot_id(self, path: str) -> str:
        disk = self._of(path)
        return "" if disk is None else f"boot-{disk.root.name}-{disk.boot}"

    # -- descriptors ----------------------------------------------------------------------------
    def open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            disk = self._of(path)
            if disk is None:
                return real(path, flags, mode, **more)
            if flags & (os.O_CREAT | os.O_TRUNC) or disk.is_dead or disk.is_off:
                disk.begin()
            descriptor = real(path, flags, mode, **more)
            self._owners[descriptor] = disk
            disk.descriptors[descriptor] = os.fspath(path)
            return descriptor

        return call

    def close(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: int) -> None:
            disk = self._owners.pop(fd, None)
            if disk is not None:
                del disk.descriptors[fd]
            real(fd)

        return call

    def eventfd(self, real: Callable[..., int]) -> Callable[..., int]:
        """A store's: closed with its process."""

        def call(*more: Any) -> int:
            descriptor = real(*more)
            process = current()
            disk = None if process is None else self._by_root.get(f"{self._base}{process.name}")
            if disk is not None:
                self._owners[descriptor] = disk
                disk.descriptors[descriptor] = ""
            return descriptor

        return call

    def pwrite(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: Any, offset: int) -> int:
            disk = self._owners.get(fd)
            if disk is None:
                return real(fd, data, offset)
            size = len(data)
            disk.begin(lambda: real(fd, data[: max(1, size // 2)], offset))
            if disk.is_full:
                data = data[: self._room(disk, fd, offset, size)]
            disk.written(fd, offset, size)
            return real(fd, data, offset)

        return call

    def write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(fd: int, data: Any) -> int:
            disk = self._owners.get(fd)
            if disk is not None and disk.descriptors[fd]:
                disk.begin(lambda: real(fd, data[: max(1, len(data) // 2)]))
                if disk.is_full:
                    raise OSError(errno.ENOSPC, "the disk is full")
            return real(fd, data)

        return call

    @staticmethod
    def _room(disk: Disk, fd: int, offset: int, size: int) -> int:
        room = disk.room(fd, offset, size)
        if not room and size:
            raise OSError(errno.ENOSPC, "the disk is full")
        return room

    def _simple(self, real: Callable[..., Any], *, takes_room: bool = False) -> Callable[..., Any]:
        def call(target: Any, *more: Any, **named: Any) -> Any:
            disk = self._of(target)
            if disk is not None:
                disk.begin(lambda: real(target, *more, **named))
                if takes_room and disk.is_full:
                    raise OSError(errno.ENOSPC, "the disk is full")
            return real(target, *more, **named)

        return call

    def ftruncate(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._simple(real)

    def truncate(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._simple(real)

    def posix_fallocate(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._simple(real, takes_room=True)

    def mkdir(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return self._simple(real, takes_room=True)

    def fsync(self, real: Callable[[int], None]) -> Callable[[Any], None]:
        def call(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            disk = self._owners.get(number)
            if disk is not None:
                path = disk.descriptors[number]
            else:
                # Opened by ``io.open``.
                path = os.readlink(f"/proc/self/fd/{number}")
                disk = self._of(path)
            if disk is None:
                real(number)
                return
            disk.begin()
            disk.sync(number, path)
            if disk.is_dead:
                disk.begin()

        return call

    fdatasync = fsync

    def _index_file(self, real: Callable[..., None]) -> Callable[..., None]:
        """What a dead process leaves is freed later, when its descriptors are others' numbers."""

        def call(file: IndexFile, path: str, *more: Any, **named: Any) -> None:
            real(file, path, *more, **named)
            disk = self._of(path)
            if disk is not None:
                disk.index_files.append(file)

        return call

    # -- names ----------------------------------------------------------------------------------
    def unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, **more: Any) -> None:
            disk = self._of(path)
            if disk is None:
                real(path, **more)
                return
            text = os.fspath(path)

            def change() -> None:
                real(text)
                disk.changed(text, None)

            disk.begin(change if os.path.lexists(text) else None)
            change()

        return call

    remove = rmdir = unlink

    def rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(src: Any, dst: Any, **more: Any) -> None:
            disk = self._of(dst)
            if disk is None:
                real(src, dst, **more)
                return
            before, after = os.fspath(src), os.fspath(dst)

            def change() -> None:
                real(before, after)
                status = os.stat(after)
                disk.changed(after, (status.st_ino, os.path.isdir(after)), before)

            disk.begin(change if os.path.lexists(before) else None)
            change()

        return call

    replace = rename

    def link(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(src: Any, dst: Any, **more: Any) -> None:
            disk = self._of(dst)
            if disk is not None:
                disk.begin()
            real(src, dst, **more)
            if disk is not None:
                disk.changed(os.fspath(dst), (os.stat(dst).st_ino, False))

        return call

    def statvfs(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any) -> Any:
            disk = self._of(path)
            if disk is None:
                return real(path)
            free = int(_BLOCKS * (1 - (_FULL_RATIO if disk.is_full else _USUAL_RATIO)))
            values = [4_096, 4_096, _BLOCKS, free, free, 1 << 20, 1 << 19, 1 << 19, 4_096, 255]
            return os.statvfs_result(values)

        return call

    def _io_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            disk = None if isinstance(file, int) else self._of(file)
            if disk is not None and not set(mode).isdisjoint("wax+"):
                disk.begin()
                if disk.is_full:
                    Path(file).touch()
                    raise OSError(errno.ENOSPC, "the disk is full", os.fspath(file))
            return real(file, mode, *more, **named)

        return call
