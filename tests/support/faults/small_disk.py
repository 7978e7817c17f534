"""A folder on a disk that can be full: a file system of its own, or errors in its place.

Where the system lets us mount one, a *tmpfs* or an *ext4* in a file is filled to its last byte;
elsewhere the shim (``shim.py``) makes the calls fail that a full disk makes fail.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.faults.shim import Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FULL", "MountedDisk", "PretendedDisk", "disk_kinds", "small_disk"]

DISK_BYTES = 8 << 20
FULL = ("pwrite:{}:*:ENOSPC", "write:{}:*:ENOSPC", "fallocate:{}:*:ENOSPC", "madvise:{}:*:ENOSPC")
"""What a full disk answers where a file needs a block. (That of a fault is EFAULT; why, the kernel
asks the file system then, which is not full here.)"""


class PretendedDisk:
    """Errors for all files below a folder."""

    def __init__(self, folder: Path, notes: Path) -> None:
        self._part = f"{folder}/"
        self._faults = Faults(notes)
        self.environment = self._faults.environment

    def fill(self) -> None:
        """From now on nothing more fits."""
        self._faults.set(*(rule.format(self._part) for rule in FULL))

    def free(self) -> None:
        """There is room again."""
        self._faults.clear()


class MountedDisk:
    """A file system of its own, mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"
        self.environment: dict[str, str] = {}

    def fill(self) -> None:
        """Write until not a byte fits."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
        os.close(descriptor)

    def free(self) -> None:
        """Take away what filled it."""
        self._filler.unlink()


def _mount(kind: str, folder: Path, image: Path, size: int = DISK_BYTES) -> None:
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    else:
        with image.open("wb") as file:
            file.truncate(size)
        options = ["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0"]
        subprocess.run(["mkfs.ext4", *options, str(image)], check=True, capture_output=True)
        command = ["mount", "-o", "loop", str(image), str(folder)]
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(
    kind: str, folder: Path, notes: Path, *, size: int = DISK_BYTES
) -> Iterator[PretendedDisk | MountedDisk]:
    """The disk of ``folder``, which is made; ``notes`` is a folder elsewhere. ``size``: bytes."""
    folder.mkdir(parents=True)
    if kind == "pretended":
        yield PretendedDisk(folder, notes)
        return
    _mount(kind, folder, notes / "disk.image", size)
    try:
        yield MountedDisk(folder)
    finally:
        # Lazily: a broker that a failed test left behind must not keep it.
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


@functools.cache
def disk_kinds() -> list[str]:
    """Those that this machine lets us have, at least one."""
    kinds = []
    for kind in ("tmpfs", "ext4"):
        with tempfile.TemporaryDirectory() as name:
            place, image = Path(name, "disk"), Path(name, "image")
            place.mkdir()
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _mount(kind, place, image)
                subprocess.run(["umount", str(place)], check=True, capture_output=True)
                kinds.append(kind)
    return kinds or ["pretended"]
