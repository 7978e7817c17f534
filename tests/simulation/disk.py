"""The folder of one simulated process: what of it is on the disk, and what a crash leaves.

The files are real ones, on tmpfs: what the system says about them is true. Beside them stands what
is *synced*: the bytes of each file at its last sync, and the names of each folder at the folder's
last sync. A crash of the machine leaves, as POSIX allows it:

- of a file: its synced bytes; of each 4 KiB page that was changed since, the old one, the new one
  or one torn at a sector; its old size or its new one;
- of a folder: the names at its last sync, and a first part of what changed since, in order. The
  sync of a file makes its bytes durable, not its name. A folder that is synced can be reached.

So a name that no folder's sync made durable may be gone, a deleted or replaced file may be back,
and a file may be there without its bytes. What the store relies on, and the crash keeps to: a
rename is atomic; a sector of 512 bytes is old or new, never mixed; the root is there.

A failed sync (``failing_syncs``) loses for good what was not synced before, though reads still show
it and later syncs succeed, until its pages are written again. A full disk refuses what needs a new
page; pages that are there can be written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

from kerolox.store.files.checkpoint import StoreLock
from kerolox.store.index import IndexFile
from tests.simulation.trace import Trace

PAGE_BYTES, SECTOR_BYTES = 4_096, 512
# What the system really does, whatever a simulation puts in place of it.
_open, _close, _stat, _unlink, _mkdir = os.open, os.close, os.stat, os.unlink, os.mkdir
_pread, _pwrite, _ftruncate, _rmdir = os.pread, os.pwrite, os.ftruncate, os.rmdir

Entry = tuple[int, bool]
"""(inode, whether it is a folder)."""
Names = dict[str, Entry]
Change = dict[str, Entry | None]
"""What one call does to the names of a folder; None: gone."""


class Died(BaseException):
    """The process of this code died within a call; its frames unwind without effect."""


class Disk:
    """See the module. One for each process that has files; it outlives the process."""

    def __init__(self, root: Path, chance: random.Random, trace: Trace) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.boot = 1
        """Counts boots of the machine."""
        self.sync_seconds = 0.0
        """A sync takes about so long."""
        self.is_full = False
        self.failing_syncs = 0
        """So many of the next syncs fail."""
        self.is_off = False
        """Every call fails: the run is over."""
        self.is_dead = False
        """The process died within a call: nothing of it changes a file any more."""
        self.calls = 0
        """Calls that changed something."""
        self.descriptors: dict[int, str] = {}
        """Those that are open, with their paths."""
        self.index_files: list[IndexFile] = []
        self.wait: Callable[[float], None] = lambda seconds: None
        """Lets virtual time pass in a sync."""
        self.unwind: Callable[[], None] = lambda: None
        """Ends what threads of the dead process were at."""
        self._random = chance
        self._trace = trace
        self._countdown = 0
        self._kill: Callable[[], None] = lambda: None
        self._synced: dict[int, bytes] = {}
        self._lost: dict[int, dict[int, bytes]] = {}
        """Of failed syncs: inode to page to its bytes, which are not on the disk."""
        self._names: dict[str, Names] = {}
        self._changes: dict[str, list[Change]] = {}

    # -- the life of the process --------------------------------------------------------------
    def die_at(self, calls: int, kill: Callable[[], None]) -> None:
        """Let the process die in its so many-th change of a file from now: before it, after it,
        or with a write half done. ``kill`` is called first, then :class:`Died` is raised there."""
        self._countdown, self._kill = calls, kill

    def killed(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        self._countdown = 0
        self.is_dead = True
        self.unwind()
        self.is_dead = False
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.root / "lock")
            StoreLock._held.discard((found.st_dev, found.st_ino))
        for file in self.index_files:
            file._descriptor = -1
        self.index_files.clear()
        for descriptor in list(self.descriptors):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors.clear()

    def crashed(self, keep: float | None = None) -> None:
        """The machine is gone, and up again: what was not synced is there in part, ``keep`` of
        it."""
        self.killed()
        self.boot += 1
        if keep is None:
            keep = self._random.choice((0.0, 0.0, 0.2, 0.5, 0.9, 1.0))
        self._lost.clear()
        self._crash_folder(str(self.root), keep)
        self._trace.add(f"disk of {self.root.name} lost what was not synced, kept {keep}")

    def wipe(self) -> None:
        """An operator empties the folder, while no process uses it."""
        for name, (_inode, is_folder) in self._listing(str(self.root)).items():
            _remove(f"{self.root}/{name}", is_folder=is_folder)
        for known in (self._synced, self._lost, self._names, self._changes):
            known.clear()

    # -- what calls do --------------------------------------------------------------------------
    def begin(self, change: Callable[[], object] | None = None) -> bool:
        """A call is about to change a file; ``change`` does a part of it. False: go on."""
        if self.is_dead:
            raise Died
        if self.is_off:
            raise OSError(errno.EIO, "the simulation is over")
        self.calls += 1
        if not self._countdown:
            return False
        self._countdown -= 1
        if self._countdown:
            return False
        if change is not None and self._random.random() < 0.6:
            with contextlib.suppress(OSError):
                change()
        self.is_dead = True
        self._trace.add(f"dies in change {self.calls} of its files")
        self._kill()
        raise Died

    def changed(self, path: str, entry: Entry | None, gone: str = "") -> None:
        """A name appeared, or went (None); ``gone``: that of the same folder it had before."""
        folder, name = os.path.split(path)
        change: Change = {name: entry}
        if gone and os.path.dirname(gone) == folder:
            change[os.path.basename(gone)] = None
        elif gone:
            self.changed(gone, None)
        self._changes.setdefault(folder, []).append(change)

    def room(self, descriptor: int, position: int, size: int) -> int:
        """How many of ``size`` bytes fit on a full disk: into pages that are there."""
        end = position
        while end < position + size:
            page = end // PAGE_BYTES * PAGE_BYTES
            try:
                found = os.lseek(descriptor, page, os.SEEK_DATA)
            except OSError:
                break
            if found >= page + PAGE_BYTES:
                break
            end = page + PAGE_BYTES
        return min(end - position, size)

    def sync(self, descriptor: int, path: str) -> None:
        """``fsync`` of a file or folder."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            names = self._listing(path)
            self._pass_time()
            self._sync_folder(path, names)
            return
        data = _content(descriptor, status.st_size)
        known = self._synced.get(status.st_ino)
        if known == data and status.st_ino not in self._lost:
            return
        self._pass_time()
        if self._is_failing():
            self._lose(status.st_ino, data)
            raise OSError(errno.EIO, "the disk failed", path)
        self._synced[status.st_ino] = self._without_lost(status.st_ino, data)

    def _pass_time(self) -> None:
        if self.sync_seconds:
            self.wait(self.sync_seconds * self._random.uniform(0.5, 1.5))

    def _is_failing(self) -> bool:
        if not self.failing_syncs:
            return False
        self.failing_syncs -= 1
        self._trace.add("a sync fails")
        return True

    def written(self, descriptor: int, position: int, size: int) -> None:
        """These pages are dirty, and the next sync brings them to the disk."""
        lost = self._lost.get(os.fstat(descriptor).st_ino) if self._lost else None
        if lost:
            first = position // PAGE_BYTES * PAGE_BYTES
            for page in range(first, position + size, PAGE_BYTES):
                lost.pop(page, None)

    def _sync_folder(self, path: str, names: Names) -> None:
        if self._is_failing():
            raise OSError(errno.EIO, "the disk failed", path)
        self._names[path] = names
        self._changes.pop(path, None)
        while path != str(self.root):
            inode = os.stat(path).st_ino
            path, name = os.path.split(path)
            self._names.setdefault(path, {})[name] = (inode, True)

    def _lose(self, inode: int, data: bytes) -> None:
        known = self._synced.get(inode, b"")
        lost = self._lost.setdefault(inode, {})
        for at in range(0, len(data), PAGE_BYTES):
            page = data[at : at + PAGE_BYTES]
            if page != known[at : at + PAGE_BYTES]:
                lost[at] = page

    def _without_lost(self, inode: int, data: bytes) -> bytes:
        lost = self._lost.get(inode)
        if not lost:
            return data
        known, mixed = self._synced.get(inode, b""), bytearray(data)
        for at, page in lost.items():
            if data[at : at + PAGE_BYTES] == page:
                mixed[at : at + PAGE_BYTES] = known[at : at + PAGE_BYTES].ljust(len(page), b"\0")
        return bytes(mixed)

    # -- what a crash leaves --------------------------------------------------------------------
    @staticmethod
    def _listing(path: str) -> Names:
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            return {each.name: (each.inode(), each.is_dir()) for each in entries}
        return {}

    def _crash_folder(self, path: str, keep: float) -> None:
        known, now = self._names.get(path, {}), self._listing(path)
        final = self._names_left(path, known, now, keep)
        by_inode = {inode: name for name, (inode, _) in now.items()}
        back: dict[str, bytes] = {}
        for name, (inode, is_folder) in final.items():
            if now.get(name) != (inode, is_folder) and not is_folder:
                source = by_inode.get(inode)
                data = Path(path, source).read_bytes() if source else b""
                back[name] = self._mixed(inode, data, keep if source else 0.0)
        for name, entry in now.items():
            if final.get(name) != entry:
                _remove(f"{path}/{name}", is_folder=entry[1])
        for name in sorted(final):
            inode, is_folder = final[name]
            target = f"{path}/{name}"
            if is_folder:
                if now.get(name) != (inode, True):
                    _mkdir(target)
                self._crash_folder(target, keep)
            elif name in back:
                _rewrite(target, back[name])
                self._synced[_stat(target).st_ino] = back[name]
            else:
                data = Path(target).read_bytes()
                left = self._mixed(inode, data, keep)
                if left != data:
                    # Another file of that name: maps of the dead process keep theirs.
                    _unlink(target)
                    _rewrite(target, left)
                self._synced[_stat(target).st_ino] = left
        self._names[path] = self._listing(path)
        self._changes.pop(path, None)

    def _names_left(self, path: str, known: Names, now: Names, keep: float) -> Names:
        """The names of a folder after a crash."""
        changes = self._changes.pop(path, [])
        told: dict[str, Entry | None] = dict(known)
        for change in changes:
            told.update(change)
        made = [name for name in now if told.get(name) != now[name]]
        changes += [{name: now[name]} for name in sorted(made, key=lambda name: now[name][0])]
        changes += [{name: None} for name in sorted(told) if told[name] and name not in now]
        count = len(changes) if keep == 1.0 else 0
        if 0.0 < keep < 1.0:
            count = self._random.randint(0, len(changes))
        left: dict[str, Entry | None] = dict(known)
        for change in changes[:count]:
            left.update(change)
        return {name: entry for name, entry in left.items() if entry is not None}

    def _mixed(self, inode: int, data: bytes, keep: float) -> bytes:
        """What is left of a file that reads ``data``."""
        known = self._synced.get(inode, b"")
        if known == data:
            return data
        size = len(data) if self._random.random() < keep else len(known)
        old = known[:size].ljust(size, b"\0")
        new = data[:size].ljust(size, b"\0")
        parts = []
        for at in range(0, size, PAGE_BYTES):
            stale, fresh = old[at : at + PAGE_BYTES], new[at : at + PAGE_BYTES]
            if stale != fresh and self._random.random() >= keep:
                cut = 0
                if keep and self._random.random() < 0.3:
                    cut = self._random.randrange(PAGE_BYTES // SECTOR_BYTES) * SECTOR_BYTES
                fresh = fresh[:cut] + stale[cut:]
            parts.append(fresh)
        return b"".join(parts)


def _content(descriptor: int, size: int) -> bytes:
    try:
        return _pread(descriptor, size, 0)
    except OSError:
        # Opened for writing alone.
        other = _open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            return _pread(other, size, 0)
        finally:
            _close(other)


def _rewrite(path: str, new: bytes) -> None:
    """Make a file of these bytes; pages of zeros are holes."""
    descriptor = _open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _ftruncate(descriptor, len(new))
        for at in range(0, len(new), PAGE_BYTES):
            page = new[at : at + PAGE_BYTES]
            if any(page):
                _pwrite(descriptor, page, at)
    finally:
        _close(descriptor)


def _remove(path: str, *, is_folder: bool) -> None:
    if not is_folder:
        _unlink(path)
        return
    with os.scandir(path) as entries:
        inside = [(each.path, each.is_dir()) for each in entries]
    for name, is_inner in inside:
        _remove(name, is_folder=is_inner)
    _rmdir(path)
