"""The files of a store: opening and recovery, and the end of files that are too old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.kernel.values import RecoveryReport


class StoreFiles(Protocol):
    """Opening, which recovers; flushing everything; closing."""

    def open(self) -> RecoveryReport:
        """Lock the folder, load the files, recover, start the helper threads.

        Raises ``OSError`` (``BlockingIOError`` when another process holds the store,
        ``PermissionError`` when it can't be written) or ``ValueError`` (a file whose size is not
        the configured one, or a missing file of the log: one with others on both sides of it, or
        the last after a clean stop; the text names the file, its size and the setting).
        """

    def close(self) -> None:
        """Flush, write the checkpoint, remove the abort file, release the lock. Idempotent.

        Raises:
            OSError: what waited in the transient store pool could not be written; it is closed all
                the same. The native kernel raises after any flush that failed.
        """

    def flush(self) -> int:
        """Flush everything now, queues, index and checkpoint too; the new flushed offset."""

    @property
    def notify_fd(self) -> int:
        """A descriptor that becomes readable when ``drain_ready`` or ``flushed_offset`` moved, or
        a flush failed.

        Read it empty (8 bytes) before looking.
        """

    def set_clock(self, now_ms: int | None) -> None:
        """Freeze the clock at ``now_ms`` for store timestamps (tests); None thaws it."""

    @property
    def trouble(self) -> str:
        """Why the store takes no writes, or refused the last one: file, error, what to do. Also
        why the index lacks keys. Empty: nothing is wrong."""

    @property
    def transient_buffers(self) -> int:
        """Buffers of the transient store pool that belong to no file
        (``remainTransientStoreBufferNumbs``); -1 without a pool. At 0 every send takes the slow
        path: the handler refuses it (``isTransientStorePoolDeficient``)."""


class StoreRetention(Protocol):
    """The steps by which files end; when, and which, the broker says."""

    def log_files(self) -> list[tuple[str, int, int]]:
        """(path, physical offset of its first byte, size) of each commit log file, oldest first."""

    def drop_log_file(self) -> str | None:
        """Take the oldest commit log file out of the store, which then begins at the next one.

        Gives its path, for the caller to unlink before the next file is dropped: so a crash in
        between leaves a log without a gap. None: it is the only one, which stays.
        """

    def expire_queue(self, topic: str, queue_id: int, most: int) -> int:
        """Delete up to ``most`` files of a queue whose last entry is of a record that the log no
        longer has, oldest first and never the last (``deleteExpiredFile``), and move its min
        offset to the first message that the log has. How many files; 0 also without such a queue.

        Raises ``OSError`` when a file can't be read or deleted; those before it are gone.
        """

    def expire_index(self) -> list[str]:
        """Take those index files out of the store that know no record that the log still has,
        never the newest; their paths, for the caller to unlink."""

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Physical offset behind the record of a queue's last entry (``getLastOffset``); -1 when
        there is none."""

    def delete_queues(self, topic: str) -> int:
        """Delete a topic's consume queue files; how many queues there were."""

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        """Delete one queue and its files; whether it had any. It begins anew at offset 0."""

    def set_full_log_paths(self, paths: Sequence[str]) -> None:
        """Folders of ``storePathCommitLog`` whose disk is nearly full: no new file of the log is
        made there unless all are. Replaces what was set before; each is written as in the
        settings."""
