"""What a backup consists of: ``backup.json`` in its folder.

A file's sum is that of its bytes without the zeros at its end, of which files of a store have many:
a queue's file of 6 MB may hold one entry.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kerolox.errors import StoreError
from kerolox.inspect.log_walk import Progress
from kerolox.store.files.mapped_file import data_end, opened, sync_path

MANIFEST_NAME = "backup.json"
FORMAT = 1
"""Of the manifest. A later one that this version can't read has another number."""
MANIFEST_BYTES_MAX = 1 << 30
CHUNK_BYTES = 1 << 20

Count = Callable[[int], None]
"""Called with the bytes of each chunk that is done."""


@dataclass(frozen=True)
class BackupFile:
    """A file of a backup."""

    path: str
    """Below the backup's folder, with ``/``."""
    size: int
    used: int
    """Behind its last byte that is not zero."""
    sha256: str
    """Of the first ``used`` bytes."""


@dataclass(frozen=True)
class Manifest:
    """A whole backup. Times are milliseconds since 1970, offsets physical offsets of the log."""

    source: str
    """The store's folder."""
    kerolox: str
    """The version that made it."""
    began_ms: int
    """Every message that was acknowledged before is in it."""
    log_begin: int
    log_end: int
    files: tuple[BackupFile, ...]

    @property
    def size(self) -> int:
        """Bytes that the files really hold."""
        return sum(file.used for file in self.files)

    def write(self, folder: str) -> None:
        """Write ``backup.json``. Durable."""
        path = Path(folder, MANIFEST_NAME)
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        sync_path(str(path))

    @classmethod
    def read(cls, folder: str) -> Manifest:
        """Read the one of a backup; StoreError: there is none, or it is damaged or of a later
        version.
        """
        path = os.path.join(folder, MANIFEST_NAME)
        try:
            if os.path.getsize(path) > MANIFEST_BYTES_MAX:
                raise StoreError(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes")
            members = json.loads(Path(path).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            text = f"{folder} is no backup: it has no {MANIFEST_NAME}"
            raise StoreError(f"{text}, which a backup gets when it is whole") from None
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} can't be read: {error}") from None
        try:
            return cls._of(members)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path} is no manifest that can be read: {error}") from None

    @classmethod
    def _of(cls, members: dict[str, Any]) -> Manifest:
        if members["format"] != FORMAT:
            raise ValueError(f"its format is {members['format']!r}, this version reads {FORMAT}")
        files = []
        for each in members["files"]:
            path = PurePosixPath(each["path"])
            if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in str(path):
                raise ValueError(f"{each['path']!r} leads out of the backup")
            size, used = int(each["size"]), int(each["used"])
            if not 0 <= used <= size:
                raise ValueError(f"{path} has {size} bytes, of which {used} are used")
            files.append(BackupFile(str(path), size, used, str(each["sha256"])))
        return cls(
            source=str(members["source"]),
            kerolox=str(members["kerolox"]),
            began_ms=int(members["began_ms"]),
            log_begin=int(members["log_begin"]),
            log_end=int(members["log_end"]),
            files=tuple(files),
        )


def verify_backup(folder: str, progress: Progress | None = None) -> tuple[Manifest, list[str]]:
    """Read every file of a backup: (its manifest, what is wrong, a sentence each). ``progress`` is
    told of the bytes that were read. StoreError: it is no backup, see :meth:`Manifest.read`.
    """
    manifest = Manifest.read(folder)
    faults = []
    count = counting(progress, manifest.size)
    for file in manifest.files:
        path = os.path.join(folder, file.path)
        try:
            with opened(path, os.O_RDONLY) as descriptor:
                fault = fault_of(file, descriptor, count)
        except FileNotFoundError:
            fault = "is missing"
        if fault:
            faults.append(f"{path} {fault}")
    known = {file.path for file in manifest.files} | {MANIFEST_NAME}
    faults += [f"{folder}/{path} was added" for path in files_below(folder) if path not in known]
    return manifest, faults


def counting(progress: Progress | None, total: int) -> Count:
    """What reports the bytes that were done in all, out of ``total``."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(done, total), total)

    return count


def fault_of(file: BackupFile, descriptor: int, count: Count) -> str:
    """What is wrong with an open file of a backup; empty: nothing."""
    size = os.fstat(descriptor).st_size
    if size != file.size:
        return f"has {size} bytes, {file.size} were written"
    if sum_of(descriptor, file.used, count) != file.sha256:
        return "has other bytes than were written"
    if data_end(descriptor, file.used, size) > file.used:
        return f"has bytes behind {file.used}, where zeros were written"
    return ""


def sum_of(descriptor: int, used: int, count: Count) -> str:
    """The SHA-256 of the first bytes of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    for at in range(0, used, CHUNK_BYTES):
        found.update(os.pread(descriptor, min(CHUNK_BYTES, used - at), at))
        count(min(CHUNK_BYTES, used - at))
    return found.hexdigest()


def files_below(folder: str) -> Iterator[str]:
    """The files in a folder and its folders, each by its path from there, in order."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        below = os.path.relpath(root, folder)
        for name in sorted(names):
            yield name if below == "." else f"{below}/{name}"
