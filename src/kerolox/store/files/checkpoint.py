"""The checkpoint, abort and lock files: what the last run left, and who holds the store now.

``checkpoint`` (4096 bytes): store timestamps up to which log, queues and index are on disk, 8 bytes
each; the rest is zero. ``abort`` exists while the store is open. RocketMQ leaves it empty; ours
holds the id of the machine's boot. When it is still the same boot, everything written is in the
page cache and only the last write can be torn. ``lock`` holds the word "lock" and an exclusive lock
on its first byte.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import ClassVar

from kerolox.store.files.lock_holder import lock_holder
from kerolox.store.files.mapped_file import opened, sync_path, write_all

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CHECKPOINT_BYTES = 4_096
TIMESTAMP_SLACK_MS = 3_000
"""``StoreCheckpoint.getMinTimestamp`` stays this far behind."""
CLOCK_STEP_MS = 60_000
"""How far a clock is taken to be set back: times further ahead than this are not believed."""


class Checkpoint:
    """The ``checkpoint`` file. Times are store timestamps in milliseconds."""

    _FIELDS = struct.Struct(">qqq")

    def __init__(self, path: str) -> None:
        self.path = path
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.index_timestamp = 0

    @property
    def timestamps(self) -> tuple[int, int, int]:
        """Those of log, queues and index, as the file has them."""
        return self.physic_timestamp, self.logics_timestamp, self.index_timestamp

    @property
    def min_timestamp(self) -> int:
        """Log and queues are on disk up to here (``getMinTimestamp``)."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - TIMESTAMP_SLACK_MS)

    def safe_timestamp(self, now_ms: int) -> int:
        """``min_timestamp``, if that can be: times still to come say nothing, the file or the
        clock is wrong then."""
        limit = self.min_timestamp
        return 0 if limit > now_ms + CLOCK_STEP_MS else limit

    def load(self) -> bool:
        """Read the file; False when there is none, or it is too short to hold anything."""
        try:
            data = Path(self.path).read_bytes()
        except FileNotFoundError:
            return False
        if len(data) < self._FIELDS.size:
            return False
        self.physic_timestamp, self.logics_timestamp, self.index_timestamp = (
            self._FIELDS.unpack_from(data)
        )
        return True

    def flush(self) -> None:
        """Write the times and wait for the disk."""
        data = self._FIELDS.pack(*self.timestamps)
        with opened(self.path, os.O_RDWR | os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size != CHECKPOINT_BYTES:
                os.ftruncate(descriptor, CHECKPOINT_BYTES)
            write_all(descriptor, data, 0)
            os.fdatasync(descriptor)


class AbortFile:
    """The ``abort`` file: there from open to a clean close."""

    def __init__(self, path: str) -> None:
        self.path = path

    @staticmethod
    def boot_id() -> str:
        """What names this boot of the machine; empty where the system has no such thing."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def exists(self) -> bool:
        """The last run did not stop cleanly, or is running."""
        return os.path.exists(self.path)

    def is_same_boot(self) -> bool:
        """The run that left the file was of this boot of the machine."""
        try:
            found = Path(self.path).read_text(encoding="ascii", errors="replace").split()
        except OSError:
            return False
        return bool(found) and found[0] == self.boot_id()

    def create(self) -> None:
        """Write the file with this boot's id, durably. Without space for the id it is left empty:
        that takes no block. OSError: not even that can be.
        """
        try:
            Path(self.path).write_text(f"{self.boot_id()}\n", encoding="ascii")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        sync_path(self.path)

    def begin(self) -> None:
        """Make the file if there is none, without the boot: a recovery that fails must not make
        the next one trust what a loss of power left."""
        Path(self.path).touch()

    def forget_boot(self) -> None:
        """A flush failed: what the page cache has may never reach the disk, so the next recovery
        must not take it for proof. Best effort on a disk that just failed."""
        with contextlib.suppress(OSError):
            os.truncate(self.path, 0)

    def remove(self) -> None:
        """Remove the file: the store stopped cleanly."""
        Path(self.path).unlink(missing_ok=True)


class StoreLock:
    """The ``lock`` file: one process per store.

    Record locks of one process do not exclude each other, so the paths that this process holds
    are remembered as well.
    """

    _held: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._key = (0, 0)

    def acquire(self) -> None:
        """Take the lock; BlockingIOError: another store holds the folder."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.path)
            # Not even opened then: closing any descriptor of a file drops all of the process's
            # record locks on it.
            if (found.st_dev, found.st_ino) in StoreLock._held:
                raise self._refusal("this process")
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        status = os.fstat(descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            is_held = isinstance(error, (BlockingIOError, PermissionError))
            holder = lock_holder(self.path, own=descriptor) if is_held else ""
            os.close(descriptor)
            if is_held:
                raise self._refusal(holder) from None
            raise
        if status.st_size < 4:
            write_all(descriptor, b"lock", 0)
        self._descriptor, self._key = descriptor, (status.st_dev, status.st_ino)
        StoreLock._held.add(self._key)

    @classmethod
    def is_held_here(cls, path: str) -> bool:
        """This process holds the lock of that file. ``FileNotFoundError``: no such file."""
        found = os.stat(path)
        return (found.st_dev, found.st_ino) in cls._held

    def _refusal(self, holder: str) -> BlockingIOError:
        return BlockingIOError(
            f"the store {os.path.dirname(self.path)} is in use by {holder}, which holds "
            f"{self.path}; "
            "stop that broker or choose another folder"
        )

    def release(self) -> None:
        """Give the lock back; idempotent."""
        if self._descriptor < 0:
            return
        StoreLock._held.discard(self._key)
        with contextlib.suppress(OSError):
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0)
        os.close(self._descriptor)
        self._descriptor = -1
