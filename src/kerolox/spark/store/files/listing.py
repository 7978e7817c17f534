"""The files of a store, found by listing its folders once, where the query is planned.

A store is what ``storePathRootDir`` names: a folder with ``commitlog``. The folder of the commit
log alone will do as well, then without consume queues.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kerolox.errors import StoreError
from kerolox.inspect.places import LogFile, is_locked
from kerolox.spark.store.files.disk import Child, Disk, disk_of
from kerolox.store.files.mapped_file import OFFSET_NAME

_LOG_FOLDER = "commitlog"
_QUEUE_FOLDER = "consumequeue"


@dataclass(frozen=True, kw_only=True)
class StoreListing:
    """A store as it was listed."""

    location: str
    disk: Disk
    root: str | None
    """Path of the store's root; None: only the commit log's folder is known."""
    queue_folder: str | None
    """Path of the consume queues; None: there are none."""
    files: tuple[LogFile, ...]
    """The commit log's files that hold anything, in order of their physical offsets."""
    odd: tuple[str, ...] = ()
    """Paths in the commit log's folders that are no files of a log."""
    is_live: bool = False
    """A broker writes to it: its lock is held. Where locks can't be seen (not local): it was not
    closed cleanly."""

    @property
    def start(self) -> int:
        """Physical offset of the first byte; 0 in a log without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Physical offset after the last file."""
        return self.files[-1].end if self.files else 0

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[from, to) of physical offsets between files: of these a file is missing."""
        return [(a.end, b.start) for a, b in pairwise(self.files) if a.end < b.start]

    @property
    def faults(self) -> list[str]:
        """Sentences on what is not as a broker leaves it."""
        found = [f"{path} is no file of a commit log" for path in self.odd]
        found += [
            f"a file is missing: the log ends at {start} and goes on at {end}"
            for start, end in self.gaps
        ]
        for before, file in pairwise(self.files):
            if before.end > file.start:
                found.append(f"{before.path} and {file.path} overlap")
        sizes = {file.size for file in self.files}
        if len(sizes) > 1:
            found.append(f"the commit log's files have different sizes: {sorted(sizes)}")
        return found


def list_store(location: str, log_locations: Sequence[str] = ()) -> StoreListing:
    """List a store, of path or URI: its root's, or its commit log's folder's. ``log_locations``:
    the folders of the commit log when they lie elsewhere (storePathCommitLog and
    readOnlyCommitLogStorePaths). StoreError: it is not there, or no store. ConfigError: nothing is
    known of its file system.
    """
    disk, path = disk_of(location)
    children = _children(disk, path, location)
    names = {child.name for child in children if not child.is_file}
    root: str | None = path
    if log_locations:
        folders = []
        for each in log_locations:
            log_disk, folder = disk_of(each)
            if type(log_disk) is not type(disk):
                raise StoreError(f"{each} is not on the file system of {location}")
            folders.append((folder, _children(disk, folder, each)))
    elif _LOG_FOLDER in names:
        folder = posixpath.join(path, _LOG_FOLDER)
        folders = [(folder, _children(disk, folder, folder))]
    elif any(child.is_file and OFFSET_NAME.match(child.name) for child in children):
        folders = [(path, children)]
        parent, name = posixpath.split(path.rstrip("/"))
        root = parent if name == _LOG_FOLDER else None
    else:
        raise StoreError(
            f"{location} is no store: it has no folder {_LOG_FOLDER} and no file of a commit log "
            "(20 digits); give the folder that storePathRootDir names, or that of the commit log"
        )
    files, odd = _log_files(folders)
    return StoreListing(
        location=location,
        disk=disk,
        root=root,
        queue_folder=_queue_folder(disk, root),
        files=tuple(files),
        odd=tuple(odd),
        is_live=root is not None and _is_live(disk, root),
    )


def _children(disk: Disk, path: str, location: str) -> list[Child]:
    try:
        return disk.children(path)
    except FileNotFoundError:
        raise StoreError(
            f"{location} is not there; give the folder that storePathRootDir names, as the machine "
            "that plans the query sees it"
        ) from None
    except NotADirectoryError:
        raise StoreError(
            f"{location} is no folder; give that which storePathRootDir names"
        ) from None


def _log_files(folders: list[tuple[str, list[Child]]]) -> tuple[list[LogFile], list[str]]:
    files: list[LogFile] = []
    odd: list[str] = []
    for folder, children in folders:
        for child in children:
            path = posixpath.join(folder, child.name)
            if not child.is_file or not OFFSET_NAME.match(child.name):
                odd.append(path)
            elif child.size:
                # One without bytes was made just before its broker stopped.
                files.append(LogFile(int(child.name), child.size, path))
    return sorted(files), sorted(odd)


def _queue_folder(disk: Disk, root: str | None) -> str | None:
    if root is None:
        return None
    folder = posixpath.join(root, _QUEUE_FOLDER)
    try:
        disk.children(folder)
    except OSError:
        return None
    return folder


def _is_live(disk: Disk, root: str) -> bool:
    if disk.is_local:
        return is_locked(posixpath.join(root, "lock"))
    try:
        return any(child.name == "abort" for child in disk.children(root))
    except OSError:
        return False
